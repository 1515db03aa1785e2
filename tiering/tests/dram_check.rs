//! Blocks that change in DRAM behind the manager's back, with `check_loads`.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{config, key, keys, letters};
use terrace_config::{Choice, MemoryConfig};
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiering::{
    Located, LookupMode, ReaderBudget, RequestContext, RequestId, Scan, StorePlan, TierFilter, TieringError,
    TieringOffloadingManager,
};
use terrace_tiers::{ManualClock, MemoryTier};

/// Longer than a comparison is good for.
const LATER: Duration = Duration::from_secs(11);

struct Engine {
    manager: TieringOffloadingManager,
    region: Arc<Region>,
    clock: Arc<ManualClock>,
    next: u64,
}

impl Engine {
    /// Has stored `keys(0..blocks)`, long ago, and a tier of memory has them too.
    fn with(blocks: u32, block_bytes: u32) -> Self {
        let options = RegionOptions {
            slots: blocks + 4,
            slot_stride: block_bytes,
            block_bytes,
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        };
        let region = Region::create(&options, &|_, _| {}).expect("a region");
        let clock = Arc::new(ManualClock::default());
        let capacity = MemoryConfig { capacity_bytes: 2 * u64::from(blocks) * u64::from(block_bytes) };
        let tier = MemoryTier::new("memory", capacity, Arc::clone(&region));
        let mut config = config(blocks + 4);
        config.geometry.block_bytes = block_bytes;
        let mut manager =
            TieringOffloadingManager::new(&config, vec![Box::new(tier)], Arc::clone(&clock) as _).expect("a manager");
        manager.check_loads(Arc::clone(&region));
        let mut engine = Self { manager, region, clock, next: 0 };
        engine.store(&keys(0..blocks));
        engine.clock.advance(LATER);
        engine
    }

    fn store(&mut self, keys: &[Key]) {
        let id = self.begin();
        let mut plan = StorePlan::default();
        assert_eq!(self.manager.prepare_store(id, keys, false, &mut plan), Ok(true));
        for (at, slot) in plan.store.iter().zip(&plan.slots) {
            assert!(self.region.write_slot(*slot, &self.payload(&keys[*at as usize])));
        }
        self.manager.complete_store(id, keys, true).expect("running");
        self.manager.finish_request(id);
        for _ in 0..16 {
            self.step();
        }
        assert_eq!(self.manager.stats().tiers[0].cascades.stored, keys.len() as u64);
    }

    fn payload(&self, key: &Key) -> Vec<u8> {
        key.as_bytes().iter().copied().cycle().take(self.region.block_bytes() as usize).collect()
    }

    fn begin(&mut self) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.manager.begin_request(RequestContext { id, tiers: TierFilter::ALL }).expect("a new request");
        id
    }

    fn step(&mut self) {
        self.manager.end_step();
        self.manager.check().expect("consistent");
    }

    fn look(&mut self, id: RequestId, keys: &[Key]) -> String {
        let mut out = Vec::new();
        self.manager.lookup(id, keys, LookupMode::Prefix, &mut out).expect("a lookup");
        letters(&out)
    }

    /// What is answered in each step until all is resolved.
    fn looks(&mut self, id: RequestId, keys: &[Key]) -> Vec<String> {
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.push(self.look(id, keys));
            if answers.last().is_some_and(|answer| answer.chars().all(|letter| "H.".contains(letter))) {
                break;
            }
            self.step();
        }
        answers
    }

    fn load(&mut self, id: RequestId, keys: &[Key]) -> Result<Vec<SlotId>, TieringError> {
        let mut slots = Vec::new();
        self.manager.prepare_load(id, keys, &mut slots)?;
        for (key, slot) in keys.iter().zip(&slots) {
            let mut bytes = vec![0; self.region.block_bytes() as usize];
            assert!(self.region.read_slot(*slot, &mut bytes));
            assert!(bytes == self.payload(key), "wrong bytes of {key}");
        }
        Ok(slots)
    }

    /// Turns one bit over.
    fn damage(&self, key: &Key) {
        let slot = self.manager.primary().find(key).expect("resident");
        let at = self.region.block_bytes() as usize - 1;
        let mut byte = [0];
        assert!(self.region.read_slot_at(slot, at, &mut byte));
        assert!(self.region.write_slot_at(slot, at, &[byte[0] ^ 4]));
    }

    fn failed(&self) -> u64 {
        self.manager.stats().checks_failed
    }
}

