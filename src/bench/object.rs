//! The object tier beside a bare client on the same server: rates, requests, and how soon another node sees a block.
//!
//! Both sides send as many requests at once, unsigned payloads and the same bytes, in turns; medians of pairs. The bare client
//! knows nothing: it puts and gets whole objects of 2 MiB, and drops what it gets.

mod bare;
mod rig;
mod visibility;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use terrace_primary::Key;
use terrace_tiers::TierStats;

use self::bare::Bare;
use self::rig::{Direction, Rig};
use super::outcome::Outcome;
use super::{median, progress};

/// Objects of the bare client that the tier is held against.
const OBJECT_BYTES: u32 = 2 << 20;
/// What the tier sends in one request of an upload, by default: how the server takes that is its own matter, so it is shown too.
const PART_BYTES: u32 = 16 << 20;
/// Each load reads what was stored so often: reading is faster than writing.
const LOAD_PASSES: usize = 3;

/// What is measured, as given on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct ObjectBench {
    /// S3 server, such as http://127.0.0.1:8333; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. If left
    /// out, a directory takes the server's place, which is no measurement of the tier's purpose
    #[arg(long, requires = "bucket")]
    endpoint: Option<String>,
    /// Bucket there, which exists; what the bench writes is deleted at the end
    #[arg(long, requires = "endpoint")]
    bucket: Option<String>,
    /// Rounds that count, after one that warms up; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Bytes stored a round, side and block size. The last blocks of a round wait for the log, up to its publish_interval: a round of
    /// few bytes measures that
    #[arg(long, default_value_t = 1 << 30)]
    bytes: u64,
    /// A setting of the tier beside its defaults, as in the configuration, such as 'part_bytes = "8MiB"'; may be given again
    #[arg(long = "set", value_name = "KEY = VALUE")]
    settings: Vec<String>,
    /// One JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

/// Where the objects of this run are.
#[derive(Clone, Debug)]
enum Place {
    Bucket {
        endpoint: String,
        bucket: String,
        /// Of this run alone.
        prefix: String,
    },
    Directory(PathBuf),
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Rates of the tier and of the bare client, a pair a round, in MB/s.
#[derive(Default)]
struct Pairs {
    ours: Vec<f64>,
    bare: Vec<f64>,
}

impl Pairs {
    fn push(&mut self, what: &str, ours: f64, bare: f64) {
        progress(format_args!("    {what}: {:.0} MB/s, bare client {:.0} MB/s", ours / 1e6, bare / 1e6));
        self.ours.push(ours / 1e6);
        self.bare.push(bare / 1e6);
    }

    fn report(mut self, outcome: &mut Outcome, name: String, budget: &'static str) {
        let mut ratios: Vec<_> = self.ours.iter().zip(&self.bare).map(|(ours, bare)| ours / bare).collect();
        let (ours, bare) = (median(&mut self.ours), median(&mut self.bare));
        outcome.add_with_ratio(name, ours, "MB/s", bare, median(&mut ratios), budget);
    }
}

pub(super) fn run(options: &ObjectBench) -> anyhow::Result<Outcome> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let own = format!("terrace-bench-{}-{}", std::process::id(), since.as_millis());
    let (place, scratch) = match (&options.endpoint, &options.bucket) {
        (Some(endpoint), Some(bucket)) => {
            (Place::Bucket { endpoint: endpoint.clone(), bucket: bucket.clone(), prefix: own }, None)
        }
        _ => {
            let directory = std::env::temp_dir().join(own);
            progress(format_args!("*** NO SERVER: everything below is over the directory {} ***", directory.display()));
            (Place::Directory(directory.clone()), Some(Scratch(directory)))
        }
    };
    let mut outcome = Outcome::new(if scratch.is_some() { "object, NO SERVER" } else { "object" });
    // The first tier makes the directory, and chooses the process' cryptography, which the bare client needs too.
    let mut cleaner = None;
    let measured = (|| {
        for block_bytes in [2 << 20, 256 << 10] {
            one_size(&mut outcome, &place, options, block_bytes, &mut cleaner)?;
        }
        visibility::measure(&mut outcome, &place, &options.settings)
    })();
    let cleaned = cleaner.map_or(Ok(()), |bare: Bare| bare.delete_all());
    measured?;
    cleaned?;
    Ok(outcome)
}

