//! Memory of simulated processes: made once per shape and thread, and used again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_config::{Choice, Geometry};
use terrace_primary::{Region, RegionOptions, SlotId};

use crate::rng::Rng;
use crate::settings::MOST_SLOTS;

thread_local! {
    static REGIONS: RefCell<BTreeMap<(u32, usize), Arc<Region>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A region for blocks of this geometry, filled with noise: what a fresh process finds in it must never be taken for a
/// block. A crash lets go of all memory by force, so the region of the last process may be used again.
pub fn region(geometry: &Geometry, rng: &mut Rng) -> Arc<Region> {
    region_of(geometry, 0, rng)
}

/// The same for one of several nodes.
pub fn region_of(geometry: &Geometry, node: usize, rng: &mut Rng) -> Arc<Region> {
    let region = REGIONS.with_borrow_mut(|regions| {
        let made = regions.entry((geometry.block_bytes, node)).or_insert_with(|| {
            let options = RegionOptions {
                slots: MOST_SLOTS,
                slot_stride: geometry.slot_stride(),
                block_bytes: geometry.block_bytes,
                huge_pages: Choice::Off,
                lock_memory: false,
                numa_node: None,
                prefault_threads: 1,
            };
            Region::create(&options, &|_, _| {}).unwrap_or_else(|error| panic!("no memory to simulate in: {error}"))
        });
        Arc::clone(made)
    });
    let noise: Vec<u8> = (0..geometry.slot_stride() / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
    for slot in (0..MOST_SLOTS).map(SlotId) {
        region.write_slot(slot, &noise);
    }
    region
}
