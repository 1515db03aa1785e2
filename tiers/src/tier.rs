//! The contract between the manager and a secondary tier.
//!
//! A tier is driven by one thread, the manager's, and no call waits for a device: work is accepted or refused at
//! once and its results are collected by [`SecondaryTier::poll`]. Data never passes through these calls; a tier
//! reads and fills slots of the region that it was built with.
//!
//! What holds for every accepted job: each of its blocks yields exactly one `StoreDone` or `LoadDone`, whatever
//! fails, and **after that event the tier touches the block's slot no more**. Until then the slot belongs to the tier:
//! the manager does not hand it out again.

use std::time::Duration;

use terrace_primary::{Key, SlotId};

use crate::clock::Time;
use crate::object::ObjectStats;

/// Where a tier keeps its blocks, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Host memory.
    Cpu,
    /// Disks and object stores.
    Storage,
}

/// Whom a tier serves, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Locality {
    /// This host alone.
    Local,
    /// Several hosts.
    Remote,
}

/// What a tier is.
#[derive(Clone, Debug)]
pub struct TierDescriptor {
    /// Name in logs, statistics and events.
    pub name: String,
    /// Medium of its events.
    pub medium: Medium,
    /// Locality of its events.
    pub locality: Locality,
}

/// What a tier knows of a key, from memory alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierLookup {
    /// The tier holds the block, readable.
    Found,
    /// The tier does not hold it (a store still under way counts as absent).
    Absent,
    /// Not known yet: ask again in a later step.
    Unknown,
}

/// Names a job; chosen by the manager, unique among the jobs of one tier that are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A block to write to a tier. The slot holds its bytes and does not change until the block is done, unless the job
/// was abandoned.
#[derive(Clone, Copy, Debug)]
pub struct StoreBlock {
    /// Name of the block.
    pub key: Key,
    /// Where its bytes are.
    pub slot: SlotId,
    /// CRC32 (IEEE) of the payload if it is known; otherwise the tier computes and reports it.
    pub crc32: Option<u32>,
}

/// A block to bring back from a tier.
#[derive(Clone, Copy, Debug)]
pub struct LoadBlock {
    /// Name of the block.
    pub key: Key,
    /// Where its bytes go. Nobody else touches the slot until the block is done.
    pub slot: SlotId,
}

/// A cascade to one tier.
#[derive(Clone, Debug)]
pub struct StoreJob {
    /// Name of the job.
    pub id: JobId,
    /// What to store, in prefix order.
    pub blocks: Vec<StoreBlock>,
    /// When the manager gives the job up.
    pub deadline: Time,
}

/// A promotion from one tier for one request.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// Name of the job.
    pub id: JobId,
    /// What to load, in prefix order. Blocks may finish in any order.
    pub blocks: Vec<LoadBlock>,
    /// When the manager gives the job up.
    pub deadline: Time,
}

/// Why a block was not stored or not loaded. A miss is not an error: all of these end as a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The tier does not hold the block, or lost it.
    Absent,
    /// Length, CRC, key, namespace or format version did not check out; the copy is quarantined.
    Corrupt,
    /// The device failed.
    Io,
    /// No room, and nothing could be evicted.
    Full,
    /// The deadline passed, or the job was abandoned.
    Expired,
    /// The tier is shutting down or switched off.
    Closed,
}

impl Fault {
    /// Whether it speaks against the tier's health (and so counts for its breaker).
    pub const fn is_sickness(self) -> bool {
        matches!(self, Self::Io | Self::Expired)
    }
}

/// What a tier reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierEvent {
    /// A block of a store job is done: readable in this tier with this CRC32, or not stored.
    StoreDone {
        /// The job.
        job: JobId,
        /// Place of the block in the job.
        index: u32,
        /// CRC32 of the payload as stored.
        outcome: Result<u32, Fault>,
    },
    /// A block of a load job is done: the slot holds its verified bytes with this CRC32, or garbage.
    LoadDone {
        /// The job.
        job: JobId,
        /// Place of the block in the job.
        index: u32,
        /// CRC32 of the payload as verified.
        outcome: Result<u32, Fault>,
    },
    /// The tier no longer holds a block that it once reported as stored: evicted or quarantined.
    Removed {
        /// The block.
        key: Key,
    },
}

