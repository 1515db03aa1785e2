//! What a connector has done.

/// Counters since the connector was made. Blocks here are GPU blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Loads handed to the worker.
    pub loads: u64,
    /// Blocks of loads that landed.
    pub loaded_blocks: u64,
    /// Loads that failed: a copy failed, or blocks were evicted between lookup and allocation.
    pub failed_loads: u64,
    /// Stores handed to the worker.
    pub stores: u64,
    /// Blocks of stores that landed.
    pub stored_blocks: u64,
    /// Stores whose copy failed.
    pub failed_stores: u64,
    /// Offloaded blocks that were not offered, because a sliding-window group no longer kept their GPU blocks.
    pub not_offered: u64,
    /// Offers that the manager refused with an error.
    pub refused_offers: u64,
    /// Lookups answered `NotYet` because another request was loading a block of the match.
    pub waits_for_other_load: u64,
    /// Jobs that had to be flushed because GPU blocks changed owner.
    pub flushes: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Completions that the manager did not expect; anything but 0 is a fault of Terrace.
    pub inconsistencies: u64,
}
