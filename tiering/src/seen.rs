//! Lookups that another process has done in the shared block table, and that only have to be confirmed.

use std::os::fd::BorrowedFd;

use terrace_primary::{PrimaryError, SlotId};

use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

impl TieringOffloadingManager {
    /// Keeps a table of what is readable that other processes can read: see [`terrace_primary::Primary::share`]. Before the first
    /// request, and not with [`TieringOffloadingManager::check_loads`]: who reads the table checks no bytes.
    pub fn share_table(&mut self) -> Result<(), PrimaryError> {
        self.primary.share()
    }

    /// What [`terrace_primary::TableReader::open`] takes. `None`: the table is not shared.
    pub fn table_fd(&self) -> Option<BorrowedFd<'_>> {
        self.primary.table_fd()
    }

    /// A request has found blocks in `slots` (little-endian numbers) of the shared table, after change `seen`: takes a reader on
    /// each of them, to be ended by `complete_load` or `end_leases`, and counts as a lookup. False, and none is taken: one of them
    /// has changed since, or has as many readers as can be counted; ask with `locate`. The first call of a step polls the tiers and ends the request's holds.
    pub fn lease_seen(&mut self, id: RequestId, slots: &[[u8; 4]], seen: u64) -> Result<bool, TieringError> {
        self.check_call(id, slots.len())?;
        let start = self.now();
        self.poll_once();
        if self.start_lookup(id, 0).is_none() {
            return Err(TieringError::UnknownRequest(id));
        }
        if self.resetting || self.dram.is_some() || !self.primary.holds_as_seen(slots, seen) {
            return Ok(false);
        }
        let slot = |bytes: &[u8; 4]| SlotId(u32::from_le_bytes(*bytes));
        let taken = slots.iter().take_while(|bytes| self.primary.acquire(slot(bytes))).count();
        if taken < slots.len() {
            slots.iter().take(taken).for_each(|bytes| {
                self.primary.release(slot(bytes));
            });
            return Ok(false);
        }
        slots.iter().for_each(|bytes| self.loading.add(slot(bytes)));
        self.counts.lookups += 1;
        self.counts.keys_looked_up += slots.len() as u64;
        self.counts.hits += slots.len() as u64;
        if let Some(request) = self.requests.get_mut(&id) {
            request.summary.keys_looked_up += slots.len() as u64;
        }
        self.times.lookup.record(self.now().since(start));
        Ok(true)
    }
}
