//! The operations under way, one entry each; an entry's index is its tag, its footer and its temporary name.

use std::hash::{DefaultHasher, Hash, Hasher};

use terrace_primary::{Key, SlotId};

use crate::clock::Time;
use crate::nvme::port::BlockName;
use crate::tier::Fault;

/// What an entry is doing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    /// Removing a victim of another namespace; the store follows in the same entry.
    Clear { key: Key, slot: SlotId, crc32: u32 },
    /// Writing a block, perhaps over a victim's file.
    Write { key: Key, crc32: u32, victim: Option<BlockName> },
    /// Reading a block.
    Read { key: Key, slot: SlotId, crc32: Option<u32> },
    /// Removing a file that was asked to go.
    Remove,
    /// Removing a block that was published after it had been given up.
    Mend,
    /// Removing what a failed write may have left under its temporary name; the `Done` comes after it. Not to be ended early.
    Tidy { fault: Fault, victim: Option<BlockName> },
    /// Moving a bad file away.
    Quarantine { name: BlockName },
    /// Removing a bad file that could not be moved away.
    Discard,
    /// Asking for a scanned file.
    Stat { name: BlockName },
    /// Removing a temporary file of an earlier life.
    Sweep,
}

impl Doing {
    /// Part of a scan.
    pub(super) const fn is_scan(&self) -> bool {
        matches!(self, Self::Stat { .. } | Self::Sweep)
    }

    /// Came from the line of stores and removals.
    pub(super) const fn is_write(&self) -> bool {
        matches!(self, Self::Clear { .. } | Self::Write { .. } | Self::Remove)
    }

    /// Changes which file stands under its names.
    const fn is_exclusive(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Stat { .. })
    }
}

/// One operation under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) doing: Doing,
    /// Whose `Done` is still owed.
    pub(super) ticket: Option<u64>,
    /// Prints of the files that it touches.
    pub(super) files: [Option<u64>; 2],
    pub(super) deadline: Time,
    /// The device was asked to end it.
    pub(super) cancelled: bool,
    /// Its owner gave it up.
    pub(super) abandoned: bool,
}

/// A number that stands for a file. Equal for equal names; two names that share one merely wait for each other.
pub(super) fn print_of(namespace: &[u8; 32], key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    key.as_bytes().hash(&mut hasher);
    hasher.finish()
}

/// All operations under way.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    scans: u32,
    writes: u32,
}

impl Table {
    pub(super) fn new(len: u32) -> Self {
        Self { entries: vec![None; len as usize], free: (0..len).rev().collect(), scans: 0, writes: 0 }
    }

    pub(super) const fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(super) fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) const fn scans(&self) -> u32 {
        self.scans
    }

    pub(super) const fn writes(&self) -> u32 {
        self.writes
    }

    /// The entry that `insert` will take.
    pub(super) fn next_free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Takes an entry.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<u32> {
        let index = self.free.pop()?;
        self.scans += u32::from(entry.doing.is_scan());
        self.writes += u32::from(entry.doing.is_write());
        *self.entries.get_mut(index as usize)? = Some(entry);
        Some(index)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)?.as_ref()
    }

    /// Changes what an entry is doing.
    pub(super) fn set(&mut self, index: u32, doing: Doing) {
        if let Some(entry) = self.entries.get_mut(index as usize).and_then(Option::as_mut) {
            self.writes -= u32::from(entry.doing.is_write());
            self.writes += u32::from(doing.is_write());
            entry.cancelled |= matches!(doing, Doing::Tidy { .. } | Doing::Mend);
            entry.doing = doing;
        }
    }

    /// Takes the ticket of an entry, whose `Done` the caller gives.
    pub(super) fn take_ticket(&mut self, index: u32) -> Option<u64> {
        self.entries.get_mut(index as usize)?.as_mut()?.ticket.take()
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize).and_then(Option::take) {
            self.scans -= u32::from(entry.doing.is_scan());
            self.writes -= u32::from(entry.doing.is_write());
            self.free.push(index);
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Entry)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| Some((index as u32, entry.as_mut()?)))
    }

    /// The first deadline of what the device was not yet asked to end.
    pub(super) fn earliest(&self) -> Time {
        let waiting = self.entries.iter().flatten().filter(|entry| !entry.cancelled && entry.ticket.is_some());
        waiting.map(|entry| entry.deadline).min().unwrap_or(Time(u64::MAX))
    }

    /// Whether an operation that touches these files must wait for one under way.
    pub(super) fn clashes(&self, files: [Option<u64>; 2], doing: &Doing) -> bool {
        let exclusive = doing.is_exclusive();
        self.entries
            .iter()
            .flatten()
            .filter(|entry| exclusive || entry.doing.is_exclusive())
            .any(|entry| files.iter().flatten().any(|file| entry.files.contains(&Some(*file))))
    }
}
