//! Starting stores and loads: where a block goes, and what makes room for it.

use terrace_primary::Key;

use super::ops::{Op, OpKind};
use super::port::{BlockName, Command};
use super::tier::NvmeTier;
use crate::clock::Time;
use crate::tier::{Fault, LoadBlock, StoreBlock, TierEvent};

/// Victims that one store may ask for when their files are too small for it.
const VICTIMS_PER_STORE: usize = 8;
/// Files that one poll trims.
const TRIM_PER_POLL: usize = 64;
/// Files that are being removed at once.
const TRIM_IN_FLIGHT: usize = 1024;
/// How often a file that cannot be removed is tried.
const REMOVE_ATTEMPTS: u8 = 3;

/// Where a new block goes.
struct Room {
    lane: u8,
    /// The file to take over.
    recycle: Option<BlockName>,
    /// What the store is charged with; the victim's bytes are in it.
    bytes: u64,
}

impl NvmeTier {
    pub(super) fn start_store(&mut self, job: u32, index: u32, block: &StoreBlock, deadline: Time) {
        if let Some(row) = self.index.find(&block.key) {
            return self.store_again(job, index, block, deadline, row);
        }
        let Some(room) = self.make_room(&block.key) else {
            self.stats.full += 1;
            return self.report(job, index, Err(Fault::Full));
        };
        let generation = self.catalog.generation();
        let Some(row) = self.index.insert_storing(&block.key, room.lane, generation) else {
            // A key longer than the geometry's, or no row although there was one: nothing that room helps against.
            self.capacity.charge(room.bytes);
            match room.recycle {
                Some(name) => self.remove_file(room.lane, name, room.bytes),
                None => self.capacity.release(room.bytes),
            }
            self.stats.full += 1;
            return self.report(job, index, Err(Fault::Full));
        };
        self.capacity.charge(room.bytes);
        let epoch = self.index.get(row).map_or(0, |row| row.epoch);
        let (bytes, victim) = (room.bytes, room.recycle);
        let op = Op { job, index, row, epoch, bytes, victim, ..Op::new(OpKind::Store, room.lane) };
        let ticket = self.start(op, |ticket| Command::Store {
            ticket,
            key: block.key,
            slot: block.slot,
            crc32: block.crc32,
            recycle: room.recycle,
            deadline,
        });
        if let Some(row) = self.index.get_mut(row) {
            row.op = ticket as u32;
        }
    }

    /// The block is here, or on its way.
    fn store_again(&mut self, job: u32, index: u32, block: &StoreBlock, deadline: Time, row: u32) {
        let Some(known) = self.index.get(row).copied() else { return };
        if !self.index.is_ready(row) {
            if let Some((ticket, op)) = self.ops.at(known.op) {
                op.followers.push((job, index));
                if let Some(job) = self.jobs.get_mut(job) {
                    job.tickets.push(ticket);
                }
            } else {
                self.report(job, index, Err(Fault::Absent));
            }
            return;
        }
        if let Some(crc32) = known.crc().or(block.crc32) {
            return self.report(job, index, Ok(crc32));
        }
        // Nobody knows the CRC of what is stored: it came from a scan. Writing it again makes it known.
        if known.users == u16::MAX {
            self.stats.full += 1;
            return self.report(job, index, Err(Fault::Full));
        }
        // In use from here on: it is not its own victim.
        self.set_users(row, known.users + 1);
        let Some(room) = self.room_beside(known.lane) else {
            self.set_users(row, known.users);
            self.stats.full += 1;
            return self.report(job, index, Err(Fault::Full));
        };
        self.capacity.charge(room.bytes);
        let name = Some(Box::new(self.name_of(&block.key)));
        let (epoch, bytes, victim) = (known.epoch, room.bytes, room.recycle);
        let op = Op { job, index, row, epoch, bytes, victim, name, ..Op::new(OpKind::Replace, known.lane) };
        self.start(op, |ticket| Command::Store {
            ticket,
            key: block.key,
            slot: block.slot,
            crc32: None,
            recycle: room.recycle,
            deadline,
        });
    }

    fn set_users(&mut self, row: u32, users: u16) {
        if let Some(row) = self.index.get_mut(row) {
            row.users = users;
        }
    }

