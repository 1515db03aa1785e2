//! What the configuration allows: requests a second and bytes a day, for one direction.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Time;

const DAY_MS: u64 = 86_400_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The budget of one direction. Shared by all that send.
///
/// Requests: evenly spaced (a virtual clock that runs ahead by one interval per request), with bursts of a tenth of a second's worth; so any
/// second sees at most 1.1 times what is allowed, and one. Bytes: counted per UTC day; a wall clock that is set back stays in the
/// day it was.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Nanoseconds between two requests; 0: no limit.
    interval: u64,
    /// By how much the spacing may be run ahead of.
    burst: u64,
    bytes_per_day: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next request is due, by even spacing.
    due: u64,
    day: u64,
    bytes: u64,
}

impl Budget {
    /// So many requests a second (0: no limit) and bytes a day.
    pub fn new(requests_per_second: u32, bytes_per_day: Option<u64>) -> Self {
        let rate = u64::from(requests_per_second);
        let interval = SECOND_NS.checked_div(rate).unwrap_or(0);
        let burst = (rate / 10).max(1).saturating_sub(1) * interval;
        Self { interval, burst, bytes_per_day, state: Mutex::default() }
    }

    /// Takes the next slot for a request: how long to wait for it. `None`: it would be after the deadline; nothing is taken.
    pub fn slot(&self, now: Time, deadline: Time) -> Option<Duration> {
        if self.interval == 0 {
            return Some(Duration::ZERO);
        }
        let mut state = self.lock();
        let due = state.due.max(now.0);
        let at = Time(due.saturating_sub(self.burst).max(now.0));
        if at >= deadline {
            return None;
        }
        state.due = due.saturating_add(self.interval);
        Some(at.since(now))
    }

    /// Takes bytes out of the day's budget. False: it does not hold so many; nothing is taken.
    pub fn take(&self, bytes: u64, wall_ms: u64) -> bool {
        let Some(most) = self.bytes_per_day else { return true };
        let mut state = self.today(wall_ms);
        let Some(sum) = state.bytes.checked_add(bytes).filter(|sum| *sum <= most) else { return false };
        state.bytes = sum;
        true
    }

    /// Gives back what was taken and not used.
    pub fn give_back(&self, bytes: u64) {
        if self.bytes_per_day.is_some() {
            let mut state = self.lock();
            state.bytes = state.bytes.saturating_sub(bytes);
        }
    }

    /// Whether the day's budget holds anything.
    pub fn has_bytes(&self, wall_ms: u64) -> bool {
        self.bytes_per_day.is_none_or(|most| self.today(wall_ms).bytes < most)
    }

    fn today(&self, wall_ms: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let day = wall_ms / DAY_MS;
        if day > state.day {
            state.day = day;
            state.bytes = 0;
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Time = Time(u64::MAX);

    #[test]
    fn requests_are_spaced_and_never_overtake_the_rate() {
        let budget = Budget::new(100, None);
        let mut sent: Vec<u64> = Vec::new();
        let mut now = Time(5);
        for asked in 0..1_000u64 {
            let wait = budget.slot(now, NEVER).expect("no deadline");
            sent.push(now.plus(wait).0);
            // Sometimes nobody asks for a while: that must not be saved up.
            if asked % 300 == 299 {
                now = Time(sent.last().copied().unwrap_or(0) + 3 * SECOND_NS);
            }
        }
        for (index, start) in sent.iter().enumerate() {
            let within = sent.iter().skip(index).take_while(|at| **at < start + SECOND_NS).count();
            assert!(within <= 111, "{within} requests in one second");
        }
        let first_second = sent.iter().take_while(|at| **at < SECOND_NS).count();
        assert!(first_second >= 99, "{first_second}: the rate is used");
    }

    #[test]
    fn a_slot_behind_the_deadline_is_refused_and_not_taken() {
        let budget = Budget::new(1, None);
        assert_eq!(budget.slot(Time(0), NEVER), Some(Duration::ZERO));
        for _ in 0..10 {
            assert_eq!(budget.slot(Time(0), Time(SECOND_NS)), None);
        }
        assert_eq!(budget.slot(Time(0), Time(SECOND_NS + 1)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn bytes_are_counted_by_day() {
        let budget = Budget::new(0, Some(100));
        let noon = 3 * DAY_MS + DAY_MS / 2;
        assert!(budget.take(60, noon));
        assert!(!budget.take(41, noon));
        assert!(budget.take(40, noon));
        assert!(!budget.has_bytes(noon));
        assert!(!budget.has_bytes(noon - DAY_MS), "a clock set back is no new day");
        budget.give_back(1);
        assert!(budget.has_bytes(noon));
        assert!(!budget.take(u64::MAX, noon));
        assert!(budget.take(100, noon + DAY_MS));
        let free = Budget::new(0, None);
        assert!(free.take(u64::MAX, 0) && free.take(u64::MAX, 0) && free.has_bytes(0));
        assert_eq!(free.slot(Time(7), Time(7)), Some(Duration::ZERO));
    }
}
