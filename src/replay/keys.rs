//! Block ids of a trace become block hashes.

use terrace_connector::{ConnectorError, HashList};

use super::mix::{GOLDEN, mix};

/// Length of the hashes that the replay gives to blocks, unless the configuration says otherwise.
pub const HASH_BYTES: usize = 32;

/// Writes the hash of block `id`: four words that are each a bijection of the id, so different ids never share a hash, and
/// every byte is spread as in a real one.
#[inline]
pub fn hash_of(id: u64) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    let mut state = id;
    for word in hash.chunks_exact_mut(8) {
        state = state.wrapping_add(GOLDEN);
        word.copy_from_slice(&mix(state).to_le_bytes());
    }
    hash
}

/// The hashes of a prompt.
pub fn hashes_of(ids: &[u64]) -> Result<HashList, ConnectorError> {
    let mut list = HashList::with_capacity(HASH_BYTES, ids.len());
    for &id in ids {
        list.push(&hash_of(id))?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_nothing() {
        let (a, b) = (hash_of(7), hash_of(8));
        for (x, y) in a.chunks(8).zip(b.chunks(8)) {
            assert_ne!(x, y);
        }
        assert_eq!(hash_of(7), a);
    }

    #[test]
    fn a_prompt_keeps_its_order() {
        let list = hashes_of(&[3, 1, 3]).unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list.get(1), Some(&hash_of(1)[..]));
        assert_eq!(list.get(0), list.get(2));
    }
}
