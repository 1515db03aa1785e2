//! The manager's table of everything in the bucket: key to segment and position. One thread's, no lock, no I/O.
//!
//! Keys stay where they came from, in the records of segments. What is found by hash (`table`) is the number of a block, which names a
//! segment and a position (`places`). A block that stands in several segments is in the table as often, so that losing one copy
//! finds the next.

mod places;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Key;

use super::id::SegmentId;
use super::record::SegmentRecord;
use crate::clock::Time;
use crate::tier::TierLookup;
use places::{Held, Places};
use table::{Cell, Sorted, Table};

/// Keys that are worked on at a time: while one waits for memory, the others ask for theirs.
const BATCH: usize = 16;
/// Blocks that are sorted at a time: 128 MiB of memory, given back at the end.
const MAX_SORTED: usize = 1 << 24;

/// Everything that a node knows to be in the bucket.
pub struct Blocks {
    table: Table,
    places: Places,
    /// Slots of segments, by id.
    ids: Table,
    segments: usize,
    keys: usize,
    bytes: u64,
    record_bytes: usize,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("keys", &self.keys).field("segments", &self.segments).finish_non_exhaustive()
    }
}

impl Default for Blocks {
    fn default() -> Self {
        Self::new()
    }
}

impl Blocks {
    /// An empty table. It grows in 256 small steps, one part of it at a time.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty table that takes `blocks` blocks before it grows.
    pub fn with_capacity(blocks: usize) -> Self {
        Self {
            table: Table::with_capacity(blocks),
            places: Places::default(),
            ids: Table::with_capacity(0),
            segments: 0,
            keys: 0,
            bytes: 0,
            record_bytes: 0,
        }
    }

    /// Takes a segment in. `own`: this tier wrote it and has reported, or will report, its blocks as stored. Of several copies of a block
    /// the one in the newest segment is found. A segment that is there already is not taken in again, but may become `own`. Beyond
    /// 2^32 blocks segments are ignored.
    pub fn add(&mut self, segment: Arc<SegmentRecord>, own: bool) {
        let Some(slot) = self.take_in(&segment, own) else { return };
        let (table, places) = (&mut self.table, &self.places);
        let mut blocks = places.blocks(slot);
        let mut batch = [(0, 0, None); BATCH];
        loop {
            let mut len = 0;
            for (entry, (position, block)) in batch.iter_mut().zip(blocks.by_ref()) {
                let hash = segment.key_at(position).map_or(0, |key| table.hash(key));
                *entry = (block, hash, table.find(hash, |_| true));
                len += 1;
            }
            // What was not there before the batch is new, unless the batch has it twice: one bit in 64 of each hash tells.
            let mut seen = 0_u64;
            for (block, hash, other) in &batch[..len] {
                let bit = 1 << (hash % u64::from(u64::BITS));
                let key = places.key_at(*block);
                let may_be_there = other.is_some() || seen & bit != 0;
                let is_new = !may_be_there || table.find(*hash, |other| places.key_at(other) == key).is_none();
                seen |= bit;
                table.insert(*hash, *block, own);
                self.keys += usize::from(is_new);
            }
            if len < BATCH {
                break;
            }
        }
    }

    /// [`Blocks::add`] for many segments, at a third of the time: their blocks are sorted by table first, so that one table after the other is
    /// worked on, in the processor's cache.
    pub fn add_all(&mut self, segments: impl IntoIterator<Item = (Arc<SegmentRecord>, bool)>) {
        let mut sorted = Sorted::default();
        for (segment, own) in segments {
            if own && self.slot(segment.id).is_some() {
                // It may have come just now, and its blocks must be found to be marked.
                self.add_sorted(&mut sorted);
            }
            let Some(slot) = self.take_in(&segment, own) else { continue };
            for (position, block) in self.places.blocks(slot) {
                let Some(key) = segment.key_at(position) else { continue };
                sorted.push(&self.table, self.table.hash(key), block, own);
            }
            if sorted.len() >= MAX_SORTED {
                self.add_sorted(&mut sorted);
            }
        }
        self.add_sorted(&mut sorted);
    }

