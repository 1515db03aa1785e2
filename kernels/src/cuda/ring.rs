//! Tables of tiles in pinned memory, taken and given back in the order of a stream.
#![expect(unsafe_code, reason = "writing to the driver's memory")]

use std::sync::Arc;

use super::driver::{Driver, DriverError, PinnedMemory};
use super::plan::Tile;

/// Room for tables. A table is taken when a batch is submitted, read by the kernel, and given back when the batch is done;
/// batches of one stream end in order, so the room is a ring.
#[derive(Debug)]
pub(super) struct Ring {
    driver: Arc<dyn Driver>,
    memory: PinnedMemory,
    entries: usize,
    /// Where the next table begins.
    head: usize,
    /// Entries that are taken, those skipped at the end of the ring included.
    taken: usize,
}

/// A table in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Address of the first entry as the device sees it.
    pub device: u64,
    /// Entries to give back.
    pub entries: usize,
}

impl Ring {
    /// Room for `entries` tiles, at least 1.
    pub fn new(driver: &Arc<dyn Driver>, entries: usize) -> Result<Self, DriverError> {
        let memory = driver.allocate_pinned(entries * size_of::<Tile>())?;
        Ok(Self { driver: Arc::clone(driver), memory, entries, head: 0, taken: 0 })
    }

    /// Writes a table, or nothing if there is no room for it in one piece.
    pub fn put(&mut self, tiles: &[Tile]) -> Option<Table> {
        let to_end = self.entries - self.head;
        let skipped = if tiles.len() <= to_end { 0 } else { to_end };
        let entries = skipped + tiles.len();
        if tiles.is_empty() || tiles.len() > self.entries || self.taken + entries > self.entries {
            return None;
        }
        let at = if skipped > 0 { 0 } else { self.head };
        let offset = at * size_of::<Tile>();
        // SAFETY: `at + tiles.len()` is at most `self.entries`, which is what the memory was allocated for; it is aligned to
        // pages. No kernel reads these entries: they are not taken.
        unsafe {
            let to = (self.memory.host + offset) as *mut Tile;
            std::ptr::copy_nonoverlapping(tiles.as_ptr(), to, tiles.len());
        }
        self.head = (at + tiles.len()) % self.entries;
        self.taken += entries;
        Some(Table { device: self.memory.device + offset as u64, entries })
    }

    /// Gives the oldest table back: no kernel will read it.
    pub fn give_back(&mut self, entries: usize) {
        self.taken = self.taken.saturating_sub(entries);
        if self.taken == 0 {
            self.head = 0;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the lane that owns the ring has drained its stream.
        unsafe { self.driver.free_pinned(self.memory) };
    }
}
