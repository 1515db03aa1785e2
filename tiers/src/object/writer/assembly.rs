//! Which blocks go into which segment. No I/O, no clock, no waiting: told what happens, it says what is due.
//!
//! A block **waits** with its bytes in its slot, is **staged** when they were copied out, **sealed** when its segment takes no
//! more, and done with that segment. A key is in one of these once: who stores it meanwhile follows it. What is given up
//! before it is sealed is left out at once; what is sealed ends as its segment does.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use terrace_primary::{Key, SlotId};
use tokio::sync::mpsc::UnboundedSender;

use super::super::id::{SegmentId, Stamp};
use super::super::port::{GivenUp, Report, StorePlace};
use super::super::record::Shape;
use super::pool::Buffer;
use super::sealed::{Sealed, Staged};
use crate::clock::Time;
use crate::tier::{Fault, JobId};

/// When a segment is full, and how long it waits until it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Blocks of a full segment, at least 1.
    pub blocks: u32,
    /// A job that fills so many of them is not kept waiting for others.
    pub alone: u32,
    /// How long a segment waits for more blocks after its first.
    pub linger: Duration,
}

/// A key that is on its way; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ItemId(u64);

/// Who wants a key stored, and where it has the bytes.
#[derive(Clone, Debug)]
struct Owner {
    job: JobId,
    given_up: GivenUp,
    index: u32,
    slot: SlotId,
    crc32: Option<u32>,
}

#[derive(Debug)]
struct Item {
    key: Key,
    /// Those that still want an answer. Only a sealed item may have none.
    owners: Vec<Owner>,
    state: ItemState,
}

#[derive(Debug)]
enum ItemState {
    Waiting,
    Staged(Buffer, u32),
    Sealed(u32),
}

#[derive(Debug)]
struct Job {
    deadline: Time,
    blocks: Vec<ItemId>,
    /// Blocks that have no answer.
    left: usize,
}

/// A block to copy: see [`Assembly::next_copy`].
#[derive(Clone, Debug)]
pub(super) struct Copy {
    item: ItemId,
    owner: Owner,
}

impl Copy {
    /// Where the bytes are.
    pub const fn slot(&self) -> SlotId {
        self.owner.slot
    }
}

/// All blocks that are accepted and not done.
#[derive(Debug)]
pub(super) struct Assembly {
    shape: Shape,
    limits: Limits,
    reports: UnboundedSender<Report>,
    items: BTreeMap<ItemId, Item>,
    keys: HashMap<Key, ItemId>,
    next_item: u64,
    waiting: VecDeque<ItemId>,
    /// The segment that takes blocks, and when it got its first.
    open: Vec<ItemId>,
    opened: Time,
    /// Blocks that one job staged in a row: now, and the most in the open segment.
    in_a_row: (Option<JobId>, u32),
    longest_row: u32,
    jobs: BTreeMap<JobId, Job>,
    deadlines: BTreeSet<(Time, JobId)>,
}

