//! The name of a block inside one namespace.

use std::fmt;

/// Longest block hash.
pub const MAX_HASH_BYTES: usize = 64;
/// Longest key: a block hash and its group.
pub const MAX_KEY_BYTES: usize = MAX_HASH_BYTES + 4;

/// A block hash (1..=64 bytes) followed by the KV-cache group index as big-endian `u32`: the form in which vLLM
/// names an offloaded block. Plain bytes, copied freely.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    len: u8,
    bytes: [u8; MAX_KEY_BYTES],
}

/// Bytes that are no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has 5 to 68 bytes (a block hash of 1 to 64, then the group as 4): got {0}")]
pub struct KeyError(pub usize);

impl Key {
    /// The key of the block `hash` in `group`. Fails unless the hash has 1 to 64 bytes.
    #[inline]
    pub fn new(hash: &[u8], group: u32) -> Result<Self, KeyError> {
        let len = hash.len();
        if len == 0 || len > MAX_HASH_BYTES {
            return Err(KeyError(len + 4));
        }
        let mut bytes = [0; MAX_KEY_BYTES];
        bytes[..len].copy_from_slice(hash);
        bytes[len..len + 4].copy_from_slice(&group.to_be_bytes());
        Ok(Self { len: (len + 4) as u8, bytes })
    }

    /// A key from its bytes: the hash, then the group.
    #[inline]
    pub fn from_bytes(key: &[u8]) -> Result<Self, KeyError> {
        match key.split_last_chunk::<4>() {
            Some((hash, group)) => Self::new(hash, u32::from_be_bytes(*group)),
            None => Err(KeyError(key.len())),
        }
    }

    /// As [`Key::from_bytes`], for a length known at compile time: cannot fail, and copies without a call.
    #[inline]
    pub const fn from_array<const N: usize>(key: &[u8; N]) -> Self {
        const { assert!(N > 4 && N <= MAX_KEY_BYTES) };
        let mut bytes = [0; MAX_KEY_BYTES];
        let (start, _) = bytes.split_at_mut(N);
        start.copy_from_slice(key);
        Self { len: N as u8, bytes }
    }

    /// Hash and group, as they are stored.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The block hash.
    #[inline]
    pub fn hash(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len) - 4]
    }

    /// The KV-cache group.
    #[inline]
    pub fn group(&self) -> u32 {
        let end = usize::from(self.len);
        u32::from_be_bytes([self.bytes[end - 4], self.bytes[end - 3], self.bytes[end - 2], self.bytes[end - 1]])
    }
}

/// What holds the bytes of a key: a [`Key`], or the bytes themselves where keys lie packed.
pub trait KeyBytes {
    /// Hash and group.
    fn key_bytes(&self) -> &[u8];

    /// As a [`Key`].
    fn to_key(&self) -> Key;
}

impl KeyBytes for Key {
    #[inline]
    fn key_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn to_key(&self) -> Key {
        *self
    }
}

/// Of 5 to 68 bytes; others do not compile.
impl<const N: usize> KeyBytes for [u8; N] {
    #[inline]
    fn key_bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn to_key(&self) -> Key {
        Key::from_array(self)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.hash() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "_g{}", self.group())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
