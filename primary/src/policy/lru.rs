//! Least recently used.

use super::EvictionPolicy;
use super::aged::{Aged, LISTS};
use crate::links::Links;
use crate::slot::SlotId;

/// Evicts what was used least recently. 9 bytes a slot.
#[derive(Debug)]
pub struct LruPolicy {
    links: Links,
    aged: Aged,
}

impl LruPolicy {
    /// A policy over `slots` slots.
    pub fn new(slots: u32) -> Self {
        Self { links: Links::new(slots, LISTS), aged: Aged::new(0) }
    }
}

impl EvictionPolicy for LruPolicy {
    fn insert(&mut self, slot: SlotId, _fingerprint: u64) {
        self.aged.push(&mut self.links, slot);
    }

    fn rerank(&mut self, slot: SlotId) {
        self.touch(slot);
    }

    fn touch(&mut self, slot: SlotId) {
        if self.aged.contains(&self.links, slot) {
            self.aged.push(&mut self.links, slot);
        }
    }

    fn remove(&mut self, slot: SlotId) {
        self.links.unlink(slot.0);
    }

    fn unpinned(&mut self, slot: SlotId) {
        self.aged.unpinned(&mut self.links, slot);
    }

    fn evict(&mut self, n: u32, evictable: &dyn Fn(SlotId) -> bool, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        for _ in 0..n {
            let Some(victim) = self.aged.pop(&mut self.links, evictable) else {
                for victim in victims.drain(before..).rev() {
                    self.aged.put_back(&mut self.links, victim);
                }
                return false;
            };
            victims.push(victim);
        }
        true
    }

    fn clear(&mut self) {
        self.links.clear();
    }

    fn tracked(&self) -> u32 {
        self.aged.len(&self.links)
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
