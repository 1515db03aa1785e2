//! What an object tier counts beside the figures of every tier. Written by its threads, read by the manager's.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn bump(&self) {
        self.add(1);
    }

    /// This many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// For gauges: this value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// All counters of one tier, since it was opened.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// What an object tier counts beside the figures of every tier: since it was opened; gauges where the name says so.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ObjectStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them, now: each by itself, so that one may be ahead of another.
            pub fn stats(&self) -> ObjectStats {
                ObjectStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// GET requests sent, hedges and retries included.
    gets,
    /// PUT requests sent, parts of multipart uploads and their beginning and end included.
    puts,
    /// LIST requests sent.
    lists,
    /// DELETE requests sent.
    deletes,
    /// HEAD requests sent.
    heads,
    /// Bytes of bodies received.
    read_bytes,
    /// Bytes of bodies sent.
    written_bytes,
    /// Requests sent again after a failure.
    retries,
    /// GETs sent twice because the first was slow.
    hedges,
    /// Hedges whose answer came first.
    hedges_won,
    /// Answers that told to slow down (503, 429).
    throttled,
    /// Requests that failed for good.
    request_failures,
    /// Requests not sent: over a budget of the configuration.
    over_budget,
    /// Times that the store said nothing for so long that lookups stopped to count on it.
    silences,
    /// Gauge: requests that may be sent at once now.
    concurrency,
    /// Gauge: requests in flight.
    in_flight,

    /// Segments written.
    segments_stored,
    /// Blocks read beside the wanted ones, because they lay between.
    blocks_skipped,
    /// Blocks whose bytes did not check out the first time and did the second.
    reread,
    /// Uploads of several parts that were given up and cleaned away.
    uploads_aborted,

    /// Log objects written.
    logs_published,
    /// Log objects of others folded.
    logs_folded,
    /// Log objects that could not be decoded: skipped.
    logs_bad,
    /// Answers that a log object is not there though it was listed: asked for again.
    logs_gone,
    /// Gauge: writers of whom something of the log is missing here.
    log_gaps,
    /// Listings of the log.
    folds,
    /// Full reads of the newest snapshot and the log behind it.
    resyncs,
    /// Segments found gone or damaged and taken out of the log.
    segments_lost,
    /// Gauge: milliseconds by which this node's clock is behind the newest stamp seen.
    clock_behind_ms,

    /// Gauge: 1 while this node holds the collector's lease.
    is_collector,
    /// Snapshots written.
    snapshots,
    /// Segments that the collector evicted.
    segments_evicted,
    /// Segments that the collector removed because of their age.
    segments_aged,
    /// Segments that no log named: removed.
    segments_orphaned,
    /// Objects of the log and of snapshots that the collector removed.
    logs_removed,
    /// Searches for what no log names that were put off: the log was not known without a gap.
    sweeps_put_off,
    /// Removals of what snapshots have made needless that were put off: an older snapshot could not be read, or removed.
    cleanings_put_off,
}
