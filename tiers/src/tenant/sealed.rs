//! A tier that keeps blocks sealed: what is below sees only what [`Sealer`] makes of them.
//!
//! The tier below has a region of its own, the **staging** slots. A block to store is sealed from its slot into a staging slot, then stored from
//! there; one to load comes into a staging slot and is opened into its own. A thread does both, the manager's waits for neither. Blocks of
//! a job travel together as far as staging slots reach, so that the tier below can still put neighbours together.
//!
//! CRC32s that the tier below keeps are those of the sealed bytes: whoever has no key can still check what is stored. The CRC32 that
//! the manager is told is that of the block.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_primary::{Key, Region, SlotId};

use super::seal::Sealer;
use super::worker::{Done, Task, Worker};
use crate::clock::{Clock, Time};
use crate::error::TierError;
use crate::tier::{
    Fault, JobId, LoadBlock, LoadJob, Refused, SecondaryTier, StoreBlock, StoreJob, TierDescriptor, TierEvent,
    TierLookup, TierStats,
};

/// Blocks accepted and not done; beyond, jobs are refused as busy.
const QUEUE_BLOCKS: usize = 65_536;
/// Most blocks that travel together.
const BATCH_BLOCKS: usize = 64;
/// Part of the staging slots that stores leave to loads.
const LOAD_PART: usize = 4;
/// Blocks that did not open and are remembered as absent.
const MAX_BAD: usize = 4_096;
/// How long a shutdown looks away between two polls.
const LOOK: Duration = Duration::from_micros(200);

/// A block of a job.
#[derive(Clone, Copy, Debug)]
struct Block {
    index: u32,
    name: Key,
    slot: SlotId,
    crc32: Option<u32>,
}

/// A job that is not done.
struct Job {
    load: bool,
    deadline: Time,
    left: usize,
    given_up: Arc<AtomicBool>,
}

/// A block with a staging slot.
struct Item {
    block: Block,
    staging: SlotId,
    /// Of a store: the CRC32 of the plain block, once it is sealed. Cleared items are done.
    outcome: Option<Result<u32, Fault>>,
    done: bool,
}

/// Blocks that travel together. It has one job in the tier below, under its own number.
struct Batch {
    job: JobId,
    load: bool,
    deadline: Time,
    items: Vec<Item>,
    /// Tasks of the thread that are not done.
    working: usize,
    /// Handed to the tier below.
    submitted: bool,
    /// Places in the job below to places in `items`.
    below: Vec<usize>,
}

/// See the module.
pub struct SealedTier {
    inner: Box<dyn SecondaryTier>,
    worker: Worker,
    clock: Arc<dyn Clock>,
    jobs: HashMap<JobId, Job>,
    loads: VecDeque<(JobId, Block)>,
    stores: VecDeque<(JobId, Block)>,
    batches: BTreeMap<u64, Batch>,
    next_batch: u64,
    free: Vec<SlotId>,
    staging: usize,
    bad: HashSet<Key>,
    in_flight: usize,
    events: Vec<TierEvent>,
    below: Vec<TierEvent>,
    closed: bool,
    refused: u64,
    unopened: u64,
}

