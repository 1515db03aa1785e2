//! The catalog: what is in the files, known without reading the directories.
//!
//! It gives a tier its index back at start, with the order of last use. It is never the truth: the files' footers are. A
//! catalog that is lost, stale or left unclean costs a scan, not a block.
//!
//! Uses are written lazily: a store writes its block at once, later uses are written by a slow sweep and at a clean
//! shutdown. After a crash the order of eviction may be a sweep old.
mod record;
#[cfg(feature = "rocksdb")]
mod rocks;

use std::time::Duration;

use crate::nvme::BlockName;

#[cfg(feature = "rocksdb")]
pub use rocks::{RocksCatalog, RocksCatalogOptions};

/// What the catalog keeps of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogValue {
    /// The directory, by its place in the configuration.
    pub lane: u8,
    /// Bytes that the file takes on the device.
    pub allocated_bytes: u64,
    /// CRC32 of the payload, if it is known.
    pub crc32: Option<u32>,
    /// The start of the tier, counted by the catalog, that stored the block.
    pub generation: u32,
    /// Place in the order of uses; larger is later.
    pub last_access: u64,
}

/// One block of the catalog. Its namespace may be another than the tier's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Name of the block.
    pub name: BlockName,
    /// What is known of it.
    pub value: CatalogValue,
}

/// How far a catalog has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogState {
    /// More entries follow.
    Reading,
    /// That was all.
    Read {
        /// The last life ended with [`CatalogStore::shutdown`]; otherwise the files may differ in what was in flight.
        clean: bool,
    },
    /// There is no catalog, or it cannot be trusted: the files must be scanned.
    Lost,
}

/// A store of catalog entries. Driven by the tier's thread; no call but `shutdown` waits.
pub trait CatalogStore: Send {
    /// Appends at most `most` further entries. Those of a life that did not end cleanly come without CRC: their files may be
    /// newer.
    fn poll(&mut self, most: usize, out: &mut Vec<CatalogEntry>) -> CatalogState;

    /// Which start this is. Meaningful when `poll` no longer answers `Reading`.
    fn generation(&self) -> u32;

    /// Adds or replaces an entry. Without room it is dropped, counted, and the catalog is stale.
    fn put(&mut self, name: &BlockName, value: &CatalogValue);

    /// Removes an entry. Without room the same.
    fn delete(&mut self, name: &BlockName);

    /// Changes that it takes now without loss.
    fn room(&self) -> usize;

    /// Hands the changes on. Once per batch is enough.
    fn flush(&mut self);

    /// Files and catalog no longer agree in a way that nobody knows: the next start must scan.
    fn distrust(&mut self);

    /// The index is whole after a scan: from here on the catalog says all.
    fn rebuilt(&mut self);

    /// Writes what is queued and closes. `clean`: nothing was in flight. Waits up to `within`.
    fn shutdown(&mut self, clean: bool, within: Duration);

    /// Changes lost since start.
    fn lost(&self) -> u64;
}

/// Keeps nothing: each start scans the files.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCatalog;

impl CatalogStore for NoCatalog {
    fn poll(&mut self, _most: usize, _out: &mut Vec<CatalogEntry>) -> CatalogState {
        CatalogState::Lost
    }

    fn generation(&self) -> u32 {
        0
    }

    fn put(&mut self, _name: &BlockName, _value: &CatalogValue) {}

    fn delete(&mut self, _name: &BlockName) {}

    fn room(&self) -> usize {
        usize::MAX
    }

    fn flush(&mut self) {}

    fn distrust(&mut self) {}

    fn rebuilt(&mut self) {}

    fn shutdown(&mut self, _clean: bool, _within: Duration) {}

    fn lost(&self) -> u64 {
        0
    }
}
