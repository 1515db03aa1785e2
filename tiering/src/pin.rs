//! Pins: readers that keep blocks in the primary across a pause of their conversation. They outlive their request and end by
//! themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiers::Time;

use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

#[derive(Default)]
pub(crate) struct Pins {
    until: BTreeMap<(SlotId, RequestId), Time>,
    by_time: BTreeSet<(Time, SlotId, RequestId)>,
}

impl Pins {
    pub fn len(&self) -> usize {
        self.until.len()
    }

    pub fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.until.keys().map(|(slot, _)| *slot)
    }

    fn get(&self, slot: SlotId, id: RequestId) -> Option<Time> {
        self.until.get(&(slot, id)).copied()
    }

    fn set(&mut self, slot: SlotId, id: RequestId, until: Time) {
        if let Some(before) = self.until.insert((slot, id), until) {
            self.by_time.remove(&(before, slot, id));
        }
        self.by_time.insert((until, slot, id));
    }

    fn remove(&mut self, slot: SlotId, id: RequestId) -> bool {
        let Some(until) = self.until.remove(&(slot, id)) else { return false };
        self.by_time.remove(&(until, slot, id))
    }

    /// Takes out one pin that ends at `now` or before.
    fn pop_ended(&mut self, now: Time) -> Option<SlotId> {
        let (_, slot, id) = self.by_time.first().copied().filter(|(until, ..)| *until <= now)?;
        self.remove(slot, id).then_some(slot)
    }
}

impl TieringOffloadingManager {
    /// Keeps those of `keys` that are readable in the primary for `ttl` (cut to `deadlines.pin`) in the name of an open request, and
    /// says how many. A block pinned before by the same request is kept until the later of both times. All pins together
    /// are bounded by `limits.pin_share`; what does not fit is not pinned, and counted.
    pub fn pin(&mut self, id: RequestId, keys: &[Key], ttl: Duration) -> Result<u32, TieringError> {
        self.check_call(id, keys.len())?;
        if self.resetting {
            return Ok(0);
        }
        let until = self.now().plus(ttl.min(self.deadlines.pin));
        let mut pinned = 0;
        let mut slots = self.ready_slots(keys);
        for slot in slots.drain(..) {
            if let Some(before) = self.pins.get(slot, id) {
                self.pins.set(slot, id, until.max(before));
            } else if self.pins.len() < self.shares.pin as usize && self.primary.acquire(slot) {
                self.pins.set(slot, id, until);
            } else {
                self.counts.pins_refused += 1;
                continue;
            }
            pinned += 1;
        }
        self.scratch.slots = slots;
        Ok(pinned)
    }

    /// Ends this request's pins of `keys`. The request need not be open.
    pub fn unpin(&mut self, id: RequestId, keys: &[Key]) {
        let mut slots = self.ready_slots(keys);
        for slot in slots.drain(..) {
            if self.pins.remove(slot, id) {
                self.primary.release(slot);
            }
        }
        self.scratch.slots = slots;
    }

    pub(crate) fn expire_pins(&mut self, now: Time) {
        while let Some(slot) = self.pins.pop_ended(now) {
            self.counts.pins_expired += 1;
            self.primary.release(slot);
        }
    }

    pub(crate) fn drop_pins(&mut self) {
        let pins = std::mem::take(&mut self.pins);
        for slot in pins.slots() {
            self.primary.release(slot);
        }
    }

    /// The slots of those of `keys` that are readable, in order, in memory to be given back to `scratch.slots`.
    pub(crate) fn ready_slots(&mut self, keys: &[Key]) -> Vec<SlotId> {
        let mut slots = std::mem::take(&mut self.scratch.slots);
        slots.clear();
        self.primary.find_batch(keys, |_, found| {
            if let Some((slot, BlockState::Ready { .. })) = found {
                slots.push(slot);
            }
            ControlFlow::Continue(())
        });
        slots
    }
}
