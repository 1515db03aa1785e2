//! Switches a sick tier off, and lets one job through now and then to see whether it has recovered. Each of these that fails doubles the time to
//! the next, for the request that waits for it is worse off than without the tier.

use std::time::Duration;

use terrace_config::BreakerConfig;
use terrace_tiers::Time;

/// Whether a tier is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// In use.
    Closed,
    /// Off until its cooldown is over.
    Open,
    /// One job may go, or is on its way; its result decides.
    HalfOpen,
}

/// How a job ended, as to the health of its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The device did what it was asked.
    Good,
    /// The tier answered, with nothing that speaks for or against its device.
    Neutral,
    /// The device failed, or the job ran out of time.
    Bad,
    /// The manager took the job back.
    Withdrawn,
}

/// How often the time between probes is doubled.
const DOUBLINGS: u32 = 3;

pub(crate) struct Breaker {
    failures: u32,
    cooldown: Duration,
    state: State,
    /// Times that it opened since it was closed.
    in_row: u32,
    /// Times it opened.
    pub opened: u64,
}

enum State {
    Closed { failed_in_row: u32 },
    Open { until: Time },
    HalfOpen { probe: Option<u64> },
}

impl Breaker {
    pub fn new(config: &BreakerConfig) -> Self {
        let state = State::Closed { failed_in_row: 0 };
        Self { failures: config.failures.max(1), cooldown: config.cooldown, state, in_row: 0, opened: 0 }
    }

    /// Whether a job may go now.
    pub fn allows(&mut self, now: Time) -> bool {
        if let State::Open { until } = self.state
            && now >= until
        {
            self.state = State::HalfOpen { probe: None };
        }
        matches!(self.state, State::Closed { .. } | State::HalfOpen { probe: None })
    }

    /// Whether it is off, and its cooldown is not over.
    pub fn is_open(&self, now: Time) -> bool {
        matches!(self.state, State::Open { until } if now < until)
    }

    /// A job went.
    pub fn submitted(&mut self, job: u64) {
        if let State::HalfOpen { probe } = &mut self.state {
            *probe = Some(job);
        }
    }

    /// A job ended. True if that opened the breaker.
    pub fn ended(&mut self, job: u64, verdict: Verdict, now: Time) -> bool {
        let opens = match (&mut self.state, verdict) {
            (State::Closed { failed_in_row }, Verdict::Bad) => {
                *failed_in_row += 1;
                *failed_in_row >= self.failures
            }
            (State::Closed { failed_in_row }, Verdict::Good) => {
                *failed_in_row = 0;
                false
            }
            (State::HalfOpen { probe }, verdict) if *probe == Some(job) => match verdict {
                Verdict::Bad => true,
                // The tier answered in time: that is what the probe was to find out.
                Verdict::Good | Verdict::Neutral => {
                    self.state = State::Closed { failed_in_row: 0 };
                    self.in_row = 0;
                    false
                }
                Verdict::Withdrawn => {
                    *probe = None;
                    false
                }
            },
            // Jobs from before it opened prove nothing about now.
            _ => false,
        };
        if opens {
            self.open(now);
        }
        opens
    }

    /// The tier hangs, or is of no use: off with it. False: it is off.
    pub fn trip(&mut self, now: Time) -> bool {
        let trips = !matches!(self.state, State::Open { .. });
        if trips {
            self.open(now);
        }
        trips
    }

    fn open(&mut self, now: Time) {
        let cooldown = self.cooldown.saturating_mul(1 << self.in_row.min(DOUBLINGS));
        self.state = State::Open { until: now.plus(cooldown) };
        self.in_row = self.in_row.saturating_add(1);
        self.opened += 1;
    }

    /// Whether one job is on its way whose result decides.
    pub fn is_probing(&self) -> bool {
        matches!(self.state, State::HalfOpen { probe: Some(_) })
    }

    /// Whether this job is that one.
    pub fn is_probe(&self, job: u64) -> bool {
        matches!(self.state, State::HalfOpen { probe: Some(probe) } if probe == job)
    }

    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn breaker() -> Breaker {
        Breaker::new(&BreakerConfig {
            failures: 3,
            cooldown: Duration::from_secs(5),
            slow_factor: 30,
            stall: Duration::from_secs(2),
        })
    }

    fn opened() -> Breaker {
        let mut breaker = breaker();
        (0..3).for_each(|job| {
            breaker.ended(job, Verdict::Bad, Time(0));
        });
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_only() {
        let mut breaker = breaker();
        for verdict in [Verdict::Bad, Verdict::Bad, Verdict::Good, Verdict::Bad, Verdict::Neutral, Verdict::Bad] {
            assert!(!breaker.ended(1, verdict, Time(0)));
        }
        assert!(breaker.ended(1, Verdict::Bad, Time(0)));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.allows(Time(5 * SECOND - 1)));
        assert!(breaker.allows(Time(5 * SECOND)));
    }

    #[test]
    fn one_probe_decides() {
        let now = Time(5 * SECOND);
        for (verdict, state) in [
            (Verdict::Bad, BreakerState::Open),
            (Verdict::Good, BreakerState::Closed),
            (Verdict::Neutral, BreakerState::Closed),
            (Verdict::Withdrawn, BreakerState::HalfOpen),
        ] {
            let mut breaker = opened();
            assert!(breaker.allows(now));
            breaker.submitted(9);
            assert!(!breaker.allows(now), "one probe at a time");
            breaker.ended(2, Verdict::Good, now); // an older job's result is no probe's
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
            breaker.ended(9, verdict, now);
            assert_eq!(breaker.state(), state);
            assert_eq!(breaker.allows(now), verdict != Verdict::Bad);
        }
    }

    #[test]
    fn each_probe_that_fails_doubles_the_time_to_the_next() {
        let (mut breaker, mut now) = (opened(), Time(0));
        for seconds in [5, 10, 20, 40, 40] {
            assert!(!breaker.allows(Time(now.0 + seconds * SECOND - 1)));
            now = Time(now.0 + seconds * SECOND);
            assert!(breaker.allows(now));
            breaker.submitted(now.0);
            assert!(breaker.is_probe(now.0) && breaker.trip(now) && !breaker.trip(now));
        }
        now = Time(now.0 + 40 * SECOND);
        assert!(breaker.allows(now));
        breaker.submitted(1);
        breaker.ended(1, Verdict::Good, now);
        assert!(
            breaker.trip(now) && breaker.allows(Time(now.0 + 5 * SECOND)),
            "a probe that went well forgets all that"
        );
    }
}
