//! The NVMe tier beside fio on the same directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_config::{Config, TierKind};
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::{
    JobId, LoadBlock, LoadJob, Refused, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierEvent, Time, open_tier,
};

use super::fio::{Work, rate};
use super::outcome::Outcome;
use super::{median, progress};

/// Operations in flight.
const DEPTH: u32 = 32;
/// Blocks of one job.
const JOB_BLOCKS: usize = 16;
/// Slots that stores come from and loads go to.
const SLOTS: u32 = 128;
/// How long nothing may be done before the bench gives up.
const STUCK: Duration = Duration::from_secs(60);

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> anyhow::Result<Self> {
        let path = parent.join(format!("terrace-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tier on a folder, and its region.
struct Bench {
    tier: Box<dyn SecondaryTier>,
    next_job: u64,
    block_bytes: u32,
}

/// Stores or loads.
#[derive(Clone, Copy)]
enum Direction {
    Store,
    Load,
}

impl Bench {
    fn new(root: &Path, block_bytes: u32, blocks: u64, region: &Arc<Region>) -> anyhow::Result<Self> {
        let text = format!(
            "[primary]\nblocks = {SLOTS}\n[geometry]\nblock_bytes = {block_bytes}\n\
             [[tier]]\ntype = \"nvme\"\npaths = [{:?}]\nblocks = {blocks}\nqueue_depth = {DEPTH}\n",
            root.display().to_string()
        );
        let config = Config::parse(&text, "bench")?;
        let [tier] = config.tiers.as_slice() else { anyhow::bail!("one tier was configured") };
        anyhow::ensure!(matches!(tier.kind, TierKind::Nvme(_)), "an NVMe tier was configured");
        let digest = config.namespace.digest(&config.geometry);
        let tier = open_tier(tier, digest, &config.geometry, Arc::clone(region), Arc::new(SystemClock::new()))?;
        Ok(Self { tier, next_job: 0, block_bytes })
    }

    /// Moves every key, at most `SLOTS` at once, and returns bytes a second.
    fn move_all(&mut self, direction: Direction, keys: &[Key]) -> anyhow::Result<f64> {
        let mut free: Vec<Vec<SlotId>> = (0..SLOTS)
            .collect::<Vec<_>>()
            .chunks(JOB_BLOCKS)
            .map(|job| job.iter().copied().map(SlotId).collect())
            .collect();
        let mut running = std::collections::HashMap::new();
        let mut jobs = keys.chunks(JOB_BLOCKS).peekable();
        let mut events = Vec::new();
        let start = Instant::now();
        let mut last = start;
        while jobs.peek().is_some() || !running.is_empty() {
            while let (Some(job), Some(slots)) = (jobs.peek(), free.pop()) {
                self.next_job += 1;
                let id = JobId(self.next_job);
                match self.submit(direction, id, job, &slots) {
                    Ok(()) => {
                        running.insert(id, (slots, job.len()));
                        jobs.next();
                    }
                    Err(Refused::Busy) => {
                        free.push(slots);
                        break;
                    }
                    Err(Refused::Closed) => anyhow::bail!("the tier closed"),
                }
            }
            self.tier.poll(&mut events);
            if events.is_empty() {
                anyhow::ensure!(last.elapsed() < STUCK, "the tier did nothing for {STUCK:?}");
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            last = Instant::now();
            for event in events.drain(..) {
                let (TierEvent::StoreDone { job, outcome, .. } | TierEvent::LoadDone { job, outcome, .. }) = event
                else {
                    continue;
                };
                if let Err(fault) = outcome {
                    anyhow::bail!("a block failed: {fault:?}");
                }
                if let Some((_, open)) = running.get_mut(&job) {
                    *open -= 1;
                }
                if running.get(&job).is_some_and(|(_, open)| *open == 0)
                    && let Some((slots, _)) = running.remove(&job)
                {
                    free.push(slots);
                }
            }
        }
        Ok(keys.len() as f64 * f64::from(self.block_bytes) / start.elapsed().as_secs_f64())
    }

    fn submit(&mut self, direction: Direction, id: JobId, keys: &[Key], slots: &[SlotId]) -> Result<(), Refused> {
        let pairs = keys.iter().copied().zip(slots.iter().copied());
        let deadline = Time(u64::MAX);
        match direction {
            Direction::Store => {
                let blocks = pairs.map(|(key, slot)| StoreBlock { key, slot, crc32: None }).collect();
                self.tier.submit_store(StoreJob { id, blocks, deadline })
            }
            Direction::Load => {
                let blocks = pairs.map(|(key, slot)| LoadBlock { key, slot }).collect();
                self.tier.submit_load(LoadJob { id, blocks, deadline })
            }
        }
    }
}

fn keys(generation: u64, blocks: u64) -> anyhow::Result<Vec<Key>> {
    (0..blocks)
        .map(|number| {
            let hash = blake3::hash(&[generation.to_le_bytes(), number.to_le_bytes()].concat());
            Ok(Key::new(hash.as_bytes(), 0)?)
        })
        .collect()
}

/// Rates of one kind of work and of fio beside it, a pair a round.
#[derive(Default)]
struct Pairs {
    ours: Vec<f64>,
    fio: Vec<f64>,
}

impl Pairs {
    fn push(&mut self, ours: f64, fio: f64) {
        self.ours.push(ours / 1e6);
        self.fio.push(fio / 1e6);
    }

    fn report(mut self, outcome: &mut Outcome, name: String, budget: &'static str) {
        let mut ratios: Vec<_> = self.ours.iter().zip(&self.fio).map(|(ours, fio)| ours / fio).collect();
        let (ours, fio) = (median(&mut self.ours), median(&mut self.fio));
        outcome.add_with_ratio(name, ours, "MB/s", fio, median(&mut ratios), budget);
    }
}

pub(super) fn run(dir: &Path, rounds: u32, bytes: u64) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new("nvme");
    // Removed at the very end: some file systems are slow to make files where others have just been removed.
    let scratch = Scratch::new(dir)?;
    for block_bytes in [256 << 10, 2 << 20] {
        one_size(&mut outcome, &scratch.0, rounds, bytes, block_bytes)?;
    }
    Ok(outcome)
}

fn one_size(outcome: &mut Outcome, dir: &Path, rounds: u32, bytes: u64, block_bytes: u32) -> anyhow::Result<()> {
    let blocks = (bytes / u64::from(block_bytes)).max(u64::from(SLOTS));
    let bytes = blocks * u64::from(block_bytes);
    let region = Region::create(
        &RegionOptions {
            slots: SLOTS,
            slot_stride: block_bytes,
            block_bytes,
            huge_pages: terrace_config::Choice::Auto,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 0,
        },
        &|_, _| {},
    )?;
    for slot in 0..SLOTS {
        let noise: Vec<u8> =
            (0..block_bytes).map(|place| (place.wrapping_mul(0x9E37_79B1) >> 24) as u8 ^ slot as u8).collect();
        region.write_slot(SlotId(slot), &noise);
    }
    let (mut fresh, mut recycled, mut load, mut one_file) =
        (Pairs::default(), Pairs::default(), Pairs::default(), Pairs::default());
    for round in 0..u64::from(rounds) {
        progress(format_args!("{} KiB blocks, round {} of {rounds}", block_bytes >> 10, round + 1));
        let folder = dir.join(format!("{}-{round}", block_bytes >> 10));
        std::fs::create_dir_all(&folder)?;
        let (file, root) = (folder.join("fio"), folder.join("tier"));
        // Room for exactly what is stored: the second filling recycles every file of the first.
        let mut bench = Bench::new(&root, block_bytes, blocks, &region)?;
        let (first, second) = (keys(2 * round, blocks)?, keys(2 * round + 1, blocks)?);

        let fio_fresh = rate(Work::Fresh(&file), block_bytes, DEPTH, bytes)?;
        fresh.push(bench.move_all(Direction::Store, &first)?, fio_fresh);

        let fio_overwrite = rate(Work::Overwrite(&file), block_bytes, DEPTH, bytes)?;
        recycled.push(bench.move_all(Direction::Store, &second)?, fio_overwrite);

        let fio_one = rate(Work::ReadOne(&file), block_bytes, DEPTH, bytes)?;
        let fio_many = rate(Work::ReadMany(&blocks_of(&root)?), block_bytes, DEPTH, bytes)?;
        let loaded = bench.move_all(Direction::Load, &second)?;
        load.push(loaded, fio_many);
        one_file.push(loaded, fio_one);
        bench.tier.shutdown(Duration::from_secs(30));
    }
    let name = |what: &str, limit: &str| format!("{what}, {} KiB (limit: fio {limit})", block_bytes >> 10);
    fresh.report(outcome, name("store to fresh files", "fresh write"), ">= 0.90");
    recycled.report(outcome, name("store to recycled files", "overwrite"), ">= 0.95");
    load.report(outcome, name("load", "reading the same files"), ">= 0.95");
    one_file.report(outcome, name("load", "reading one file"), "shown");
    Ok(())
}

/// The folder that holds the block files: the one named by the namespace's digest.
fn blocks_of(root: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().len() == 64 {
            return Ok(entry.path());
        }
    }
    anyhow::bail!("no block files in {}", root.display())
}
