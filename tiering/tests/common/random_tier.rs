//! A tier that does anything its contract allows, by seed: delays, reorders, refuses, fails, hangs, forgets, lies about what it holds,
//! panics. It reads and fills slots of a pretended region at random moments of a job's life, so that a slot handed out too early shows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use terrace_primary::{Key, SlotId};
use terrace_tiers::{
    Fault, JobId, LoadJob, Locality, Medium, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup,
    TierStats,
};

/// SplitMix64: small, and the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// One time in `n`; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// What stands in each slot. The right content of a block is its [`content`].
pub type Region = Arc<Mutex<Vec<u64>>>;

/// What a block's bytes are.
pub fn content(key: &Key) -> u64 {
    key.as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

pub fn crc32(key: &Key) -> u32 {
    (content(key) >> 32) as u32
}

const GARBAGE: u64 = 0xdead_beef;

/// How a tier behaves: each number is "one in n", 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mood {
    pub slow: u64,
    pub fault: u64,
    pub unknown: u64,
    pub busy: u64,
    pub hang: u64,
    pub forget: u64,
    pub lie: u64,
    pub panic: u64,
    pub close: u64,
}

struct Block {
    job: JobId,
    index: u32,
    key: Key,
    slot: SlotId,
    is_load: bool,
    polls_left: u64,
    hangs: bool,
    abandoned: bool,
    /// A store whose bytes were read.
    read: bool,
}

#[derive(Default)]
pub struct Inner {
    pub mood: Mood,
    /// Hung blocks come to an end when they are abandoned; with this, only when it is lifted.
    pub deaf: bool,
    held: BTreeMap<Key, u64>,
    blocks: Vec<Block>,
    /// What was seen wrong in slots.
    pub wrong: Vec<String>,
    closed: bool,
    shut_down: bool,
}

pub struct RandomTier {
    inner: Arc<Mutex<Inner>>,
    region: Region,
    random: RefCell<Random>,
    descriptor: TierDescriptor,
}

