//! What became of an operation.

use super::index::{DIRTY, UNSEEN};
use super::ops::{NONE, Op, OpKind};
use super::port::Placed;
use super::tier::NvmeTier;
use crate::catalog::CatalogValue;
use crate::tier::Fault;

impl NvmeTier {
    /// Takes the result of an operation. Unknown tickets are ignored.
    pub(super) fn complete(&mut self, ticket: u64, result: Result<Placed, Fault>) {
        let Some(op) = self.ops.take(ticket) else { return };
        match result {
            Ok(_) if !op.abandoned => self.time(&op),
            Err(Fault::Io) => self.stats.io_errors += 1,
            Err(Fault::Expired) if op.job != NONE => self.stats.expired += 1,
            Err(Fault::Full) => {
                self.stats.full += 1;
                self.capacity.disk_full(op.bytes, self.clock.now());
            }
            // A port that closes may leave the file of a victim, or of a store that had been published.
            Err(Fault::Closed) if op.kind != OpKind::Load => self.unclean = true,
            _ => {}
        }
        if result.is_ok_and(|placed| placed.victim_missed) {
            self.chase_victim(&op);
        }
        match op.kind {
            OpKind::Store => self.stored(op, result),
            OpKind::Replace => self.replaced(op, result),
            OpKind::Load => self.loaded(op, result),
            OpKind::Remove => self.removed(op, result.map(|_| ())),
        }
    }

    /// An operation has succeeded.
    fn time(&self, op: &Op) {
        let took = self.clock.now().since(op.started);
        match op.kind {
            OpKind::Store | OpKind::Replace => self.times.store.record(took),
            OpKind::Load => self.times.load.record(took),
            OpKind::Remove => {}
        }
    }

    fn stored(&mut self, op: Op, result: Result<Placed, Fault>) {
        let key = self.index.key(op.row);
        let outcome = match (result, key) {
            (Ok(placed), Some(key)) if op.abandoned => {
                // Finished before the port heard of it. It was promised never to become readable.
                self.index.remove(op.row);
                self.capacity.release(op.older_bytes);
                self.capacity.settle(op.bytes, placed.allocated_bytes);
                let name = self.name_of(&key);
                self.remove_file(op.lane, name, placed.allocated_bytes);
                Err(Fault::Expired)
            }
            (Ok(placed), Some(_)) => {
                let bytes = self.set_stored(op.row, placed);
                self.capacity.release(op.older_bytes);
                self.capacity.settle(op.bytes, bytes);
                Ok(placed.crc32)
            }
            (Ok(_), None) => {
                self.capacity.release(op.bytes + op.older_bytes);
                Err(Fault::Absent)
            }
            (Err(fault), _) => {
                self.index.remove(op.row);
                self.drop_charge(&op);
                // A file may stand there all the same: a rename that failed may have been done, one that was given up too; and a
                // scan may have passed over a file of an earlier life, which the store was to replace.
                let doubt = op.abandoned
                    || op.older_bytes > 0
                    || matches!(fault, Fault::Io | Fault::Expired)
                    || !self.fill.is_over();
                match key {
                    Some(key) if doubt && !self.closed => {
                        let name = self.name_of(&key);
                        self.remove_file(op.lane, name, op.older_bytes);
                    }
                    _ => self.capacity.release(op.older_bytes),
                }
                Err(if op.abandoned { Fault::Expired } else { fault })
            }
        };
        self.report(op.job, op.index, outcome);
        for (job, index) in op.followers {
            self.report(job, index, outcome);
        }
    }

