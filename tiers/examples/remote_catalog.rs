//! Measures what a node keeps of a shared bucket: building it from a snapshot, memory, lookups, and folding while lookups go on.
//!
//! `cargo run --release -p terrace-tiers --example remote_catalog -- [million keys, 10] [blocks a segment, 64]`. No store is asked: parts of a
//! snapshot and log objects are made first and decoded as if they had been read.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_primary::Key;
use terrace_tiers::TierLookup;
use terrace_tiers::object::blocks::Blocks;
use terrace_tiers::object::log::{LogObject, LogRecord};
use terrace_tiers::object::names::{LogName, PartName};
use terrace_tiers::object::snapshot::{Part, part_segment_bytes};
use terrace_tiers::object::{SegmentId, SegmentRecord, Shape, Stamp, WriterId};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHAPE: Shape = Shape { namespace: [7; 32], block_bytes: 256 << 10, key_bytes: 36 };
/// Parts of a snapshot are about so long.
const PART_BYTES: usize = 7 << 20;
/// Keys of one lookup.
const KEYS: u64 = 1000;
/// Nodes that store, and blocks that each names in one log object a second.
const NODES: u64 = 50;
const BLOCKS_A_LOG: u64 = 1000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let keys = arguments.first().map_or(Ok(10), |text| text.parse::<u64>())? * 1_000_000;
    let blocks = arguments.get(1).map_or(Ok(64), |text| text.parse::<u64>())?;
    let segments = keys / blocks;
    let keys = segments * blocks;

    let parts = snapshot(segments, blocks)?;
    let before = resident_bytes()?;
    let mut decode = Duration::ZERO;
    let on_processor = processor_time()?;
    let mut records = Vec::new();
    for (number, bytes) in (0..).zip(&parts) {
        let start = Instant::now();
        let part = Part::decode(&SHAPE, PartName { writer: WriterId(1), number }, bytes)?;
        records.extend(part.segments.into_iter().map(|(segment, _)| (segment, false)));
        decode += start.elapsed();
    }
    let start = Instant::now();
    let mut table = Blocks::with_capacity(keys as usize);
    table.add_all(records);
    let add = start.elapsed();
    println!(
        "  build   {:.2} s: decoding {:.2}, table {:.2}; {:.2} s on the processor",
        (decode + add).as_secs_f64(),
        decode.as_secs_f64(),
        add.as_secs_f64(),
        (processor_time()? - on_processor).as_secs_f64()
    );
    let each = |bytes: usize| bytes as f64 / keys as f64;
    println!(
        "  memory  {:.1} bytes a key: table {:.1}, records {:.1}; resident {:.1}",
        each(table.memory_bytes()),
        each(table.table_bytes()),
        each(table.memory_bytes() - table.table_bytes()),
        each(resident_bytes()?.saturating_sub(before))
    );
    drop(parts);

    let mut random = Random(1);
    let mut found = Vec::new();
    for (name, stride, absent) in
        [("a prefix", 1, 0), ("anywhere", 7919 * 104_729, 0), ("absent", 7919 * 104_729, u64::MAX / 2)]
    {
        let mut times: Vec<Duration> = (0..2000)
            .map(|_| {
                let start = random.next() % keys;
                let keys: Vec<Key> = (0..KEYS).map(|i| key(absent + (start + i * stride) % keys)).collect();
                let start = Instant::now();
                table.lookup(black_box(&keys), &mut found, TierLookup::Absent);
                let time = start.elapsed();
                assert!(found.iter().all(|found| (*found == TierLookup::Found) == (absent == 0)));
                time
            })
            .collect();
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 1000].as_secs_f64() * 1e6;
        println!(
            "  lookup  of 1,000 keys, {name}: median {:.1} us, p99 {:.1} us, {:.0} ns a key",
            at(500),
            at(990),
            at(500)
        );
    }

    // A table that grows while it is asked: its tables double at different times.
    let mut next = segments;
    let (mut slowest, mut worst_lookup) = (Duration::ZERO, Duration::ZERO);
    let (mut fold, mut folded) = (Duration::ZERO, 0);
    for second in 0..20 {
        for node in 0..NODES {
            let name = LogName { stamp: Stamp(second), writer: WriterId(node), sequence: second };
            let log = LogObject {
                writer: name.writer,
                sequence: name.sequence,
                stamp: name.stamp,
                node: String::new(),
                records: (0..BLOCKS_A_LOG / blocks.min(BLOCKS_A_LOG))
                    .map(|i| LogRecord::Added(segment(next + i, blocks)))
                    .collect(),
            };
            next += log.records.len() as u64;
            let bytes = log.encode(&SHAPE)?;
            drop(log);
            let start = Instant::now();
            for record in LogObject::decode(&SHAPE, &name, &bytes)?.records {
                if let LogRecord::Added(segment) = record {
                    folded += u64::from(segment.blocks());
                    table.add(segment, false);
                }
            }
            fold += start.elapsed();
            slowest = slowest.max(start.elapsed());
            let start = random.next() % keys;
            let keys: Vec<Key> = (0..KEYS).map(|i| key(start + i)).collect();
            let start = Instant::now();
            table.lookup(black_box(&keys), &mut found, TierLookup::Absent);
            worst_lookup = worst_lookup.max(start.elapsed());
        }
    }
    println!(
        "  fold    {folded} blocks in log objects of {BLOCKS_A_LOG}, a lookup of 1,000 keys between two: {:.0} blocks a second ({:.1} times {NODES} nodes \
         at {BLOCKS_A_LOG}); slowest object {:.2} ms, slowest lookup {:.2} ms",
        folded as f64 / fold.as_secs_f64(),
        folded as f64 / fold.as_secs_f64() / (NODES * BLOCKS_A_LOG) as f64,
        slowest.as_secs_f64() * 1e3,
        worst_lookup.as_secs_f64() * 1e3
    );
    let start = Instant::now();
    let mut gone = Vec::new();
    for number in 0..1000 {
        table.remove(SegmentId { writer: WriterId(1), number }, &mut gone);
    }
    println!("  remove  {:.0} blocks a second", (1000 * blocks) as f64 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    drop(table);
    println!("  drop    {:.2} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The parts of a snapshot of so many segments.
fn snapshot(segments: u64, blocks: u64) -> Result<Vec<Vec<u8>>> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Part::default(), 0);
    for number in 0..segments {
        let segment = segment(number, blocks);
        bytes += part_segment_bytes(&segment);
        part.segments.push((segment, Stamp(0)));
        if bytes > PART_BYTES || number + 1 == segments {
            let name = PartName { writer: WriterId(1), number: parts.len() as u64 };
            parts.push(std::mem::take(&mut part).encode(&SHAPE, name)?.0);
            bytes = 0;
        }
    }
    Ok(parts)
}

fn segment(number: u64, blocks: u64) -> Arc<SegmentRecord> {
    let keys: Vec<u8> = (0..blocks).flat_map(|i| key_bytes(number * blocks + i)).collect();
    let crcs = (0..blocks).map(|i| i as u32).collect();
    let id = SegmentId { writer: WriterId(1), number };
    Arc::new(SHAPE.record(id, Stamp(number), keys.into(), crcs).expect("blocks within limits"))
}

fn key(number: u64) -> Key {
    Key::from_array(&key_bytes(number))
}

/// A hash of 32 bytes and group 0, as an engine would make them: no two alike, no order.
fn key_bytes(number: u64) -> [u8; 36] {
    let mut bytes = [0; 36];
    let mut random = Random(number);
    for word in bytes[..32].as_chunks_mut::<8>().0 {
        *word = random.next().to_le_bytes();
    }
    bytes
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Time that this thread spent on a processor: what is left of the wall's time where others have the processors.
fn processor_time() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split(' ').next().ok_or("schedstat")?.parse()?))
}

/// Memory of this process, now.
fn resident_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = status.split(' ').nth(1).ok_or("statm")?.parse()?;
    Ok(pages * 4096)
}
