//! Writing uses to the catalog, lazily: a slow sweep over the rows, and all that is left at a clean shutdown.

use std::time::Duration;

use super::index::DIRTY;
use super::tier::NvmeTier;
use crate::catalog::CatalogValue;
use crate::clock::Time;

/// A sweep starts this long after the one before it ended. After a crash the order of eviction is at most this old, and
/// the time of one sweep.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Rows that one poll looks at.
const SWEEP_ROWS: u32 = 512;
/// How long a shutdown waits for the catalog's queue at a time.
const QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Where the sweep is.
#[derive(Debug)]
pub(crate) struct Persist {
    row: u32,
    next: Time,
}

impl Persist {
    pub(crate) fn new(now: Time) -> Self {
        Self { row: 0, next: now.plus(SWEEP_EVERY) }
    }
}

impl NvmeTier {
    pub(super) fn persist_step(&mut self, now: Time) {
        // Stores and evictions must not find the queue full because of this.
        if now < self.persist.next || self.catalog.room() < 4 * SWEEP_ROWS as usize {
            return;
        }
        let rows = self.index.rows_seen();
        let end = rows.min(self.persist.row.saturating_add(SWEEP_ROWS));
        for row in self.persist.row..end {
            self.persist_row(row);
        }
        self.persist.row = end;
        if end == rows {
            self.persist = Persist::new(now);
        }
    }

    /// Writes everything that the catalog does not know, until `deadline`. Waits. False: the time was too short.
    #[allow(clippy::disallowed_methods, reason = "waits for the catalog's thread; a simulated catalog always has room")]
    pub(super) fn persist_all(&mut self, deadline: Time) -> bool {
        for row in 0..self.index.rows_seen() {
            if row.is_multiple_of(SWEEP_ROWS) {
                self.catalog.flush();
                while self.catalog.room() < SWEEP_ROWS as usize {
                    if self.clock.now() >= deadline {
                        return false;
                    }
                    std::thread::sleep(QUEUE_PAUSE);
                }
            }
            self.persist_row(row);
        }
        self.catalog.flush();
        true
    }

    fn persist_row(&mut self, row: u32) {
        let ready = self.index.is_ready(row);
        let Some(known) = self.index.get_mut(row).filter(|known| ready && known.flags & DIRTY != 0) else { return };
        known.flags &= !DIRTY;
        let value = CatalogValue {
            lane: known.lane,
            allocated_bytes: known.allocated_bytes(),
            crc32: known.crc(),
            generation: known.generation,
            last_access: known.last_access,
        };
        if let Some(key) = self.index.key(row) {
            let name = self.name_of(&key);
            self.catalog.put(&name, &value);
        }
    }
}
