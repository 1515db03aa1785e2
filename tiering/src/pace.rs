//! How long a tier usually takes to load, and whether it takes far longer now, or does not answer at all.
//!
//! A tier that still answers, a hundredfold later than it used to, fails nothing, and yet each request that finds its blocks there is worse off
//! than without it. Deadlines are too long for that: they are made for the slowest tier that is still of use. So a tier is compared with itself.

use std::time::Duration;

use terrace_config::BreakerConfig;
use terrace_tiers::Time;

/// Jobs from which on it is known how long the tier takes.
const KNOWN_FROM: u32 = 8;
/// A job counts for one in so many in what is usual.
const MEMORY: u64 = 8;
/// Jobs from which on what is usual changes slowly.
const SETTLED_FROM: u32 = 32;
/// The time in which it may double or halve then. A disk that gets slow does not become the usual before it is found out; one that stays so does.
const DOUBLES_IN: u64 = 60_000_000_000;
/// Nobody minds a wait that is shorter.
const NOTICEABLE: Duration = Duration::from_millis(50);
/// Jobs in a row that have to be slow.
const SLOW_JOBS: u32 = 2;
/// Blocks on their way, by powers of two.
const LEVELS: usize = 24;

/// Of the loads of one tier.
pub(crate) struct Pace {
    slow_factor: u32,
    stall: Duration,
    usual: [Usual; LEVELS],
    jobs: u32,
    /// Jobs in a row that were slow, and when the first of them began.
    slow_jobs: u32,
    slow_since: Time,
    /// Time in which loads ran and nothing came back.
    silent_for: Duration,
    polled: Time,
    /// The poll before: what came with the last one may have been there since then.
    polled_before: Time,
}

/// How long jobs take that begin with so many blocks on their way, their own included.
#[derive(Clone, Copy, Default)]
struct Usual {
    nanos: u64,
    jobs: u32,
    changed: Time,
}

impl Pace {
    pub fn new(config: &BreakerConfig) -> Self {
        Self {
            slow_factor: config.slow_factor,
            stall: config.stall,
            usual: [Usual::default(); LEVELS],
            jobs: 0,
            slow_jobs: 0,
            slow_since: Time::default(),
            silent_for: Duration::ZERO,
            polled: Time::default(),
            polled_before: Time::default(),
        }
    }

    /// The tier was polled. True: loads run, and no block of them has come for `breaker.stall`. Time in which nobody polled counts for
    /// little, for the tier may have stood still with us.
    pub fn polled(&mut self, now: Time, answered: bool, loading: bool) -> bool {
        let gap = now.since(self.polled);
        (self.polled_before, self.polled) = (self.polled, now);
        if answered || !loading {
            self.silent_for = Duration::ZERO;
            return false;
        }
        self.silent_for += gap.min(self.stall / 4);
        !self.stall.is_zero() && self.silent_for >= self.stall
    }

    /// How many times as long as usual is slow.
    pub fn slow_factor(&self) -> u32 {
        self.slow_factor
    }

    /// How long the tier has not answered while loads ran.
    pub fn silent_for(&self) -> Duration {
        self.silent_for
    }

    /// A job that the device served, begun at `since` with so many `blocks` on their way, has ended.
    pub fn ended(&mut self, since: Time, blocks: u32, now: Time) -> Speed {
        let level = level_of(blocks);
        // When it was done is known to lie between two polls: what the engine did meanwhile is not the tier's time.
        let (least, most) = (self.polled_before.since(since), now.since(since));
        let usual = self.expected(level);
        // Without a time after which it counts nothing is slow: one late job would be enough.
        let is_slow = self.slow_factor > 0
            && !self.stall.is_zero()
            && least > NOTICEABLE
            && usual.is_some_and(|usual| least > usual.saturating_mul(self.slow_factor));
        self.learn(level, most, usual.filter(|_| is_slow), now);
        tracing::trace!(blocks, ?least, ?most, ?usual, is_slow, "a load has ended");
        if !is_slow {
            self.slow_jobs = 0;
            return Speed::Usual;
        }
        if self.slow_jobs == 0 {
            self.slow_since = since;
        }
        self.slow_jobs = self.slow_jobs.saturating_add(1);
        let for_long = self.slow_jobs >= SLOW_JOBS && now.since(self.slow_since) >= self.stall;
        if for_long { Speed::SlowForLong } else { Speed::Slow }
    }

