//! Measures what following the log of a large cluster costs one node: processor time and requests.
//!
//! `cargo run --release -p terrace-tiers --example fold_rate -- [seconds, 20] [log objects a second and writer, 5]`. Fifty writers name a thousand new
//! blocks a second each, in a store in memory; a tier that is asked for blocks all the time follows. Log objects that are ten seconds old are
//! deleted, so that listing the store in memory costs what a page costs.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use terrace_config::{Collector, Geometry, ObjectConfig};
use terrace_primary::{Key, Region};
use terrace_tiers::object::log::{LogObject, LogRecord};
use terrace_tiers::object::names::{LogName, Names};
use terrace_tiers::object::{ObjectOptions, ObjectTier, SegmentId, Shape, Stamp, SystemWallClock, WallClock, WriterId};
use terrace_tiers::{SecondaryTier, SystemClock};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SHAPE: Shape = Shape { namespace: [7; 32], block_bytes: 256 << 10, key_bytes: 36 };
const WRITERS: u64 = 50;
const BLOCKS_A_SECOND: u64 = 1_000;
const KEPT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = arguments.first().map_or(Ok(20), |text| text.parse::<u64>())?;
    let logs_a_second = arguments.get(1).map_or(Ok(5), |text| text.parse::<u64>())?.max(1);

    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        thread::Builder::new().name("writers".into()).spawn(move || write(&*store, &stop, logs_a_second))?
    };
    let mut config = ObjectConfig::new("s3://bucket/prefix", 1 << 60);
    config.collector = Collector::Never;
    let geometry = Geometry {
        block_bytes: SHAPE.block_bytes,
        tokens_per_block: 16,
        blocks_per_chunk: 1,
        groups: 1,
        hash_bytes: SHAPE.key_bytes - 4,
    };
    let options = ObjectOptions {
        config: &config,
        name: "object".into(),
        namespace: SHAPE.namespace,
        geometry,
        region: Region::null(1, SHAPE.block_bytes, SHAPE.block_bytes),
        clock: Arc::new(SystemClock::new()),
        wall: Arc::new(SystemWallClock),
    };
    let mut tier = ObjectTier::with_store(options, store, &Path::from("prefix"), WriterId(1 << 32), 1)?;
    let key = Key::new(&[1; 32], 0)?;
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    let mut step = |tier: &mut ObjectTier, until: Instant| {
        while Instant::now() < until {
            tier.lookup(&[key], &mut answers);
            tier.poll(&mut events);
            thread::sleep(Duration::from_millis(5));
        }
    };
    // Connected, and in stride.
    step(&mut tier, Instant::now() + Duration::from_secs(3));
    let before = (tier.stats(), cpu("terrace-object")?, cpu("fold_rate")?);
    let started = Instant::now();
    step(&mut tier, started + Duration::from_secs(seconds));
    let took = started.elapsed().as_secs_f64();
    let after = (tier.stats(), cpu("terrace-object")?, cpu("fold_rate")?);
    let (is, was) = (&after.0.object, &before.0.object);
    let rate = |is: u64, was: u64| (is - was) as f64 / took;
    println!(
        "fold_rate: {WRITERS} writers of {BLOCKS_A_SECOND} blocks a second, {logs_a_second} log objects a second each"
    );
    println!(
        "  folded  {:.0} blocks a second, {:.0} log objects",
        rate(after.0.blocks, before.0.blocks),
        rate(is.logs_folded, was.logs_folded)
    );
    println!("  asks    {:.1} LIST and {:.0} GET a second", rate(is.lists, was.lists), rate(is.gets, was.gets));
    println!(
        "  costs   {:.1}% of a core on the tier's thread, {:.1}% on the manager's",
        (after.1 - before.1) / took * 100.0,
        (after.2 - before.2) / took * 100.0
    );
    stop.store(true, Ordering::Relaxed);
    tier.shutdown(Duration::from_secs(1));
    writing.join().map_err(|_| "the writers panicked")?
}

/// Appends to the log for all writers until told to stop.
fn write(store: &dyn ObjectStore, stop: &AtomicBool, logs_a_second: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let names = Names::new("prefix", &SHAPE.namespace);
    let blocks = BLOCKS_A_SECOND / logs_a_second;
    let pause = Duration::from_secs(1) / (WRITERS * logs_a_second) as u32;
    let started = Instant::now();
    let mut written: std::collections::VecDeque<(Instant, Path)> = std::collections::VecDeque::new();
    for turn in 0..u64::MAX {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (writer, sequence) = (WriterId(turn % WRITERS), turn / WRITERS + 1);
        let stamp = Stamp(SystemWallClock.now_ms());
        let keys: Vec<u8> = (0..blocks).flat_map(|block| key_bytes(turn * blocks + block)).collect();
        let crcs: Vec<u32> = (0..blocks as u32).collect();
        let record =
            SHAPE.record(SegmentId { writer, number: sequence }, stamp, keys.into(), crcs.into()).ok_or("a record")?;
        let records = vec![LogRecord::Added(Arc::new(record))];
        let object = LogObject { writer, sequence, stamp, node: "simulated".into(), records };
        let path = names.log(LogName { stamp, writer, sequence });
        runtime.block_on(store.put(&path, object.encode(&SHAPE)?.into()))?;
        written.push_back((Instant::now(), path));
        while let Some((_, path)) = written.pop_front_if(|(at, _)| at.elapsed() > KEPT) {
            runtime.block_on(store.delete(&path))?;
        }
        thread::sleep((started + pause * (turn + 1) as u32).saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// A key like any other: no two numbers share a prefix.
fn key_bytes(number: u64) -> [u8; 36] {
    let mut key = [0; 36];
    for (place, eight) in key[..32].chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&number.wrapping_add(place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    key
}

/// Seconds of processor time of the thread of this name.
fn cpu(name: &str) -> Result<f64> {
    /// What `getconf CLK_TCK` says everywhere.
    const TICKS_A_SECOND: f64 = 100.0;
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if fs::read_to_string(path.join("comm"))?.trim() == name {
            let stat = fs::read_to_string(path.join("stat"))?;
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            let ticks =
                |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok()).ok_or("/proc: no times");
            return Ok((ticks(11)? + ticks(12)?) / TICKS_A_SECOND);
        }
    }
    Err(format!("no thread {name}").into())
}
