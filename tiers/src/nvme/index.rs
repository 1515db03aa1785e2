//! What a tier's own blocks are, in memory: key to row, recency, and what is known of each block.
//!
//! Every row is in one list: per lane (directory) the blocks used in this life, and those known from an earlier life and
//! not used since. Victims come from the second first. A block that is being stored has its row and its recency from the
//! start, so that a `touch` that overtakes the store's completion is not lost; it is found only when it is ready.

use std::ops::ControlFlow;

use terrace_primary::{Key, KeyTable, Links};

use crate::tier::TierLookup;

/// Most lanes.
pub(crate) const MAX_LANES: usize = 64;
/// Most rows.
pub(crate) const MAX_ROWS: u32 = 1 << 27;
/// How many rows that may not be evicted are passed over on the way to a victim.
const VICTIM_SKIPS: usize = 2048;
/// In a key's row of the table: the block is readable.
const READY: u32 = 1;

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    /// Counts uses of the whole tier; larger is later.
    pub(crate) last_access: u64,
    /// CRC32 of the payload, if `CRC_KNOWN`.
    pub(crate) crc32: u32,
    /// Allocated bytes in sectors of 512.
    sectors: u32,
    /// The start of the tier that stored it.
    pub(crate) generation: u32,
    /// Changes when the row is freed: an operation's reference is (row, epoch).
    pub(crate) epoch: u32,
    /// The operation that stores it, while it is not ready.
    pub(crate) op: u32,
    /// Operations that use the block's file; not evicted above zero.
    pub(crate) users: u16,
    /// Directory.
    pub(crate) lane: u8,
    /// `CRC_KNOWN`, `DIRTY`, `UNSEEN`.
    pub(crate) flags: u8,
}

/// `crc32` is known.
pub(crate) const CRC_KNOWN: u8 = 1;
/// The last use is newer than the catalog's.
pub(crate) const DIRTY: u8 = 2;
/// Known from the catalog, and its file was not seen yet.
pub(crate) const UNSEEN: u8 = 4;

impl Row {
    pub(crate) fn crc(&self) -> Option<u32> {
        (self.flags & CRC_KNOWN != 0).then_some(self.crc32)
    }

    pub(crate) fn set_crc(&mut self, crc32: Option<u32>) {
        if let Some(crc32) = crc32 {
            self.crc32 = crc32;
            self.flags |= CRC_KNOWN;
        } else {
            self.flags &= !CRC_KNOWN;
        }
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        u64::from(self.sectors) * 512
    }

    pub(crate) fn set_allocated_bytes(&mut self, bytes: u64) {
        self.sectors = u32::try_from(bytes.div_ceil(512)).unwrap_or(u32::MAX);
    }
}

/// The index. Memory is reserved at start and touched as rows come into use.
pub(crate) struct Index {
    table: KeyTable,
    lists: Links,
    rows: Vec<Row>,
    free: Vec<u32>,
    most: u32,
    ready: u32,
    stamp: u64,
}

impl Index {
    /// An index of at most `rows` blocks over `lanes` directories, for keys of `key_bytes` bytes at most.
    pub(crate) fn new(rows: u32, lanes: usize, key_bytes: usize) -> Self {
        let rows = rows.min(MAX_ROWS);
        let lists = (lanes.clamp(1, MAX_LANES) * 2) as u8;
        Self {
            table: KeyTable::new(rows, key_bytes),
            lists: Links::new(rows, lists),
            rows: Vec::with_capacity(rows as usize),
            free: Vec::new(),
            most: rows,
            ready: 0,
            stamp: 0,
        }
    }

    /// Blocks that are ready.
    pub(crate) const fn ready(&self) -> u32 {
        self.ready
    }