impl RandomTier {
    pub fn new(index: usize, seed: u64, region: Region, inner: Arc<Mutex<Inner>>) -> Self {
        let (medium, locality) = [(Medium::Storage, Locality::Local), (Medium::Storage, Locality::Remote)][index % 2];
        let descriptor = TierDescriptor { name: format!("random{index}"), medium, locality };
        Self { inner, region, random: RefCell::new(Random(seed)), descriptor }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn region(&self) -> MutexGuard<'_, Vec<u64>> {
        self.region.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn one_in(&self, n: u64) -> bool {
        self.random.borrow_mut().one_in(n)
    }

    fn may_panic(&self) {
        let mood = self.inner().mood;
        if self.one_in(mood.panic) {
            resume_unwind(Box::new("by seed")); // without the hook: no noise
        }
    }

    fn accept(&self) -> Result<(), Refused> {
        let mood = self.inner().mood;
        if self.one_in(mood.close) {
            self.inner().closed = true;
        }
        let closed = self.inner().closed;
        match (closed, self.one_in(mood.busy)) {
            (true, _) => Err(Refused::Closed),
            (_, true) => Err(Refused::Busy),
            _ => Ok(()),
        }
    }

    fn add(&self, job: JobId, index: usize, key: Key, slot: SlotId, is_load: bool) {
        let mood = self.inner().mood;
        let polls_left = self.random.borrow_mut().below(mood.slow);
        let hangs = self.one_in(mood.hang);
        let index = index as u32;
        let block = Block { job, index, key, slot, is_load, polls_left, hangs, abandoned: false, read: false };
        self.inner().blocks.push(block);
    }

    fn fault(&self) -> Fault {
        let faults = [Fault::Absent, Fault::Corrupt, Fault::Io, Fault::Full, Fault::Expired, Fault::Closed];
        faults[self.random.borrow_mut().below(faults.len() as u64) as usize]
    }

    /// Reads a store's bytes, or scribbles into a load's slot.
    fn work(&self, block: &mut Block) {
        let mut region = self.region();
        if block.is_load {
            region[block.slot.index()] = GARBAGE;
        } else if !block.abandoned && !block.read {
            block.read = true;
            if region[block.slot.index()] != content(&block.key) {
                drop(region);
                self.inner().wrong.push(format!("{:?} was not in {:?} while it was read", block.key, block.slot));
            }
        }
    }

    fn finish(&self, mut block: Block, out: &mut Vec<TierEvent>) {
        let mood = self.inner().mood;
        let (job, index) = (block.job, block.index);
        let mut outcome = Ok(crc32(&block.key));
        if block.abandoned {
            // Done before it was told: seen by the manager only now.
            let was_done = block.read && self.one_in(2);
            outcome = if was_done { outcome } else { Err(Fault::Expired) };
        } else if self.one_in(mood.fault) {
            outcome = Err(self.fault());
        }
        if block.is_load {
            self.work(&mut block);
            let held = self.inner().held.get(&block.key).copied();
            outcome = match held {
                Some(value) if outcome.is_ok() => {
                    self.region()[block.slot.index()] = value;
                    outcome
                }
                None if outcome.is_ok() => Err(Fault::Absent),
                _ => outcome,
            };
            out.push(TierEvent::LoadDone { job, index, outcome });
        } else {
            if outcome.is_ok() {
                self.work(&mut block);
                self.inner().held.insert(block.key, content(&block.key));
            }
            out.push(TierEvent::StoreDone { job, index, outcome });
        }
    }
}

impl SecondaryTier for RandomTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        self.may_panic();
        let mood = self.inner().mood;
        out.clear();
        for key in keys {
            out.push(match self.inner().held.contains_key(key) {
                _ if self.one_in(mood.unknown) => TierLookup::Unknown,
                held if held || self.one_in(mood.lie) => TierLookup::Found,
                _ => TierLookup::Absent,
            });
        }
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.may_panic();
        self.accept()?;
        for (index, block) in job.blocks.iter().enumerate() {
            if block.crc32.is_some_and(|known| known != crc32(&block.key)) {
                self.inner().wrong.push(format!("{:?} came with another block's CRC32", block.key));
            }
            self.add(job.id, index, block.key, block.slot, false);
        }
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.may_panic();
        self.accept()?;
        for (index, block) in job.blocks.iter().enumerate() {
            self.add(job.id, index, block.key, block.slot, true);
        }
        self.may_panic(); // having begun
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        self.may_panic();
        for block in self.inner().blocks.iter_mut().filter(|block| block.job == job) {
            block.abandoned = true;
        }
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        self.may_panic();
        let mut inner = self.inner();
        let (mood, deaf, is_shut_down) = (inner.mood, inner.deaf, inner.shut_down);
        let blocks = std::mem::take(&mut inner.blocks);
        drop(inner);
        for mut block in blocks {
            if self.one_in(2) {
                self.work(&mut block);
            }
            let hangs = block.hangs && !is_shut_down && (deaf || !block.abandoned);
            if hangs || block.polls_left > 0 && self.one_in(2) {
                block.polls_left = block.polls_left.saturating_sub(1);
                self.inner().blocks.push(block);
            } else {
                self.finish(block, out);
            }
        }
        if self.one_in(mood.forget) {
            let first = self.inner().held.pop_first();
            out.extend(first.map(|(key, _)| TierEvent::Removed { key }));
        }
    }

    fn touch(&mut self, _keys: &[Key]) {
        self.may_panic();
    }

    fn shutdown(&mut self, _within: Duration) {
        let mut inner = self.inner();
        inner.shut_down = true;
        inner.closed = true;
        inner.blocks.iter_mut().for_each(|block| block.polls_left = 0);
    }

    fn stats(&self) -> TierStats {
        TierStats::default()
    }
}