impl SealedTier {
    /// `inner`, which was built over `staging`, with blocks of `plain` sealed in it. Starts a thread.
    ///
    /// # Errors
    /// [`TierError::System`].
    pub fn new(
        inner: Box<dyn SecondaryTier>,
        sealer: Sealer,
        plain: Arc<Region>,
        staging: Arc<Region>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TierError> {
        let slots = staging.slots();
        Ok(Self {
            inner,
            worker: Worker::start(sealer, plain, staging)?,
            clock,
            jobs: HashMap::new(),
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            batches: BTreeMap::new(),
            next_batch: 0,
            free: (0..slots).map(SlotId).collect(),
            staging: slots as usize,
            bad: HashSet::new(),
            in_flight: 0,
            events: Vec::new(),
            below: Vec::new(),
            closed: false,
            refused: 0,
            unopened: 0,
        })
    }

    fn accept(&mut self, id: JobId, blocks: usize) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        // A job of any length is taken when nothing else is in flight, or one that is longer than the queue never were.
        if self.in_flight > 0 && self.in_flight + blocks > QUEUE_BLOCKS || self.jobs.contains_key(&id) {
            self.refused += 1;
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn begin(&mut self, id: JobId, load: bool, deadline: Time, blocks: usize) {
        if blocks > 0 {
            self.jobs.insert(id, Job { load, deadline, left: blocks, given_up: Arc::default() });
            self.in_flight += blocks;
        }
    }

    /// Reports a block of a job.
    fn report(&mut self, job: JobId, index: u32, outcome: Result<u32, Fault>) {
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let given_up = entry.given_up.load(Ordering::SeqCst);
        let outcome = if given_up { Err(Fault::Expired) } else { outcome };
        self.events.push(match entry.load {
            true => TierEvent::LoadDone { job, index, outcome },
            false => TierEvent::StoreDone { job, index, outcome },
        });
        self.in_flight -= 1;
        entry.left -= 1;
        if entry.left == 0 {
            self.jobs.remove(&job);
        }
    }

    /// Starts what there are staging slots for, loads first.
    fn start(&mut self) {
        while !self.loads.is_empty() && !self.free.is_empty() && self.start_batch(true) {}
        let kept = self.staging / LOAD_PART;
        while !self.stores.is_empty() && self.free.len() > kept && self.start_batch(false) {}
    }

    /// Takes the first blocks of one job. False: none can be started now.
    fn start_batch(&mut self, load: bool) -> bool {
        let room = if load { self.free.len() } else { self.free.len() - self.staging / LOAD_PART };
        let queue = if load { &mut self.loads } else { &mut self.stores };
        let Some(job) = queue.front().map(|(job, _)| *job) else { return false };
        // A job with blocks in the queue is there.
        let Some(deadline) = self.jobs.get(&job).map(|job| job.deadline) else { return false };
        let mut items = Vec::new();
        while items.len() < room.min(BATCH_BLOCKS)
            && let Some((_, block)) = queue.pop_front_if(|(other, _)| *other == job)
            && let Some(staging) = self.free.pop()
        {
            items.push(Item { block, staging, outcome: None, done: false });
        }
        let number = self.next_batch;
        self.next_batch += 1;
        let count = items.len();
        let batch = Batch { job, load, deadline, items, working: 0, submitted: false, below: Vec::new() };
        self.batches.insert(number, batch);
        if load {
            self.submit(number);
        } else {
            for at in 0..count {
                self.send(number, at);
            }
        }
        true
    }

    /// Has an item sealed, or opened.
    fn send(&mut self, number: u64, at: usize) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let (Some(item), Some(job)) = (batch.items.get(at), self.jobs.get(&batch.job)) else { return };
        let Block { name, slot, crc32, .. } = item.block;
        let task = Task {
            ticket: number * BATCH_BLOCKS as u64 + at as u64,
            load: batch.load,
            name,
            slot,
            staging: item.staging,
            crc32,
            given_up: Arc::clone(&job.given_up),
        };
        batch.working += 1;
        if !self.worker.send(task) {
            self.worked(Done {
                ticket: number * BATCH_BLOCKS as u64 + at as u64,
                outcome: Err(Fault::Closed),
                unopened: None,
            });
        }
    }

    /// Hands a batch to the tier below: a load at once, a store when all of it is sealed. One that is busy is asked again.
    fn submit(&mut self, number: u64) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.below.clear();
        batch.below.extend((0..batch.items.len()).filter(|at| batch.items.get(*at).is_some_and(|item| !item.done)));
        let items = batch.below.iter().filter_map(|at| batch.items.get(*at));
        let (id, deadline) = (JobId(number), batch.deadline);
        let taken = if batch.load {
            let blocks = items.map(|item| LoadBlock { key: item.block.name, slot: item.staging }).collect();
            self.inner.submit_load(LoadJob { id, blocks, deadline })
        } else {
            let block = |item: &Item| StoreBlock { key: item.block.name, slot: item.staging, crc32: None };
            self.inner.submit_store(StoreJob { id, blocks: items.map(block).collect(), deadline })
        };
        match taken {
            Ok(()) => batch.submitted = true,
            Err(Refused::Busy) => {}
            Err(Refused::Closed) => self.end_batch(number, Fault::Closed),
        }
    }

