//! Ranged reads: the answer that comes first, handed on as it comes, and gone on with when it breaks.

use std::ops::Range;
use std::pin::{Pin, pin};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult};
use tokio::time::{Sleep, sleep_until, timeout};

use super::attempt::{Call, Tries};
use super::error::Failure;
use super::{Class, Direction, RequestError, Requests};
use crate::clock::Time;
use crate::object::limiter::Permit;

/// The bytes of a range, as they come. Holds a place in the limiter until it has ended or is dropped.
pub(crate) struct Body {
    requests: Requests,
    path: Path,
    /// What is still to come.
    rest: Range<u64>,
    /// Taken out of the day's budget and not received.
    reserved: u64,
    object_bytes: u64,
    /// `None`: ended, well or not.
    open: Option<Open>,
    failed: bool,
    tries: Tries,
    deadline: Time,
    /// Rings when the patience with this connection is over, unless something has come since it was set.
    bell: Pin<Box<Sleep>>,
    /// Where `rest` began when the bell was set.
    marked: u64,
}

struct Open {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    permit: Permit,
}

impl Requests {
    /// Reads a range of an object, for a load. Hedged; see [`Body`] for what follows. Takes the range's length out of the day's
    /// budget; what does not come is given back.
    ///
    /// # Errors
    /// [`RequestError::Truncated`] if the range is empty or reaches beyond the end of the object.
    pub async fn get_range(&self, path: &Path, range: Range<u64>, deadline: Time) -> Result<Body, RequestError> {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 {
            return Err(RequestError::Truncated);
        }
        self.ended(self.take_bytes(Direction::Read, bytes))?;
        let mut body = Body {
            requests: self.clone(),
            path: path.clone(),
            rest: range,
            reserved: bytes,
            object_bytes: 0,
            open: None,
            failed: false,
            tries: Tries::default(),
            deadline,
            bell: Box::pin(sleep_until(self.instant(deadline))),
            marked: 0,
        };
        self.ended(body.reopen().await)?;
        Ok(body)
    }
}

impl Body {
    /// The next bytes, in order, without a copy. `None`: the whole range was given. After an error, only errors follow. A
    /// connection that breaks is replaced by another that reads the rest, as often as a request is tried at all.
    ///
    /// # Errors
    /// [`RequestError::Truncated`] if the store gives less or more than the range, [`RequestError::Deadline`] if it stalls.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        let outcome = self.advance().await;
        if outcome.is_err() {
            self.open = None;
            self.failed = true;
        }
        self.requests.ended(outcome)
    }

    /// Size of the whole object, as the store tells it.
    pub const fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    async fn advance(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            let Some(open) = &mut self.open else {
                let whole = self.rest.is_empty() && !self.failed;
                return if whole { Ok(None) } else { Err(RequestError::Truncated) };
            };
            let frame = tokio::select! {
                biased;
                frame = open.stream.next() => Some(frame),
                () = &mut self.bell => None,
            };
            let Some(frame) = frame else {
                self.rung().await?;
                continue;
            };
            let failure = match frame {
                Some(Ok(bytes)) if bytes.is_empty() => continue,
                Some(Ok(bytes)) => return self.received(bytes).map(Some),
                // The stream is read to its end even when all bytes are there: only then the connection can be used again.
                None if self.rest.is_empty() => {
                    if let Some(open) = self.open.take() {
                        open.permit.good();
                    }
                    return Ok(None);
                }
                None => Failure::truncated(),
                Some(Err(error)) if self.rest.is_empty() => {
                    // Nothing is missing. The connection is gone, that is all.
                    tracing::debug!(%error, "a connection broke behind the last byte");
                    self.open = None;
                    return Ok(None);
                }
                Some(Err(error)) => Failure::of(&error, true),
            };
            self.go_on(failure).await?;
        }
    }

    /// Gives this connection up and reads the rest from another.
    async fn go_on(&mut self, failure: Failure) -> Result<(), RequestError> {
        self.open = None;
        let requests = self.requests.clone();
        requests.judge(&failure);
        requests.again(&self.call(&requests), self.tries, failure).await?;
        self.reopen().await
    }

    fn call<'a>(&self, requests: &'a Requests) -> Call<'a> {
        let counter = &requests.inner.counters.gets;
        Call { class: Class::Load, direction: Direction::Read, counter, deadline: self.deadline }
    }

    /// The bell rang while nothing came.
    async fn rung(&mut self) -> Result<(), RequestError> {
        if self.requests.inner.clock.now() >= self.deadline {
            self.requests.inner.limiter.slow_down();
            return Err(RequestError::Deadline);
        }
        if self.rest.start == self.marked {
            return self.go_on(Failure::silent()).await;
        }
        self.set_bell();
        Ok(())
    }

    fn set_bell(&mut self) {
        self.marked = self.rest.start;
        let patience = self.requests.patience(self.deadline);
        self.bell.as_mut().reset(self.requests.instant(self.requests.inner.clock.now().plus(patience)));
    }

    fn received(&mut self, bytes: Bytes) -> Result<Bytes, RequestError> {
        let count = bytes.len() as u64;
        self.requests.inner.counters.read_bytes.add(count);
        self.requests.inner.pulse.heard();
        self.reserved = self.reserved.saturating_sub(count);
        if count > self.rest.end.saturating_sub(self.rest.start) {
            return Err(RequestError::Truncated);
        }
        self.rest.start += count;
        Ok(bytes)
    }

    /// Asks for the rest, until there is an answer.
    async fn reopen(&mut self) -> Result<(), RequestError> {
        let requests = self.requests.clone();
        let call = self.call(&requests);
        loop {
            let permit = requests.admit(&call, &mut self.tries).await?;
            let mut places = (Some(permit), None);
            let answer = requests.answer(&call, requests.race(&self.path, &self.rest, &mut places)).await;
            let failure = match answer {
                Ok((result, won)) => {
                    let permit = if won { places.1.take() } else { places.0.take() };
                    if let Some(permit) = permit.filter(|_| result.range == self.rest) {
                        self.object_bytes = result.meta.size;
                        self.open = Some(Open { stream: result.into_stream(), permit });
                        self.set_bell();
                        return Ok(());
                    }
                    Failure::truncated()
                }
                Err(failure) => failure,
            };
            drop(places);
            requests.again(&call, self.tries, failure).await?;
        }
    }

    /// Whether all bytes were given.
    #[cfg(test)]
    pub const fn has_ended(&self) -> bool {
        self.open.is_none()
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.requests.inner.reads.give_back(self.reserved);
    }
}

