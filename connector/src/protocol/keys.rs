//! Lists of keys and of small numbers travel as one string of bytes each: no per-element cost in MessagePack.

use terrace_primary::Key;

use super::error::ProtocolError;

/// A hash of 32 bytes and a group: what engines have. Faster than others.
pub(crate) const COMMON_KEY_BYTES: usize = 36;

/// Appends each key's bytes. All keys of a session have the same length: `hash_bytes` of its geometry, and 4.
pub fn keys_to_bytes(keys: &[Key], out: &mut Vec<u8>) {
    out.reserve(keys.first().map_or(0, |key| key.as_bytes().len() * keys.len()));
    keys.iter().for_each(|key| out.extend_from_slice(key.as_bytes()));
}

/// Appends the keys in `bytes`, each `key_bytes` long.
pub fn keys_from_bytes(bytes: &[u8], key_bytes: usize, keys: &mut Vec<Key>) -> Result<(), ProtocolError> {
    let refuse = |why: String| ProtocolError::Body { what: "list of keys", why };
    if key_bytes == 0 || !bytes.len().is_multiple_of(key_bytes) {
        return Err(refuse(format!("{} bytes are no whole keys of {key_bytes}", bytes.len())));
    }
    keys.reserve(bytes.len() / key_bytes);
    if key_bytes == COMMON_KEY_BYTES {
        keys.extend(bytes.as_chunks::<COMMON_KEY_BYTES>().0.iter().map(Key::from_array));
        return Ok(());
    }
    for key in bytes.chunks_exact(key_bytes) {
        keys.push(Key::from_bytes(key).map_err(|error| refuse(error.to_string()))?);
    }
    Ok(())
}

/// Numbers as little-endian `u32`.
pub fn numbers_to_bytes(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Appends the little-endian `u32` in `bytes`.
pub fn numbers_from_bytes(bytes: &[u8], numbers: &mut Vec<u32>) -> Result<(), ProtocolError> {
    let (whole, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let why = format!("{} bytes are no whole numbers of 4", bytes.len());
        return Err(ProtocolError::Body { what: "list of numbers", why });
    }
    numbers.extend(whole.iter().map(|bytes| u32::from_le_bytes(*bytes)));
    Ok(())
}
