//! When a read is sent a second time because the first answer is late, and how many may be.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many of the latest answers tell what is late.
const RECENT: usize = 256;
/// After so many new answers the limit is worked out anew.
const ANEW: u32 = 32;
/// No answer that is faster than this is late.
const LEAST: Duration = Duration::from_millis(30);
/// So many hedges may be saved up.
const SAVED: f64 = 8.0;

/// Keeps the times to the first byte of recent reads, and the share of reads that may be sent twice.
#[derive(Debug)]
pub(super) struct Hedge {
    share: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Microseconds, a ring.
    recent: Vec<u32>,
    next: usize,
    since: u32,
    late: Duration,
    /// Hedges that may be sent.
    credit: f64,
}

impl Hedge {
    /// At most this share of reads is sent twice; 0.0: none.
    pub fn new(share: f64) -> Self {
        let state = State { recent: Vec::new(), next: 0, since: 0, late: LEAST, credit: 0.0 };
        Self { share, state: Mutex::new(state) }
    }

    /// A read is sent: when it is late. `None`: it will not be sent twice.
    pub fn begin(&self) -> Option<Duration> {
        if self.share <= 0.0 {
            return None;
        }
        let mut state = self.lock();
        state.credit = (state.credit + self.share).min(SAVED);
        Some(state.late)
    }

    /// Takes a hedge out of what may be sent.
    pub fn spend(&self) -> bool {
        let mut state = self.lock();
        let may = state.credit >= 1.0;
        if may {
            state.credit -= 1.0;
        }
        may
    }

    /// A read was answered after this time.
    pub fn answered(&self, after: Duration) {
        if self.share <= 0.0 {
            return;
        }
        let micros = u32::try_from(after.as_micros()).unwrap_or(u32::MAX);
        let mut state = self.lock();
        let next = state.next;
        match state.recent.get_mut(next) {
            Some(place) => *place = micros,
            None => state.recent.push(micros),
        }
        state.next = (next + 1) % RECENT;
        state.since += 1;
        if state.since >= ANEW {
            state.since = 0;
            state.late = percentile95(&state.recent).max(LEAST);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that 95 of 100 stay below.
fn percentile95(recent: &[u32]) -> Duration {
    let mut sorted = recent.to_vec();
    let at = sorted.len() * 95 / 100;
    if at >= sorted.len() {
        return LEAST;
    }
    let (_, value, _) = sorted.select_nth_unstable(at);
    Duration::from_micros(u64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_what_95_of_100_are_faster_than() {
        let hedge = Hedge::new(0.5);
        assert_eq!(hedge.begin(), Some(LEAST));
        for round in 0..2 * RECENT {
            hedge.answered(Duration::from_millis(if round % 100 < 90 { 50 } else { 400 }));
        }
        assert_eq!(hedge.begin(), Some(Duration::from_millis(400)));
        for _ in 0..2 * RECENT {
            hedge.answered(Duration::from_millis(1));
        }
        assert_eq!(hedge.begin(), Some(LEAST), "what is long ago is forgotten");
    }

    #[test]
    fn no_more_than_its_share_is_spent() {
        let hedge = Hedge::new(0.05);
        let spent = (0..10_000).filter(|_| hedge.begin().is_some() && hedge.spend()).count();
        assert!((450..=500).contains(&spent), "{spent}");
        assert_eq!(Hedge::new(0.0).begin(), None);
        assert!(!Hedge::new(0.0).spend());
    }
}
