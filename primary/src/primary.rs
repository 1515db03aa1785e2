//! The block table of the primary tier: which block is in which slot, who uses it, and which leaves next.

mod displace;
mod sharing;
mod usable;

use std::ops::ControlFlow;

use terrace_config::Policy;

use crate::key::{Key, KeyBytes};
use crate::key_table::{KeyTable, MAX_ROWS};
use crate::policy::{self, EvictionPolicy};
use crate::shared::SharedTable;
use crate::slot::SlotId;
use crate::state::{BlockState, RowWord};

/// Victims taken from the policy at a time: bounds the scratch memory of [`Primary::make_room`].
const VICTIMS_AT_ONCE: u32 = 256;

/// Beside the row of a slot: what a lookup does not need.
#[derive(Clone, Copy, Default)]
struct Extra {
    /// CRC32 of the block; of a free slot, the next free one plus 1.
    crc32_or_next_free: u32,
    generation: u32,
}

/// Counters since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryStats {
    /// Blocks evicted to make room.
    pub evicted: u64,
    /// `make_room` calls that were refused: too little was evictable.
    pub room_refused: u64,
    /// Readers refused because a block had [`crate::MAX_READERS`].
    pub readers_refused: u64,
    /// Calls in a state in which they make no sense: each one is a bug of the caller.
    pub misuse: u64,
}

/// The block table. For one thread; no call waits and none allocates.
///
/// A slot goes `Free -> Writing -> Ready -> Free`, or `Writing -> Free` ([`Primary::abort`]), or `Writing -> Limbo -> Free`
/// ([`Primary::detach`]). A call in a wrong state changes nothing, returns `false` where it can, and counts as misuse.
/// 64 bytes a slot at most with keys of 36 bytes and the LRU policy, everything included.
pub struct Primary {
    table: KeyTable,
    extra: Vec<Extra>,
    policy: Box<dyn EvictionPolicy>,
    victims: Vec<SlotId>,
    /// One bit a slot: in limbo.
    limbo_bits: Vec<u64>,
    blocks: u32,
    /// Slots that can be handed out, from the first one on.
    usable: u32,
    /// Whether the caller has said how many those are.
    usable_told: bool,
    /// The first slot that was never used; those below are used or in the free list.
    untouched: u32,
    /// First slot of the free list plus 1.
    free_head: u32,
    free: u32,
    evictable: u32,
    writing: u32,
    limbo: u32,
    readers: u64,
    stats: PrimaryStats,
    /// For those who read the table from other processes.
    shared: Option<SharedTable>,
    /// Longest key.
    key_bytes: usize,
}

impl Primary {
    /// A table of `blocks` free slots (cut to [`MAX_ROWS`]) for hashes of at most `hash_bytes` bytes.
    pub fn new(blocks: u32, hash_bytes: u8, policy: Policy) -> Self {
        let blocks = blocks.min(MAX_ROWS);
        Self {
            table: KeyTable::new(blocks, usize::from(hash_bytes) + 4),
            extra: vec![Extra::default(); blocks as usize],
            policy: policy::build(policy, blocks),
            victims: Vec::with_capacity(VICTIMS_AT_ONCE as usize),
            limbo_bits: vec![0; (blocks as usize).div_ceil(64)],
            blocks,
            usable: blocks,
            usable_told: false,
            untouched: 0,
            free_head: 0,
            free: blocks,
            evictable: 0,
            writing: 0,
            limbo: 0,
            readers: 0,
            stats: PrimaryStats::default(),
            shared: None,
            key_bytes: usize::from(hash_bytes) + 4,
        }
    }

    /// Slots, free or not, usable or not.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Slots that hold nothing and can be handed out. Those that are not usable yet do not count.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that are ready and have no reader.
    pub const fn evictable(&self) -> u32 {
        self.evictable
    }

    /// Blocks, writing or ready.
    pub const fn resident(&self) -> u32 {
        self.table.len()
    }

    /// Blocks whose bytes are not there yet.
    pub const fn writing(&self) -> u32 {
        self.writing
    }

    /// Readers of all blocks together.
    pub const fn readers(&self) -> u64 {
        self.readers
    }

    /// Slots in limbo.
    pub const fn limbo(&self) -> u32 {
        self.limbo
    }

    /// Counters since start.
    pub const fn stats(&self) -> PrimaryStats {
        self.stats
    }

