//! What a pool stands on: memory, time and tiers.

use std::sync::Arc;

use terrace_config::Config;
use terrace_primary::{Region, RegionOptions};
use terrace_tiers::{Clock, SecondaryTier, SystemClock, TierNamespace, open_tier};

use super::pool::told;

/// How many slots from the first on may be touched: only grows.
pub type ReadySlots = Box<dyn Fn() -> u32 + Send>;

/// The region, the clock and the tiers of a pool, given to it so that a simulator can give others.
pub struct PoolParts {
    /// As many slots as `primary.blocks` says, each with room for a block of the geometry.
    pub region: Arc<Region>,
    /// Of the region.
    pub ready: ReadySlots,
    /// The only one that the pool reads.
    pub clock: Arc<dyn Clock>,
    /// In the order in which they are asked; over the same region and clock.
    pub tiers: Vec<Box<dyn SecondaryTier>>,
}

impl PoolParts {
    /// The machine's. Waits for the directories, not for what is in them, and not for the region's pages.
    pub(super) fn open(config: &Config) -> Result<Self, String> {
        let geometry = config.geometry;
        let region = Region::start_behind(&RegionOptions {
            slots: config.primary.blocks,
            slot_stride: geometry.slot_stride(),
            block_bytes: geometry.block_bytes,
            huge_pages: config.primary.huge_pages,
            lock_memory: config.primary.lock_memory,
            numa_node: config.primary.numa_node,
            prefault_threads: config.primary.prefault_threads,
        });
        let region = Arc::new(region.map_err(|error| told(&error))?);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::with_capacity(config.tiers.len());
        let namespace = TierNamespace::of(config).map_err(|error| told(&error))?;
        for tier in &config.tiers {
            let opened = open_tier(tier, namespace.clone(), &geometry, Arc::clone(&region), Arc::clone(&clock));
            tiers.push(opened.map_err(|error| told(&error))?);
        }
        let backed = Arc::clone(&region);
        Ok(Self { region, ready: Box::new(move || backed.ready_slots()), clock, tiers })
    }
}