    pub(super) fn start_load(&mut self, job: u32, index: u32, block: &LoadBlock, deadline: Time) {
        let row = self.index.find(&block.key).filter(|row| self.index.is_ready(*row));
        let Some((row, known)) = row.and_then(|row| self.index.get_mut(row).map(|known| (row, known))) else {
            self.stats.vanished += 1;
            return self.report(job, index, Err(Fault::Absent));
        };
        if known.users == u16::MAX {
            return self.report(job, index, Err(Fault::Expired));
        }
        known.users += 1;
        let (epoch, lane, crc32) = (known.epoch, known.lane, known.crc());
        let op = Op { job, index, row, epoch, ..Op::new(OpKind::Load, lane) };
        self.start(op, |ticket| Command::Load { ticket, key: block.key, slot: block.slot, crc32, deadline });
    }

    /// Room for one block: fresh where it fits, else the file of a victim.
    fn make_room(&mut self, key: &Key) -> Option<Room> {
        let lane = self.lane_of(key);
        let block_bytes = self.capacity.block_bytes();
        for _ in 0..VICTIMS_PER_STORE {
            if self.index.has_room() && self.capacity.fits(block_bytes) {
                return Some(Room { lane, recycle: None, bytes: block_bytes });
            }
            // None: all that is here is in use at this moment.
            let (lane, name, bytes) = self.take_victim(lane)?;
            // A file that is overwritten in place grows by nothing but what its payload lacks.
            let charge = self.capacity.file_bytes().max(bytes);
            if self.index.has_room() && self.capacity.fits(charge - bytes) {
                // The store is charged with the victim's bytes from here on.
                self.capacity.release(bytes);
                return Some(Room { lane, recycle: Some(name), bytes: charge });
            }
            self.remove_file(lane, name, bytes);
        }
        // The victims' files are too small: more of them must go than a store should wait for.
        self.capacity.trim();
        None
    }

    /// Room for a second copy of a block, in its own directory: it takes the first one's place there.
    fn room_beside(&mut self, lane: u8) -> Option<Room> {
        let block_bytes = self.capacity.block_bytes();
        if self.capacity.fits(block_bytes) {
            return Some(Room { lane, recycle: None, bytes: block_bytes });
        }
        let row = self.index.victim(lane)?;
        let bytes = self.index.get(row)?.allocated_bytes();
        let charge = self.capacity.file_bytes().max(bytes);
        if !self.capacity.fits(charge - bytes) {
            return None;
        }
        let (name, bytes) = self.evict(row)?;
        self.capacity.release(bytes);
        Some(Room { lane, recycle: Some(name), bytes: charge })
    }

    /// The next file to go, in `lane` if one is there, else in another. Strangers go first, unless a row is what is short. It is out
    /// of the index, and its bytes are still counted.
    fn take_victim(&mut self, lane: u8) -> Option<(u8, BlockName, u64)> {
        let lanes = self.lanes.len() as u8;
        let lanes = || std::iter::once(lane).chain((0..lanes).filter(|other| *other != lane));
        if self.index.has_room() {
            for lane in lanes() {
                if let Some((name, bytes)) = self.take_stranger(lane) {
                    return Some((lane, name, bytes));
                }
            }
        }
        let (lane, row) = lanes().find_map(|lane| self.index.victim(lane).map(|row| (lane, row)))?;
        let (name, bytes) = self.evict(row)?;
        Some((lane, name, bytes))
    }

    /// Takes a block out of the index to make room. Its file's bytes stay counted.
    fn evict(&mut self, row: u32) -> Option<(BlockName, u64)> {
        let answer = self.forget(row)?;
        self.stats.evicted += 1;
        Some(answer)
    }

    /// A file of the lane that is not in the index.
    fn take_stranger(&mut self, lane: u8) -> Option<(BlockName, u64)> {
        loop {
            let (name, bytes) = self.lanes.get_mut(usize::from(lane))?.strangers.pop_front()?;
            let ours = if name.namespace == self.namespace { self.index.find(&name.key) } else { None };
            match ours.and_then(|row| self.index.get(row)) {
                // Stored again since it was found: the file is the index's, or will be replaced by the store.
                Some(row) if row.lane == lane => {
                    self.leave_to_next_store(lane, &name, bytes);
                    continue;
                }
                Some(_) => {}
                None => self.catalog.delete(&name),
            }
            self.stats.evicted += 1;
            return Some((name, bytes));
        }
    }

    /// Takes a ready block out of the index and says so. Its file's bytes stay counted.
    pub(super) fn forget(&mut self, row: u32) -> Option<(BlockName, u64)> {
        let key = self.index.key(row)?;
        let bytes = self.index.get(row)?.allocated_bytes();
        let name = self.name_of(&key);
        self.index.remove(row);
        self.catalog.delete(&name);
        self.events.push(TierEvent::Removed { key });
        Some((name, bytes))
    }

