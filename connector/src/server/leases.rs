//! Leases: readers on the hits of a lookup until the session's next `EndStep`.

use std::collections::BTreeMap;

use terrace_primary::Key;
use terrace_tiering::RequestId;

use super::refusal::Refusal;
use crate::protocol::keys_from_bytes;

/// The answered part of one query.
#[derive(Debug, Default)]
pub(super) struct LeaseQuery {
    /// Place of its first key among all keys of the lookup.
    pub first: u32,
    /// The keys that were answered, one after the other.
    pub keys: Vec<u8>,
    /// For each of them, whether a reader is held.
    pub held: Vec<bool>,
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

    /// The key at `index` among all keys of the lookup, if it was answered.
    pub fn key(&self, index: u32, key_bytes: usize) -> Option<Key> {
        let (query, at) = self.place(index)?;
        let bytes = self.queries.get(query)?.keys.get(at * key_bytes..(at + 1) * key_bytes)?;
        Key::from_bytes(bytes).ok()
    }

    fn held_mut(&mut self, index: u32) -> Option<&mut bool> {
        let (query, at) = self.place(index)?;
        self.queries.get_mut(query)?.held.get_mut(at)
    }

    /// Takes the readers of `indices` out of the lease, and appends their keys. All or nothing: each must be a hit,
    /// named once.
    pub fn take(&mut self, indices: &[u32], key_bytes: usize, keys: &mut Vec<Key>) -> Result<(), Refusal> {
        let first = keys.len();
        for (done, index) in indices.iter().enumerate() {
            let key = self.key(*index, key_bytes);
            match (key, self.held_mut(*index)) {
                (Some(key), Some(held)) if *held => {
                    *held = false;
                    keys.push(key);
                }
                _ => {
                    self.give_back(indices.get(..done).unwrap_or_default());
                    keys.truncate(first);
                    return Err(Refusal::invalid(format!(
                        "key {index} is no hit of the lease, or is named twice: \
                         load only what the lookup answered with a slot"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Undoes [`Lease::take`] of the same indices.
    pub fn give_back(&mut self, indices: &[u32]) {
        for index in indices {
            if let Some(held) = self.held_mut(*index) {
                *held = true;
            }
        }
    }

    /// Appends the keys whose readers the lease still holds.
    pub fn rest(&self, key_bytes: usize, keys: &mut Vec<Key>) {
        for query in &self.queries {
            let held = query.keys.chunks_exact(key_bytes.max(1)).zip(&query.held).filter(|(_, held)| **held);
            for (bytes, _) in held {
                // They were keys when they came.
                let _ = keys_from_bytes(bytes, key_bytes, keys);
            }
        }
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

    /// All of them, oldest first.
    pub fn take_all(&mut self) -> BTreeMap<u64, Lease> {
        self.keys = 0;
        std::mem::take(&mut self.by_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_BYTES: usize = 6;

    fn key(n: u8) -> Key {
        Key::new(&[n, n], 0).expect("a key")
    }

    /// Ten keys: 0..4 of which 0 and 2 are held; 6.. of which 6 is (4 and 5 were not answered).
    fn lease() -> Lease {
        let query = |first: u32, held: &[bool]| LeaseQuery {
            first,
            keys: (0..held.len()).flat_map(|at| key(first as u8 + at as u8).as_bytes().to_vec()).collect(),
            held: held.to_vec(),
        };
        Lease { id: RequestId(1), queries: vec![query(0, &[true, false, true, false]), query(6, &[true, false])] }
    }

    #[test]
    fn indices_count_over_all_queries() {
        let lease = lease();
        let found = |index| lease.key(index, KEY_BYTES);
        assert_eq!([0, 3, 6, 7].map(found), [Some(key(0)), Some(key(3)), Some(key(6)), Some(key(7))]);
        assert_eq!([4, 5, 8, u32::MAX].map(found), [None; 4]);
    }

    #[test]
    fn only_hits_are_taken_and_each_once() {
        let mut lease = lease();
        let mut keys = Vec::new();
        for wrong in [vec![1], vec![0, 0], vec![0, 2, 5], vec![6, 99]] {
            assert!(lease.take(&wrong, KEY_BYTES, &mut keys).is_err(), "{wrong:?}");
            assert!(keys.is_empty());
        }
        lease.take(&[2, 6], KEY_BYTES, &mut keys).expect("both are hits");
        assert_eq!(keys, [key(2), key(6)]);
        assert!(lease.take(&[2], KEY_BYTES, &mut keys).is_err(), "it is taken");
        let mut rest = Vec::new();
        lease.rest(KEY_BYTES, &mut rest);
        assert_eq!(rest, [key(0)]);
    }
}