    /// Ends what is not done of a batch that neither the thread nor the tier below has.
    fn end_batch(&mut self, number: u64, fault: Fault) {
        let count = self.batches.get(&number).map_or(0, |batch| batch.items.len());
        (0..count).for_each(|at| self.end(number, at, Err(fault)));
    }

    /// An item is done: its staging slot is free, its block is reported. The batch goes with its last item.
    fn end(&mut self, number: u64, at: usize, outcome: Result<u32, Fault>) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let Some(item) = batch.items.get_mut(at).filter(|item| !item.done) else { return };
        item.done = true;
        let (job, index, staging) = (batch.job, item.block.index, item.staging);
        if batch.items.iter().all(|item| item.done) {
            self.batches.remove(&number);
        }
        self.free.push(staging);
        self.report(job, index, outcome);
    }

    /// The thread is done with an item.
    fn worked(&mut self, done: Done) {
        let (number, at) = (done.ticket / BATCH_BLOCKS as u64, (done.ticket % BATCH_BLOCKS as u64) as usize);
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.working = batch.working.saturating_sub(1);
        let (load, working) = (batch.load, batch.working);
        let Some(item) = batch.items.get_mut(at) else { return };
        if done.unopened.is_some() {
            self.unopened += 1;
            if self.bad.len() < MAX_BAD {
                self.bad.insert(item.block.name);
            }
        }
        if load {
            return self.end(number, at, done.outcome);
        }
        item.outcome = Some(done.outcome);
        if let Err(fault) = done.outcome {
            self.end(number, at, Err(fault));
        }
        if working == 0 && self.batches.contains_key(&number) {
            self.go_on(number);
        }
    }

    /// A batch of stores is sealed, or one of loads waits for the tier below.
    fn go_on(&mut self, number: u64) {
        let Some(batch) = self.batches.get(&number).filter(|batch| !batch.submitted && batch.working == 0) else {
            return;
        };
        let job = self.jobs.get(&batch.job);
        let given_up = job.is_none_or(|job| job.given_up.load(Ordering::SeqCst));
        if given_up || batch.deadline <= self.clock.now() {
            self.end_batch(number, Fault::Expired);
        } else {
            self.submit(number);
        }
    }

    fn take_below(&mut self) {
        let mut below = std::mem::take(&mut self.below);
        self.inner.poll(&mut below);
        for event in below.drain(..) {
            match event {
                TierEvent::Removed { key } => {
                    self.bad.remove(&key);
                    self.events.push(TierEvent::Removed { key });
                }
                TierEvent::LoadDone { job: JobId(number), index, outcome } => {
                    let Some(at) = self.item_below(number, index) else { continue };
                    match outcome {
                        Ok(_) => self.send(number, at),
                        Err(fault) => self.end(number, at, Err(fault)),
                    }
                }
                TierEvent::StoreDone { job: JobId(number), index, outcome } => {
                    let Some(at) = self.item_below(number, index) else { continue };
                    let sealed = self.batches.get(&number).and_then(|batch| batch.items.get(at)?.outcome);
                    self.end(number, at, outcome.and_then(|_| sealed.unwrap_or(Err(Fault::Io))));
                }
            }
        }
        self.below = below;
    }

    fn item_below(&self, number: u64, index: u32) -> Option<usize> {
        self.batches.get(&number)?.below.get(index as usize).copied()
    }

    /// What waited beyond its deadline waits no more.
    fn expire(&mut self) {
        let now = self.clock.now();
        let late = |jobs: &HashMap<JobId, Job>, job: &JobId| jobs.get(job).is_none_or(|job| job.deadline <= now);
        for load in [true, false] {
            while let Some((job, _)) = if load { self.loads.front() } else { self.stores.front() }
                && late(&self.jobs, job)
            {
                let Some((job, block)) = (if load { self.loads.pop_front() } else { self.stores.pop_front() }) else {
                    break;
                };
                self.report(job, block.index, Err(Fault::Expired));
            }
        }
    }

    fn step(&mut self) {
        self.take_below();
        loop {
            match self.worker.take() {
                Ok(Some(done)) => self.worked(done),
                Ok(None) => break,
                Err(()) => {
                    self.bury();
                    break;
                }
            }
        }
        let idle: Vec<u64> = self
            .batches
            .iter()
            .filter(|(_, batch)| !batch.submitted && batch.working == 0)
            .map(|(number, _)| *number)
            .collect();
        idle.into_iter().for_each(|number| self.go_on(number));
        self.expire();
        self.start();
    }

    /// The thread is gone: no slot is touched any more.
    fn bury(&mut self) {
        self.closed = true;
        for (job, block) in std::mem::take(&mut self.loads).into_iter().chain(std::mem::take(&mut self.stores)) {
            self.report(job, block.index, Err(Fault::Closed));
        }
        let numbers: Vec<u64> = self.batches.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end_batch(number, Fault::Closed));
    }
}

