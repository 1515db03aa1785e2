//! Real bytes through a real tier: the memory tier, plain and behind wrappers.

mod common;

use std::sync::Arc;

use common::{config, key, keys, letters};
use terrace_config::MemoryConfig;
use terrace_primary::{Key, Region, RegionOptions};
use terrace_tiering::{LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringOffloadingManager};
use terrace_tiers::wrappers::{FaultRates, Faulty};
use terrace_tiers::{ManualClock, MemoryTier, SecondaryTier};

const BLOCK_BYTES: u32 = 4096;

fn region(slots: u32) -> Arc<Region> {
    let options = RegionOptions {
        slots,
        slot_stride: BLOCK_BYTES,
        block_bytes: BLOCK_BYTES,
        huge_pages: terrace_config::Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a region")
}

fn payload(key: &Key) -> Vec<u8> {
    key.as_bytes().iter().copied().cycle().take(BLOCK_BYTES as usize).collect()
}

struct Engine {
    manager: TieringOffloadingManager,
    region: Arc<Region>,
    next: u64,
}

impl Engine {
    fn new(slots: u32, tier: impl FnOnce(Arc<Region>) -> Box<dyn SecondaryTier>) -> Self {
        let region = region(slots);
        let clock = Arc::new(ManualClock::default());
        let manager = TieringOffloadingManager::new(&config(slots), vec![tier(region.clone())], clock);
        Self { manager: manager.expect("a manager"), region, next: 0 }
    }

    fn begin(&mut self) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.manager.begin_request(RequestContext { id, tiers: TierFilter::ALL }).expect("a new request");
        id
    }

    fn store(&mut self, keys: &[Key]) {
        let id = self.begin();
        let mut plan = StorePlan::default();
        assert_eq!(self.manager.prepare_store(id, keys, false, &mut plan), Ok(true));
        for (at, slot) in plan.store.iter().zip(&plan.slots) {
            assert!(self.region.write_slot(*slot, &payload(&keys[*at as usize])));
        }
        let stored: Vec<Key> = plan.store.iter().map(|at| keys[*at as usize]).collect();
        self.manager.complete_store(id, &stored, true).expect("running");
        self.manager.finish_request(id);
        self.step();
    }

    fn step(&mut self) {
        self.manager.end_step();
        self.manager.check().expect("consistent");
    }

    /// Looks a prefix up until it is resolved, loads it, and compares each byte. Returns the answer.
    fn load(&mut self, keys: &[Key]) -> String {
        let id = self.begin();
        let mut out = Vec::new();
        for _ in 0..100 {
            self.manager.lookup(id, keys, LookupMode::Prefix, &mut out).expect("a lookup");
            if !out.iter().any(|answer| answer.is_unresolved()) {
                break;
            }
            self.step();
        }
        let answer = letters(&out);
        let found = &keys[..answer.find('.').unwrap_or(keys.len())];
        let mut slots = Vec::new();
        self.manager.prepare_load(id, found, &mut slots).expect("all resident");
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        for (key, slot) in found.iter().zip(&slots) {
            assert!(self.region.read_slot(*slot, &mut bytes));
            assert!(bytes == payload(key), "wrong bytes of {key}");
        }
        self.manager.complete_load(id, found).expect("running");
        self.manager.finish_request(id);
        self.step();
        answer
    }
}

#[test]
fn blocks_go_down_and_come_back() {
    let capacity = MemoryConfig { capacity_bytes: 64 * u64::from(BLOCK_BYTES) };
    let mut engine = Engine::new(8, |region| Box::new(MemoryTier::new("memory", capacity, region)));
    for first in (0..32).step_by(4) {
        engine.store(&keys(first..first + 4));
        engine.step();
    }
    assert_eq!(engine.load(&keys(0..4)), "HHHH");
    assert_eq!(engine.load(&[key(30), key(31), key(99)]), "HH.");
    let stats = engine.manager.stats();
    assert_eq!((stats.loaded_by_tier[0], stats.loaded_primary), (4, 2));
    assert_eq!((stats.tiers[0].tier.blocks, stats.tiers[0].cascades.dropped()), (32, 0));
    assert!(engine.manager.drain());
    engine.manager.shutdown();
    assert_eq!(engine.manager.stats().lost_slots, 0);
}

#[test]
fn no_fault_of_a_tier_becomes_wrong_bytes() {
    let capacity = MemoryConfig { capacity_bytes: 64 * u64::from(BLOCK_BYTES) };
    for seed in 0..50 {
        let rates = FaultRates { store: 0.2, load: 0.2, busy: 0.2, unknown: 0.1 };
        let tier = |region| -> Box<dyn SecondaryTier> {
            Box::new(Faulty::new(MemoryTier::new("memory", capacity, region), rates, seed))
        };
        let mut engine = Engine::new(8, tier);
        for round in 0..40u32 {
            let first = (round * 7 + seed as u32) % 40;
            if round % 3 == 0 {
                engine.store(&keys(first..first + 4));
            } else {
                engine.load(&keys(first..first + 4));
            }
        }
    }
}
