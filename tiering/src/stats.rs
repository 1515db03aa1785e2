//! Counters: everything that happened, and everything that was refused or dropped.

use terrace_tiers::{TierDescriptor, TierStats};

use crate::MAX_TIERS;
use crate::breaker::BreakerState;

/// Counters since start; gauges where the text says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// `lookup` calls.
    pub lookups: u64,
    /// Keys in them.
    pub keys_looked_up: u64,
    /// Answers `Hit`.
    pub hits: u64,
    /// Answers `Pending`.
    pub pending: u64,
    /// Answers `Retry`.
    pub retries: u64,
    /// Answers `Miss`.
    pub misses: u64,
    /// Lookups in which `deadlines.lookup` had passed, so that nothing was waited for.
    pub lookups_expired: u64,
    /// Blocks loaded that were in the primary.
    pub loaded_primary: u64,
    /// Blocks loaded that had been promoted from each tier and not been loaded since.
    pub loaded_by_tier: [u64; MAX_TIERS],
    /// Blocks for which a store was prepared.
    pub stores_prepared: u64,
    /// Blocks that became readable by a store.
    pub stored: u64,
    /// Stores that failed or that a reset overtook.
    pub stores_failed: u64,
    /// `prepare_store` calls that got nothing: no room.
    pub stores_refused: u64,
    /// Blocks that `prepare_store` left out with `allow_partial`: no room.
    pub stores_left_out: u64,
    /// Blocks that admission did not admit.
    pub not_admitted: u64,
    /// Blocks evicted from the primary.
    pub evicted: u64,
    /// Blocks found below whose promotion was refused: no room, or the promotion share was exhausted.
    pub promotions_refused: u64,
    /// Blocks found below whose promotion waits for room that others' promotions have taken, or that a growing primary does not have yet; once for each time they were asked
    /// for.
    pub promotions_deferred: u64,
    /// Gauge: distinct slots held for waiting requests.
    pub holds: u64,
    /// Blocks that could not be held: share exhausted.
    pub holds_refused: u64,
    /// Requests whose holds ended at `deadlines.hold`.
    pub holds_expired: u64,
    /// Blocks that `locate` found and did not give out: no reader was left.
    pub leases_refused: u64,
    /// Blocks in DRAM that were compared with their CRC32.
    pub checks: u64,
    /// Of them, those that were not what they had been: once for each time.
    pub checks_failed: u64,
    /// Blocks that a lookup left to the next one to compare.
    pub checks_deferred: u64,
    /// Gauge: pins.
    pub pins: u64,
    /// Pins refused: share exhausted.
    pub pins_refused: u64,
    /// Pins that ended by themselves.
    pub pins_expired: u64,
    /// Gauge: events waiting to be taken.
    pub events_queued: u64,
    /// Events dropped because nobody took them.
    pub events_dropped: u64,
    /// Gauge: open requests.
    pub requests: u64,
    /// Requests refused: too many were open.
    pub requests_refused: u64,
    /// Completions of what was not running: each is a fault of the caller.
    pub completions_refused: u64,
    /// Gauge: slots that an abandoned operation may still write to.
    pub limbo: u64,
    /// Gauge: those of them whose tier panicked or was shut down, so that they never come back.
    pub lost_slots: u64,
    /// Gauge: readable blocks in the primary.
    pub resident: u64,
    /// Gauge: free slots.
    pub free: u64,
    /// Gauge: slots being filled.
    pub writing: u64,
    /// Gauge: readers.
    pub readers: u64,
    /// Each tier, in config order.
    pub tiers: Vec<TierReport>,
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierReport {
    /// Its name.
    pub name: String,
    /// What the tier itself counts.
    pub tier: TierStats,
    /// Whether it is in use.
    pub breaker: BreakerState,
    /// Times the breaker opened.
    pub breaker_opened: u64,
    /// Of them, because the tier answered nothing.
    pub hung: u64,
    /// Of them, because its loads took far longer than they used to.
    pub slow: u64,
    /// Whether a call into it panicked: it is closed for good.
    pub panicked: bool,
    /// Events and answers that broke the tier's contract; each was ignored.
    pub protocol_faults: u64,
    /// Lookups in which the tier's `Unknown` had lasted beyond `deadlines.lookup` and counted as absent.
    pub unknown_expired: u64,
    /// Blocks loaded that it had brought and that were not loaded since.
    pub hits: u64,
    /// What it answered to lookups.
    pub keys: LookupCounts,
    /// Its promotions.
    pub promotions: PromotionCounts,
    /// Its cascades.
    pub cascades: CascadeCounts,
    /// What the scrubber read of it.
    pub scrubs: ScrubCounts,
}

