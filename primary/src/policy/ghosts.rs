//! Blocks that were evicted, remembered by fingerprint.

use crate::key_table::KeyTable;
use crate::links::Links;

/// From where a block was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// It had been used once (`B1` in the ARC paper).
    Once,
    /// It had been used again (`B2`).
    Again,
}

impl List {
    const fn number(self) -> u8 {
        match self {
            Self::Once => 0,
            Self::Again => 1,
        }
    }
}

/// Free entries.
const FREE: u8 = 2;

/// A fixed number of fingerprints in two lists, each by recency.
pub(super) struct Ghosts {
    table: KeyTable,
    links: Links,
    /// Entries that were never used; the others are in a list.
    untouched: u32,
    entries: u32,
}

impl Ghosts {
    pub(super) fn new(entries: u32) -> Self {
        Self { table: KeyTable::new(entries, 8), links: Links::new(entries, 3), untouched: 0, entries }
    }

    pub(super) fn len(&self, list: List) -> u32 {
        self.links.len(list.number())
    }

    /// Remembers `fingerprint` as the newest of `list`; forgets the oldest of the longer list when no entry is free.
    pub(super) fn remember(&mut self, list: List, fingerprint: u64) {
        self.take(fingerprint);
        let Some(entry) = self.free_entry() else { return };
        if self.table.insert_bytes(&fingerprint.to_le_bytes(), entry) {
            self.links.push_front(list.number(), entry);
        } else {
            self.links.push_front(FREE, entry);
        }
    }

    /// Forgets `fingerprint` and tells in which list it was.
    pub(super) fn take(&mut self, fingerprint: u64) -> Option<List> {
        let entry = self.table.find(&fingerprint.to_le_bytes())?;
        let list = self.links.unlink(entry);
        self.table.remove(entry);
        self.links.push_front(FREE, entry);
        Some(if list == Some(List::Once.number()) { List::Once } else { List::Again })
    }

    pub(super) fn forget_oldest(&mut self, list: List) {
        if let Some(entry) = self.links.pop_back(list.number()) {
            self.table.remove(entry);
            self.links.push_front(FREE, entry);
        }
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.links.clear();
        self.untouched = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.links.bytes()
    }

    fn free_entry(&mut self) -> Option<u32> {
        if self.links.is_empty(FREE) && self.untouched < self.entries {
            self.untouched += 1;
            return Some(self.untouched - 1);
        }
        if self.links.is_empty(FREE) {
            let longer = if self.len(List::Once) > self.len(List::Again) { List::Once } else { List::Again };
            self.forget_oldest(longer);
        }
        self.links.pop_back(FREE)
    }
}
