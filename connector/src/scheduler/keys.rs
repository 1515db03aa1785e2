//! Keys of chunks, made when they are needed: a request keeps hashes only.

use std::hash::{BuildHasherDefault, Hasher};

use terrace_primary::Key;

use crate::hashes::HashList;

/// One offloaded block of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRef {
    pub group: u32,
    /// Counted from the start of the prompt.
    pub chunk: u32,
}

/// The key of a chunk: the hash of its last GPU block, and the group. `None` if the chunk is not full.
#[inline]
pub(super) fn chunk_key(hashes: &HashList, blocks_per_chunk: u32, chunk: ChunkRef) -> Option<Key> {
    let last = (chunk.chunk as usize + 1).checked_mul(blocks_per_chunk as usize)? - 1;
    Key::new(hashes.get(last)?, chunk.group).ok()
}

/// A short stand-in for a key. Two keys with one fingerprint make a request wait for the other's load, no more.
#[inline]
pub(super) fn fingerprint(key: &Key) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut words = key.as_bytes().chunks_exact(8);
    let mut hash = 0u64;
    for word in words.by_ref() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        hash = (hash.rotate_left(29) ^ u64::from_le_bytes(bytes)).wrapping_mul(ODD);
    }
    for byte in words.remainder() {
        hash = (hash.rotate_left(8) ^ u64::from(*byte)).wrapping_mul(ODD);
    }
    hash ^ (hash >> 32)
}

/// Takes fingerprints as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A hash-table builder for fingerprints.
pub(super) type ByFingerprint = BuildHasherDefault<Identity>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_named_by_its_last_block() {
        let mut hashes = HashList::new(2);
        for n in 0..5u8 {
            hashes.push(&[n, n]).unwrap();
        }
        let key = chunk_key(&hashes, 2, ChunkRef { group: 7, chunk: 1 }).unwrap();
        assert_eq!((key.hash(), key.group()), (&[3, 3][..], 7));
        assert!(chunk_key(&hashes, 2, ChunkRef { group: 0, chunk: 2 }).is_none(), "not full");
        assert!(chunk_key(&hashes, 1, ChunkRef { group: 0, chunk: u32::MAX }).is_none());
    }

    #[test]
    fn fingerprints_see_every_byte() {
        let base = [9u8; 13];
        let first = fingerprint(&Key::new(&base, 1).unwrap());
        assert_ne!(first, fingerprint(&Key::new(&base, 2).unwrap()));
        for at in 0..base.len() {
            let mut other = base;
            other[at] ^= 1;
            assert_ne!(first, fingerprint(&Key::new(&other, 1).unwrap()), "byte {at}");
        }
    }
}