fn one_size(
    outcome: &mut Outcome,
    place: &Place,
    options: &ObjectBench,
    block_bytes: u32,
    cleaner: &mut Option<Bare>,
) -> anyhow::Result<()> {
    let kib = block_bytes >> 10;
    let blocks = (options.bytes / u64::from(block_bytes)).max(64);
    let bytes = blocks * u64::from(block_bytes);
    progress(format_args!("{kib} KiB blocks: memory"));
    let region = rig::region(u32::try_from(blocks)?, block_bytes)?;
    let mut rig = Rig::open(place, &options.settings, block_bytes, region)?;
    let bare = match cleaner {
        Some(bare) => bare,
        None => cleaner.insert(Bare::open(place, rig.connections(), PART_BYTES)?),
    };
    let (mut store, mut load) = (Pairs::default(), Pairs::default());
    let mut store_parts = Pairs::default();
    let (mut store_same, mut load_same) = (Pairs::default(), Pairs::default());
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        let counts = round > 0;
        progress(format_args!("{kib} KiB blocks, round {round} of {}", options.rounds));
        let keys = keys(u64::from(kib) << 32 | u64::from(round), blocks)?;
        let name = format!("{kib}-{round}");
        let whole = bytes / u64::from(OBJECT_BYTES);
        let before = rig.stats();

        // In turns, each goes first every other time.
        let ours_first = round % 2 == 0;
        let mut ours = 0.0;
        if ours_first {
            ours = rig.move_all(Direction::Store, &keys, 1)?;
        }
        let other = bare.put_all(&name, whole, OBJECT_BYTES)?;
        if !ours_first {
            ours = rig.move_all(Direction::Store, &keys, 1)?;
        }
        let stored = rig.stats();
        let mut rates = vec![("store", &mut store, ours, other)];
        let same = format!("{name}-same");
        if block_bytes == OBJECT_BYTES {
            let parts = (bytes / u64::from(PART_BYTES)).max(1);
            let other = bare.put_all(&format!("{name}-parts"), parts, PART_BYTES)?;
            rates.push(("store, objects of 16 MiB", &mut store_parts, ours, other));
        } else {
            rates.push(("store, objects of a block", &mut store_same, ours, bare.put_all(&same, blocks, block_bytes)?));
        }

        let mut ours = 0.0;
        if ours_first {
            ours = rig.move_all(Direction::Load, &keys, LOAD_PASSES)?;
        }
        let other = bare.get_all(&name, whole, OBJECT_BYTES, LOAD_PASSES)?;
        if !ours_first {
            ours = rig.move_all(Direction::Load, &keys, LOAD_PASSES)?;
        }
        let loaded = rig.stats();
        rates.push(("load", &mut load, ours, other));
        if block_bytes != OBJECT_BYTES {
            let other = bare.get_all(&same, blocks, block_bytes, LOAD_PASSES)?;
            rates.push(("load, objects of a block", &mut load_same, ours, other));
        }
        tell(&before, &loaded);
        if counts {
            for (what, pairs, ours, other) in rates {
                pairs.push(what, ours, other);
            }
            puts.push((stored.stored - before.stored) as f64 / (stored.object.puts - before.object.puts) as f64);
            gets.push((loaded.loaded - stored.loaded) as f64 / (loaded.object.gets - stored.object.gets) as f64);
        }
    }
    rig.close();
    let whole = OBJECT_BYTES >> 10;
    store.report(outcome, format!("store, {kib} KiB (limit: bare, {whole} KiB)"), ">= 0.95");
    load.report(outcome, format!("load, {kib} KiB (limit: bare, {whole} KiB)"), ">= 0.95");
    if block_bytes == OBJECT_BYTES {
        store_parts.report(outcome, format!("store, {kib} KiB (limit: bare, {} KiB)", PART_BYTES >> 10), "shown");
    } else {
        store_same.report(outcome, format!("store, {kib} KiB (limit: bare, {kib} KiB)"), "shown");
        load_same.report(outcome, format!("load, {kib} KiB (limit: bare, {kib} KiB)"), "shown");
    }
    outcome.add(format!("blocks a PUT, {kib} KiB, log included"), median(&mut puts), "blocks", 0.0, "-");
    outcome.add(format!("blocks a GET, {kib} KiB, log included"), median(&mut gets), "blocks", 0.0, "-");
    Ok(())
}

/// What else the tier counted in a round.
fn tell(before: &TierStats, after: &TierStats) {
    let (from, to) = (&before.object, &after.object);
    progress(format_args!(
        "    puts {}, gets {}, lists {}, hedges {} ({} won), retries {}, throttled {}, blocks skipped {}, at once {}",
        to.puts - from.puts,
        to.gets - from.gets,
        to.lists - from.lists,
        to.hedges - from.hedges,
        to.hedges_won - from.hedges_won,
        to.retries - from.retries,
        to.throttled - from.throttled,
        to.blocks_skipped - from.blocks_skipped,
        to.concurrency,
    ));
}

/// Keys of a round: no other round has them.
fn keys(generation: u64, blocks: u64) -> anyhow::Result<Vec<Key>> {
    (0..blocks)
        .map(|number| {
            let hash = blake3::hash(&[generation.to_le_bytes(), number.to_le_bytes()].concat());
            Ok(Key::new(hash.as_bytes(), 0)?)
        })
        .collect()
}