impl Assembly {
    /// Nothing is on its way. What becomes of blocks goes to `reports`.
    pub fn new(shape: Shape, limits: Limits, reports: UnboundedSender<Report>) -> Self {
        Self {
            shape,
            limits,
            reports,
            items: BTreeMap::new(),
            keys: HashMap::new(),
            next_item: 0,
            waiting: VecDeque::new(),
            open: Vec::new(),
            opened: Time::default(),
            in_a_row: (None, 0),
            longest_row: 0,
            jobs: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Takes blocks of a job; more of the same job may follow.
    pub fn store(&mut self, id: JobId, blocks: Vec<StorePlace>, deadline: Time, given_up: GivenUp, now: Time) {
        let refused = (now >= deadline || given_up.is_set()).then_some(Fault::Expired);
        for StorePlace { index, block } in blocks {
            let wrong = (block.key.as_bytes().len() != usize::from(self.shape.key_bytes)).then_some(Fault::Corrupt);
            if let Some(fault) = refused.or(wrong) {
                self.report(id, index, Err(fault));
                continue;
            }
            let (given_up, slot, crc32) = (given_up.clone(), block.slot, block.crc32);
            let owner = Owner { job: id, given_up, index, slot, crc32 };
            let item = *self.keys.entry(block.key).or_insert_with(|| {
                let item = ItemId(self.next_item);
                self.next_item += 1;
                self.items
                    .insert(item, Item { key: block.key, owners: Vec::with_capacity(1), state: ItemState::Waiting });
                self.waiting.push_back(item);
                item
            });
            if let Some(item) = self.items.get_mut(&item) {
                item.owners.push(owner);
            }
            let job = self.jobs.entry(id).or_insert_with(|| {
                self.deadlines.insert((deadline, id));
                Job { deadline, blocks: Vec::new(), left: 0 }
            });
            job.blocks.push(item);
            job.left += 1;
        }
    }

    /// Leaves out what is not sealed of a job, and says so of each block. Its sealed blocks end as their segments do.
    pub fn give_up(&mut self, id: JobId, fault: Fault) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.deadlines.remove(&(job.deadline, id));
        let mut dropped = false;
        for item in job.blocks {
            let Some(entry) = self.items.get_mut(&item) else { continue };
            if matches!(entry.state, ItemState::Sealed(_)) {
                continue;
            }
            let reports = &self.reports;
            entry.owners.retain(|owner| {
                let stays = owner.job != id;
                if !stays {
                    let _ = reports.send(Report::Stored { job: id, index: owner.index, outcome: Err(fault) });
                }
                stays
            });
            if entry.owners.is_empty() {
                self.forget(item);
                dropped = true;
            }
        }
        if dropped {
            let items = &self.items;
            self.waiting.retain(|item| items.contains_key(item));
            self.open.retain(|item| items.contains_key(item));
        }
    }

    /// Gives up the jobs whose deadline has passed.
    pub fn expire(&mut self, now: Time) {
        while let Some((deadline, job)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.give_up(job, Fault::Expired);
        }
    }

    /// Ends everything.
    pub fn end(&mut self, fault: Fault) {
        for item in std::mem::take(&mut self.items).into_values() {
            for owner in item.owners {
                self.report(owner.job, owner.index, Err(fault));
            }
        }
        self.keys.clear();
        self.waiting.clear();
        self.open.clear();
        self.jobs.clear();
        self.deadlines.clear();
    }

    /// The first block that waits, unless the open segment is full. The caller copies it and says [`Assembly::copied`], whatever
    /// else happened in between.
    pub fn next_copy(&mut self) -> Option<Copy> {
        if self.open.len() >= self.limits.blocks as usize {
            return None;
        }
        while let Some(item) = self.waiting.front().copied() {
            let Some(owner) = self.items.get(&item).and_then(|item| item.owners.first()) else {
                self.waiting.pop_front();
                continue;
            };
            if !owner.given_up.is_set() {
                return Some(Copy { item, owner: owner.clone() });
            }
            self.give_up(owner.job, Fault::Expired);
        }
        None
    }

    /// What became of a copy: the buffer with its bytes and their CRC32, or `None` where the slot cannot be read.
    pub fn copied(&mut self, copy: &Copy, bytes: Option<(Buffer, u32)>, now: Time) {
        // From before this look on, the slot may have held anything.
        if copy.owner.given_up.is_set() {
            return self.give_up(copy.owner.job, Fault::Expired);
        }
        let sound = match bytes {
            None => Err(Fault::Io),
            Some((_, crc32)) if copy.owner.crc32.is_some_and(|known| known != crc32) => Err(Fault::Corrupt),
            Some(bytes) => Ok(bytes),
        };
        let Some(item) = self.items.get_mut(&copy.item).filter(|item| matches!(item.state, ItemState::Waiting)) else {
            return;
        };
        match sound {
            Ok((buffer, crc32)) => {
                item.state = ItemState::Staged(buffer, crc32);
                self.unqueue(copy.item);
                self.stage(copy, now);
            }
            // Whoever else stores this key may have sound bytes.
            Err(fault) => {
                item.owners.retain(|owner| (owner.job, owner.index) != (copy.owner.job, copy.owner.index));
                if item.owners.is_empty() {
                    self.forget(copy.item);
                    self.unqueue(copy.item);
                }
                self.finish(&copy.owner, Err(fault));
            }
        }
    }

    fn stage(&mut self, copy: &Copy, now: Time) {
        if self.open.is_empty() {
            self.opened = now;
            self.in_a_row = (None, 0);
            self.longest_row = 0;
        }
        self.open.push(copy.item);
        let job = Some(copy.owner.job);
        self.in_a_row = if self.in_a_row.0 == job { (job, self.in_a_row.1 + 1) } else { (job, 1) };
        self.longest_row = self.longest_row.max(self.in_a_row.1);
    }

    /// Whether the open segment is to be sealed now. `last`: nothing will come any more.
    pub fn is_due(&self, last: bool, now: Time) -> bool {
        let full = self.open.len() >= self.limits.blocks as usize;
        let enough = self.waiting.is_empty() && (last || self.longest_row >= self.limits.alone);
        !self.open.is_empty() && (full || enough || now >= self.opened.plus(self.limits.linger))
    }

    /// Seals the open segment. `None` if it has no blocks. The items end with [`Assembly::done`].
    pub fn seal(&mut self, id: SegmentId, created: Stamp) -> Option<(Sealed, Vec<ItemId>)> {
        let items = std::mem::take(&mut self.open);
        let mut blocks = Vec::with_capacity(items.len());
        let mut deadline = Time::default();
        for item in &items {
            let Some(entry) = self.items.get_mut(item) else { continue };
            if let ItemState::Staged(_, crc32) = entry.state
                && let ItemState::Staged(buffer, _) = std::mem::replace(&mut entry.state, ItemState::Sealed(crc32))
            {
                blocks.push(Staged { key: entry.key, crc32, buffer });
            }
            let latest =
                entry.owners.iter().filter_map(|owner| self.jobs.get(&owner.job)).map(|job| job.deadline).max();
            deadline = deadline.max(latest.unwrap_or_default());
        }
        if blocks.is_empty() {
            return None;
        }
        match Sealed::new(&self.shape, id, created, blocks, deadline) {
            Some(sealed) => Some((sealed, items)),
            None => {
                self.done(&items, Err(Fault::Corrupt));
                None
            }
        }
    }

    /// A sealed segment is published, or failed.
    pub fn done(&mut self, items: &[ItemId], outcome: Result<(), Fault>) {
        for item in items {
            let Some(entry) = self.forget(*item) else { continue };
            let ItemState::Sealed(crc32) = entry.state else { continue };
            for owner in entry.owners {
                self.finish(&owner, outcome.map(|()| crc32));
            }
        }
    }

    /// When [`Assembly::is_due`] or [`Assembly::expire`] next may have something to do.
    pub fn next_time(&self) -> Option<Time> {
        let linger = (!self.open.is_empty()).then(|| self.opened.plus(self.limits.linger));
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        linger.into_iter().chain(deadline).min()
    }

    /// Whether blocks wait to be copied.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.items.is_empty()
    }

    fn unqueue(&mut self, item: ItemId) {
        if self.waiting.front() == Some(&item) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|waiting| *waiting != item);
        }
    }

    fn forget(&mut self, item: ItemId) -> Option<Item> {
        let entry = self.items.remove(&item)?;
        if self.keys.get(&entry.key) == Some(&item) {
            self.keys.remove(&entry.key);
        }
        Some(entry)
    }

    /// Answers an owner that no item has any more.
    fn finish(&mut self, owner: &Owner, outcome: Result<u32, Fault>) {
        self.report(owner.job, owner.index, outcome);
        if let Some(job) = self.jobs.get_mut(&owner.job) {
            job.left -= 1;
            if job.left == 0 {
                let deadline = job.deadline;
                self.jobs.remove(&owner.job);
                self.deadlines.remove(&(deadline, owner.job));
            }
        }
    }

    /// Nobody listens any more: the tier is gone, and so are its jobs.
    fn report(&self, job: JobId, index: u32, outcome: Result<u32, Fault>) {
        let _ = self.reports.send(Report::Stored { job, index, outcome });
    }
}
