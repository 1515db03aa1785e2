//! Adaptive replacement cache: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST '03.

use super::EvictionPolicy;
use super::aged::{Aged, LISTS};
use super::ghosts::{Ghosts, List};
use crate::links::Links;
use crate::slot::SlotId;

/// Slots used once and slots used again, each by recency; what was evicted from either is remembered by its fingerprint, and
/// tells which of the two deserves more room. About 56 bytes a slot.
///
/// Room is made here before it is known for which block. So the paper's order within one miss (adapt, evict, insert) becomes
/// evict, adapt, insert: the target moves one miss later, which real traces do not notice. They do notice when room is made for
/// a whole request at once (5 points of hits on coding agents with a small cache): make it block by block.
pub struct ArcPolicy {
    links: Links,
    /// The fingerprint of the block in each slot.
    fingerprints: Vec<u64>,
    ghosts: Ghosts,
    slots: u32,
    /// Slots that the blocks used once should have (`p` in the paper).
    target: u32,
}

/// Blocks used once since they came (`T1`).
const ONCE: Aged = Aged::new(0);
/// Blocks used again (`T2`).
const AGAIN: Aged = Aged::new(LISTS);

impl ArcPolicy {
    /// A policy over `slots` slots.
    pub fn new(slots: u32) -> Self {
        Self {
            links: Links::new(slots, 2 * LISTS),
            fingerprints: vec![0; slots as usize],
            // The paper keeps as many ghosts as there are free places in twice the cache: more than `slots` while room is made
            // for several blocks.
            ghosts: Ghosts::new(slots.saturating_add(slots / 4)),
            slots,
            target: 0,
        }
    }

    fn fingerprint(&self, slot: SlotId) -> u64 {
        self.fingerprints.get(slot.index()).copied().unwrap_or(0)
    }

    /// Takes one victim (`REPLACE` in the paper): from the blocks used once while they have more than their target.
    fn pop(&mut self, evictable: &dyn Fn(SlotId) -> bool) -> Option<(SlotId, List)> {
        let once = ONCE.len(&self.links);
        let order = if once > 0 && once > self.target {
            [(ONCE, List::Once), (AGAIN, List::Again)]
        } else {
            [(AGAIN, List::Again), (ONCE, List::Once)]
        };
        order.into_iter().find_map(|(aged, list)| Some((aged.pop(&mut self.links, evictable)?, list)))
    }

    /// Holds the ghosts to what the paper allows: `|T1| + |B1| <= c`, and `2c` for all four lists.
    fn trim(&mut self) {
        let (once, again) = (ONCE.len(&self.links), AGAIN.len(&self.links));
        while self.ghosts.len(List::Once) > self.slots.saturating_sub(once) {
            self.ghosts.forget_oldest(List::Once);
        }
        let room = (2 * u64::from(self.slots)).saturating_sub(u64::from(once) + u64::from(again));
        while u64::from(self.ghosts.len(List::Once)) + u64::from(self.ghosts.len(List::Again)) > room {
            self.ghosts.forget_oldest(List::Again);
        }
    }
}

impl EvictionPolicy for ArcPolicy {
    fn insert(&mut self, slot: SlotId, fingerprint: u64) {
        let Some(place) = self.fingerprints.get_mut(slot.index()) else { return };
        *place = fingerprint;
        let (once, again) = (self.ghosts.len(List::Once), self.ghosts.len(List::Again));
        match self.ghosts.take(fingerprint) {
            Some(List::Once) => {
                self.target = self.target.saturating_add((again / once.max(1)).max(1)).min(self.slots);
                AGAIN.push(&mut self.links, slot);
            }
            Some(List::Again) => {
                self.target = self.target.saturating_sub((once / again.max(1)).max(1));
                AGAIN.push(&mut self.links, slot);
            }
            None => ONCE.push(&mut self.links, slot),
        }
        self.trim();
    }

    fn rerank(&mut self, slot: SlotId) {
        for aged in [ONCE, AGAIN] {
            if aged.contains(&self.links, slot) {
                aged.push(&mut self.links, slot);
                return;
            }
        }
    }

    fn touch(&mut self, slot: SlotId) {
        if self.links.list(slot.0).is_some() {
            AGAIN.push(&mut self.links, slot);
        }
    }

    fn remove(&mut self, slot: SlotId) {
        self.links.unlink(slot.0);
    }

    fn unpinned(&mut self, slot: SlotId) {
        ONCE.unpinned(&mut self.links, slot);
        AGAIN.unpinned(&mut self.links, slot);
    }

    fn evict(&mut self, n: u32, evictable: &dyn Fn(SlotId) -> bool, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        for _ in 0..n {
            let Some((victim, list)) = self.pop(evictable) else {
                // Nothing is evicted, so nothing may be remembered as evicted. The newest ghosts are the victims.
                for victim in victims.drain(before..).rev() {
                    let aged = match self.ghosts.take(self.fingerprints[victim.index()]) {
                        Some(List::Once) => ONCE,
                        _ => AGAIN,
                    };
                    aged.put_back(&mut self.links, victim);
                }
                return false;
            };
            self.ghosts.remember(list, self.fingerprint(victim));
            victims.push(victim);
        }
        self.trim();
        true
    }

    fn clear(&mut self) {
        self.links.clear();
        self.ghosts.clear();
        self.target = 0;
    }

    fn tracked(&self) -> u32 {
        ONCE.len(&self.links) + AGAIN.len(&self.links)
    }

    fn bytes(&self) -> usize {
        self.links.bytes() + self.fingerprints.capacity() * 8 + self.ghosts.bytes()
    }
}
