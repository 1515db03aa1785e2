//! Process memory as a tier: for development and tests. Bounded, least recently used out first, every load verified.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_config::MemoryConfig;
use terrace_primary::{Key, Region, SlotId};

use crate::tier::{
    Fault, JobId, LoadJob, Locality, Medium, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup,
    TierStats,
};

/// Blocks accepted and not done; beyond, jobs are refused as busy.
const QUEUE_BLOCKS: usize = 65_536;

/// A tier in process memory. Accepted work is done at the next poll, loads first, on the caller's thread.
pub struct MemoryTier {
    descriptor: TierDescriptor,
    region: Arc<Region>,
    blocks: BTreeMap<Key, Copy>,
    /// Recency to key, least recent first.
    recency: BTreeMap<u64, Key>,
    next_recency: u64,
    loads: VecDeque<Work>,
    stores: VecDeque<Work>,
    events: Vec<TierEvent>,
    closed: bool,
    stats: TierStats,
}

/// One kept block.
struct Copy {
    payload: Box<[u8]>,
    crc32: u32,
    recency: u64,
}

/// One block of an accepted job.
#[derive(Clone, Copy)]
struct Work {
    job: JobId,
    index: u32,
    key: Key,
    slot: SlotId,
    crc32: Option<u32>,
}

impl MemoryTier {
    /// An empty tier that keeps `config.capacity_bytes` of payload of the blocks of `region`.
    pub fn new(name: &str, config: MemoryConfig, region: Arc<Region>) -> Self {
        Self {
            descriptor: TierDescriptor { name: name.to_owned(), medium: Medium::Cpu, locality: Locality::Local },
            region,
            blocks: BTreeMap::new(),
            recency: BTreeMap::new(),
            next_recency: 0,
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            events: Vec::new(),
            closed: false,
            stats: TierStats { capacity_bytes: config.capacity_bytes, ..TierStats::default() },
        }
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.region.block_bytes())
    }

    fn accept(&mut self, blocks: usize) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        if self.loads.len() + self.stores.len() + blocks > QUEUE_BLOCKS {
            self.stats.refused += 1;
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn rank(&mut self, key: &Key) {
        if let Some(copy) = self.blocks.get_mut(key) {
            self.recency.remove(&copy.recency);
            copy.recency = self.next_recency;
            self.recency.insert(self.next_recency, *key);
            self.next_recency += 1;
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(copy) = self.blocks.remove(key) {
            self.recency.remove(&copy.recency);
            self.stats.blocks -= 1;
            self.stats.allocated_bytes -= u64::from(self.region.block_bytes());
            self.events.push(TierEvent::Removed { key: *key });
        }
    }

    fn store(&mut self, work: &Work) -> Result<u32, Fault> {
        if let Some(copy) = self.blocks.get(&work.key) {
            return Ok(copy.crc32);
        }
        if self.block_bytes() > self.stats.capacity_bytes {
            return Err(Fault::Full);
        }
        let mut payload = vec![0; if self.region.moves_bytes() { self.region.block_bytes() as usize } else { 0 }];
        if self.region.moves_bytes() && !self.region.read_slot(work.slot, &mut payload) {
            return Err(Fault::Io);
        }
        let crc32 = crc32fast::hash(&payload);
        if self.region.moves_bytes() && work.crc32.is_some_and(|known| known != crc32) {
            self.stats.corrupt += 1;
            return Err(Fault::Corrupt);
        }
        while self.stats.allocated_bytes + self.block_bytes() > self.stats.capacity_bytes {
            let Some((_, victim)) = self.recency.first_key_value() else { return Err(Fault::Full) };
            let victim = *victim;
            self.forget(&victim);
            self.stats.evicted += 1;
        }
        let recency = self.next_recency;
        self.blocks.insert(work.key, Copy { payload: payload.into(), crc32, recency });
        self.recency.insert(recency, work.key);
        self.next_recency += 1;
        self.stats.blocks += 1;
        self.stats.allocated_bytes += self.block_bytes();
        self.stats.stored += 1;
        self.stats.stored_bytes += self.block_bytes();
        Ok(crc32)
    }

    fn load(&mut self, work: &Work) -> Result<u32, Fault> {
        let Some(copy) = self.blocks.get(&work.key) else {
            self.stats.vanished += 1;
            return Err(Fault::Absent);
        };
        let crc32 = copy.crc32;
        if crc32fast::hash(&copy.payload) != crc32 {
            self.stats.corrupt += 1;
            self.forget(&work.key);
            return Err(Fault::Corrupt);
        }
        if self.region.moves_bytes() && !self.region.write_slot(work.slot, &copy.payload) {
            return Err(Fault::Io);
        }
        self.stats.loaded += 1;
        self.stats.loaded_bytes += self.block_bytes();
        Ok(crc32)
    }

    fn work(&mut self) {
        while let Some(work) = self.loads.pop_front() {
            let outcome = self.load(&work);
            self.events.push(TierEvent::LoadDone { job: work.job, index: work.index, outcome });
        }
        while let Some(work) = self.stores.pop_front() {
            let outcome = self.store(&work);
            self.events.push(TierEvent::StoreDone { job: work.job, index: work.index, outcome });
        }
    }
}

impl SecondaryTier for MemoryTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        out.clear();
        out.extend(keys.iter().map(|key| match self.blocks.contains_key(key) {
            true => TierLookup::Found,
            false => TierLookup::Absent,
        }));
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.accept(job.blocks.len())?;
        let work = |(index, block): (usize, &crate::tier::StoreBlock)| Work {
            job: job.id,
            index: index as u32,
            key: block.key,
            slot: block.slot,
            crc32: block.crc32,
        };
        self.stores.extend(job.blocks.iter().enumerate().map(work));
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.accept(job.blocks.len())?;
        let work = |(index, block): (usize, &crate::tier::LoadBlock)| Work {
            job: job.id,
            index: index as u32,
            key: block.key,
            slot: block.slot,
            crc32: None,
        };
        self.loads.extend(job.blocks.iter().enumerate().map(work));
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        let Self { loads, stores, events, stats, .. } = self;
        loads.retain(|work| {
            let given_up = work.job == job;
            if given_up {
                events.push(TierEvent::LoadDone { job, index: work.index, outcome: Err(Fault::Expired) });
                stats.expired += 1;
            }
            !given_up
        });
        stores.retain(|work| {
            let given_up = work.job == job;
            if given_up {
                events.push(TierEvent::StoreDone { job, index: work.index, outcome: Err(Fault::Expired) });
                stats.expired += 1;
            }
            !given_up
        });
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        self.work();
        out.append(&mut self.events);
    }

    fn touch(&mut self, keys: &[Key]) {
        for key in keys {
            self.rank(key);
        }
    }

    fn shutdown(&mut self, _within: Duration) {
        self.closed = true;
        self.work();
    }

    fn stats(&self) -> TierStats {
        TierStats { in_flight: (self.loads.len() + self.stores.len()) as u64, ..self.stats }
    }
}
