//! Switches a sick tier off, and lets jobs through now and then to see whether it has recovered: one at first, then one more at a time with each that
//! is good, for a device that is slow serves a single job well enough. When one fails the time to the next doubles: requests that wait for it are
//! worse off than without the tier.

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
    /// A few jobs may go, or are on their way; their results decide.
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
/// Probes that have to be good. As many may be on their way as were good so far, and one.
const PROBES: usize = 8;

pub(crate) struct Breaker {
    failures: u32,
    cooldown: Duration,
    state: State,
    /// Times that it opened without having been closed for long.
    in_row: u32,
    closed_at: Time,
    /// Times it opened.
    pub opened: u64,
}

enum State {
    Closed { failed_in_row: u32 },
    Open { until: Time },
    HalfOpen { good: usize, probes: Vec<u64> },
}

impl Breaker {
    pub fn new(config: &BreakerConfig) -> Self {
        let state = State::Closed { failed_in_row: 0 };
        let failures = config.failures.max(1);
        Self { failures, cooldown: config.cooldown, state, in_row: 0, closed_at: Time::default(), opened: 0 }
    }

    /// Whether a job may go now.
    pub fn allows(&mut self, now: Time) -> bool {
        if let State::Open { until } = self.state
            && now >= until
        {
            self.state = State::HalfOpen { good: 0, probes: Vec::new() };
        }
        !matches!(self.state, State::Open { .. }) && !self.is_probing()
    }

    /// Whether it is off, and its cooldown is not over.
    pub fn is_open(&self, now: Time) -> bool {
        matches!(self.state, State::Open { until } if now < until)
    }

    /// A job went.
    pub fn submitted(&mut self, job: u64) {
        if let State::HalfOpen { probes, .. } = &mut self.state {
            probes.push(job);
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
            (State::HalfOpen { good, probes }, verdict) if probes.contains(&job) => {
                probes.retain(|probe| *probe != job);
                // A tier that answered in time: that is what the probe was to find out.
                *good += usize::from(matches!(verdict, Verdict::Good | Verdict::Neutral));
                if *good >= PROBES {
                    self.state = State::Closed { failed_in_row: 0 };
                    self.closed_at = now;
                }
                verdict == Verdict::Bad
            }
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
        // It has been well for longer than it is ever off.
        if matches!(self.state, State::Closed { .. })
            && now.since(self.closed_at) > self.cooldown.saturating_mul(1 << DOUBLINGS)
        {
            self.in_row = 0;
        }
        let cooldown = self.cooldown.saturating_mul(1 << self.in_row.min(DOUBLINGS));
        self.state = State::Open { until: now.plus(cooldown) };
        self.in_row = self.in_row.saturating_add(1);
        self.opened += 1;
    }

    /// Whether as many jobs are on their way as may be before their results are known.
    pub fn is_probing(&self) -> bool {
        matches!(&self.state, State::HalfOpen { good, probes } if probes.len() > *good)
    }

    /// Whether this job is one of those whose results decide.
    pub fn is_probe(&self, job: u64) -> bool {
        matches!(&self.state, State::HalfOpen { probes, .. } if probes.contains(&job))
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
            slow_factor: 10,
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

    /// So many probes that went well, one after the other.
    fn good(breaker: &mut Breaker, probes: u64, now: Time) {
        for job in 1_000..1_000 + probes {
            assert!(breaker.allows(now));
            breaker.submitted(job);
            assert!(breaker.is_probe(job) && !breaker.ended(job, Verdict::Good, now));
        }
    }

    #[test]
    fn the_first_probe_is_alone() {
        let now = Time(5 * SECOND);
        for (verdict, state) in [
            (Verdict::Bad, BreakerState::Open),
            (Verdict::Good, BreakerState::HalfOpen),
            (Verdict::Neutral, BreakerState::HalfOpen),
            (Verdict::Withdrawn, BreakerState::HalfOpen),
        ] {
            let mut breaker = opened();
            assert!(breaker.allows(now));
            breaker.submitted(9);
            assert!(!breaker.allows(now), "one probe at first");
            breaker.ended(2, Verdict::Good, now); // an older job's result is no probe's
            assert!(!breaker.allows(now));
            breaker.ended(9, verdict, now);
            assert_eq!((breaker.state(), breaker.allows(now)), (state, verdict != Verdict::Bad));
        }
    }

    #[test]
    fn each_good_probe_lets_one_more_through_until_it_is_closed() {
        let (mut breaker, now) = (opened(), Time(5 * SECOND));
        for probes in 1..=PROBES as u64 {
            assert_eq!(breaker.state(), if probes == 1 { BreakerState::Open } else { BreakerState::HalfOpen });
            for job in 0..probes {
                assert!(breaker.allows(now), "{job} of {probes}");
                breaker.submitted(job);
            }
            assert!(!breaker.allows(now), "no more than {probes}");
            (1..probes).for_each(|job| assert!(!breaker.ended(job, Verdict::Withdrawn, now)));
            assert!(!breaker.ended(0, Verdict::Good, now));
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn each_probe_that_fails_doubles_the_time_to_the_next() {
        let (mut breaker, mut now) = (opened(), Time(0));
        for seconds in [5, 10, 20, 40, 40] {
            assert!(!breaker.allows(Time(now.0 + seconds * SECOND - 1)));
            now = Time(now.0 + seconds * SECOND);
            good(&mut breaker, 3, now);
            breaker.submitted(1);
            assert!(breaker.trip(now) && !breaker.trip(now));
        }
        for (closed_for, seconds) in [(40, 40), (41, 5)] {
            now = Time(now.0 + 40 * SECOND);
            good(&mut breaker, PROBES as u64, now);
            assert_eq!(breaker.state(), BreakerState::Closed);
            now = Time(now.0 + closed_for * SECOND);
            assert!(breaker.trip(now));
            assert!(!breaker.allows(Time(now.0 + seconds * SECOND - 1)), "{closed_for} s are soon");
            assert!(breaker.allows(Time(now.0 + seconds * SECOND)));
        }
    }
}
