//! Leases: readers on the hits of a lookup until the session's next `EndStep`.

use std::collections::BTreeMap;

use terrace_primary::{Key, Primary, SlotId};
use terrace_tiering::RequestId;

use super::refusal::Refusal;

/// The answered part of one query.
#[derive(Debug, Default)]
pub(super) struct LeaseQuery {
    /// Place of its first key among all keys of the lookup.
    pub first: u32,
    /// The keys that were answered, one after the other. Empty: the client has found them itself, and they are those of the slots.
    pub keys: Vec<u8>,
    /// For each of them, the slot on which a reader is held.
    pub held: Vec<Option<SlotId>>,
}

/// What one lookup found.
#[derive(Debug)]
pub(super) struct Lease {
    pub id: RequestId,
    pub queries: Vec<LeaseQuery>,
}

/// All leases of a session.
#[derive(Debug, Default)]
pub(super) struct Leases {
    by_name: BTreeMap<u64, Lease>,
    keys: usize,
}

impl Lease {
    /// Keys that were answered.
    pub fn answered(&self) -> usize {
        self.queries.iter().map(|query| query.held.len()).sum()
    }

    fn place(&self, index: u32) -> Option<(usize, usize)> {
        let query = self.queries.partition_point(|query| query.first <= index).checked_sub(1)?;
        let at = (index - self.queries.get(query)?.first) as usize;
        (at < self.queries.get(query)?.held.len()).then_some((query, at))
    }

    /// The key at `index` among all keys of the lookup, if it was answered. Of one that the client has found itself: as long as
    /// the lease holds it.
    pub fn key(&self, index: u32, key_bytes: usize, primary: &Primary) -> Option<Key> {
        let (query, at) = self.place(index)?;
        let query = self.queries.get(query)?;
        if query.keys.is_empty() {
            return primary.key((*query.held.get(at)?)?);
        }
        Key::from_bytes(query.keys.get(at * key_bytes..(at + 1) * key_bytes)?).ok()
    }

    fn held_mut(&mut self, index: u32) -> Option<&mut Option<SlotId>> {
        let (query, at) = self.place(index)?;
        self.queries.get_mut(query)?.held.get_mut(at)
    }