    /// Bytes that the table takes, with index, links, policy and scratch memory.
    pub fn table_bytes(&self) -> usize {
        self.table.bytes()
            + self.extra.capacity() * size_of::<Extra>()
            + self.policy.bytes()
            + self.victims.capacity() * size_of::<SlotId>()
            + self.limbo_bits.capacity() * 8
            + self.shared.as_ref().map_or(0, SharedTable::bytes)
    }

    /// The slot of `key`, writing or ready.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<SlotId> {
        self.table.find(key.as_bytes()).map(SlotId)
    }

    /// Calls `found` with the place of each key in `keys`, its slot and what the slot is doing, in order, until it breaks.
    /// Much faster than as many [`Primary::find`]: the probes overlap.
    #[inline]
    pub fn find_batch<K: KeyBytes>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<(SlotId, BlockState)>) -> ControlFlow<()>,
    ) {
        self.table.find_words(keys, |at, row| found(at, row.map(|(row, word)| (SlotId(row), RowWord(word).state()))));
    }

    /// What `slot` is doing; `Free` for a slot out of range.
    pub fn state(&self, slot: SlotId) -> BlockState {
        if self.table.is_row_used(slot.0) {
            self.word(slot).state()
        } else if self.in_limbo(slot) {
            BlockState::Limbo
        } else {
            BlockState::Free
        }
    }

    /// The block in `slot`, writing or ready.
    pub fn key(&self, slot: SlotId) -> Option<Key> {
        self.table.key(slot.0)
    }

    /// Changes whenever a block leaves `slot`: a block seen with a generation is still there as long as it has not changed.
    pub fn generation(&self, slot: SlotId) -> u32 {
        self.extra.get(slot.index()).map_or(0, |extra| extra.generation)
    }

    /// CRC32 of the block in `slot`, once it was set.
    pub fn crc32(&self, slot: SlotId) -> Option<u32> {
        let extra = self.extra.get(slot.index())?;
        (self.table.is_row_used(slot.0) && self.word(slot).has_crc()).then_some(extra.crc32_or_next_free)
    }

    /// Sets the CRC32 of the block in `slot`.
    pub fn set_crc32(&mut self, slot: SlotId, crc32: u32) {
        match self.extra.get_mut(slot.index()) {
            Some(extra) if self.table.is_row_used(slot.0) => {
                extra.crc32_or_next_free = crc32;
                self.set_word(slot, self.word(slot).with_crc());
            }
            _ => self.stats.misuse += 1,
        }
    }

    /// Where the block in `slot` came from: 0 the engine; `t + 1` tier `t`, and it was not loaded since. 0 when inserted.
    pub fn origin(&self, slot: SlotId) -> u8 {
        self.word(slot).origin()
    }

    /// Sets the origin of the block in `slot`.
    pub fn set_origin(&mut self, slot: SlotId, origin: u8) {
        if !self.set_word(slot, self.word(slot).with_origin(origin)) {
            self.stats.misuse += 1;
        }
        let is_ready = self.word(slot).is_ready();
        if let Some(shared) = self.shared.as_mut().filter(|_| is_ready) {
            shared.set_origin(slot, origin);
        }
    }

    /// Evicts what is missing to have `n` free slots, and appends what was evicted to `evicted`. False, and nothing is evicted,
    /// if free and evictable slots together are fewer than `n`.
    pub fn make_room(&mut self, n: u32, evicted: &mut Vec<Key>) -> bool {
        let mut missing = n.saturating_sub(self.free);
        if missing > self.evictable {
            self.stats.room_refused += 1;
            return false;
        }
        while missing > 0 {
            let count = missing.min(VICTIMS_AT_ONCE);
            let mut victims = std::mem::take(&mut self.victims);
            victims.clear();
            let table = &self.table;
            let taken = self.policy.evict(count, &|slot| RowWord(table.word(slot.0)).is_evictable(), &mut victims);
            self.table.warm(victims.iter().map(|victim| victim.0));
            for victim in &victims {
                evicted.extend(self.table.key(victim.0));
                self.table.remove(victim.0);
                self.left(*victim);
                self.set_free(*victim);
            }
            self.evictable -= victims.len() as u32;
            self.stats.evicted += victims.len() as u64;
            self.victims = victims;
            // The policy tracks every resident block, so it finds as many as are counted here.
            if !taken {
                self.stats.misuse += 1;
                return false;
            }
            missing -= count;
        }
        true
    }

    /// Takes a free slot for `key`, as the most recent block; it is *writing*. `None` if no slot is free, the key is present, or it is
    /// longer than the table's keys.
    pub fn insert_writing(&mut self, key: &Key) -> Option<SlotId> {
        let slot = match self.free_head.checked_sub(1) {
            Some(slot) => SlotId(slot),
            None if self.untouched < self.usable => SlotId(self.untouched),
            None => return None,
        };
        if !self.table.insert(key, slot.0) {
            return None;
        }
        if self.free_head == 0 {
            self.untouched += 1;
        } else {
            self.free_head = self.extra.get(slot.index()).map_or(0, |extra| extra.crc32_or_next_free);
        }
        self.set_word(slot, RowWord::writing());
        self.policy.insert(slot, self.table.fingerprint(key.as_bytes()));
        self.free -= 1;
        self.writing += 1;
        Some(slot)
    }

    /// `Writing -> Ready`: the bytes are there.
    pub fn publish(&mut self, slot: SlotId) -> bool {
        if !self.expect_writing(slot) {
            return false;
        }
        self.set_word(slot, self.word(slot).published());
        if let Some(shared) = &mut self.shared
            && let Some(key) = self.table.key(slot.0)
        {
            shared.came(slot, &key);
        }
        self.writing -= 1;
        self.evictable += 1;
        self.policy.unpinned(slot);
        true
    }

    /// `Writing -> Free`: the bytes will not come, and nobody writes the slot any more.
    pub fn abort(&mut self, slot: SlotId) -> bool {
        if !self.expect_writing(slot) {
            return false;
        }
        self.writing -= 1;
        self.forget(slot);
        self.set_free(slot);
        true
    }

    /// `Writing -> Limbo`: the bytes are not wanted any more, but an operation may still write the slot. The key is gone at once.
    pub fn detach(&mut self, slot: SlotId) -> bool {
        if !self.expect_writing(slot) {
            return false;
        }
        self.writing -= 1;
        self.forget(slot);
        self.bump_generation(slot);
        self.set_limbo(slot, true);
        self.limbo += 1;
        true
    }

    /// `Limbo -> Free`: nobody writes the slot any more.
    pub fn release_limbo(&mut self, slot: SlotId) -> bool {
        if !self.in_limbo(slot) {
            self.stats.misuse += 1;
            return false;
        }
        self.set_limbo(slot, false);
        self.limbo -= 1;
        self.set_free(slot);
        true
    }

    /// One more reader of a ready block. False if it is not ready, or has as many readers as can be counted.
    pub fn acquire(&mut self, slot: SlotId) -> bool {
        let word = self.word(slot);
        let Some(more) = word.with_reader() else {
            if word.is_ready() {
                self.stats.readers_refused += 1;
            } else {
                self.stats.misuse += 1;
            }
            return false;
        };
        self.set_word(slot, more);
        self.readers += 1;
        self.evictable -= u32::from(word.readers() == 0);
        true
    }

    /// One reader less. False if the block has none.
    pub fn release(&mut self, slot: SlotId) -> bool {
        let Some(fewer) = self.word(slot).without_reader() else {
            self.stats.misuse += 1;
            return false;
        };
        self.set_word(slot, fewer);
        self.readers -= 1;
        if fewer.readers() == 0 {
            self.evictable += 1;
            self.policy.unpinned(slot);
        }
        true
    }

    /// `Ready -> Free` for a block without readers; it is not remembered as evicted.
    pub fn remove(&mut self, slot: SlotId) -> bool {
        if !self.word(slot).is_evictable() {
            self.stats.misuse += 1;
            return false;
        }
        self.evictable -= 1;
        self.forget(slot);
        self.left(slot);
        self.set_free(slot);
        true
    }

    /// Makes these blocks the most recent, the last one the most. A block not touched since it was inserted is only ranked (being
    /// inserted was its first use); for any other this counts as a use. Slots without a block are skipped.
    pub fn touch(&mut self, slots: &[SlotId]) {
        for slot in slots {
            let word = self.word(*slot);
            if word.is_fresh() {
                self.set_word(*slot, word.touched());
                self.policy.rerank(*slot);
            } else {
                self.policy.touch(*slot);
            }
        }
    }

    /// Counts a use of blocks whose request has not ended, and makes them the most recent, the last one the most: a request's own
    /// stores must not evict what it found. A block not touched since it was inserted is only ranked, and stays so for the touch
    /// at the request's end. Slots without a block are skipped.
    pub fn touch_early(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        for slot in slots {
            if self.word(slot).is_fresh() {
                self.policy.rerank(slot);
            } else {
                self.policy.touch(slot);
            }
        }
    }

    /// Checks that all counts, lists and the index agree; for tests. Looks at every slot.
    pub fn check(&self) -> Result<(), String> {
        self.table.check()?;
        let (mut evictable, mut writing, mut limbo, mut readers, mut free) = (0, 0, 0, 0, 0);
        for slot in (0..self.blocks).map(SlotId) {
            if slot.0 >= self.usable && (self.state(slot) != BlockState::Free || slot.0 < self.untouched) {
                return Err(format!("{slot:?} was handed out and only {} are usable", self.usable));
            }
            match self.state(slot) {
                BlockState::Free => free += u32::from(slot.0 < self.usable),
                BlockState::Writing => writing += 1,
                BlockState::Ready { readers: count } => {
                    evictable += u32::from(count == 0);
                    readers += u64::from(count);
                }
                BlockState::Limbo => limbo += 1,
            }
            if self.in_limbo(slot) && self.table.is_row_used(slot.0) {
                return Err(format!("{slot:?} is in limbo and holds a block"));
            }
        }
        let seen = (free, evictable, writing, limbo, readers);
        let counted = (self.free, self.evictable, self.writing, self.limbo, self.readers);
        if seen != counted {
            return Err(format!("(free, evictable, writing, limbo, readers): {seen:?} seen, {counted:?} counted"));
        }
        let mut listed = self.usable - self.untouched;
        let mut next = self.free_head;
        while let Some(slot) = next.checked_sub(1).map(SlotId) {
            listed += 1;
            if listed > self.free || self.state(slot) != BlockState::Free || slot.0 >= self.untouched {
                return Err(format!("the free list is wrong at {slot:?}"));
            }
            next = self.extra.get(slot.index()).map_or(0, |extra| extra.crc32_or_next_free);
        }
        if listed != self.free {
            return Err(format!("{listed} slots in the free list, {} counted", self.free));
        }
        let tracked = self.policy.tracked();
        if tracked != self.resident() {
            return Err(format!("the policy tracks {tracked} slots, {} are resident", self.resident()));
        }
        if let Some(shared) = &self.shared {
            let readable = |slot: &SlotId| self.word(*slot).is_ready();
            let block = |slot: SlotId| Some((self.table.key(slot.0)?, self.word(slot).origin()));
            shared.check(|slot| Some(slot).filter(readable).and_then(block))?;
        }
        Ok(())
    }

    /// A readable block has left its slot.
    fn left(&mut self, slot: SlotId) {
        if let Some(shared) = &mut self.shared {
            shared.left(slot);
        }
    }

    #[inline(always)]
    fn word(&self, slot: SlotId) -> RowWord {
        RowWord(self.table.word(slot.0))
    }

    fn set_word(&mut self, slot: SlotId, word: RowWord) -> bool {
        self.table.set_word(slot.0, word.0)
    }

    fn expect_writing(&mut self, slot: SlotId) -> bool {
        let writing = self.state(slot) == BlockState::Writing;
        self.stats.misuse += u64::from(!writing);
        writing
    }

    /// Takes a block that was not evicted out of table and policy.
    fn forget(&mut self, slot: SlotId) {
        self.table.remove(slot.0);
        self.policy.remove(slot);
    }

    fn bump_generation(&mut self, slot: SlotId) {
        if let Some(extra) = self.extra.get_mut(slot.index()) {
            extra.generation = extra.generation.wrapping_add(1);
        }
    }

    fn set_free(&mut self, slot: SlotId) {
        self.bump_generation(slot);
        if let Some(extra) = self.extra.get_mut(slot.index()) {
            extra.crc32_or_next_free = self.free_head;
            self.free_head = slot.0 + 1;
            self.free += 1;
        }
    }

    fn in_limbo(&self, slot: SlotId) -> bool {
        self.limbo_bits.get(slot.index() / 64).is_some_and(|bits| bits >> (slot.0 % 64) & 1 == 1)
    }

    fn set_limbo(&mut self, slot: SlotId, limbo: bool) {
        if let Some(bits) = self.limbo_bits.get_mut(slot.index() / 64) {
            let bit = 1 << (slot.0 % 64);
            *bits = if limbo { *bits | bit } else { *bits & !bit };
        }
    }
}
