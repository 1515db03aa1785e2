//! Loads: primary to GPU. And what tells the tiers which blocks are in use: `touch`.

use std::ops::ControlFlow;

use terrace_primary::{BlockState, Key, SlotId};

use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

impl TieringOffloadingManager {
    /// Takes one reader on each of `keys`, given in prefix order, and appends their slots to `slots`. All are readable or nothing is done
    /// (with [`Self::check_loads`] also: all are what they were).
    /// Counts where each block came from, and makes them the most recent blocks, the first one the most. The request's holds
    /// end. Each reader ends with one `complete_load`.
    pub fn prepare_load(&mut self, id: RequestId, keys: &[Key], slots: &mut Vec<SlotId>) -> Result<(), TieringError> {
        self.check_call(id, keys.len())?;
        let first = slots.len();
        let mut failed = None;
        if self.resetting {
            failed = keys.first().map(|key| TieringError::NotResident { key: *key });
        } else {
            self.primary.find_batch(keys, |at, found| match found {
                Some((slot, BlockState::Ready { .. })) => {
                    slots.push(slot);
                    ControlFlow::Continue(())
                }
                _ => {
                    failed = Some(TieringError::NotResident { key: keys[at] });
                    ControlFlow::Break(())
                }
            });
        }
        if failed.is_none()
            && let Some(damaged) = self.first_damaged(&slots[first..])
        {
            let at = slots[first..].iter().position(|slot| *slot == damaged).unwrap_or(0);
            failed = Some(TieringError::NotResident { key: keys[at] });
            // Its own holds do not keep it.
            self.release_holds(id);
            self.forget_damaged(damaged);
        }
        if failed.is_none() {
            let taken = slots[first..].iter().take_while(|slot| self.primary.acquire(**slot)).count();
            if let Some(key) = keys.get(taken) {
                slots[first..first + taken].iter().for_each(|slot| {
                    self.primary.release(*slot);
                });
                failed = Some(TieringError::TooManyReaders { key: *key });
            }
        }
        if let Some(error) = failed {
            slots.truncate(first);
            return Err(error);
        }
        for slot in &slots[first..] {
            self.loading.add(*slot);
        }
        self.load_begins(id, &slots[first..]);
        Ok(())
    }

    /// Counts where these blocks came from, makes them the most recent ones, the first one the most, and ends the request's holds.
    pub(crate) fn load_begins(&mut self, id: RequestId, slots: &[SlotId]) {
        self.count_sources(id, slots);
        self.primary.touch_early(slots.iter().rev().copied());
        self.release_holds(id);
    }

    fn count_sources(&mut self, id: RequestId, slots: &[SlotId]) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        for slot in slots {
            match self.primary.origin(*slot).checked_sub(1).map(usize::from) {
                None => {
                    request.summary.hits_primary += 1;
                    self.counts.loaded_primary += 1;
                }
                Some(tier) => {
                    if let (Some(of_request), Some(of_all)) =
                        (request.summary.hits_by_tier.get_mut(tier), self.counts.loaded_by_tier.get_mut(tier))
                    {
                        *of_request += 1;
                        *of_all += 1;
                    }
                    self.primary.set_origin(*slot, 0);
                }
            }
        }
    }

    /// Ends loads: one reader less on each of `keys`, whether the copy succeeded or not. The request need not be open any more. Keys
    /// that are not being loaded are skipped, counted, and the first is named in the error.
    pub fn complete_load(&mut self, _id: RequestId, keys: &[Key]) -> Result<(), TieringError> {
        let mut failed = None;
        for key in keys {
            let slot = self.primary.find(key).filter(|slot| self.end_load(*slot));
            if slot.is_none() {
                self.counts.completions_refused += 1;
                failed.get_or_insert(TieringError::NotLoading { key: *key });
            }
        }
        self.continue_reset();
        failed.map_or(Ok(()), Err)
    }

    pub(crate) fn end_load(&mut self, slot: SlotId) -> bool {
        if !self.loading.remove(slot) {
            return false;
        }
        self.primary.release(slot);
        if self.resetting && self.primary.state(slot) == (BlockState::Ready { readers: 0 }) {
            self.primary.remove(slot);
        }
        true
    }

    /// Makes `keys` the most recently used blocks in the primary and in every tier: the first the most recent, the last the least, so
    /// that a prefix loses its tail first. Absent ones are skipped; more than `limits.keys_per_call` are ignored.
    pub fn touch(&mut self, keys: &[Key]) {
        if self.closed || keys.len() > self.limits.keys_per_call as usize {
            return;
        }
        let mut slots = std::mem::take(&mut self.scratch.slots);
        slots.clear();
        self.primary.find_batch(keys, |_, found| {
            slots.extend(found.map(|(slot, _)| slot));
            ControlFlow::Continue(())
        });
        slots.reverse();
        self.primary.touch(&slots);
        self.scratch.slots = slots;

        let mut reversed = std::mem::take(&mut self.scratch.keys);
        reversed.clear();
        reversed.extend(keys.iter().rev());
        for tier in 0..self.tiers.len() {
            if !self.tiers[tier].is_off() {
                self.call_tier(tier, |tier| tier.touch(&reversed));
            }
        }
        self.scratch.keys = reversed;
    }
}