    /// Whether each of `indices` is a hit that the lease still holds, and none is named twice.
    pub fn check_load(&mut self, indices: &[u32]) -> Result<(), Refusal> {
        let mut taken = Vec::with_capacity(indices.len());
        let wrong = indices.iter().find(|index| match self.held_mut(**index).and_then(Option::take) {
            Some(slot) => {
                taken.push((**index, slot));
                false
            }
            None => true,
        });
        let refusal = wrong.map(|index| {
            Refusal::invalid(format!(
                "key {index} is no hit of the lease, or is named twice: load only what the lookup answered with a slot"
            ))
        });
        for (index, slot) in taken {
            if let Some(held) = self.held_mut(index) {
                *held = Some(slot);
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Takes the readers of `indices`, which were checked, out of the lease, and appends their keys and slots.
    pub fn take(
        &mut self,
        indices: &[u32],
        key_bytes: usize,
        primary: &Primary,
        keys: &mut Vec<Key>,
        slots: &mut Vec<SlotId>,
    ) {
        for index in indices {
            let key = self.key(*index, key_bytes, primary);
            if let Some(slot) = self.held_mut(*index).and_then(Option::take) {
                keys.extend(key);
                slots.push(slot);
            }
        }
    }

    /// Appends the slots whose readers the lease still holds.
    pub fn rest(&self, slots: &mut Vec<SlotId>) {
        self.queries.iter().for_each(|query| slots.extend(query.held.iter().flatten()));
    }
}

impl Leases {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Keys that all leases keep.
    pub const fn keys(&self) -> usize {
        self.keys
    }

    pub fn contains(&self, name: u64) -> bool {
        self.by_name.contains_key(&name)
    }

    pub fn get_mut(&mut self, name: u64) -> Option<&mut Lease> {
        self.by_name.get_mut(&name)
    }

    pub fn insert(&mut self, name: u64, lease: Lease) {
        self.keys += lease.answered();
        if let Some(before) = self.by_name.insert(name, lease) {
            self.keys = self.keys.saturating_sub(before.answered());
        }
    }

    /// Nothing of them will be loaded any more: only the readers are kept, until they are let go.
    pub fn keep_readers(&mut self) {
        self.keys = 0;
        self.by_name.retain(|_, lease| {
            for query in &mut lease.queries {
                query.keys = Vec::new();
                query.held.retain(Option::is_some);
                query.held.shrink_to_fit();
            }
            lease.queries.retain(|query| !query.held.is_empty());
            !lease.queries.is_empty()
        });
    }

    /// All of them, oldest first.
    pub fn take_all(&mut self) -> BTreeMap<u64, Lease> {
        self.keys = 0;
        std::mem::take(&mut self.by_name)
    }
}

#[cfg(test)]
mod tests {
    use terrace_config::Policy;

    use super::*;

    const KEY_BYTES: usize = 6;

    fn key(n: u8) -> Key {
        Key::new(&[n, n], 0).expect("a key")
    }

    fn primary() -> Primary {
        Primary::new(8, 2, Policy::Lru)
    }

    /// Ten keys: 0..4 of which 0 and 2 are held; 6.. of which 6 is (4 and 5 were not answered).
    fn lease() -> Lease {
        let query = |first: u32, held: &[bool]| LeaseQuery {
            first,
            keys: (0..held.len()).flat_map(|at| key(first as u8 + at as u8).as_bytes().to_vec()).collect(),
            held: held.iter().map(|held| held.then_some(SlotId(first))).collect(),
        };
        Lease { id: RequestId(1), queries: vec![query(0, &[true, false, true, false]), query(6, &[true, false])] }
    }

    #[test]
    fn indices_count_over_all_queries() {
        let lease = lease();
        let primary = primary();
        let found = |index| lease.key(index, KEY_BYTES, &primary);
        assert_eq!([0, 3, 6, 7].map(found), [Some(key(0)), Some(key(3)), Some(key(6)), Some(key(7))]);
        assert_eq!([4, 5, 8, u32::MAX].map(found), [None; 4]);
    }

    #[test]
    fn only_hits_are_taken_and_each_once() {
        let mut lease = lease();
        let (mut keys, mut slots) = (Vec::new(), Vec::new());
        for wrong in [vec![1], vec![0, 0], vec![0, 2, 5], vec![6, 99]] {
            assert!(lease.check_load(&wrong).is_err(), "{wrong:?}");
        }
        lease.check_load(&[2, 6]).expect("both are hits");
        lease.take(&[2, 6], KEY_BYTES, &primary(), &mut keys, &mut slots);
        assert_eq!((keys, slots), (vec![key(2), key(6)], vec![SlotId(0), SlotId(6)]));
        assert!(lease.check_load(&[2]).is_err(), "it is taken");
        let mut rest = Vec::new();
        lease.rest(&mut rest);
        assert_eq!(rest, [SlotId(0)]);
    }

    #[test]
    fn keys_that_the_client_has_found_are_those_of_the_slots() {
        let mut primary = primary();
        let slots: Vec<SlotId> = (0..3).filter_map(|n| primary.insert_writing(&key(n))).collect();
        let query = LeaseQuery { first: 0, keys: Vec::new(), held: slots.iter().copied().map(Some).collect() };
        let mut lease = Lease { id: RequestId(1), queries: vec![query] };
        let (mut keys, mut taken) = (Vec::new(), Vec::new());
        lease.take(&[1, 2], KEY_BYTES, &primary, &mut keys, &mut taken);
        assert_eq!((keys, taken), (vec![key(1), key(2)], slots[1..].to_vec()));
        assert_eq!((lease.key(0, KEY_BYTES, &primary), lease.key(1, KEY_BYTES, &primary)), (Some(key(0)), None));
    }
}
