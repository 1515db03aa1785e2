//! Stores: GPU to primary.

use std::collections::HashMap;
use std::ops::ControlFlow;

use terrace_primary::{BlockState, Key, SlotId};

use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

/// What `prepare_store` decided. Kept by the caller and used again: its vectors are cleared, not freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorePlan {
    /// Which of the keys to store, as indices into the call's keys, ascending.
    pub store: Vec<u32>,
    /// Where: one slot for each element of `store`.
    pub slots: Vec<SlotId>,
    /// Blocks that were evicted to make room.
    pub evicted: Vec<Key>,
}

impl StorePlan {
    pub(crate) fn clear(&mut self) {
        self.store.clear();
        self.slots.clear();
        self.evicted.clear();
    }
}

/// Takes out of a run what was displaced: each time a slot was displaced, the first of its occurrences that is left.
fn drop_displaced(displaced: &[SlotId], store: &mut Vec<u32>, slots: &mut Vec<SlotId>) {
    if displaced.is_empty() {
        return;
    }
    let mut times: HashMap<SlotId, u32> = HashMap::with_capacity(displaced.len());
    displaced.iter().for_each(|slot| *times.entry(*slot).or_insert(0) += 1);
    let mut at = 0;
    store.retain(|_| {
        at += 1;
        match times.get_mut(&slots[at - 1]) {
            Some(left) if *left > 0 => {
                *left -= 1;
                // Marked, so that the slots below lose the same places.
                slots[at - 1] = SlotId(u32::MAX);
                false
            }
            _ => true,
        }
    });
    slots.retain(|slot| *slot != SlotId(u32::MAX));
}

impl TieringOffloadingManager {
    /// Reserves slots for those of `keys` that are not in the primary and that admission admits, evicting what has to go, all or nothing.
    /// No block of `keys` is evicted for another. The slots are *writing* until `complete_store`. A key that stands twice is stored once.
    ///
    /// `Ok(true)`: `plan` says what to store, perhaps nothing. `Ok(false)`: no room, and nothing was changed; with
    /// `allow_partial` the leading part is taken instead: what fits, or less where the policy would rather keep other blocks than the
    /// run's tail; `Ok(false)` then means that not one block fits.
    pub fn prepare_store(
        &mut self,
        id: RequestId,
        keys: &[Key],
        allow_partial: bool,
        plan: &mut StorePlan,
    ) -> Result<bool, TieringError> {
        plan.clear();
        self.check_call(id, keys.len())?;
        let longest = usize::from(self.hash_bytes);
        if let Some(key) = keys.iter().find(|key| key.hash().len() > longest) {
            return Err(TieringError::KeyTooLong { key: *key, hash_bytes: self.hash_bytes });
        }
        if self.resetting {
            self.counts.stores_refused += 1;
            return Ok(false);
        }
        let mut present = std::mem::take(&mut self.scratch.slots);
        present.clear();
        self.primary.find_batch(keys, |at, found| {
            match found {
                Some((slot, BlockState::Ready { .. })) => present.push(slot),
                Some(_) => {}
                None => plan.store.push(at as u32),
            }
            ControlFlow::Continue(())
        });
        self.drop_repeated(keys, &mut plan.store);
        let offered = plan.store.len();
        plan.store.retain(|at| self.admission.offered(&keys[*at as usize]));
        self.counts.not_admitted += (offered - plan.store.len()) as u64;
        let evicts = (self.primary.free() as usize) < plan.store.len();
        // Not evicted for this call's others. A block with as many readers as can be counted cannot take one more, and needs none.
        present.retain(|slot| evicts && self.primary.acquire(*slot));
        let fits = !evicts || self.has_room(plan.store.len(), allow_partial);
        if fits {
            self.insert_stores(id, keys, allow_partial, plan);
        } else {
            plan.clear();
            self.counts.stores_refused += 1;
        }
        for slot in present.drain(..) {
            self.primary.release(slot);
        }
        self.scratch.slots = present;
        Ok(fits)
    }