/// Blocks that the scrubber read from one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Read, and as they were stored.
    pub sound: u64,
    /// Read, and not as they were stored: quarantined.
    pub corrupt: u64,
    /// Not read: evicted meanwhile, out of time, or the device failed.
    pub unread: u64,
}

/// Answers of one tier to lookups, in keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// It has the block.
    pub found: u64,
    /// It has not.
    pub absent: u64,
    /// It did not know yet.
    pub unknown: u64,
    /// It has the block, a load of which failed a moment ago, so that it counts as absent.
    pub suspect: u64,
}

/// Promotions from one tier, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromotionCounts {
    /// Gauge: waiting to be submitted.
    pub queued: u64,
    /// Gauge: the tier works on them.
    pub running: u64,
    /// Gauge: abandoned, and the tier has not let go yet.
    pub abandoned: u64,
    /// Reserved.
    pub reserved: u64,
    /// Load jobs accepted by the tier.
    pub jobs: u64,
    /// Load jobs refused by the tier.
    pub jobs_refused: u64,
    /// Landed: verified and readable.
    pub landed: u64,
    /// Failed by the tier.
    pub failed: u64,
    /// Given up at their deadline.
    pub expired: u64,
    /// Given up because their request finished, the tier was switched off, or by a reset.
    pub cancelled: u64,
}

/// Cascades to one tier, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CascadeCounts {
    /// Gauge: waiting, holding no reader.
    pub queued: u64,
    /// Gauge: the tier works on them; each holds a reader.
    pub running: u64,
    /// Gauge: abandoned, no reader held, not yet acknowledged by the tier.
    pub abandoned: u64,
    /// Offered.
    pub offered: u64,
    /// Not queued because the tier holds the block already.
    pub present: u64,
    /// Store jobs accepted by the tier.
    pub jobs: u64,
    /// Store jobs refused by the tier; their blocks went back to the queue.
    pub jobs_refused: u64,
    /// Stored.
    pub stored: u64,
    /// Failed by the tier.
    pub failed: u64,
    /// Given up at their deadline.
    pub expired: u64,
    /// Dropped: evicted from the primary before their turn.
    pub dropped_evicted: u64,
    /// Dropped: the queue was full.
    pub dropped_full: u64,
    /// Dropped: the tier is switched off by its breaker, closed, or panicked.
    pub dropped_off: u64,
    /// Dropped or given up by a reset or at shutdown.
    pub dropped_reset: u64,
}

impl CascadeCounts {
    /// Blocks dropped before they were submitted, for whatever reason.
    pub const fn dropped(&self) -> u64 {
        self.dropped_evicted + self.dropped_full + self.dropped_off + self.dropped_reset
    }
}

impl Stats {
    /// Cascades dropped in all tiers, those given up at their deadline included.
    pub fn dropped_cascades(&self) -> u64 {
        self.tiers.iter().map(|report| report.cascades.dropped() + report.cascades.expired).sum()
    }
}

impl TierReport {
    pub(crate) fn new(descriptor: &TierDescriptor, tier: TierStats, breaker: BreakerState) -> Self {
        Self {
            name: descriptor.name.clone(),
            tier,
            breaker,
            breaker_opened: 0,
            hung: 0,
            slow: 0,
            panicked: false,
            protocol_faults: 0,
            unknown_expired: 0,
            hits: 0,
            keys: LookupCounts::default(),
            promotions: PromotionCounts::default(),
            cascades: CascadeCounts::default(),
            scrubs: ScrubCounts::default(),
        }
    }
}
