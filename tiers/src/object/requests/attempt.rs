//! One attempt after the other, until one succeeds, none can help, or the deadline is there.

use std::time::Duration;

use tokio::time::{sleep, timeout_at};

use super::error::Failure;
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;
use crate::object::counters::Counter;
use crate::object::limiter::Permit;

/// A request is sent again at most so often.
pub(super) const RETRIES: u32 = 4;
/// First pause before another attempt; doubles with each. What is really waited is random, between half of it and all.
const PAUSE: Duration = Duration::from_millis(20);
/// The same when the store tells to slow down.
const PAUSE_THROTTLED: Duration = Duration::from_millis(100);
/// A read that has not been answered after half the time that is left is sent again on another connection; but not sooner than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// What all attempts of a request have in common.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub class: Class,
    pub direction: Direction,
    /// Counts the attempts.
    pub counter: &'a Counter,
    pub deadline: Time,
}

/// How often a request was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Whether it was sent more than once: then an earlier attempt may have been done although it was not answered.
    pub const fn repeated(self) -> bool {
        self.0 > 1
    }

    /// It was sent this many times.
    pub fn after(attempts: usize) -> Self {
        Self(u32::try_from(attempts).unwrap_or(u32::MAX))
    }
}

impl Requests {
    /// Waits for a slot of the budget and a place, and counts the attempt.
    pub(super) async fn admit(&self, call: &Call<'_>, tries: &mut Tries) -> Result<Permit, RequestError> {
        let now = self.inner.clock.now();
        if now >= call.deadline {
            return Err(RequestError::Deadline);
        }
        let Some(wait) = self.budget(call.direction).slot(now, call.deadline) else {
            self.inner.counters.over_budget.bump();
            return Err(RequestError::OverBudget);
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let turn = timeout_at(self.instant(call.deadline), self.inner.limiter.acquire(call.class)).await;
        let permit = turn.map_err(|_| RequestError::Deadline)?.ok_or(RequestError::Closed)?;
        if tries.0 > 0 {
            self.inner.counters.retries.bump();
        }
        tries.0 += 1;
        call.counter.bump();
        Ok(permit)
    }

    /// Waits for what was sent, to the deadline at most.
    pub(super) async fn answer<T>(
        &self,
        call: &Call<'_>,
        sent: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T, Failure> {
        let reading = call.direction == Direction::Read;
        let left = call.deadline.since(self.inner.clock.now());
        let patience = if reading { self.patience(call.deadline) } else { left };
        // An upload may well be on its way for seconds.
        if reading {
            self.inner.pulse.sent(self.inner.clock.now());
        }
        let failure = match timeout_at(self.instant(self.inner.clock.now().plus(patience)), sent).await {
            Ok(Ok(answer)) => {
                self.inner.pulse.heard();
                return Ok(answer);
            }
            Ok(Err(error)) => {
                let failure = Failure::of(&error, reading);
                if failure.is_answer() {
                    self.inner.pulse.heard();
                }
                failure
            }
            Err(_) => self.silent(call.deadline, patience),
        };
        self.judge(&failure);
        Err(failure)
    }

    /// How long a read waits for something to come before it is sent again.
    pub(super) fn patience(&self, deadline: Time) -> Duration {
        let left = deadline.since(self.inner.clock.now());
        (left / 2).max(PATIENCE.min(left))
    }

    /// Nothing came while it was waited for. A store that was given no time is not to blame.
    pub(super) fn silent(&self, deadline: Time, patience: Duration) -> Failure {
        let mut failure = Failure::silent();
        failure.slow_down = patience >= PATIENCE;
        if self.inner.clock.now() >= deadline {
            failure.error = RequestError::Deadline;
            failure.again = false;
        }
        failure
    }

    /// Counts a failed attempt and slows down if the store needs that.
    pub(super) fn judge(&self, failure: &Failure) {
        if failure.error == RequestError::Throttled {
            self.inner.counters.throttled.bump();
        }
        if failure.slow_down {
            self.inner.limiter.slow_down();
        }
    }

    /// Pauses before the next attempt; or says what the request ends with, because another would not help, or be too late.
    pub(super) async fn again(&self, call: &Call<'_>, tries: Tries, failure: Failure) -> Result<(), RequestError> {
        if !failure.again || tries.0 > RETRIES {
            return Err(failure.error);
        }
        let first = if failure.error == RequestError::Throttled { PAUSE_THROTTLED } else { PAUSE };
        let pause = first * (1 << tries.0.saturating_sub(1).min(RETRIES));
        let pause = pause / 2 + Duration::from_nanos(self.random() % (pause.as_nanos() as u64 / 2).max(1));
        if self.inner.clock.now().plus(pause) >= call.deadline {
            // There is no time for another: what is known now says more than that.
            return Err(failure.error);
        }
        sleep(pause).await;
        Ok(())
    }

    /// Sends until there is an answer. The place is held until the permit is dropped.
    pub(super) async fn attempts<T, F>(
        &self,
        call: &Call<'_>,
        tries: &mut Tries,
        mut send: impl FnMut() -> F + Send,
    ) -> Result<(T, Permit), RequestError>
    where
        F: Future<Output = object_store::Result<T>> + Send,
    {
        loop {
            let permit = self.admit(call, tries).await?;
            match self.answer(call, send()).await {
                Ok(answer) => return Ok((answer, permit)),
                Err(failure) => {
                    drop(permit);
                    self.again(call, *tries, failure).await?;
                }
            }
        }
    }
}