#[test]
fn what_changed_is_brought_from_below() {
    let mut engine = Engine::with(4, 4096);
    engine.damage(&key(2));
    let id = engine.begin();
    let answers = engine.looks(id, &keys(0..4));
    assert_eq!((answers[0].as_str(), answers.last().map(String::as_str)), ("HHRH", Some("HHHH")));
    engine.load(id, &keys(0..4)).expect("all there");
    assert_eq!(engine.failed(), 1);
    engine.manager.complete_load(id, &keys(0..4)).expect("running");
    // What has just been compared, or brought, is not read again.
    let before = engine.manager.stats().checks;
    assert_eq!(engine.look(id, &keys(0..4)), "HHHH");
    assert_eq!(engine.manager.stats().checks, before);
    engine.clock.advance(LATER);
    assert_eq!(engine.look(id, &keys(0..4)), "HHHH");
    assert_eq!(engine.manager.stats().checks, before + 4);
}

#[test]
fn what_changed_after_the_lookup_is_not_loaded() {
    let mut engine = Engine::with(4, 4096);
    let id = engine.begin();
    assert_eq!(engine.look(id, &keys(0..4)), "HHHH");
    engine.clock.advance(LATER);
    engine.damage(&key(3));
    assert_eq!(engine.load(id, &keys(0..4)), Err(TieringError::NotResident { key: key(3) }));
    assert_eq!((engine.failed(), engine.manager.stats().readers), (1, 0));
    engine.step();
    assert_eq!(engine.looks(id, &keys(0..4)).last().map(String::as_str), Some("HHHH"));
    engine.load(id, &keys(0..4)).expect("all there");
}

#[test]
fn what_changed_is_not_leased() {
    let mut engine = Engine::with(4, 4096);
    engine.damage(&key(1));
    let id = engine.begin();
    let mut budget = ReaderBudget { left: 100, frees_soon: false };
    let mut out = Vec::new();
    engine.manager.locate(id, &keys(0..4), Scan::Each, Some(&mut budget), &mut out).expect("a lookup");
    let slots: Vec<SlotId> =
        out.iter().filter_map(|at| if let Located::Hit { slot, .. } = at { Some(*slot) } else { None }).collect();
    assert_eq!((out[1], slots.len(), budget.left), (Located::Retry, 3, 97));
    engine.manager.end_leases(&slots);
    engine.step();
    out.clear();
    engine.manager.locate(id, &keys(1..2), Scan::Each, None, &mut out).expect("a lookup");
    assert_eq!(out, [Located::Found { tier: 0 }]);
}

#[test]
fn what_changed_while_it_is_read_is_a_miss_until_it_can_go() {
    let mut engine = Engine::with(2, 4096);
    let reader = engine.begin();
    engine.load(reader, &keys(0..2)).expect("all there");
    engine.damage(&key(1));
    engine.clock.advance(LATER);
    let id = engine.begin();
    assert_eq!(engine.look(id, &keys(0..2)), "H.");
    engine.manager.complete_load(reader, &keys(0..2)).expect("running");
    engine.step();
    let answers = engine.looks(id, &keys(0..2));
    assert_eq!((answers[0].as_str(), answers.last().map(String::as_str)), ("HR", Some("HH")));
    engine.load(id, &keys(0..2)).expect("all there");
}

#[test]
fn a_lookup_reads_a_bounded_number_of_bytes() {
    // 32 MiB for a lookup, and blocks of 8.
    let mut engine = Engine::with(6, 8 << 20);
    let id = engine.begin();
    assert_eq!(engine.looks(id, &keys(0..6)), ["HHHHRR", "HHHHHH"]);
    assert_eq!((engine.manager.stats().checks, engine.manager.stats().checks_deferred), (6, 2));
    engine.load(id, &keys(0..6)).expect("all there");
    assert_eq!(engine.manager.stats().checks, 6);
}

#[test]
fn a_block_larger_than_the_bound_is_read_all_the_same() {
    let mut engine = Engine::with(2, 48 << 20);
    let id = engine.begin();
    assert_eq!(engine.looks(id, &keys(0..2)), ["HR", "HH"]);
}
