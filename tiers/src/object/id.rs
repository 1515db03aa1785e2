//! Names and times of what a cluster keeps in a bucket.

use std::fmt;

/// One life of one node's tier: random, new at every start. Sixteen hex digits in names of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A segment, for ever: who wrote it, and a number that its writer counts up from 1. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Who wrote it.
    pub writer: WriterId,
    /// Which of the writer's.
    pub number: u64,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.writer, self.number)
    }
}

/// Cluster time: milliseconds since 1970-01-01 UTC by the clock of whoever wrote it, but never behind what it had
/// seen of others (a hybrid logical clock: Kulkarni et al., 2014).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Milliseconds from `earlier` to this; zero if it is not earlier.
    pub const fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This many milliseconds before; stops at zero.
    pub const fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }
}
