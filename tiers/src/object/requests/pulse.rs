//! Whether the store says anything at all.
//!
//! A request that is late is nothing: others answer meanwhile, and the folder lists the log several times a second while blocks are asked for. When
//! reads and listings are sent and *nothing* comes for [`SILENCE`], no engine should wait for this store: lookups find nothing until it has
//! answered once. A network or a server that only fails is silent too. Uploads do not start the clock: one may take seconds and be well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Time;

/// A store that was asked and has not said a word for so long is taken for gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);

/// Sent and heard, by all requests of a tier.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// When the first read was sent since something was heard; 0: none was.
    waiting_since: AtomicU64,
}

impl Pulse {
    /// A read or a listing goes out.
    pub fn sent(&self, now: Time) {
        let _ = self.waiting_since.compare_exchange(0, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Something came: an answer, a refusal that is one, or bytes of one.
    pub fn heard(&self) {
        self.waiting_since.store(0, Ordering::Relaxed);
    }

    /// Whether the store is silent.
    pub fn is_silent(&self, now: Time) -> bool {
        let since = self.waiting_since.load(Ordering::Relaxed);
        since > 0 && now.since(Time(since)) >= SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_begins_with_the_first_request_that_nothing_follows() {
        let at = |millis: u64| Time(millis * 1_000_000);
        let pulse = Pulse::default();
        assert!(!pulse.is_silent(at(60_000)), "nobody asked");
        pulse.sent(at(1_000));
        pulse.sent(at(2_500));
        assert!(!pulse.is_silent(at(2_999)));
        assert!(pulse.is_silent(at(3_000)));
        pulse.heard();
        assert!(!pulse.is_silent(at(3_000)));
        pulse.sent(at(3_100));
        assert!(!pulse.is_silent(at(5_000)));
        assert!(pulse.is_silent(at(60_000)), "until something is heard");
    }
}
