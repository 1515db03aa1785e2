//! Filling the index at start: from the catalog, from a scan of the files, or from both. A bounded number of entries a poll, so
//! that no step of the engine waits for millions.
//!
//! | the catalog says | lookups of unknown keys | files |
//! |---|---|---|
//! | read, clean | `Unknown` until its last entry | not scanned |
//! | read, not clean | the same | scanned behind lookups and loads: files it does not know are added, entries without a file go; stores wait for that |
//! | lost, stale | `Unknown` until the scan is over | scanned |

use std::collections::HashSet;
use std::time::Duration;

use super::index::{DIRTY, UNSEEN};
use super::lane::Scan;
use super::order::RankOrder;
use super::port::{BlockName, ScannedBlock};
use super::tier::NvmeTier;
use crate::catalog::{CatalogEntry, CatalogState, CatalogValue};
use crate::clock::Time;

/// Entries, files or rows that one poll takes.
const STEP_ENTRIES: usize = 4096;
/// A catalog or scan that shows nothing new for this long is taken for hung: what it has not shown is absent until it does.
const PATIENCE: Duration = Duration::from_secs(30);
/// Files that an unclean catalog does not know were stored after it was written, so they rank above all that it knows;
/// file times in nanoseconds since 1970 stay below this for another century.
const ORPHAN_RANK: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Entries of the catalog come in.
    Catalog,
    /// Files come in.
    Scan,
    /// Entries whose files the scan did not show are dropped.
    Sweep,
    /// Blocks of earlier lives are put in the order of their last use.
    Order,
    /// Nothing is left to do.
    Over,
}

/// How far the index is filled.
#[derive(Debug)]
pub(crate) struct Fill {
    phase: Phase,
    known: bool,
    /// Every file is counted, as far as anybody can know: a kill leaves files that an unclean catalog has not heard of.
    room_known: bool,
    /// The scan is all there is: no catalog was read.
    from_scan: bool,
    /// Every directory was listed to its end.
    complete: bool,
    order: RankOrder,
    entries: Vec<CatalogEntry>,
    /// Files that the catalog names and the index does not, so that a scan does not count them twice. While it fills.
    strangers: HashSet<(u8, BlockName)>,
    /// Where the sweep is.
    row: u32,
    last_progress: Time,
}

impl Fill {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            phase: Phase::Catalog,
            known: false,
            room_known: false,
            from_scan: false,
            complete: true,
            order: RankOrder::default(),
            entries: Vec::new(),
            strangers: HashSet::new(),
            row: 0,
            last_progress: now,
        }
    }

    /// Whether a key that is not in the index is absent.
    pub(crate) const fn is_known(&self) -> bool {
        self.known
    }

    /// Whether it is known how much room there is, so that blocks may be stored.
    pub(crate) const fn is_room_known(&self) -> bool {
        self.room_known
    }

    /// Whether the order of eviction is whole, so that blocks may go without need of their place.
    pub(crate) fn may_trim(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether index and files agree as far as anybody can know.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Order | Phase::Over) && self.complete
    }
}

impl NvmeTier {
    /// The next bounded piece.
    pub(super) fn fill_step(&mut self, now: Time) {
        match self.fill.phase {
            Phase::Catalog => self.fill_from_catalog(now),
            Phase::Scan => self.fill_from_scan(now),
            Phase::Sweep => self.sweep(),
            Phase::Order => self.order(),
            Phase::Over => {}
        }
    }

    fn fill_from_catalog(&mut self, now: Time) {
        let mut entries = std::mem::take(&mut self.fill.entries);
        let state = self.catalog.poll(STEP_ENTRIES, &mut entries);
        if !entries.is_empty() {
            self.fill.last_progress = now;
        }
        for entry in entries.drain(..) {
            self.add_entry(&entry);
        }
        self.fill.entries = entries;
        match state {
            CatalogState::Reading => return self.lose_patience(now),
            CatalogState::Read { clean: true } => {
                self.fill.known = true;
                self.fill.room_known = true;
                self.fill.phase = Phase::Order;
                return;
            }
            CatalogState::Read { clean: false } => {
                tracing::info!(tier = %self.descriptor.name, "the last stop was not clean: files are scanned behind normal work");
                self.fill.known = true;
            }
            CatalogState::Lost => self.fill.from_scan = true,
        }
        self.fill.phase = Phase::Scan;
        self.fill.last_progress = now;
        for lane in &mut self.lanes {
            lane.start_scan();
        }
    }

    fn add_entry(&mut self, entry: &CatalogEntry) {
        let CatalogEntry { name, value } = entry;
        if usize::from(value.lane) >= self.lanes.len() {
            // Of a directory that is not configured: the catalog is not ours.
            self.catalog.distrust();
            return;
        }
        self.index.seen_stamp(value.last_access);
        let ours = name.namespace == self.namespace;
        if ours && self.index.find(&name.key).is_some() {
            return;
        }
        let row = if ours { self.index.insert_old(&name.key, value.lane) } else { None };
        let Some((row, place)) = row.and_then(|row| self.index.get_mut(row).map(|place| (row, place))) else {
            self.fill.strangers.insert((value.lane, *name));
            self.add_stranger(value.lane, *name, value.allocated_bytes);
            return;
        };
        place.set_allocated_bytes(value.allocated_bytes);
        place.set_crc(value.crc32);
        place.generation = value.generation;
        place.last_access = value.last_access;
        place.flags |= UNSEEN;
        let bytes = place.allocated_bytes();
        self.capacity.charge(bytes);
        self.fill.order.push(value.last_access, row);
    }