    /// The tier is switched off: what was counted so far has had its consequence.
    pub fn forget_trouble(&mut self) {
        self.slow_jobs = 0;
        self.silent_for = Duration::ZERO;
    }

    /// `slow`: what was expected of a job that was slow.
    fn learn(&mut self, level: usize, took: Duration, slow: Option<Duration>, now: Time) {
        let Some(usual) = self.usual.get_mut(level) else { return };
        let took = nanos(took);
        if let Some(expected) = slow
            && usual.jobs == 0
        {
            usual.nanos = nanos(expected);
        }
        let settled = usual.jobs >= SETTLED_FROM || slow.is_some();
        let weight = u64::from(usual.jobs).min(MEMORY - 1);
        let next = usual.nanos.saturating_mul(weight).saturating_add(took) / (weight + 1);
        usual.nanos = if settled { usual.limited(next, now) } else { next };
        usual.changed = now;
        usual.jobs = usual.jobs.saturating_add(1);
        self.jobs = self.jobs.saturating_add(1);
    }

    /// What is usual with so many blocks on their way. Where that was not seen: what the next fewer take, as if each took its turn, or else
    /// what the next more take.
    fn expected(&self, level: usize) -> Option<Duration> {
        if self.jobs < KNOWN_FROM {
            return None;
        }
        let seen = |(_, usual): &(usize, &Usual)| usual.jobs > 0;
        let below = self.usual.iter().enumerate().take(level + 1).rev().find(seen);
        let nanos = match below {
            Some((at, usual)) => usual.nanos.saturating_mul(1 << (level - at)),
            None => self.usual.iter().enumerate().skip(level + 1).find(seen)?.1.nanos,
        };
        Some(Duration::from_nanos(nanos))
    }
}