    /// A store has failed: whatever of its victim's file may be left is removed, and counted until then.
    pub(super) fn drop_charge(&mut self, op: &Op) {
        match op.victim {
            Some(victim) if !self.closed => {
                if !self.leave_to_next_store(op.lane, &victim, op.bytes) {
                    self.remove_file(op.lane, victim, op.bytes);
                }
            }
            _ => self.capacity.release(op.bytes),
        }
    }

    /// A store has made a fresh file, for it did not find that of its victim. A directory that once gave a wrong answer may still hold it:
    /// it is removed, and counted until then.
    pub(super) fn chase_victim(&mut self, op: &Op) {
        if op.victim.is_none() {
            return;
        }
        self.unclean |= self.closed;
        self.capacity.charge(op.bytes);
        self.drop_charge(op);
    }

    /// Where a file that had to go belongs to a block of the index again, its next store replaces it: it must not be removed, and stays
    /// counted until that store is done. False: it does not belong to one.
    pub(super) fn leave_to_next_store(&mut self, lane: u8, name: &BlockName, bytes: u64) -> bool {
        let row = if name.namespace == self.namespace { self.index.find(&name.key) } else { None };
        let Some((row, known)) = row.and_then(|row| Some((row, *self.index.get(row)?))) else { return false };
        if known.lane != lane {
            return false;
        }
        match self.ops.at(known.op).filter(|_| !self.index.is_ready(row)) {
            Some((_, store)) => store.older_bytes += bytes,
            // Replaced already.
            None => self.capacity.release(bytes),
        }
        true
    }

    /// Removes a file whose bytes are counted; they are until it is gone.
    pub(super) fn remove_file(&mut self, lane: u8, name: BlockName, bytes: u64) {
        self.leaving_bytes += bytes;
        self.leaving += 1;
        let op = Op { bytes, name: Some(Box::new(name)), ..Op::new(OpKind::Remove, lane) };
        self.start(op, |ticket| Command::Remove { ticket, name });
    }

    /// A file was to be removed.
    pub(super) fn removed(&mut self, op: Op, result: Result<(), Fault>) {
        self.leaving -= 1;
        match (result, op.name) {
            (Ok(()), _) => {
                self.leaving_bytes -= op.bytes;
                self.capacity.release(op.bytes);
            }
            // Once more would remove the new file.
            (Err(_), Some(name)) if !self.closed && self.leave_to_next_store(op.lane, &name, op.bytes) => {
                self.leaving_bytes -= op.bytes;
            }
            (Err(fault), Some(name)) if !self.closed && fault != Fault::Closed && op.attempts + 1 < REMOVE_ATTEMPTS => {
                self.leaving += 1;
                let again = Op { bytes: op.bytes, attempts: op.attempts + 1, ..Op::new(OpKind::Remove, op.lane) };
                let name = *name;
                self.start(Op { name: Some(Box::new(name)), ..again }, |ticket| Command::Remove { ticket, name });
            }
            (Err(fault), _) => {
                // The file stays, and stays counted. The next start finds it by a scan.
                if fault != Fault::Closed {
                    self.stats.io_errors += 1;
                    self.catalog.distrust();
                }
                self.unclean = true;
            }
        }
    }

    /// Removes what has to go without a new block taking its place.
    pub(super) fn trim(&mut self, now: Time) {
        if !self.fill.may_trim() {
            return;
        }
        for _ in 0..TRIM_PER_POLL {
            if self.leaving >= TRIM_IN_FLIGHT || !self.capacity.must_trim(self.leaving_bytes, now) {
                return;
            }
            let oldest = (0..self.lanes.len() as u8).min_by_key(|lane| {
                let stranger = self.lanes.get(usize::from(*lane)).is_some_and(|lane| !lane.strangers.is_empty());
                let row = || self.index.victim(*lane).and_then(|row| self.index.get(row));
                if stranger { 0 } else { row().map_or(u64::MAX, |row| row.last_access) }
            });
            let Some((lane, name, bytes)) = oldest.and_then(|lane| self.take_victim(lane)) else { return };
            self.remove_file(lane, name, bytes);
        }
    }

    /// The directory of a block that is new. The same in every life with as many directories.
    fn lane_of(&self, key: &Key) -> u8 {
        // FNV-1a, then a mix: the high bits of FNV alone are weak.
        let hash = key
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * self.lanes.len() as u128) >> 64) as u8
    }
}