    /// Of a key that stands several times only the first place stays. Cheap where none does.
    fn drop_repeated(&mut self, keys: &[Key], places: &mut Vec<u32>) {
        let order = &mut self.scratch.order;
        order.clear();
        // Hashes of blocks are uniform: eight bytes tell them apart, and groups of one chunk differ in the group.
        let fingerprint = |key: &Key| {
            let mut start = [0; 8];
            start.iter_mut().zip(key.hash()).for_each(|(to, from)| *to = *from);
            u64::from_le_bytes(start) ^ u64::from(key.group()).rotate_left(48)
        };
        order.extend(places.iter().map(|at| (fingerprint(&keys[*at as usize]), *at)));
        order.sort_unstable();
        let is_suspicious = order.windows(2).any(|pair| pair[0].0 == pair[1].0);
        if !is_suspicious {
            return;
        }
        // Rare: equal fingerprints stand together, ascending by place.
        let mut repeated: Vec<u32> = Vec::new();
        for run in order.chunk_by(|a, b| a.0 == b.0) {
            for (nth, (_, at)) in run.iter().enumerate() {
                let key = &keys[*at as usize];
                if run[..nth].iter().any(|(_, before)| keys[*before as usize] == *key) {
                    repeated.push(*at);
                }
            }
        }
        repeated.sort_unstable();
        places.retain(|at| repeated.binary_search(at).is_err());
    }

    /// Whether there is room for all of so many blocks, or with `allow_partial` for any of them.
    fn has_room(&self, blocks: usize, allow_partial: bool) -> bool {
        let room = (self.primary.free() + self.primary.evictable()) as usize;
        if allow_partial { room > 0 } else { blocks <= room }
    }

    /// Inserts `plan.store`, evicting one block for each that finds no free slot. One by one and the tail first, so that a policy which
    /// adapts sees the order in which the request uses its blocks. With `allow_partial` the head of the run may displace its tail: where
    /// the policy finds that better than evicting another block, or nothing else can be evicted.
    fn insert_stores(&mut self, id: RequestId, keys: &[Key], allow_partial: bool, plan: &mut StorePlan) {
        let StorePlan { store, slots, evicted } = plan;
        let wanted = store.len();
        let evicts = (self.primary.free() as usize) < wanted;
        let mut displaced = std::mem::take(&mut self.scratch.displaced);
        displaced.clear();
        store.reverse();
        let primary = &mut self.primary;
        store.retain(|at| {
            let key = &keys[*at as usize];
            let slot = if !evicts {
                primary.insert_writing(key)
            } else if allow_partial {
                primary.insert_in_run(key, evicted, &mut displaced)
            } else if primary.make_room(1, evicted) {
                primary.insert_writing(key)
            } else {
                None
            };
            slots.extend(slot);
            slot.is_some()
        });
        drop_displaced(&displaced, store, slots);
        self.scratch.displaced = displaced;
        store.reverse();
        slots.reverse();
        if evicts && allow_partial {
            primary.end_run(slots);
        }
        for key in &*evicted {
            self.events.removed_from_primary(*key);
        }
        self.counts.evicted += evicted.len() as u64;
        self.counts.stores_left_out += (wanted - slots.len()) as u64;
        let stores = slots.len() as u32;
        self.storing += stores;
        self.counts.stores_prepared += u64::from(stores);
        if let Some(request) = self.requests.get_mut(&id) {
            request.summary.stores = request.summary.stores.saturating_add(stores);
        }
    }

    /// Ends stores. `ok`: the bytes are there; each block becomes readable and cascades to every tier that does not hold it. Not `ok`: the
    /// slots are freed, and nothing may write to them any more. The request need not be open any more. Keys that are not being
    /// stored are skipped, counted, and the first is named in the error.
    pub fn complete_store(&mut self, _id: RequestId, keys: &[Key], ok: bool) -> Result<(), TieringError> {
        let mut failed = None;
        let mut slots = std::mem::take(&mut self.scratch.slots);
        let mut stored = std::mem::take(&mut self.scratch.keys);
        slots.clear();
        stored.clear();
        let ok = ok && !self.resetting;
        for key in keys {
            let slot = self
                .primary
                .find(key)
                .filter(|slot| self.primary.state(*slot) == BlockState::Writing && !self.promoting.contains_key(slot));
            let Some(slot) = slot else {
                self.counts.completions_refused += 1;
                failed.get_or_insert(TieringError::NotStoring { key: *key });
                continue;
            };
            self.storing -= 1;
            if ok {
                self.primary.publish(slot);
                self.counts.stored += 1;
                self.events.stored_in_primary(*key);
                slots.push(slot);
                stored.push(*key);
            } else {
                self.primary.abort(slot);
                self.counts.stores_failed += 1;
            }
        }
        if !slots.is_empty() {
            let now = self.now();
            self.cascade(&stored, &slots, now);
        }
        self.scratch.slots = slots;
        self.scratch.keys = stored;
        self.continue_reset();
        failed.map_or(Ok(()), Err)
    }
}
