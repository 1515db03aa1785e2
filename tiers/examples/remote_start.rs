//! Measures how long a node needs, from nothing, until it answers lookups from the whole catalog of a large bucket.
//!
//! ```text
//! cargo run --release -p terrace-tiers --example remote_start -- fill  URL ENDPOINT [million keys, 10] [blocks a segment, 64] [log objects, 1000]
//! cargo run --release -p terrace-tiers --example remote_start -- start URL ENDPOINT [the same]
//! ```
//! `URL` is `s3://bucket/prefix` with an `ENDPOINT`, or `file:///dir` with `-` for it. `fill` writes a snapshot, and a log behind it, that name
//! so many keys; no segment stands behind them. `start` opens a tier on it, as the daemon does, and looks up until all is known; credentials
//! come from the environment. A process of its own for each, so that the memory seen is the tier's.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};
use terrace_config::{Collector, Credentials, Geometry, ObjectConfig};
use terrace_primary::{Key, Region};
use terrace_tiers::object::log::{LogObject, LogRecord};
use terrace_tiers::object::names::{LogName, Names, PartName};
use terrace_tiers::object::snapshot::{Manifest, Part, part_segment_bytes};
use terrace_tiers::object::{
    ObjectOptions, ObjectTier, SegmentId, SegmentRecord, Shape, Stamp, SystemWallClock, WallClock, WriterId,
};
use terrace_tiers::{SecondaryTier, SystemClock, TierLookup};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHAPE: Shape = Shape { namespace: [7; 32], block_bytes: 256 << 10, key_bytes: 36 };
/// Parts of a snapshot are about so long, as the collector makes them.
const PART_BYTES: usize = 7 << 20;
/// Segments that a log object names.
const SEGMENTS_A_LOG: u64 = 5;
/// Who wrote what the snapshot names, and what the log names.
const SNAPSHOT: WriterId = WriterId(1);
const LOG: WriterId = WriterId(2);

struct Arguments {
    url: String,
    endpoint: Option<String>,
    segments: u64,
    blocks: u64,
    logs: u64,
}

impl Arguments {
    fn keys(&self) -> u64 {
        self.segments * self.blocks
    }

    /// Segments that the snapshot names; the log names the rest.
    fn in_snapshot(&self) -> u64 {
        self.segments - self.logs * SEGMENTS_A_LOG
    }

    /// Place of the bucket or directory, and the prefix in it.
    fn place(&self) -> Result<(&str, &str)> {
        match self.url.split_once("://") {
            Some(("file", directory)) => Ok((directory, "")),
            Some(("s3", place)) => Ok(place.split_once('/').unwrap_or((place, ""))),
            _ => Err("URL is s3://bucket/prefix or file:///dir".into()),
        }
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |text| text.parse());
    let [what, url, endpoint, ..] = words.as_slice() else { return Err("fill or start, URL, ENDPOINT".into()) };
    let (keys, blocks, logs) = (number(3, 10)? * 1_000_000, number(4, 64)?.max(1), number(5, 1_000)?);
    let segments = (keys / blocks).max(logs * SEGMENTS_A_LOG);
    let endpoint = (endpoint != "-").then(|| endpoint.clone());
    let arguments = Arguments { url: url.clone(), endpoint, segments, blocks, logs };
    match what.as_str() {
        "fill" => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(fill(&arguments)),
        "start" => start(&arguments),
        _ => Err("fill or start".into()),
    }
}

async fn fill(arguments: &Arguments) -> Result<()> {
    let (place, prefix) = arguments.place()?;
    let store: Box<dyn ObjectStore> = match &arguments.endpoint {
        Some(endpoint) => Box::new(terrace_test_s3::client(endpoint, place)?),
        None => {
            std::fs::create_dir_all(place)?;
            Box::new(LocalFileSystem::new_with_prefix(place)?)
        }
    };
    let names = Names::new(prefix, &SHAPE.namespace);
    let began = Stamp(SystemWallClock.now_ms());
    let (mut parts, mut part, mut bytes) = (Vec::new(), Part::default(), 0);
    for number in 0..arguments.in_snapshot() {
        let segment = segment(SNAPSHOT, number, number, arguments.blocks)?;
        bytes += part_segment_bytes(&segment);
        part.segments.push((segment, Stamp(0)));
        if bytes > PART_BYTES || number + 1 == arguments.in_snapshot() {
            let name = PartName { writer: SNAPSHOT, number: parts.len() as u64 };
            let (encoded, reference) = std::mem::take(&mut part).encode(&SHAPE, name)?;
            store.put(&names.part(name), encoded.into()).await?;
            parts.push(reference);
            bytes = 0;
        }
    }
    let total: u64 = parts.iter().map(|part| part.bytes).sum();
    let writers = vec![(SNAPSHOT, 1, began)];
    let manifest =
        Manifest { number: 1, stamp: began, log_from: began, parts, writers, removed: Vec::new(), used: Vec::new() };
    store.put(&names.manifest(1), manifest.encode(&SHAPE)?.into()).await?;
    for sequence in 1..=arguments.logs {
        let name = LogName { stamp: Stamp(began.0 + sequence), writer: LOG, sequence };
        let first = arguments.in_snapshot() + (sequence - 1) * SEGMENTS_A_LOG;
        let records: Result<_> = (first..first + SEGMENTS_A_LOG)
            .map(|number| segment(LOG, number, number, arguments.blocks).map(LogRecord::Added))
            .collect();
        let object =
            LogObject { writer: LOG, sequence, stamp: name.stamp, node: "filled".to_owned(), records: records? };
        store.put(&names.log(name), object.encode(&SHAPE)?.into()).await?;
    }
    println!(
        "  filled  {} keys: {} parts of {} MB, {} log objects",
        arguments.keys(),
        manifest.parts.len(),
        total / 1_000_000,
        arguments.logs
    );
    Ok(())
}