impl SecondaryTier for SealedTier {
    fn descriptor(&self) -> &TierDescriptor {
        self.inner.descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        self.inner.lookup(keys, out);
        if !self.bad.is_empty() {
            for (key, answer) in keys.iter().zip(out) {
                if self.bad.contains(key) {
                    *answer = TierLookup::Absent;
                }
            }
        }
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        self.begin(job.id, false, job.deadline, job.blocks.len());
        let keys: Vec<Key> = job.blocks.iter().map(|block| block.key).collect();
        let mut answers = Vec::new();
        self.inner.lookup(&keys, &mut answers);
        for ((index, block), answer) in (0..).zip(job.blocks).zip(answers) {
            let StoreBlock { key: name, slot, crc32 } = block;
            match crc32 {
                // It would be taken for stored, and not be written.
                _ if self.bad.contains(&name) => self.report(job.id, index, Err(Fault::Corrupt)),
                Some(crc32) if answer == TierLookup::Found => {
                    self.inner.touch(&[name]);
                    self.report(job.id, index, Ok(crc32));
                }
                _ => self.stores.push_back((job.id, Block { index, name, slot, crc32 })),
            }
        }
        self.start();
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        self.begin(job.id, true, job.deadline, job.blocks.len());
        let block = |(index, block): (u32, LoadBlock)| Block { index, name: block.key, slot: block.slot, crc32: None };
        self.loads.extend((0..).zip(job.blocks).map(block).map(|block| (job.id, block)));
        self.start();
        Ok(())
    }

    fn abandon(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        job.given_up.store(true, Ordering::SeqCst);
        let mut waiting = Vec::new();
        for queue in [&mut self.loads, &mut self.stores] {
            queue.retain(|(job, block)| {
                if *job == id {
                    waiting.push(block.index);
                }
                *job != id
            });
        }
        waiting.into_iter().for_each(|index| self.report(id, index, Err(Fault::Expired)));
        for (number, _) in self.batches.iter().filter(|(_, batch)| batch.job == id && batch.submitted) {
            self.inner.abandon(JobId(*number));
        }
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        self.step();
        out.append(&mut self.events);
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        self.inner.next_to_scrub().filter(|key| !self.bad.contains(key))
    }

    fn set_limit(&mut self, bytes: u64) {
        self.inner.set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        self.inner.touch(keys);
    }

    #[allow(clippy::disallowed_methods, reason = "the last moment of a real thread")]
    fn shutdown(&mut self, within: Duration) {
        let until = self.clock.now().plus(within);
        self.closed = true;
        while self.in_flight > 0 && self.clock.now().plus(within / 4) < until {
            self.step();
            if self.in_flight > 0 {
                std::thread::sleep(LOOK);
            }
        }
        self.inner.shutdown(until.since(self.clock.now()));
        self.take_below();
        self.worker.finish();
        while let Ok(Some(done)) = self.worker.take() {
            self.worked(done);
        }
        // What the tier below still has are staging slots, which are nobody's blocks.
        self.bury();
    }

    fn stats(&self) -> TierStats {
        let inner = self.inner.stats();
        TierStats {
            in_flight: self.in_flight as u64,
            refused: inner.refused + self.refused,
            unopened: self.unopened,
            ..inner
        }
    }
}
