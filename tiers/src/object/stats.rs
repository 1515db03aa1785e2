//! The object tier's own part of a tier's figures.

use super::counters::Counters;

macro_rules! object_stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What an object tier counts beside the figures of every tier: since it was opened; gauges where the name says so.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ObjectStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters now.
        pub(super) fn object_stats(counters: &Counters) -> ObjectStats {
            ObjectStats { $($name: counters.$name.get(),)* }
        }
    };
}

object_stats! {
    /// GET requests sent, hedges and retries included.
    gets,
    /// PUT requests sent, those of multipart uploads included.
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
    /// Answers that told to slow down.
    throttled,
    /// Requests that failed for good.
    request_failures,
    /// Requests not sent: over a budget.
    over_budget,
    /// Times that the store said nothing for so long that lookups stopped to count on it.
    silences,
    /// Gauge: requests that may be sent at once now.
    concurrency,
    /// Segments written.
    segments_stored,
    /// Blocks read because they lay between wanted ones.
    blocks_skipped,
    /// Blocks whose bytes checked out only the second time.
    reread,
    /// Multipart uploads given up.
    uploads_aborted,
    /// Log objects written.
    logs_published,
    /// Log objects of others folded.
    logs_folded,
    /// Log objects that could not be decoded.
    logs_bad,
    /// Full reads of snapshot and log.
    resyncs,
    /// Segments found gone or damaged.
    segments_lost,
    /// Gauge: milliseconds by which this node's clock is behind the newest stamp seen.
    clock_behind_ms,
    /// Gauge: 1 while this node holds the collector's lease.
    is_collector,
    /// Snapshots written.
    snapshots,
    /// Segments that this node's collector evicted for room.
    segments_evicted,
    /// Segments that this node's collector removed because of their age.
    segments_aged,
    /// Segments that no log named, removed by this node's collector.
    segments_orphaned,
}