fn start(arguments: &Arguments) -> Result<()> {
    let mut config = ObjectConfig::new(&arguments.url, 1 << 60);
    config.endpoint.clone_from(&arguments.endpoint);
    config.credentials = Credentials::Environment;
    config.collector = Collector::Never;
    let geometry = Geometry {
        block_bytes: SHAPE.block_bytes,
        tokens_per_block: 16,
        blocks_per_chunk: 1,
        groups: 1,
        hash_bytes: SHAPE.key_bytes - 4,
    };
    let before = resident_bytes()?;
    let started = Instant::now();
    let mut tier = ObjectTier::open(ObjectOptions {
        config: &config,
        name: "object".into(),
        namespace: SHAPE.namespace,
        geometry,
        region: Region::null(1, SHAPE.block_bytes, SHAPE.block_bytes),
        clock: Arc::new(SystemClock::new()),
        wall: Arc::new(SystemWallClock),
    })?;
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    // Keys from all over: the catalog is full when all are found.
    let asked: Vec<Key> = (0..1_000).map(|i| key(i * arguments.keys() / 1_000)).collect();
    while !tier.is_known() {
        if started.elapsed() > Duration::from_secs(120) {
            return Err("the catalog is not known after two minutes".into());
        }
        thread::sleep(Duration::from_millis(1));
        tier.poll(&mut events);
    }
    tier.lookup(&asked, &mut answers);
    let took = started.elapsed();
    let found = answers.iter().filter(|answer| **answer == TierLookup::Found).count();
    let stats = tier.stats();
    println!("  start   {:.2} s until lookups are answered from the whole catalog", took.as_secs_f64());
    println!("  catalog {} keys; of {} asked for {found} were found", stats.blocks, asked.len());
    println!(
        "  asked   {} GETs and {} LISTs; {:.2} s of a processor on the tier's thread",
        stats.object.gets,
        stats.object.lists,
        tier_seconds()?
    );
    // What the start needed and no longer does is given back by now.
    thread::sleep(Duration::from_secs(2));
    let each = resident_bytes()?.saturating_sub(before) as f64 / stats.blocks.max(1) as f64;
    println!("  memory  {each:.1} bytes a key, resident in all");
    println!("  peak    {:.1} bytes a key", peak_bytes()?.saturating_sub(before) as f64 / stats.blocks.max(1) as f64);
    tier.shutdown(Duration::from_secs(1));
    if found != asked.len() || stats.blocks != arguments.keys() {
        return Err("not everything was found".into());
    }
    Ok(())
}

fn segment(writer: WriterId, number: u64, first: u64, blocks: u64) -> Result<Arc<SegmentRecord>> {
    let keys: Vec<u8> = (0..blocks).flat_map(|i| key_bytes(first * blocks + i)).collect();
    let crcs = (0..blocks).map(|i| i as u32).collect();
    let id = SegmentId { writer, number };
    Ok(Arc::new(SHAPE.record(id, Stamp(number), keys.into(), crcs).ok_or("blocks within limits")?))
}

fn key(number: u64) -> Key {
    Key::from_array(&key_bytes(number))
}

/// A hash of 32 bytes and group 0, as an engine would make them: no two alike, no order.
fn key_bytes(number: u64) -> [u8; 36] {
    let mut bytes = [0; 36];
    for (place, word) in (0..).zip(bytes[..32].as_chunks_mut::<8>().0) {
        *word = mixed(number.wrapping_mul(4).wrapping_add(place)).to_le_bytes();
    }
    bytes
}

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014).
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Processor time of the tier's thread.
fn tier_seconds() -> Result<f64> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "terrace-object" {
            let text = std::fs::read_to_string(path.join("schedstat"))?;
            return Ok(text.split(' ').next().ok_or("schedstat")?.parse::<u64>()? as f64 / 1e9);
        }
    }
    Err("no thread terrace-object".into())
}

/// Memory of this process, now.
fn resident_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/statm")?;
    Ok(status.split(' ').nth(1).ok_or("statm")?.parse::<usize>()? * 4096)
}

/// The most it ever had.
fn peak_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).ok_or("status")?;
    Ok(line.split_whitespace().nth(1).ok_or("status")?.parse::<usize>()? * 1024)
}
