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
        Family::one("terrace_tier_orphans_total", "Blocks that the catalog did not know and a scan found.", |tier| {
            tier.orphans
        }),
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
        "Time from the acceptance of a block by an NVMe tier until its bytes are in their slot, verified.",
    ));
    list.push(Metric::histogram(
        STORE_SECONDS,
        &["tier"],
        "Time from the acceptance of a block by an NVMe tier until its file is in place.",
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
