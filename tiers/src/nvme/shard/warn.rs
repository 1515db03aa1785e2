//! One log line for many faults of a kind.

use std::time::Duration;

use crate::clock::Time;

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Kinds of faults that are logged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Full,
    ReadOnly,
    Missing,
    Io,
    Corrupt,
    Scan,
}

/// When each kind may be logged again.
#[derive(Debug, Default)]
pub(super) struct WarnLimit {
    kinds: [Limit; 6],
}

#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    next: Time,
    held_back: u64,
}

impl WarnLimit {
    /// `Some(held back since the last line)` if a fault of this kind is to be logged now.
    pub(super) fn pass(&mut self, kind: Kind, now: Time) -> Option<u64> {
        let limit = &mut self.kinds[kind as usize];
        if now < limit.next {
            limit.held_back += 1;
            return None;
        }
        limit.next = now.plus(PAUSE);
        Some(std::mem::take(&mut limit.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_it_holds_back() {
        let mut limit = WarnLimit::default();
        assert_eq!(limit.pass(Kind::Io, Time(0)), Some(0));
        assert_eq!(limit.pass(Kind::Io, Time(1)), None);
        assert_eq!(limit.pass(Kind::Full, Time(1)), Some(0));
        assert_eq!(limit.pass(Kind::Io, Time(0).plus(PAUSE)), Some(1));
    }
}
