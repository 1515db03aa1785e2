//! A segment as the log, a snapshot and its own index describe it.

use terrace_primary::Key;

use super::id::{SegmentId, Stamp};

/// What bytes of a namespace look like: fixed for all its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Digest of the namespace.
    pub namespace: [u8; 32],
    /// Payload bytes of a block.
    pub block_bytes: u32,
    /// Bytes of a key: hash and group.
    pub key_bytes: u8,
}

/// A segment: immutable, known by its id. Blocks are named by their position, `0..blocks()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its name.
    pub id: SegmentId,
    /// When it was written.
    pub created: Stamp,
    /// Bytes of the object.
    pub bytes: u64,
    key_bytes: u8,
    keys: Box<[u8]>,
    crcs: Box<[u32]>,
}

impl SegmentRecord {
    /// A record from its keys, one behind the other, and the CRC32 of each payload. `None` unless every CRC has its whole key and
    /// keys are keys.
    pub fn new(
        id: SegmentId,
        created: Stamp,
        bytes: u64,
        key_bytes: u8,
        keys: Box<[u8]>,
        crcs: Box<[u32]>,
    ) -> Option<Self> {
        let fits = crcs.len().checked_mul(usize::from(key_bytes)) == Some(keys.len());
        let record = Self { id, created, bytes, key_bytes, keys, crcs };
        let whole =
            fits && u32::try_from(record.crcs.len()).is_ok() && (record.crcs.is_empty() || record.key(0).is_some());
        whole.then_some(record)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.crcs.len() as u32
    }

    /// Bytes of the key at a position.
    #[inline]
    pub fn key_at(&self, position: u32) -> Option<&[u8]> {
        let len = usize::from(self.key_bytes);
        let start = (position as usize).checked_mul(len)?;
        self.keys.get(start..start.checked_add(len)?)
    }

    /// The key at a position.
    pub fn key(&self, position: u32) -> Option<Key> {
        Key::from_bytes(self.key_at(position)?).ok()
    }

    /// CRC32 of the payload at a position.
    pub fn crc32(&self, position: u32) -> Option<u32> {
        self.crcs.get(position as usize).copied()
    }

    /// All keys, one behind the other.
    pub fn keys(&self) -> &[u8] {
        &self.keys
    }

    /// The CRC32 of each payload.
    pub fn crcs(&self) -> &[u32] {
        &self.crcs
    }

    /// Bytes of each key.
    pub const fn key_bytes(&self) -> u8 {
        self.key_bytes
    }

    /// Bytes of memory that the record takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.keys.len() + self.crcs.len() * size_of::<u32>()
    }
}