    /// A block was written over its own file.
    fn replaced(&mut self, op: Op, result: Result<Placed, Fault>) {
        let row = self.index.at_epoch(op.row, op.epoch).map(|row| {
            row.users = row.users.saturating_sub(1);
            row.allocated_bytes()
        });
        let outcome = match (result, row) {
            (Ok(placed), Some(old_bytes)) => {
                // The row may be newer than the abandoning: both contents were right, so the block stays either way.
                self.capacity.release(old_bytes);
                let bytes = self.set_stored(op.row, placed);
                self.capacity.settle(op.bytes, bytes);
                Ok(placed.crc32)
            }
            (Ok(placed), None) => self.replaced_nothing(&op, placed),
            (Err(fault), row) => {
                self.drop_charge(&op);
                // A port that finds a store given up after it was published removes the file, and the old one went with it.
                let doubt = !op.queued && (op.abandoned || matches!(fault, Fault::Io | Fault::Expired));
                if doubt
                    && row.is_some()
                    && !self.closed
                    && let Some((name, bytes)) = self.forget(op.row)
                {
                    self.remove_file(op.lane, name, bytes);
                }
                Err(fault)
            }
        };
        self.report(op.job, op.index, if op.abandoned { Err(Fault::Expired) } else { outcome });
    }

    /// A load has found the old file damaged meanwhile, and the block is out of the index; the new file is sound.
    fn replaced_nothing(&mut self, op: &Op, placed: Placed) -> Result<u32, Fault> {
        let Some(name) = op.name.as_deref().copied() else { return Err(Fault::Absent) };
        self.capacity.release(op.bytes);
        if self.index.find(&name.key).is_some() {
            // It is being stored once more, to the same name.
            return Err(Fault::Absent);
        }
        let generation = self.catalog.generation();
        if !op.abandoned
            && let Some(row) = self.index.insert_storing(&name.key, op.lane, generation)
        {
            let bytes = self.set_stored(row, placed);
            self.capacity.charge(bytes);
            Ok(placed.crc32)
        } else {
            self.capacity.charge(placed.allocated_bytes);
            self.remove_file(op.lane, name, placed.allocated_bytes);
            Err(Fault::Full)
        }
    }

    fn loaded(&mut self, op: Op, result: Result<Placed, Fault>) {
        let row = self.index.at_epoch(op.row, op.epoch);
        let here = row.is_some();
        if let Some(row) = row {
            row.users = row.users.saturating_sub(1);
            if let Ok(placed) = result
                && row.crc().is_none()
            {
                row.set_crc(Some(placed.crc32));
                row.flags |= DIRTY;
            }
        }
        let outcome = match result {
            Ok(placed) if !op.abandoned => {
                self.stats.loaded += 1;
                self.stats.loaded_bytes += self.block_bytes;
                Ok(placed.crc32)
            }
            Ok(_) => {
                self.stats.expired += 1;
                Err(Fault::Expired)
            }
            Err(fault) => {
                match fault {
                    Fault::Absent => self.stats.vanished += 1,
                    Fault::Corrupt => self.stats.corrupt += 1,
                    _ => {}
                }
                // A file that is missing takes no room here. One that cannot be read does until it is removed, and a damaged one until
                // the port has moved it to quarantine: its removal waits for that, and finds nothing.
                if here
                    && matches!(fault, Fault::Absent | Fault::Corrupt | Fault::Io)
                    && let Some((name, bytes)) = self.forget(op.row)
                {
                    if fault == Fault::Absent {
                        self.capacity.release(bytes);
                    } else {
                        self.remove_file(op.lane, name, bytes);
                    }
                }
                Err(if op.abandoned { Fault::Expired } else { fault })
            }
        };
        self.report(op.job, op.index, outcome);
    }

    /// The block's file is in place. Returns the bytes that the row counts.
    fn set_stored(&mut self, row: u32, placed: Placed) -> u64 {
        self.stats.stored += 1;
        self.stats.stored_bytes += self.block_bytes;
        let Some(known) = self.index.get_mut(row) else { return 0 };
        known.set_allocated_bytes(placed.allocated_bytes);
        known.set_crc(Some(placed.crc32));
        known.flags &= !(UNSEEN | DIRTY);
        let bytes = known.allocated_bytes();
        let value = CatalogValue {
            lane: known.lane,
            allocated_bytes: bytes,
            crc32: Some(placed.crc32),
            generation: known.generation,
            last_access: known.last_access,
        };
        self.index.set_ready(row);
        if let Some(key) = self.index.key(row) {
            let name = self.name_of(&key);
            self.catalog.put(&name, &value);
        }
        bytes
    }
}
