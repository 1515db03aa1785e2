//! The catalog's bytes. Little-endian.
//!
//! A block's key in the store is the namespace digest (32 bytes) and the block's key; its value is [`VALUE_BYTES`] long: version u8 = 1,
//! flags u8 (1: CRC known), lane u8, zero u8, crc32 u32, generation u32, zero u32, allocated bytes u64, last access u64.
//! One further key, [`META_KEY`], is shorter than any block's: version u32 = 1, flags u32 (1: closed cleanly, 2: stale), generation
//! u32, zero u32, then the directories' paths, each as length u32 and bytes.
#![cfg_attr(not(feature = "rocksdb"), allow(dead_code, reason = "the only catalog on disk is rocksdb's"))]

use std::path::PathBuf;

use terrace_primary::Key;

use super::{CatalogEntry, CatalogValue};
use crate::nvme::BlockName;

/// Key of the catalog's own record.
pub(super) const META_KEY: &[u8] = b"terrace";
/// Length of a block's value.
pub(super) const VALUE_BYTES: usize = 32;
const DIGEST_BYTES: usize = 32;
const VALUE_VERSION: u8 = 1;
const META_VERSION: u32 = 1;

/// What the catalog says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) clean: bool,
    pub(super) stale: bool,
    pub(super) generation: u32,
    pub(super) paths: Vec<PathBuf>,
}

impl Meta {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt as _;
        let flags = u32::from(self.clean) | u32::from(self.stale) << 1;
        let mut bytes = Vec::new();
        for word in [META_VERSION, flags, self.generation, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for path in &self.paths {
            let path = path.as_os_str().as_bytes();
            bytes.extend_from_slice(&(path.len() as u32).to_le_bytes());
            bytes.extend_from_slice(path);
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let (head, mut rest) = bytes.split_first_chunk::<16>()?;
        let mut words = head.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let (version, flags, generation) = (words.next()?, words.next()?, words.next()?);
        if version != META_VERSION {
            return None;
        }
        let mut paths = Vec::new();
        while !rest.is_empty() {
            let (len, tail) = rest.split_first_chunk::<4>()?;
            let (path, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            paths.push(PathBuf::from(std::ffi::OsStr::from_bytes(path)));
            rest = tail;
        }
        Some(Self { clean: flags & 1 != 0, stale: flags & 2 != 0, generation, paths })
    }
}

/// The store's key of a block.
pub(super) fn key_bytes(name: &BlockName) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DIGEST_BYTES + name.key.as_bytes().len());
    bytes.extend_from_slice(&name.namespace);
    bytes.extend_from_slice(name.key.as_bytes());
    bytes
}

/// The store's value of a block.
pub(super) fn value_bytes(value: &CatalogValue) -> [u8; VALUE_BYTES] {
    let mut bytes = [0; VALUE_BYTES];
    bytes[0] = VALUE_VERSION;
    bytes[1] = u8::from(value.crc32.is_some());
    bytes[2] = value.lane;
    bytes[4..8].copy_from_slice(&value.crc32.unwrap_or(0).to_le_bytes());
    bytes[8..12].copy_from_slice(&value.generation.to_le_bytes());
    bytes[16..24].copy_from_slice(&value.allocated_bytes.to_le_bytes());
    bytes[24..32].copy_from_slice(&value.last_access.to_le_bytes());
    bytes
}

/// A block from the store; `None` if key or value are of no form that this version writes.
pub(super) fn entry(key: &[u8], value: &[u8]) -> Option<CatalogEntry> {
    let (namespace, key) = key.split_first_chunk::<DIGEST_BYTES>()?;
    let key = Key::from_bytes(key).ok()?;
    let value: &[u8; VALUE_BYTES] = value.try_into().ok()?;
    let word = |at: usize| u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if value[0] != VALUE_VERSION || value[1] > 1 {
        return None;
    }
    Some(CatalogEntry {
        name: BlockName { namespace: *namespace, key },
        value: CatalogValue {
            lane: value[2],
            allocated_bytes: long(16),
            crc32: (value[1] == 1).then(|| word(4)),
            generation: word(8),
            last_access: long(24),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_as_it_was() {
        let name = BlockName { namespace: [7; 32], key: Key::new(&[1, 2, 3], 9).unwrap() };
        for crc32 in [None, Some(0), Some(u32::MAX)] {
            let value =
                CatalogValue { lane: 63, allocated_bytes: u64::MAX - 1, crc32, generation: 77, last_access: 1 << 63 };
            assert_eq!(entry(&key_bytes(&name), &value_bytes(&value)), Some(CatalogEntry { name, value }));
        }
    }

    #[test]
    fn what_is_no_block_is_none() {
        let name = BlockName { namespace: [7; 32], key: Key::new(&[1], 0).unwrap() };
        let (key, value) = (key_bytes(&name), value_bytes(&CatalogValue::default()));
        assert!(entry(META_KEY, &value).is_none());
        assert!(entry(&key[..36], &value).is_none(), "key too short");
        assert!(entry(&key, &value[..31]).is_none());
        let mut newer = value;
        newer[0] = 2;
        assert!(entry(&key, &newer).is_none());
    }

    #[test]
    fn the_catalogs_own_record_comes_back_and_rubbish_does_not() {
        let meta = Meta { clean: true, stale: false, generation: 3, paths: vec!["/a b".into(), "/c".into()] };
        let bytes = meta.to_bytes();
        assert_eq!(Meta::from_bytes(&bytes), Some(meta));
        for len in [0, 3, 15, 17, bytes.len() - 1] {
            assert_eq!(Meta::from_bytes(&bytes[..len]), None, "{len}");
        }
        assert_eq!(Meta::from_bytes(&[0xff; 64]), None);
    }
}
