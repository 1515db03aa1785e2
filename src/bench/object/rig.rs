//! The object tier as the manager drives it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_config::{Choice, Config, TierKind};
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::object::{ObjectOptions, ObjectTier, SystemWallClock};
use terrace_tiers::{
    JobId, LoadBlock, LoadJob, Refused, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierEvent, TierStats, Time,
};

use super::Place;
use crate::bench::progress;

/// Bytes of a job.
const JOB_BYTES: usize = 16 << 20;
/// Pause between two polls that bring nothing, as an engine that polls once a step: a thousand a second would take a twentieth of a
/// processor from the server, which the bare client does not.
const PAUSE: Duration = Duration::from_millis(5);
/// How long nothing may be done before the bench gives up.
const STUCK: Duration = Duration::from_secs(60);
/// What a shutdown may take.
const CLOSE: Duration = Duration::from_secs(30);

/// Stores or loads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Store,
    Load,
}

/// Memory for this many blocks, all of it touched, full of noise.
pub(super) fn region(slots: u32, block_bytes: u32) -> anyhow::Result<Arc<Region>> {
    let options = RegionOptions {
        slots,
        slot_stride: block_bytes,
        block_bytes,
        huge_pages: Choice::Auto,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 0,
    };
    let region = Region::create(&options, &|_, _| {})?;
    let noise = noise(block_bytes);
    for slot in 0..slots {
        region.write_slot(SlotId(slot), &noise);
    }
    Ok(region)
}

/// Bytes that no server compresses.
pub(super) fn noise(bytes: u32) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = (0..bytes.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(bytes as usize).collect()
}

/// A tier and its region.
pub(super) struct Rig {
    tier: ObjectTier,
    region: Arc<Region>,
    connections: u32,
    block_bytes: u32,
    next_job: u64,
    generation: u64,
}

impl Rig {
    /// A tier with default settings but for these lines of its configuration. It has read the log.
    pub fn open(place: &Place, settings: &[String], block_bytes: u32, region: Arc<Region>) -> anyhow::Result<Self> {
        let place = match place {
            Place::Bucket { endpoint, bucket, prefix } => {
                format!("url = {:?}\nendpoint = {endpoint:?}\n", format!("s3://{bucket}/{prefix}/tier"))
            }
            Place::Directory(directory) => format!("url = {:?}\n", format!("file://{}/tier", directory.display())),
        };
        let text = format!(
            "[primary]\nblocks = {}\n[geometry]\nblock_bytes = {block_bytes}\n\
             [[tier]]\ntype = \"object\"\ncapacity = \"1TiB\"\n{place}{}\n",
            region.slots(),
            settings.join("\n")
        );
        let config = Config::parse(&text, "bench")?;
        let [tier] = config.tiers.as_slice() else { anyhow::bail!("one tier was configured") };
        let TierKind::Object(object) = &tier.kind else { anyhow::bail!("an object tier was configured") };
        let connections = object.connections;
        let tier = ObjectTier::open(ObjectOptions {
            config: object,
            name: tier.name.clone(),
            namespace: config.namespace.digest(&config.geometry),
            geometry: config.geometry,
            region: Arc::clone(&region),
            clock: Arc::new(SystemClock::new()),
            wall: Arc::new(SystemWallClock),
        })?;
        let mut rig = Self { tier, region, connections, block_bytes, next_job: 0, generation: 0 };
        let start = Instant::now();
        while !rig.tier.is_known() {
            anyhow::ensure!(start.elapsed() < STUCK, "the store was not read within {STUCK:?}");
            rig.tier.poll(&mut Vec::new());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(rig)
    }

    /// Requests at once.
    pub const fn connections(&self) -> u32 {
        self.connections
    }

    pub fn stats(&self) -> TierStats {
        self.tier.stats()
    }

    pub fn tier(&mut self) -> &mut ObjectTier {
        &mut self.tier
    }

    pub fn close(mut self) {
        self.tier.shutdown(CLOSE);
    }

    /// Submits one job.
    pub fn submit(
        &mut self,
        direction: Direction,
        keys: &[Key],
        slots: impl Iterator<Item = SlotId>,
    ) -> Result<JobId, Refused> {
        self.next_job += 1;
        let (id, deadline) = (JobId(self.next_job), Time(u64::MAX));
        let pairs = keys.iter().copied().zip(slots);
        match direction {
            Direction::Store => {
                let blocks = pairs.map(|(key, slot)| StoreBlock { key, slot, crc32: None }).collect();
                self.tier.submit_store(StoreJob { id, blocks, deadline })?;
            }
            Direction::Load => {
                let blocks = pairs.map(|(key, slot)| LoadBlock { key, slot }).collect();
                self.tier.submit_load(LoadJob { id, blocks, deadline })?;
            }
        }
        Ok(id)
    }

    /// Moves every key this many times, as many at once as there are slots. Answers bytes a second, from the first call to the last
    /// block done.
    pub fn move_all(&mut self, direction: Direction, keys: &[Key], passes: usize) -> anyhow::Result<f64> {
        let job_blocks = (JOB_BYTES / self.block_bytes as usize).max(1);
        if direction == Direction::Store {
            self.generation += 1;
            for slot in 0..self.region.slots() {
                let stamp = [self.generation.to_le_bytes(), u64::from(slot).to_le_bytes()].concat();
                self.region.write_slot_at(SlotId(slot), 0, &stamp);
            }
        }
        let slots: Vec<_> = (0..self.region.slots()).map(SlotId).collect();
        let mut free: Vec<_> = slots.chunks(job_blocks).rev().collect();
        let mut jobs = (0..passes).flat_map(|_| keys.chunks(job_blocks)).peekable();
        let mut running = HashMap::new();
        let mut events = Vec::new();
        let start = Instant::now();
        let mut last = start;
        let mut done = Vec::with_capacity(keys.len() * passes);
        while jobs.peek().is_some() || !running.is_empty() {
            while let (Some(job), Some(slots)) = (jobs.peek(), free.pop()) {
                match self.submit(direction, job, slots.iter().copied()) {
                    Ok(id) => {
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
                std::thread::sleep(PAUSE);
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
                done.push(start.elapsed().as_secs_f64());
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
        let took = start.elapsed();
        let after = |quarter: usize| done.get((done.len() * quarter / 4).saturating_sub(1)).copied().unwrap_or(0.0);
        progress(format_args!(
            "    {}: first block after {:.2} s, quarters after {:.2}, {:.2}, {:.2}, {:.2}",
            if direction == Direction::Store { "store" } else { "load" },
            after(0),
            after(1),
            after(2),
            after(3),
            took.as_secs_f64()
        ));
        Ok((keys.len() * passes) as f64 * f64::from(self.block_bytes) / took.as_secs_f64())
    }
}
