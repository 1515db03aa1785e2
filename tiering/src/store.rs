//! Stores: GPU to primary.

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

impl TieringOffloadingManager {
    /// Reserves slots for those of `keys` that are not in the primary and that admission admits, evicting what has to go, all or nothing.
    /// No block of `keys` is evicted for another. The slots are *writing* until `complete_store`. A key that stands twice is stored once.
    ///
    /// `Ok(true)`: `plan` says what to store, perhaps nothing. `Ok(false)`: no room, and nothing was changed; with
    /// `allow_partial` the leading part that fits is taken instead, and `Ok(false)` means that not one block fits.
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
        let fits = self.fit_stores(&mut present, allow_partial, plan);
        if fits {
            self.insert_stores(id, keys, plan);
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

    /// Whether there is room for `plan.store`, cut to what fits if that is allowed. If something has to be evicted for it, `present` is
    /// protected: what is left in it has one more reader.
    fn fit_stores(&mut self, present: &mut Vec<SlotId>, allow_partial: bool, plan: &mut StorePlan) -> bool {
        let wanted = plan.store.len();
        let free = self.primary.free() as usize;
        if wanted <= free {
            present.clear();
            return true;
        }
        // A block with as many readers as can be counted cannot take one more, and needs none.
        present.retain(|slot| self.primary.acquire(*slot));
        let available = free + self.primary.evictable() as usize;
        let room = if allow_partial { wanted.min(available) } else { wanted };
        if room == 0 || room > available {
            return false;
        }
        self.counts.stores_left_out += (wanted - room) as u64;
        plan.store.truncate(room);
        true
    }

    /// Inserts `plan.store`, for which there is room, evicting one block for each that finds no free slot. One by one and the tail
    /// first, so that a policy which adapts sees the order in which the request uses its blocks.
    fn insert_stores(&mut self, id: RequestId, keys: &[Key], plan: &mut StorePlan) {
        let StorePlan { store, slots, evicted } = plan;
        let primary = &mut self.primary;
        store.reverse();
        store.retain(|at| {
            let slot = if primary.make_room(1, evicted) { primary.insert_writing(&keys[*at as usize]) } else { None };
            slots.extend(slot);
            slot.is_some()
        });
        store.reverse();
        slots.reverse();
        for key in &*evicted {
            self.events.removed_from_primary(*key);
        }
        self.counts.evicted += evicted.len() as u64;
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