    /// Takes a segment out. Appends the keys that are found no more and that this tier once reported as stored. The table keeps its memory for
    /// what comes.
    pub fn remove(&mut self, id: SegmentId, gone: &mut Vec<Key>) {
        let Some(slot) = self.slot(id) else { return };
        self.ids.remove(self.ids.hash(&id_bytes(id)), slot);
        self.segments -= 1;
        let (table, places) = (&mut self.table, &self.places);
        if let Some(held) = places.held(slot) {
            self.bytes -= held.segment.bytes;
            self.record_bytes -= held.segment.memory_bytes();
            for (position, block) in places.blocks(slot) {
                let key = held.segment.key(position);
                let was_last = key.and_then(|key| take_out(table, places, &key, block));
                self.keys -= usize::from(was_last.is_some());
                if was_last == Some(true) {
                    gone.extend(key);
                }
            }
        }
        self.places.remove(slot);
    }

    /// Takes one block of a segment out. `None`: it was not there, or the key is found in another segment still. Otherwise whether this
    /// tier once reported the key as stored.
    pub fn remove_block(&mut self, segment: SegmentId, position: u32) -> Option<bool> {
        let slot = self.slot(segment)?;
        let key = self.places.held(slot)?.segment.key(position)?;
        let block = self.places.block(slot, position)?;
        let was_last = take_out(&mut self.table, &self.places, &key, block)?;
        self.keys -= 1;
        Some(was_last)
    }

    /// For each key, in order: `Found`, or `unless`. Clears `out` first.
    pub fn lookup(&self, keys: &[Key], out: &mut Vec<TierLookup>, unless: TierLookup) {
        out.clear();
        out.reserve(keys.len());
        let mut hashes = [0; BATCH];
        let mut cells = [None; BATCH];
        for batch in keys.chunks(BATCH) {
            // Three short loops of independent steps, so that the waits for memory of a batch overlap.
            for (key, hash) in batch.iter().zip(&mut hashes) {
                *hash = self.table.hash(key.as_bytes());
            }
            for (hash, cell) in hashes.iter().zip(&mut cells).take(batch.len()) {
                *cell = self.table.find(*hash, |_| true);
            }
            for ((key, hash), cell) in batch.iter().zip(&hashes).zip(&cells) {
                let is = |block| self.places.key_at(block) == Some(key.as_bytes());
                let found = cell.is_some_and(|cell| is(cell.block) || self.table.find(*hash, is).is_some());
                out.push(if found { TierLookup::Found } else { unless });
            }
        }
    }

    /// Where a block is: its newest segment and its position there.
    pub fn find(&self, key: &Key) -> Option<(Arc<SegmentRecord>, u32)> {
        let (_, held, position) = self.newest(key)?;
        Some((Arc::clone(&held.segment), position))
    }

    /// Whether the key is found and this tier once reported it as stored.
    pub fn is_own(&self, key: &Key) -> bool {
        let hash = self.table.hash(key.as_bytes());
        self.table.all(hash).any(|cell| cell.is_own() && self.places.key_at(cell.block) == Some(key.as_bytes()))
    }

    /// Marks the segments of these keys as used `now`. Appends those that were not marked within `again`, each once.
    pub fn use_segments(&mut self, keys: &[Key], now: Time, again: Duration, out: &mut Vec<SegmentId>) {
        for key in keys {
            let Some((slot, ..)) = self.newest(key) else { continue };
            if let Some(held) = self.places.held_mut(slot)
                && held.used.is_none_or(|used| now.since(used) >= again)
            {
                held.used = Some(now);
                out.push(held.segment.id);
            }
        }
    }