    /// A file of another namespace, or one more than there are rows: counted, and the first to go.
    fn add_stranger(&mut self, lane: u8, name: BlockName, allocated_bytes: u64) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
            lane.strangers.push_back((name, allocated_bytes));
            self.capacity.charge(allocated_bytes);
        }
    }

    fn fill_from_scan(&mut self, now: Time) {
        // What the catalog cannot take now waits: a rebuilt catalog that lost entries would be worth nothing.
        let mut budget = STEP_ENTRIES.min(self.catalog.room() / 2);
        let before = budget;
        for lane in 0..self.lanes.len() {
            while budget > 0
                && let Some(found) = self.lanes.get_mut(lane).and_then(|lane| lane.found.pop_front())
            {
                budget -= 1;
                self.add_found(lane as u8, &found);
            }
        }
        if budget < before {
            self.fill.last_progress = now;
        }
        let scans = self.lanes.iter().map(|lane| (lane.scan, lane.found.is_empty()));
        if scans.clone().all(|(scan, empty)| empty && matches!(scan, Scan::Ended { .. })) {
            self.fill.complete = scans.map(|(scan, _)| scan).all(|scan| scan == Scan::Ended { complete: true });
            self.fill.known = true;
            self.fill.room_known = true;
            self.fill.phase = Phase::Sweep;
            if !self.fill.complete {
                tracing::warn!(tier = %self.descriptor.name, "a directory could not be listed to its end: the next start scans again");
                self.catalog.distrust();
            } else if self.fill.from_scan {
                self.catalog.rebuilt();
            }
        } else {
            self.lose_patience(now);
        }
    }

    /// Unknown keys hold requests up, and unknown room holds stores up; that ends when whatever fills the index hangs.
    fn lose_patience(&mut self, now: Time) {
        if !self.fill.room_known && now.since(self.fill.last_progress) > PATIENCE {
            tracing::warn!(tier = %self.descriptor.name, "reading what is stored hangs: what it has not shown counts as absent");
            self.fill.known = true;
            self.fill.room_known = true;
        }
    }

    /// A file that the scan found.
    fn add_found(&mut self, lane: u8, found: &ScannedBlock) {
        let ScannedBlock { name, allocated_bytes, modified_ns } = *found;
        let ours = name.namespace == self.namespace;
        if ours
            && let Some(row) = self.index.find(&name.key)
            && self.found_known(lane, found, row)
        {
            return;
        }
        if self.fill.strangers.contains(&(lane, name)) {
            return;
        }
        // A date that no clock should give, before 1970 or after 2116, must not take the largest number: none would be left for any
        // use after it, in all later lives.
        let date = modified_ns.min(ORPHAN_RANK - 1);
        let rank = if self.fill.from_scan { date } else { ORPHAN_RANK + date };
        let generation = self.catalog.generation();
        let row = if ours { self.index.insert_old(&name.key, lane) } else { None };
        if let Some(row) = row
            && let Some(place) = self.index.get_mut(row)
        {
            place.set_allocated_bytes(allocated_bytes);
            place.last_access = rank;
            place.generation = generation;
            let bytes = place.allocated_bytes();
            self.capacity.charge(bytes);
            self.index.seen_stamp(rank);
            self.fill.order.push(rank, row);
            self.stats.orphans += u64::from(!self.fill.from_scan);
        } else {
            self.add_stranger(lane, name, allocated_bytes);
        }
        self.catalog.put(&name, &CatalogValue { lane, allocated_bytes, crc32: None, generation, last_access: rank });
    }

    /// A file whose block is in the index. False: it is not any more, since the catalog had it in another directory.
    fn found_known(&mut self, lane: u8, found: &ScannedBlock, row: u32) -> bool {
        let Some(place) = self.index.get_mut(row) else { return true };
        let unseen = place.flags & UNSEEN != 0;
        let before = place.allocated_bytes();
        if place.lane == lane && unseen {
            // The file may be newer than the entry: what the entry says is not to be believed by a later life either.
            place.flags = place.flags & !UNSEEN | DIRTY;
            place.set_crc(None);
            place.set_allocated_bytes(found.allocated_bytes);
            let after = place.allocated_bytes();
            self.capacity.release(before);
            self.capacity.charge(after);
        } else if place.lane != lane && unseen && place.users == 0 {
            // Evicted and stored again elsewhere, and the catalog did not hear of it.
            self.index.remove(row);
            self.capacity.release(before);
            return false;
        } else if place.lane != lane {
            // A second copy: blocks were striped over other directories in an earlier life. No catalog can name both.
            self.capacity.charge(found.allocated_bytes);
            self.remove_file(lane, found.name, found.allocated_bytes);
        } else if !self.index.is_ready(row) {
            // An earlier life's, whose block is stored anew just now.
            self.capacity.charge(found.allocated_bytes);
            self.leave_to_next_store(lane, &found.name, found.allocated_bytes);
        }
        true
    }

    fn sweep(&mut self) {
        if !self.fill.complete {
            self.fill.phase = Phase::Order;
            return;
        }
        let end = self.index.rows_seen().min(self.fill.row.saturating_add(STEP_ENTRIES as u32));
        for row in self.fill.row..end {
            let gone = self.index.get(row).is_some_and(|place| place.flags & UNSEEN != 0 && place.users == 0);
            if gone && let Some((_, bytes)) = self.forget(row) {
                self.stats.vanished += 1;
                self.capacity.release(bytes);
            }
        }
        self.fill.row = end;
        if end == self.index.rows_seen() {
            self.fill.phase = Phase::Order;
        }
    }

    fn order(&mut self) {
        for _ in 0..STEP_ENTRIES {
            match self.fill.order.next() {
                Some(row) => self.index.rank_old(row),
                None => {
                    self.fill.order = RankOrder::default();
                    self.fill.strangers = HashSet::new();
                    self.fill.phase = Phase::Over;
                    return;
                }
            }
        }
    }
}
