//! Numbers of blocks, 32 bits each, and the segments that they stand for.
//!
//! Numbers are given out in chunks of 16 neighbours. A chunk knows its segment, the position of its first block, and the chunk that
//! follows in the segment; free chunks and free slots are chained the same way.

use std::sync::Arc;

use crate::clock::Time;
use crate::object::record::SegmentRecord;

/// Blocks of a chunk.
const CHUNK_BLOCKS: u32 = 16;
/// Most chunks: their blocks have 32-bit numbers.
const MAX_CHUNKS: u32 = (1 << 28) - 1;
/// No chunk, no slot.
const NONE: u32 = u32::MAX;

/// A segment.
#[derive(Debug)]
pub struct Held {
    /// What it is.
    pub segment: Arc<SegmentRecord>,
    /// This tier wrote it.
    pub own: bool,
    /// When its use was last told.
    pub used: Option<Time>,
    chunk: u32,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: u32,
    first: u32,
    next: u32,
}

/// All segments, in slots, and all chunks.
#[derive(Debug)]
pub struct Places {
    slots: Vec<Option<Held>>,
    free_slots: Vec<u32>,
    chunks: Vec<Chunk>,
    free_chunk: u32,
    free_chunks: u32,
}

impl Default for Places {
    fn default() -> Self {
        Self { slots: Vec::new(), free_slots: Vec::new(), chunks: Vec::new(), free_chunk: NONE, free_chunks: 0 }
    }
}

impl Places {
    /// Gives a segment a slot and its blocks numbers. `None` where there are not enough.
    pub fn insert(&mut self, segment: Arc<SegmentRecord>, own: bool) -> Option<u32> {
        let count = segment.blocks().div_ceil(CHUNK_BLOCKS);
        let left = MAX_CHUNKS - self.chunks.len() as u32 + self.free_chunks;
        if count > left || self.slots.len() >= NONE as usize {
            return None;
        }
        let slot = self.free_slots.pop().unwrap_or(self.slots.len() as u32);
        let mut chunk = NONE;
        for place in (0..count).rev() {
            chunk = self.take_chunk(Chunk { slot, first: place * CHUNK_BLOCKS, next: chunk });
        }
        let held = Held { segment, own, used: None, chunk };
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(held),
            None => push(&mut self.slots, Some(held)),
        }
        Some(slot)
    }

    /// Takes a segment out and frees its numbers.
    pub fn remove(&mut self, slot: u32) {
        let Some(held) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.free_slots.push(slot);
        let mut at = held.chunk;
        while let Some(chunk) = self.chunks.get_mut(at as usize) {
            let next = std::mem::replace(&mut chunk.next, self.free_chunk);
            chunk.slot = NONE;
            self.free_chunk = at;
            self.free_chunks += 1;
            at = next;
        }
    }

    pub fn held(&self, slot: u32) -> Option<&Held> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn held_mut(&mut self, slot: u32) -> Option<&mut Held> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The slot, segment and position of a block.
    #[inline]
    pub fn at(&self, block: u32) -> Option<(u32, &Held, u32)> {
        let chunk = self.chunks.get((block / CHUNK_BLOCKS) as usize)?;
        Some((chunk.slot, self.held(chunk.slot)?, chunk.first + block % CHUNK_BLOCKS))
    }

    /// The key of a block.
    #[inline]
    pub fn key_at(&self, block: u32) -> Option<&[u8]> {
        let (_, held, position) = self.at(block)?;
        held.segment.key_at(position)
    }

    /// The number of the block at a position.
    pub fn block(&self, slot: u32, position: u32) -> Option<u32> {
        let held = self.held(slot).filter(|held| position < held.segment.blocks())?;
        let mut at = held.chunk;
        for _ in 0..position / CHUNK_BLOCKS {
            at = self.chunks.get(at as usize)?.next;
        }
        (at != NONE).then(|| at * CHUNK_BLOCKS + position % CHUNK_BLOCKS)
    }

    /// Positions and numbers of a segment's blocks, in order.
    pub fn blocks(&self, slot: u32) -> impl Iterator<Item = (u32, u32)> {
        let (blocks, mut at) = self.held(slot).map_or((0, NONE), |held| (held.segment.blocks(), held.chunk));
        (0..blocks).map_while(move |position| {
            if position > 0 && position.is_multiple_of(CHUNK_BLOCKS) {
                at = self.chunks.get(at as usize)?.next;
            }
            (at != NONE).then(|| (position, at * CHUNK_BLOCKS + position % CHUNK_BLOCKS))
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Held>>()
            + self.free_slots.capacity() * size_of::<u32>()
            + self.chunks.capacity() * size_of::<Chunk>()
    }

    fn take_chunk(&mut self, chunk: Chunk) -> u32 {
        let at = self.free_chunk;
        match self.chunks.get_mut(at as usize) {
            Some(place) => {
                self.free_chunk = place.next;
                self.free_chunks -= 1;
                *place = chunk;
                at
            }
            None => {
                push(&mut self.chunks, chunk);
                self.chunks.len() as u32 - 1
            }
        }
    }
}

/// Appends with little room to spare: what is large is moved by the kernel, not copied, so growing often is cheap.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(64));
    }
    list.push(item);
}