/// Counters of a tier since start; gauges where the name says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Gauge: blocks held.
    pub blocks: u64,
    /// Gauge: bytes allocated, overhead included.
    pub allocated_bytes: u64,
    /// Bound of `allocated_bytes`: what is configured, or a lower limit that was set.
    pub capacity_bytes: u64,
    /// Not all that is there is counted yet: `allocated_bytes` still grows by it.
    pub counting: bool,
    /// Gauge: blocks accepted and not done.
    pub in_flight: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Payload bytes stored.
    pub stored_bytes: u64,
    /// Blocks loaded and verified.
    pub loaded: u64,
    /// Payload bytes loaded.
    pub loaded_bytes: u64,
    /// Blocks evicted to make room.
    pub evicted: u64,
    /// Stores whose file took the place of an evicted one.
    pub recycled: u64,
    /// Copies that failed their check and were quarantined.
    pub corrupt: u64,
    /// Blocks that were to be loaded and were gone.
    pub vanished: u64,
    /// Operations that the device failed.
    pub io_errors: u64,
    /// Operations given up at their deadline.
    pub expired: u64,
    /// Jobs refused because a queue was full.
    pub refused: u64,
    /// Blocks not stored for want of room.
    pub full: u64,
    /// Changes of the catalog that were lost; a tier that lost one scans its files at the next start.
    pub catalog_lost: u64,
    /// Blocks that the catalog did not know and a scan found.
    pub orphans: u64,
    /// Loaded blocks that did not open: sealed with another key, or changed.
    pub unopened: u64,
    /// Of an object tier; zero elsewhere.
    pub object: ObjectStats,
}

/// A job that was not accepted. Nothing of it was done and nothing will be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A bounded queue is full: try again in a later step.
    Busy,
    /// The tier takes no more work.
    Closed,
}

/// A tier below the primary. Driven by one thread; no call waits for a device.
pub trait SecondaryTier: Send {
    /// What this tier is.
    fn descriptor(&self) -> &TierDescriptor;

    /// Answers for each key, in order, from memory; clears `out` first. Does not change recency.
    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>);

    /// Takes a cascade. Blocks that the tier holds already are reported done at once.
    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused>;

    /// Takes a promotion. Loads go before stores.
    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused>;

    /// Gives a job up. Each of its blocks that is not done is reported `Err(Expired)` as soon as the tier can promise not
    /// to touch its slot: at the next poll for what is still queued, after the kernel's completion for what is not.
    /// A store block that was given up never becomes readable with what its slot holds from here on: the content may change.
    /// Unknown jobs are ignored.
    fn abandon(&mut self, job: JobId);

    /// Appends what happened since the last call.
    fn poll(&mut self, out: &mut Vec<TierEvent>);

    /// The next block of a round over all that the tier holds, for a scrubber to load; at its end the round begins anew. `None`: there is
    /// nothing to read now, or nothing that should be read without need.
    fn next_to_scrub(&mut self) -> Option<Key> {
        None
    }

    /// Keeps what it holds within `bytes`, its capacity at most, from now on: what is above goes in later polls, the least recently used
    /// first, and counts in `allocated_bytes` until it is gone. A tier whose capacity cannot change ignores it.
    fn set_limit(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Makes these blocks the most recently used, the last key most recent. Absent ones are skipped.
    fn touch(&mut self, keys: &[Key]);

    /// Stops taking work, finishes or fails what is in flight within `within`, makes the state on the device durable, and
    /// joins threads. The one call that waits. Events still come out of a last `poll`.
    fn shutdown(&mut self, within: Duration);

    /// Counters now.
    fn stats(&self) -> TierStats;
}

impl<T: SecondaryTier + ?Sized> SecondaryTier for Box<T> {
    fn descriptor(&self) -> &TierDescriptor {
        (**self).descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        (**self).lookup(keys, out);
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        (**self).submit_store(job)
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        (**self).submit_load(job)
    }

    fn abandon(&mut self, job: JobId) {
        (**self).abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        (**self).poll(out);
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        (**self).next_to_scrub()
    }

    fn set_limit(&mut self, bytes: u64) {
        (**self).set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        (**self).touch(keys);
    }

    fn shutdown(&mut self, within: Duration) {
        (**self).shutdown(within);
    }

    fn stats(&self) -> TierStats {
        (**self).stats()
    }
}
