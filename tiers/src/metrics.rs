//! What tiers publish: a table over [`TierStats`], and how long operations of a device took.

use metrics::Histogram;
use terrace_primary::metrics::{Family, Metric, Table, histogram};

use crate::tier::TierStats;

/// What a tier itself counts.
pub static TABLE: Table<TierStats> = Table {
    labels: &["pool", "tier"],
    families: &[
        Family::one("terrace_tier_blocks", "Blocks that the tier holds.", |tier| tier.blocks),
        Family::one("terrace_tier_allocated_bytes", "Bytes that the tier has allocated, overhead included.", |tier| {
            tier.allocated_bytes
        }),
        Family::one("terrace_tier_capacity_bytes", "Bytes that the tier may allocate.", |tier| tier.capacity_bytes),
        Family::one(
            "terrace_tier_in_flight_blocks",
            "Depth of the tier's queues: blocks accepted, to be stored or loaded, and not done.",
            |tier| tier.in_flight,
        ),
        Family::one("terrace_tier_stores_total", "Blocks stored in the tier.", |tier| tier.stored),
        Family::one("terrace_tier_store_bytes_total", "Payload bytes stored in the tier.", |tier| tier.stored_bytes),
        Family::one("terrace_tier_loads_total", "Blocks loaded from the tier and verified.", |tier| tier.loaded),
        Family::one("terrace_tier_load_bytes_total", "Payload bytes loaded from the tier.", |tier| tier.loaded_bytes),
        Family::one("terrace_tier_evictions_total", "Blocks that the tier evicted to make room.", |tier| tier.evicted),
        Family::one("terrace_tier_recycled_total", "Stores that wrote over the file of an evicted block.", |tier| {
            tier.recycled
        }),
        Family::by(
            "terrace_tier_faults_total",
            "Operations of the tier that failed: corrupt (CRC, length, key, namespace or version did not check out; the copy is \
             quarantined), vanished (the file was gone), io (the device failed), expired (deadline passed, or given up), full (no \
             room).",
            "reason",
            &[
                ("corrupt", |tier| tier.corrupt),
                ("vanished", |tier| tier.vanished),
                ("io", |tier| tier.io_errors),
                ("expired", |tier| tier.expired),
                ("full", |tier| tier.full),
            ],
        ),
        Family::one("terrace_tier_refused_jobs_total", "Jobs refused because a queue of the tier was full.", |tier| {
            tier.refused
        }),
        Family::one(
            "terrace_tier_catalog_lost_total",
            "Changes of the catalog that were lost; the tier scans its files at the next start.",
            |tier| tier.catalog_lost,
        ),
        Family::one(
            "terrace_tier_unopened_total",
            "Loaded blocks of a tenant with encryption that did not open: sealed with another key, or changed. They are misses.",
            |tier| tier.unopened,
        ),
        Family::one("terrace_tier_orphans_total", "Blocks that the catalog did not know and a scan found.", |tier| {
            tier.orphans
        }),
        Family::by(
            "terrace_object_requests_total",
            "Requests that an object tier sent to its store, retries and hedges included.",
            "method",
            &[
                ("get", |tier| tier.object.gets),
                ("put", |tier| tier.object.puts),
                ("list", |tier| tier.object.lists),
                ("delete", |tier| tier.object.deletes),
                ("head", |tier| tier.object.heads),
            ],
        ),
        Family::by(
            "terrace_object_bytes_total",
            "Bytes of bodies that an object tier received and sent.",
            "direction",
            &[("read", |tier| tier.object.read_bytes), ("write", |tier| tier.object.written_bytes)],
        ),
        Family::by(
            "terrace_object_trouble_total",
            "What went wrong between an object tier and its store: retry (sent again after a failure), failed (for good), throttled (told \
             to slow down), over_budget (not sent), reread (bytes that checked out only the second time), aborted (multipart uploads given up), silent \
             (the store said nothing for so long that lookups stopped to count on it).",
            "reason",
            &[
                ("retry", |tier| tier.object.retries),
                ("failed", |tier| tier.object.request_failures),
                ("throttled", |tier| tier.object.throttled),
                ("over_budget", |tier| tier.object.over_budget),
                ("reread", |tier| tier.object.reread),
                ("aborted", |tier| tier.object.uploads_aborted),
                ("silent", |tier| tier.object.silences),
            ],
        ),
        Family::by(
            "terrace_object_hedges_total",
            "GETs that an object tier sent twice because the first was slow, and those whose second answer came first.",
            "outcome",
            &[("sent", |tier| tier.object.hedges), ("won", |tier| tier.object.hedges_won)],
        ),
        Family::one("terrace_object_concurrency", "Requests that an object tier may send at once now.", |tier| {
            tier.object.concurrency
        }),
        Family::one("terrace_object_segments_stored_total", "Segments that an object tier wrote.", |tier| {
            tier.object.segments_stored
        }),
        Family::one(
            "terrace_object_skipped_blocks_total",
            "Blocks that an object tier read only because they lay between wanted ones.",
            |tier| tier.object.blocks_skipped,
        ),
        Family::by(
            "terrace_object_log_total",
            "Objects of the index log: published (written), folded (those of other nodes, read), bad (not decodable, or missing for too long: skipped), gone \
             (answers that one is not there though it was listed: asked for again).",
            "event",
            &[
                ("published", |tier| tier.object.logs_published),
                ("folded", |tier| tier.object.logs_folded),
                ("bad", |tier| tier.object.logs_bad),
                ("gone", |tier| tier.object.logs_gone),
            ],
        ),
        Family::one(
            "terrace_object_log_gaps",
            "Nodes' lives of whose log something is missing here: not visible yet, or listed and not to be had.",
            |tier| tier.object.log_gaps,
        ),
        Family::by(
            "terrace_object_put_off_total",
            "What this node, as the collector, put off: sweep (removing what no log names, as the log had a gap), cleaning (removing the log and \
             snapshots that newer ones replace, as one of those could not be read or removed).",
            "reason",
            &[("sweep", |tier| tier.object.sweeps_put_off), ("cleaning", |tier| tier.object.cleanings_put_off)],
        ),
        Family::one(
            "terrace_object_resyncs_total",
            "Full reads of the newest snapshot and the log behind it.",
            |tier| tier.object.resyncs,
        ),
        Family::one(
            "terrace_object_clock_behind_milliseconds",
            "By how much this node's clock is behind the newest stamp that it saw in the log.",
            |tier| tier.object.clock_behind_ms,
        ),
        Family::one("terrace_object_is_collector", "1 while this node collects garbage for its cluster.", |tier| {
            tier.object.is_collector
        }),
        Family::one("terrace_object_snapshots_total", "Snapshots of the log that this node wrote.", |tier| {
            tier.object.snapshots
        }),
        Family::by(
            "terrace_object_removed_segments_total",
            "Segments that this node took out of the store: evicted (room), aged (not used for too long), orphaned (no log named them), \
             lost (found gone or damaged).",
            "reason",
            &[
                ("evicted", |tier| tier.object.segments_evicted),
                ("aged", |tier| tier.object.segments_aged),
                ("orphaned", |tier| tier.object.segments_orphaned),
                ("lost", |tier| tier.object.segments_lost),
            ],
        ),
    ],
};

const LOAD_SECONDS: &str = "terrace_tier_load_seconds";
const STORE_SECONDS: &str = "terrace_tier_store_seconds";

/// All metrics of this crate.
pub fn list() -> Vec<Metric> {
    let mut list = TABLE.metrics();
    list.push(Metric::histogram(
        LOAD_SECONDS,
        &["tier"],
        "Time from the acceptance of a block by a tier until its bytes are in their slot, verified.",
    ));
    list.push(Metric::histogram(
        STORE_SECONDS,
        &["tier"],
        "Time from the acceptance of a block by a tier until it is in place: its file, or its segment and the log that names it.",
    ));
    list
}

/// Times of operations that succeeded.
pub(crate) struct OpTimes {
    pub load: Histogram,
    pub store: Histogram,
}

impl OpTimes {
    pub fn new(tier: &str) -> Self {
        let label = Some(("tier", tier));
        Self { load: histogram(LOAD_SECONDS, label), store: histogram(STORE_SECONDS, label) }
    }
}
