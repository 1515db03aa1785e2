//! What is in flight: operations by ticket, and the jobs that they belong to.

use std::collections::HashMap;

use crate::clock::Time;
use crate::nvme::BlockName;
use crate::tier::JobId;

/// No job, row or operation.
pub(crate) const NONE: u32 = u32::MAX;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Writes a new block.
    Store,
    /// Writes a block over its own file, whose CRC nobody knows.
    Replace,
    /// Reads a block.
    Load,
    /// Removes a file.
    Remove,
}

/// One command to a port.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Place of its job; `NONE`: nobody waits.
    pub(crate) job: u32,
    /// Place of the block in the job.
    pub(crate) index: u32,
    /// Row and epoch of the block.
    pub(crate) row: u32,
    pub(crate) epoch: u32,
    pub(crate) lane: u8,
    /// Not with the port yet.
    pub(crate) queued: bool,
    pub(crate) abandoned: bool,
    /// When it was accepted.
    pub(crate) started: Time,
    /// Removes: how often it was tried.
    pub(crate) attempts: u8,
    /// Bytes that the operation is charged with.
    pub(crate) bytes: u64,
    /// Stores: bytes of an older file of the block that may still stand under its name. They are counted until the store has
    /// replaced it.
    pub(crate) older_bytes: u64,
    /// Stores of the same block that get the same outcome: job and place in it.
    pub(crate) followers: Vec<(u32, u32)>,
    /// Stores and replacements: whose file they were told to take over; `bytes` counts it.
    pub(crate) victim: Option<BlockName>,
    /// Removes and replacements: whose file.
    pub(crate) name: Option<Box<BlockName>>,
}

impl Op {
    pub(crate) const fn new(kind: OpKind, lane: u8) -> Self {
        Self {
            kind,
            job: NONE,
            index: 0,
            row: NONE,
            epoch: 0,
            lane,
            queued: false,
            abandoned: false,
            started: Time(0),
            attempts: 0,
            bytes: 0,
            older_bytes: 0,
            followers: Vec::new(),
            victim: None,
            name: None,
        }
    }
}

#[derive(Debug, Default)]
struct Place {
    epoch: u32,
    op: Option<Op>,
}

/// Operations by ticket. A ticket is never used twice.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Ops {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, op: Op) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        match self.places.get_mut(at as usize) {
            Some(place) => {
                place.op = Some(op);
                u64::from(place.epoch) << 32 | u64::from(at)
            }
            None => u64::MAX,
        }
    }

    pub(crate) fn get_mut(&mut self, ticket: u64) -> Option<&mut Op> {
        let place = self.places.get_mut(ticket as u32 as usize)?;
        if u64::from(place.epoch) == ticket >> 32 { place.op.as_mut() } else { None }
    }

    pub(crate) fn take(&mut self, ticket: u64) -> Option<Op> {
        self.get_mut(ticket)?;
        let place = self.places.get_mut(ticket as u32 as usize)?;
        place.epoch = place.epoch.wrapping_add(1);
        self.free.push(ticket as u32);
        place.op.take()
    }

    /// Bytes that all operations are charged with; for tests.
    pub(crate) fn bytes(&self) -> u64 {
        self.places.iter().filter_map(|place| place.op.as_ref()).map(|op| op.bytes + op.older_bytes).sum()
    }

    /// Of those, what removes hold; for tests.
    pub(crate) fn removing_bytes(&self) -> u64 {
        let ops = self.places.iter().filter_map(|place| place.op.as_ref());
        ops.filter(|op| op.kind == OpKind::Remove).map(|op| op.bytes).sum()
    }

    /// The operation in a place, with its ticket.
    pub(crate) fn at(&mut self, place: u32) -> Option<(u64, &mut Op)> {
        let at = self.places.get_mut(place as usize)?;
        let ticket = u64::from(at.epoch) << 32 | u64::from(place);
        at.op.as_mut().map(|op| (ticket, op))
    }
}

/// A job that is not done.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) load: bool,
    /// Blocks that are not done.
    pub(crate) remaining: u32,
    /// Tickets of its operations, and of those that it follows.
    pub(crate) tickets: Vec<u64>,
}

/// Jobs by place and by name.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    places: Vec<Option<Job>>,
    free: Vec<u32>,
    by_id: HashMap<JobId, u32>,
    remaining: u64,
}

impl Jobs {
    /// Blocks that are not done.
    pub(crate) const fn remaining(&self) -> u64 {
        self.remaining
    }

    pub(crate) fn contains(&self, id: JobId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn find(&self, id: JobId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn open(&mut self, id: JobId, load: bool, blocks: u32) -> u32 {
        let job = Some(Job { id, load, remaining: blocks, tickets: Vec::new() });
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.places.push(None);
                self.places.len() as u32 - 1
            }
        };
        if let Some(place) = self.places.get_mut(at as usize) {
            *place = job;
        }
        self.by_id.insert(id, at);
        self.remaining += u64::from(blocks);
        at
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Job> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    /// One block of the job is done: whose, and whether it was a load. The job goes with its last block.
    pub(crate) fn done(&mut self, at: u32) -> Option<(JobId, bool)> {
        let job = self.get_mut(at)?;
        let answer = (job.id, job.load);
        job.remaining = job.remaining.saturating_sub(1);
        let over = job.remaining == 0;
        self.remaining = self.remaining.saturating_sub(1);
        if over {
            self.close(at);
        }
        Some(answer)
    }

    /// Ends a job that has no block left.
    pub(crate) fn close(&mut self, at: u32) {
        if let Some(job) = self.places.get_mut(at as usize).and_then(Option::take) {
            self.by_id.remove(&job.id);
            self.free.push(at);
        }
    }
}