impl Usual {
    /// `next`, or as near to it as time allows.
    fn limited(&self, next: u64, now: Time) -> u64 {
        let share = nanos(now.since(self.changed)).min(DOUBLES_IN);
        let step = (u128::from(self.nanos) * u128::from(share) / u128::from(DOUBLES_IN)) as u64;
        next.clamp(self.nanos - step / 2, self.nanos.saturating_add(step))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How a job's time compares with what is usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// No reason to complain.
    Usual,
    /// `breaker.slow_factor` times as long, and long enough to be noticed.
    Slow,
    /// The same, as all that have ended since `breaker.stall`.
    SlowForLong,
}

fn level_of(blocks: u32) -> usize {
    (blocks.max(1).ilog2() as usize).min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    fn pace(slow_factor: u32) -> Pace {
        let config =
            BreakerConfig { failures: 5, cooldown: Duration::from_secs(5), slow_factor, stall: Duration::from_secs(2) };
        Pace::new(&config)
    }

    /// A job of so many milliseconds with so many blocks, polled every millisecond.
    fn job(pace: &mut Pace, now: &mut u64, millis: u64, blocks: u32) -> Speed {
        let since = Time(*now);
        *now += (millis - 1) * MILLI;
        pace.polled(Time(*now), true, true);
        *now += MILLI;
        pace.polled(Time(*now), true, true);
        pace.ended(since, blocks, Time(*now))
    }

    #[test]
    fn a_hundredfold_of_what_was_usual_is_slow() {
        let (mut pace, mut now) = (pace(10), 0);
        for _ in 0..20 {
            assert_eq!(job(&mut pace, &mut now, 10, 8), Speed::Usual);
            assert_eq!(job(&mut pace, &mut now, 100, 64), Speed::Usual);
        }
        // More blocks on their way than ever before may take longer in proportion.
        assert_eq!(job(&mut pace, &mut now, 7_000, 512), Speed::Usual);
        assert_eq!(job(&mut pace, &mut now, 95, 8), Speed::Usual, "a bad moment");
        assert_eq!(job(&mut pace, &mut now, 1_500, 8), Speed::Slow);
        assert_eq!(job(&mut pace, &mut now, 10, 8), Speed::Usual, "it ends the row");
        assert_eq!(job(&mut pace, &mut now, 1_500, 8), Speed::Slow);
        assert_eq!(job(&mut pace, &mut now, 1_500, 8), Speed::SlowForLong);
        pace.forget_trouble();
        assert_eq!(
            job(&mut pace, &mut now, 3_000, 8),
            Speed::Slow,
            "one alone is no row, and slow jobs are no new usual"
        );
    }

    #[test]
    fn what_nobody_notices_is_not_slow() {
        let (mut pace, mut now) = (pace(10), 0);
        (0..40).for_each(|_| assert_eq!(job(&mut pace, &mut now, 1, 1), Speed::Usual));
        assert_eq!(job(&mut pace, &mut now, 50, 1), Speed::Usual);
        assert_eq!(job(&mut pace, &mut now, 60, 1), Speed::Slow);
    }

    #[test]
    fn what_is_usual_follows_in_minutes_not_at_once() {
        let (mut pace, mut now) = (pace(10), 0);
        (0..100).for_each(|_| assert_eq!(job(&mut pace, &mut now, 10, 1), Speed::Usual));
        // A second of jobs that take nine times as long, each not slow.
        (0..11).for_each(|_| assert_eq!(job(&mut pace, &mut now, 90, 1), Speed::Usual));
        assert_eq!(job(&mut pace, &mut now, 200, 1), Speed::Slow, "they did not make it usual");
        // A job a minute that is slow, as when it is probed now and then: it gets used to it.
        let mut minutes = 0;
        while job(&mut pace, &mut now, 1_000, 1) != Speed::Usual {
            (now, minutes) = (now + 59_000 * MILLI, minutes + 1);
            assert!(minutes < 10);
        }
        assert!(minutes >= 2, "{minutes}");
    }

    #[test]
    fn nothing_is_slow_before_the_usual_is_known_or_if_nobody_asked() {
        let (mut new, mut unasked, mut now) = (pace(10), pace(0), 0);
        for _ in 0..KNOWN_FROM - 1 {
            assert_eq!(job(&mut new, &mut now, 2, 1), Speed::Usual);
        }
        assert_eq!(job(&mut new, &mut now, 9_000, 1), Speed::Usual);
        let mut without_stall = pace(10);
        without_stall.stall = Duration::ZERO;
        for millis in [2, 2, 2, 2, 2, 2, 2, 2, 9_000, 9_000] {
            assert_eq!(job(&mut unasked, &mut now, millis, 1), Speed::Usual);
            assert_eq!(job(&mut without_stall, &mut now, millis, 1), Speed::Usual);
        }
    }

    #[test]
    fn a_long_step_of_the_engine_is_not_the_tiers_time() {
        let (mut pace, mut now) = (pace(10), 0);
        (0..10).for_each(|_| assert_eq!(job(&mut pace, &mut now, 2, 1), Speed::Usual));
        let since = Time(now);
        pace.polled(Time(now), true, true);
        pace.polled(Time(now + 5_000 * MILLI), true, true);
        assert_eq!(pace.ended(since, 1, Time(now + 5_000 * MILLI)), Speed::Usual);
    }

    #[test]
    fn silence_counts_while_loads_run_and_somebody_listens() {
        let mut pace = pace(10);
        let polls = [(0, true), (600, false), (1_200, false), (60_000, false), (60_400, false)];
        for (millis, answered) in polls {
            assert!(!pace.polled(Time(millis * MILLI), answered, true), "{millis}: {:?}", pace.silent_for());
        }
        assert!(pace.polled(Time(60_500 * MILLI), false, true));
        assert!(!pace.polled(Time(60_600 * MILLI), false, false), "nothing runs");
        assert!(!pace.polled(Time(62_500 * MILLI), false, true), "a long pause is one poll");
    }
}
