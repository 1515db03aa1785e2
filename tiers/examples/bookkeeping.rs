//! What the NVMe tier's bookkeeping costs the manager's thread, with no device under it: nanoseconds a key or block.
//!
//! `cargo run --release -p terrace-tiers --example bookkeeping [BLOCKS]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use terrace_config::{Choice, Geometry, NvmeConfig};
use terrace_primary::{Key, Region, SlotId};
use terrace_tiers::{
    JobId, LoadBlock, LoadJob, NvmeTier, SecondaryTier, StoreBlock, StoreJob, SystemClock, Time, null_nvme_tier,
};

const BATCH: usize = 64;

fn key(n: u64) -> Key {
    let mut hash = [0; 32];
    for (i, word) in hash.chunks_exact_mut(8).enumerate() {
        let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 * 13) ^ n;
        word.copy_from_slice(&mixed.to_le_bytes());
    }
    Key::new(&hash, 0).expect("32 bytes")
}

fn store(tier: &mut NvmeTier, job: u64, keys: &[Key]) {
    let blocks = keys.iter().map(|key| StoreBlock { key: *key, slot: SlotId(0), crc32: Some(1) }).collect();
    tier.submit_store(StoreJob { id: JobId(job), blocks, deadline: Time(u64::MAX) }).expect("room in the queue");
}

fn report(what: &str, start: Instant, count: usize) {
    println!("{what:<44} {:>8.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

fn main() {
    let blocks: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let geometry =
        Geometry { block_bytes: 65536, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };
    let config = NvmeConfig {
        paths: vec!["/unused".into()],
        capacity_bytes: blocks as u64 * geometry.file_bytes(),
        high_watermark: 1.0,
        low_watermark: 0.99,
        queue_depth: 64,
        queue_entries: 65536,
        direct_io: Choice::Auto,
        io_uring: Choice::Auto,
        catalog: Choice::Off,
        scrub_bytes_per_second: 0,
    };
    let region = Region::null(64, geometry.slot_stride(), geometry.block_bytes);
    let mut tier =
        null_nvme_tier("null", &config, &geometry, region, Arc::new(SystemClock::new())).expect("a sound tier");
    let mut events = Vec::new();
    while !tier.is_known() {
        tier.poll(&mut events);
    }
    let keys: Vec<Key> = (0..2 * blocks as u64).map(key).collect();
    let (first, second) = keys.split_at(blocks);

    for (what, keys) in [("store, fresh, submit + poll, a block", first), ("store, evicting one each", second)] {
        let start = Instant::now();
        for (job, part) in keys.chunks(BATCH).enumerate() {
            store(&mut tier, job as u64, part);
            events.clear();
            tier.poll(&mut events);
        }
        report(what, start, keys.len());
    }

    let mut shuffled = second.to_vec();
    for i in (1..shuffled.len()).rev() {
        shuffled.swap(i, (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % (i + 1));
    }
    let mut answers = Vec::new();
    for (what, keys) in [("lookup, 1,000 keys at once, a key", &shuffled), ("again", &shuffled)] {
        let start = Instant::now();
        for part in keys.chunks(1000) {
            tier.lookup(part, &mut answers);
            black_box(&answers);
        }
        report(what, start, keys.len());
    }

    let start = Instant::now();
    for part in shuffled.chunks(1000) {
        tier.touch(part);
    }
    report("touch, 1,000 keys at once, a key", start, shuffled.len());

    let start = Instant::now();
    for (job, part) in shuffled.chunks(BATCH).enumerate() {
        let blocks = part.iter().map(|key| LoadBlock { key: *key, slot: SlotId(0) }).collect();
        let job = LoadJob { id: JobId(job as u64), blocks, deadline: Time(u64::MAX) };
        tier.submit_load(job).expect("room in the queue");
        events.clear();
        tier.poll(&mut events);
    }
    report("load, submit + poll, a block", start, shuffled.len());
    println!("{:?}", tier.stats());
}