    /// The segment of this id.
    pub fn segment(&self, id: SegmentId) -> Option<&Arc<SegmentRecord>> {
        Some(&self.places.held(self.slot(id)?)?.segment)
    }

    /// Different keys that are found.
    pub const fn len(&self) -> usize {
        self.keys
    }

    /// Whether nothing is found.
    pub const fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Segments.
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Bytes of the objects of all segments.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory: table and records. Records are counted here also where others hold them too.
    pub fn memory_bytes(&self) -> usize {
        /// The two counts of an `Arc`.
        const COUNTS: usize = 2 * size_of::<usize>();
        self.table_bytes() + self.record_bytes + self.segments * COUNTS
    }

    /// Bytes of memory of the table alone: what keys take beside their place in a record.
    pub fn table_bytes(&self) -> usize {
        self.table.memory_bytes() + self.ids.memory_bytes() + self.places.memory_bytes()
    }

    fn add_sorted(&mut self, sorted: &mut Sorted) {
        let places = &self.places;
        self.keys += self.table.insert_sorted(sorted, |one, other| places.key_at(one) == places.key_at(other));
    }

    /// Gives a new segment a slot and its blocks numbers, by which they are not found yet. `None` if nothing is left to do.
    fn take_in(&mut self, segment: &Arc<SegmentRecord>, own: bool) -> Option<u32> {
        if let Some(slot) = self.slot(segment.id) {
            if own {
                self.make_own(slot);
            }
            return None;
        }
        let slot = self.places.insert(Arc::clone(segment), own)?;
        self.ids.insert(self.ids.hash(&id_bytes(segment.id)), slot, own);
        self.segments += 1;
        self.bytes += segment.bytes;
        self.record_bytes += segment.memory_bytes();
        Some(slot)
    }

    /// The slot of a segment.
    fn slot(&self, id: SegmentId) -> Option<u32> {
        let is = |slot| self.places.held(slot).is_some_and(|held| held.segment.id == id);
        Some(self.ids.find(self.ids.hash(&id_bytes(id)), is)?.block)
    }

    /// The slot, segment and position of the newest copy.
    fn newest(&self, key: &Key) -> Option<(u32, &Held, u32)> {
        let mut newest: Option<(u32, &Held, u32)> = None;
        for cell in self.table.all(self.table.hash(key.as_bytes())) {
            let Some((slot, held, position)) = self.places.at(cell.block) else { continue };
            if held.segment.key_at(position) != Some(key.as_bytes()) {
                continue;
            }
            let age = |held: &Held, position: u32| (held.segment.created, held.segment.id, position);
            if newest.is_none_or(|(_, other, place)| age(held, position) > age(other, place)) {
                newest = Some((slot, held, position));
            }
        }
        newest
    }

    fn make_own(&mut self, slot: u32) {
        let Some(held) = self.places.held_mut(slot).filter(|held| !held.own) else { return };
        held.own = true;
        let segment = Arc::clone(&held.segment);
        for (position, block) in self.places.blocks(slot) {
            let Some(key) = segment.key_at(position) else { continue };
            let hash = self.table.hash(key);
            self.table.mark_own(hash, |other| other == block);
        }
    }
}

/// What a segment is found by.
fn id_bytes(id: SegmentId) -> [u8; 16] {
    (u128::from(id.writer.0) << 64 | u128::from(id.number)).to_le_bytes()
}

/// Takes a block out of the table. Where another copy stays, it inherits what was reported. `Some` if it was the last of its key and there:
/// whether it was own.
fn take_out(table: &mut Table, places: &Places, key: &Key, block: u32) -> Option<bool> {
    let hash = table.hash(key.as_bytes());
    let was: Cell = table.remove(hash, block)?;
    let is_copy = |block| places.key_at(block) == Some(key.as_bytes());
    if table.find(hash, is_copy).is_none() {
        return Some(was.is_own());
    }
    if was.is_own() {
        table.mark_own(hash, is_copy);
    }
    None
}