impl Requests {
    /// The answer to a ranged GET, and whether it is that to the second: sent when the first is late, if there is a place and a share
    /// for it. `places`: of the first, and of the second once it is sent.
    async fn race(
        &self,
        path: &Path,
        range: &Range<u64>,
        places: &mut (Option<Permit>, Option<Permit>),
    ) -> object_store::Result<(GetResult, bool)> {
        let ask = || {
            let range = Some(GetRange::Bounded(range.clone()));
            self.inner.store.get_opts(path, GetOptions { range, ..GetOptions::default() })
        };
        let begun = self.inner.clock.now();
        let mut first = pin!(ask());
        let Some(late) = self.inner.hedge.begin() else { return first.await.map(|result| (result, false)) };
        let early = timeout(late, first.as_mut()).await;
        let outcome = match early {
            Ok(outcome) => outcome.map(|result| (result, false)),
            Err(_) => match self.hedge_place() {
                None => first.await.map(|result| (result, false)),
                Some(place) => {
                    places.1 = Some(place);
                    match select(first, pin!(ask())).await {
                        Either::Left((Ok(result), _)) => Ok((result, false)),
                        Either::Left((Err(_), second)) => second.await.map(|result| (result, true)),
                        Either::Right((Ok(result), _)) => Ok((result, true)),
                        Either::Right((Err(_), first)) => first.await.map(|result| (result, false)),
                    }
                }
            },
        };
        if let Ok((_, won)) = &outcome {
            self.inner.hedge.answered(self.inner.clock.now().since(begun));
            if *won {
                self.inner.counters.hedges_won.bump();
            }
        }
        outcome
    }

    /// A place for a second request. It waits for nothing, neither a place nor a slot.
    fn hedge_place(&self) -> Option<Permit> {
        let place = self.inner.limiter.try_acquire(Class::Load)?;
        let now = self.inner.clock.now();
        // A slot that is free now is one before the next nanosecond.
        if !self.inner.hedge.spend() || self.inner.reads.slot(now, Time(now.0.saturating_add(1))).is_none() {
            return None;
        }
        self.inner.counters.hedges.bump();
        self.inner.counters.gets.bump();
        Some(place)
    }
}
