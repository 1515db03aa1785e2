//! When the block of each slot became readable, and the one number of it that readers see.

use super::sync::{AtomicU64, Ordering};

/// Of a slot whose block cannot be read.
const NEVER: u64 = u64::MAX;

/// The changes of a table: blocks that became readable. The number of the last one is told in shared memory, `told`.
#[derive(Debug)]
pub(crate) struct Changes {
    last: u64,
    of_slot: Vec<u64>,
}

impl Changes {
    /// None so far.
    pub fn new(slots: u32) -> Self {
        Self { last: 0, of_slot: vec![NEVER; slots as usize] }
    }

    /// Another block has become readable in `slot`: the table says so already.
    pub fn came(&mut self, slot: u32, told: &AtomicU64) {
        self.last += 1;
        if let Some(of_slot) = self.of_slot.get_mut(slot as usize) {
            *of_slot = self.last;
        }
        // Who reads this number sees all changes up to it.
        told.store(self.last, Ordering::Release);
    }

    /// The block of `slot` cannot be read any more.
    pub fn left(&mut self, slot: u32) {
        if let Some(of_slot) = self.of_slot.get_mut(slot as usize) {
            *of_slot = NEVER;
        }
    }

    /// The number of the last one.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Whether each of `slots` can be read, and holds what it held when change `seen` was the last one.
    pub fn are_as_seen(&self, slots: &[[u8; 4]], seen: u64) -> bool {
        let of = |slot: &[u8; 4]| self.of_slot.get(u32::from_le_bytes(*slot) as usize).copied().unwrap_or(NEVER);
        // Without an early end: nearly always all are.
        slots.iter().fold(0, |latest, slot| of(slot).max(latest)) <= seen && seen <= self.last
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.of_slot.capacity() * size_of::<u64>()
    }
}

/// The number of the last change. What a reader finds after this is what the owner accepts for it, or has changed since.
pub(crate) fn last_change(told: &AtomicU64) -> u64 {
    told.load(Ordering::Acquire)
}
