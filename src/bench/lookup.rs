//! The manager's bookkeeping on the engine's thread.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Instant;

use terrace_config::Config;
use terrace_primary::{Key, SlotId};
use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringOffloadingManager};
use terrace_tiers::SystemClock;

use super::outcome::Outcome;
use super::{median, progress};

/// Keys in one lookup.
const PREFIX: usize = 1_000;
/// Lookups timed for each size.
const LOOKUPS: usize = 301;
/// Keys stored by one call while a table is filled.
const FILL: u64 = 10_000;
/// What vLLM's own manager takes, in us, on this kind of machine; the budget is a twentieth.
const VLLM_PREPARE_STORE_US: f64 = 660.0;
const VLLM_PREPARE_LOAD_US: f64 = 370.0;

/// A hasher for keys that are hashes already: their first eight bytes, once multiplied.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

type Bare = HashMap<[u8; 36], u32, BuildHasherDefault<FirstBytes>>;

/// SplitMix64's output function.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The 36 bytes of the `number`th key: a hash of 32 bytes, and group 0.
fn bare_key(number: u64) -> [u8; 36] {
    let mut key = [0; 36];
    for (place, word) in key[..32].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(number.wrapping_mul(4).wrapping_add(place as u64 + 1)).to_le_bytes());
    }
    key
}

fn key(number: u64) -> anyhow::Result<Key> {
    Ok(Key::from_bytes(&bare_key(number))?)
}

fn keys(numbers: impl IntoIterator<Item = u64>) -> anyhow::Result<Vec<Key>> {
    numbers.into_iter().map(key).collect()
}

/// A manager of `blocks` slots without secondary tiers, all of them resident: keys `0..blocks`.
fn full_manager(blocks: u32) -> anyhow::Result<TieringOffloadingManager> {
    let config = Config::parse(&format!("[primary]\nblocks = {blocks}\n"), "bench")?;
    let mut manager = TieringOffloadingManager::new(&config, Vec::new(), Arc::new(SystemClock::new()))?;
    let mut plan = StorePlan::default();
    for first in (0..u64::from(blocks)).step_by(FILL as usize) {
        let keys = keys(first..(first + FILL).min(u64::from(blocks)))?;
        store(&mut manager, RequestId(first), &keys, &mut plan)?;
    }
    manager.take_events(&mut Vec::new());
    Ok(manager)
}

/// Stores `keys` in one request and returns how long `prepare_store` took, in us.
fn store(
    manager: &mut TieringOffloadingManager,
    id: RequestId,
    keys: &[Key],
    plan: &mut StorePlan,
) -> anyhow::Result<f64> {
    manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
    let start = Instant::now();
    let stored = manager.prepare_store(id, keys, false, plan)?;
    let took_us = start.elapsed().as_secs_f64() * 1e6;
    anyhow::ensure!(stored && plan.store.len() == keys.len(), "the manager did not take {} keys", keys.len());
    manager.complete_store(id, keys, true)?;
    manager.finish_request(id);
    manager.end_step();
    Ok(took_us)
}

pub(super) fn run(most: u32) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new("lookup");
    let sizes = [10_000, 100_000, 1_000_000, 10_000_000];
    for blocks in sizes.into_iter().filter(|blocks| *blocks <= most) {
        progress(format_args!("{blocks} resident blocks"));
        let mut manager = full_manager(blocks)?;
        lookups(&mut outcome, &mut manager, blocks)?;
        let bytes = manager.primary().table_bytes() as f64 / f64::from(blocks);
        outcome.add(format!("block table, {blocks} blocks"), bytes, "B", 64.0, "<= 1");
        if blocks == 100_000 {
            bookkeeping(&mut outcome, &mut manager, blocks)?;
        }
    }
    Ok(outcome)
}

/// Times lookups of prefixes against probes of a bare table of the same keys, in turn.
fn lookups(outcome: &mut Outcome, manager: &mut TieringOffloadingManager, blocks: u32) -> anyhow::Result<()> {
    let mut bare = Bare::with_capacity_and_hasher(blocks as usize, BuildHasherDefault::default());
    bare.extend((0..u64::from(blocks)).map(|number| (bare_key(number), number as u32)));
    let id = RequestId(u64::MAX);
    manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = Vec::with_capacity(PREFIX);
    for round in 0..LOOKUPS as u64 {
        // Two sets of keys drawn from the whole table, so that neither side finds its lines warmed by the other.
        let draw = |place: u64| mix(round * 4 * PREFIX as u64 + place) % u64::from(blocks);
        let ours_keys = keys((0..PREFIX as u64).map(draw))?;
        let bare_keys: Vec<_> = (PREFIX as u64..2 * PREFIX as u64).map(|place| bare_key(draw(place))).collect();

        let start = Instant::now();
        let sum = bare_keys.iter().filter_map(|key| bare.get(key)).fold(0, |sum: u64, slot| sum + u64::from(*slot));
        let bare_ns = start.elapsed().as_secs_f64() * 1e9 / PREFIX as f64;
        std::hint::black_box(sum);

        let start = Instant::now();
        manager.lookup(id, &ours_keys, LookupMode::Prefix, &mut found)?;
        let ours_ns = start.elapsed().as_secs_f64() * 1e9 / PREFIX as f64;
        anyhow::ensure!(found.iter().all(|answer| *answer == Lookup::Hit), "a resident key was not found");
        manager.end_step();

        ours.push(ours_ns);
        theirs.push(bare_ns);
        ratios.push(ours_ns / bare_ns);
    }
    manager.finish_request(id);
    outcome.add_with_ratio(
        format!("lookup of a resident 1,000-key prefix, {blocks} blocks"),
        median(&mut ours),
        "ns/key",
        median(&mut theirs),
        median(&mut ratios),
        "<= 1.5",
    );
    Ok(())
}

/// `prepare_store` of 64 blocks that evicts 64, and `prepare_load` of 256.
fn bookkeeping(outcome: &mut Outcome, manager: &mut TieringOffloadingManager, blocks: u32) -> anyhow::Result<()> {
    let (mut stores, mut loads) = (Vec::new(), Vec::new());
    let mut plan = StorePlan::default();
    let mut slots: Vec<SlotId> = Vec::new();
    for round in 0..LOOKUPS as u64 {
        let first = u64::from(blocks) + round * 64;
        let id = RequestId(first);
        stores.push(store(manager, id, &keys(first..first + 64)?, &mut plan)?);
        anyhow::ensure!(plan.evicted.len() == 64, "{} blocks were evicted, not 64", plan.evicted.len());

        // The youngest blocks of the first filling: far from being evicted.
        let resident = keys(u64::from(blocks) - 256..u64::from(blocks))?;
        manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
        slots.clear();
        let start = Instant::now();
        manager.prepare_load(id, &resident, &mut slots)?;
        loads.push(start.elapsed().as_secs_f64() * 1e6);
        manager.complete_load(id, &resident)?;
        manager.finish_request(id);
    }
    let name = |what: &str| format!("{what} (limit: vLLM's own manager)");
    outcome.add(name("prepare_store of 64 evicting 64"), median(&mut stores), "us", VLLM_PREPARE_STORE_US, "<= 0.05");
    outcome.add(name("prepare_load of 256"), median(&mut loads), "us", VLLM_PREPARE_LOAD_US, "<= 0.05");
    Ok(())
}
