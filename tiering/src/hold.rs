//! Holds: readers that keep what a waiting request found from being evicted until it comes back for it.
//!
//! Together with promotions they take `limits.promotion_share` of the primary at most; beyond, blocks are simply not held.

use std::collections::BTreeSet;

use terrace_primary::SlotId;
use terrace_tiers::Time;

use crate::id_map::IdMap;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

/// Requests that may hold one and the same slot on average: bounds the lists, since the share bounds distinct slots.
const HOLDS_PER_SLOT: u64 = 16;

#[derive(Default)]
pub(crate) struct Holds {
    /// Holds of each held slot.
    by_slot: IdMap<SlotId, u32>,
    /// All of them together.
    total: u64,
    /// When to look at a request's holds next: one entry for each request that has some.
    deadlines: BTreeSet<(Time, RequestId)>,
}

impl Holds {
    /// Distinct slots held.
    pub fn slots(&self) -> usize {
        self.by_slot.len()
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn of(&self, slot: SlotId) -> u32 {
        self.by_slot.get(&slot).copied().unwrap_or(0)
    }

    fn add(&mut self, slot: SlotId) {
        *self.by_slot.entry(slot).or_insert(0) += 1;
        self.total += 1;
    }

    fn remove(&mut self, slot: SlotId) {
        if let Some(count) = self.by_slot.get_mut(&slot) {
            self.total -= 1;
            *count -= 1;
            if *count == 0 {
                self.by_slot.remove(&slot);
            }
        }
    }
}

impl TieringOffloadingManager {
    /// Holds a ready block for a request, if the share allows it.
    pub(crate) fn hold(&mut self, id: RequestId, slot: SlotId, now: Time) {
        let fits = (self.holds.of(slot) > 0 || self.promotion_room() > 0)
            && self.holds.total < HOLDS_PER_SLOT * u64::from(self.shares.promotion);
        let Some(request) = self.requests.get_mut(&id) else { return };
        if !fits || !self.primary.acquire(slot) {
            self.counts.holds_refused += 1;
            return;
        }
        self.holds.add(slot);
        request.holds.push(slot);
        request.holds_until = now.plus(self.deadlines.hold);
        if request.hold_entry.is_none() {
            request.hold_entry = Some(request.holds_until);
            self.holds.deadlines.insert((request.holds_until, id));
        }
    }

    /// Ends all holds of a request.
    pub(crate) fn release_holds(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let Some(entry) = request.hold_entry.take() {
            self.holds.deadlines.remove(&(entry, id));
        }
        for slot in request.holds.drain(..) {
            self.holds.remove(slot);
            self.primary.release(slot);
        }
    }

    /// Ends the holds whose time is over.
    pub(crate) fn expire_holds(&mut self, now: Time) {
        while let Some((due, id)) = self.holds.deadlines.first().copied()
            && due <= now
        {
            let Some(request) = self.requests.get_mut(&id) else {
                self.holds.deadlines.pop_first();
                continue;
            };
            if request.holds_until <= now {
                self.counts.holds_expired += 1;
                self.release_holds(id);
            } else {
                // Held anew since the entry was made.
                self.holds.deadlines.pop_first();
                request.hold_entry = Some(request.holds_until);
                self.holds.deadlines.insert((request.holds_until, id));
            }
        }
    }

    /// Slots that promotions and holds may still take.
    pub(crate) fn promotion_room(&self) -> usize {
        (self.shares.promotion as usize).saturating_sub(self.promotion_use())
    }

    /// Slots that promotions and holds take. Slots in limbo count too, so that what a hung tier keeps is bounded by the share; those of
    /// a tier that panicked do not, or it would switch the others' promotions off for good.
    pub(crate) fn promotion_use(&self) -> usize {
        self.promoting.len() + self.holds.slots() + (self.primary.limbo() - self.lost - self.scrub.slots()) as usize
    }
}