    /// Whether one more block has a row.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || (self.rows.len() as u32) < self.most
    }

    /// Rows that were ever in use: the range to walk over.
    pub(crate) fn rows_seen(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The row of a key, ready or being stored.
    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        self.table.find(key.as_bytes())
    }

    /// Answers for each key, in order; `unless` is the answer for keys that are not in the index.
    pub(crate) fn lookup(&self, keys: &[Key], unless: TierLookup, out: &mut Vec<TierLookup>) {
        out.reserve(keys.len());
        self.table.find_batch(keys, |_, row| {
            out.push(match row {
                Some(row) if self.is_ready(row) => TierLookup::Found,
                Some(_) => TierLookup::Absent,
                None => unless,
            });
            ControlFlow::Continue(())
        });
    }

    #[inline]
    pub(crate) fn is_ready(&self, row: u32) -> bool {
        self.table.word(row) & READY != 0
    }

    pub(crate) fn get(&self, row: u32) -> Option<&Row> {
        self.rows.get(row as usize)
    }

    pub(crate) fn get_mut(&mut self, row: u32) -> Option<&mut Row> {
        self.rows.get_mut(row as usize)
    }

    /// The row, if it still holds the block that it held at `epoch`.
    pub(crate) fn at_epoch(&mut self, row: u32, epoch: u32) -> Option<&mut Row> {
        self.rows.get_mut(row as usize).filter(|row| row.epoch == epoch)
    }

    pub(crate) fn key(&self, row: u32) -> Option<Key> {
        self.table.key(row)
    }

    /// Takes a row for a block that is being stored, the most recent of its lane. `None`: no row free, key present, or
    /// longer than the index's keys.
    pub(crate) fn insert_storing(&mut self, key: &Key, lane: u8, generation: u32) -> Option<u32> {
        let row = self.insert(key, lane, recent(lane))?;
        let last_access = self.next_stamp();
        if let Some(place) = self.get_mut(row) {
            (place.last_access, place.generation) = (last_access, generation);
        }
        Some(row)
    }

    /// Takes a row for a block known from an earlier life. The caller fills the row in, and its rank comes later.
    pub(crate) fn insert_old(&mut self, key: &Key, lane: u8) -> Option<u32> {
        let row = self.insert(key, lane, old(lane))?;
        self.set_ready(row);
        Some(row)
    }

    /// The block's bytes are there.
    pub(crate) fn set_ready(&mut self, row: u32) {
        if !self.is_ready(row) && self.table.set_word(row, READY) {
            self.ready += 1;
        }
    }

    /// Forgets the block.
    pub(crate) fn remove(&mut self, row: u32) {
        let ready = self.is_ready(row);
        if !self.table.remove(row) {
            return;
        }
        self.ready -= u32::from(ready);
        self.lists.unlink(row);
        if let Some(place) = self.rows.get_mut(row as usize) {
            *place = Row { epoch: place.epoch.wrapping_add(1), ..Row::default() };
        }
        self.free.push(row);
    }

    /// Makes the blocks the most recent, the last key most of all.
    pub(crate) fn touch(&mut self, keys: &[Key], found: &mut Vec<u32>) {
        found.clear();
        self.table.find_batch(keys, |_, row| {
            found.extend(row);
            ControlFlow::Continue(())
        });
        for row in found.drain(..) {
            let last_access = self.next_stamp();
            if let Some(place) = self.rows.get_mut(row as usize) {
                place.last_access = last_access;
                place.flags |= DIRTY;
                self.lists.move_front(recent(place.lane), row);
            }
        }
    }

    /// The least recent block of the lane that may be evicted.
    pub(crate) fn victim(&self, lane: u8) -> Option<u32> {
        let from = |list| {
            self.lists
                .iter_back(list)
                .take(VICTIM_SKIPS)
                .find(|row| self.is_ready(*row) && self.get(*row).is_some_and(|row| row.users == 0))
        };
        from(old(lane)).or_else(|| from(recent(lane)))
    }

    /// The block is the most recently used of those of earlier lives, unless it was used in this one.
    pub(crate) fn rank_old(&mut self, row: u32) {
        if let Some(lane) = self.get(row).map(|row| row.lane)
            && self.lists.list(row) == Some(old(lane))
        {
            self.lists.move_front(old(lane), row);
        }
    }

    /// Uses from here on count from above `last_access`.
    pub(crate) fn seen_stamp(&mut self, last_access: u64) {
        self.stamp = self.stamp.max(last_access);
    }

    const fn next_stamp(&mut self) -> u64 {
        self.stamp = self.stamp.saturating_add(1);
        self.stamp
    }

    fn insert(&mut self, key: &Key, lane: u8, list: u8) -> Option<u32> {
        let row = match self.free.last() {
            Some(row) => *row,
            None if (self.rows.len() as u32) < self.most => self.rows.len() as u32,
            None => return None,
        };
        if !self.table.insert(key, row) {
            return None;
        }
        if self.free.pop().is_none() {
            self.rows.push(Row::default());
        }
        if let Some(place) = self.rows.get_mut(row as usize) {
            *place = Row { lane, epoch: place.epoch, ..Row::default() };
        }
        self.lists.push_front(list, row);
        Some(row)
    }

    /// Whether rows, lists and table say the same; for tests. Touches all rows.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        let mut ready = 0;
        for row in 0..self.rows_seen() {
            if self.key(row).is_some() {
                listed += 1;
                ready += u32::from(self.is_ready(row));
                let lane = self.get(row).map_or(0, |row| row.lane);
                if self.lists.list(row).is_none_or(|list| list / 2 != lane) {
                    return Err(format!("row {row} of lane {lane} is in list {:?}", self.lists.list(row)));
                }
            } else if self.lists.list(row).is_some() {
                return Err(format!("row {row} has no key and is in a list"));
            }
        }
        if ready != self.ready || listed + self.free.len() != self.rows.len() {
            return Err(format!(
                "{ready} of {} ready rows, {listed} used and {} free of {}",
                self.ready,
                self.free.len(),
                self.rows.len()
            ));
        }
        self.table.check()
    }
}

const fn recent(lane: u8) -> u8 {
    lane * 2
}

const fn old(lane: u8) -> u8 {
    lane * 2 + 1
}
