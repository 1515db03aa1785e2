//! The time of day: what nodes agree on roughly, and no deadline depends on.

use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that tells the time of day. It may jump; whoever asks must bear that.
pub trait WallClock: Send + Sync {
    /// Milliseconds since 1970-01-01 UTC.
    fn now_ms(&self) -> u64;
}

/// The machine's.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    #[allow(clippy::disallowed_methods, reason = "the machine's time of day is what it gives")]
    fn now_ms(&self) -> u64 {
        // Before 1970: no order is lost, stamps never go back.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
