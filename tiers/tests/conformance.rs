//! The memory tier and every wrapper pass the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use terrace_config::{Choice, MemoryConfig};
use terrace_primary::{Region, RegionOptions};
use terrace_tiers::conformance::{Fixture, run};
use terrace_tiers::wrappers::{Counted, FaultRates, Faulty, HangSwitch, Hanging, Slow};
use terrace_tiers::{Clock, ManualClock, MemoryTier, SecondaryTier};

const BLOCK_BYTES: u32 = 4096;
const CAPACITY_BLOCKS: u32 = 40;

fn region() -> Arc<Region> {
    let options = RegionOptions {
        slots: 64,
        slot_stride: BLOCK_BYTES,
        block_bytes: BLOCK_BYTES,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a region of 256 KiB")
}

/// A fixture over the memory tier, wrapped by `wrap`, which gets the fixture's clock.
fn fixture(may_fail: bool, wrap: impl Fn(MemoryTier, Arc<dyn Clock>) -> Box<dyn SecondaryTier>) -> Fixture {
    let region = region();
    let config = MemoryConfig { capacity_bytes: u64::from(BLOCK_BYTES * CAPACITY_BLOCKS) };
    let clock = ManualClock::default();
    let tier = wrap(MemoryTier::new("memory", config, Arc::clone(&region)), Arc::new(clock.clone()));
    let pass_time = Box::new(move || clock.advance(Duration::from_millis(1)));
    Fixture { tier, region, capacity_blocks: CAPACITY_BLOCKS, may_fail, pass_time }
}

#[test]
fn memory() {
    run(|| fixture(false, |tier, _| Box::new(tier))).unwrap();
}

#[test]
fn counted() {
    run(|| fixture(false, |tier, _| Box::new(Counted::new(tier)))).unwrap();
}

#[test]
fn slow() {
    run(|| fixture(false, |tier, clock| Box::new(Slow::new(tier, clock, Duration::from_millis(5))))).unwrap();
}

#[test]
fn hanging_once_it_goes_on() {
    run(|| fixture(false, |tier, _| Box::new(Hanging::new(tier, HangSwitch::new(false))))).unwrap();
}

#[test]
fn faulty() {
    let rates = FaultRates { store: 0.1, load: 0.1, busy: 0.1, unknown: 0.1 };
    for seed in 0..50 {
        run(|| fixture(true, |tier, _| Box::new(Faulty::new(tier, rates, seed))))
            .unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

#[test]
fn the_suite_notices_a_tier_that_forgets() {
    let rates = FaultRates { load: 1.0, ..FaultRates::default() };
    let broken = run(|| fixture(false, |tier, _| Box::new(Faulty::new(tier, rates, 1))));
    assert!(broken.is_err(), "a tier whose loads all fail passed as sound");
}
