//! What completions lead to.

use terrace_primary::{Key, SlotId};

use super::Shard;
use super::table::{Doing, Entry};
use super::warn::Kind;
use crate::nvme::device::{Cause, Completion, Device, DeviceError, FileOp, Outcome, Step};
use crate::nvme::format::{Footer, FooterError};
use crate::nvme::name::{quarantine_path, temp_path};
use crate::nvme::port::{BlockName, Placed, PortEvent};
use crate::tier::Fault;

impl<D: Device> Shard<D> {
    /// Collects completions.
    pub(super) fn reap(&mut self, out: &mut Vec<PortEvent>) {
        let mut completions = std::mem::take(&mut self.completions);
        if let Some(device) = &mut self.device {
            device.reap(&mut completions);
        }
        for completion in completions.drain(..) {
            self.finish(completion, out);
        }
        self.completions = completions;
    }

    fn finish(&mut self, completion: Completion, out: &mut Vec<PortEvent>) {
        let Ok(index) = u32::try_from(completion.tag) else { return };
        let Some(entry) = self.table.get(index).copied() else { return };
        match entry.doing {
            Doing::Clear { key, slot, crc32 } => {
                self.finish_clear(index, &entry, key, slot, crc32, completion.result, out)
            }
            Doing::Write { key, crc32, victim } => {
                self.finish_write(index, &entry, key, crc32, victim, completion.result, out);
            }
            Doing::Read { key, slot, crc32 } => {
                self.finish_read(index, &entry, key, slot, crc32, completion.result, out)
            }
            Doing::Remove => {
                let result = self.removal_result(completion.result).map(|()| Placed::default());
                self.done(index, result, out);
                self.table.remove(index);
            }
            Doing::Mend => {
                self.counters.mended += 1;
                let _ = self.removal_result(completion.result);
                self.done(index, Err(Fault::Expired), out);
                self.table.remove(index);
            }
            Doing::Tidy { fault, victim } => {
                let _ = self.removal_result(completion.result);
                self.done(index, Err(fault), out);
                // Its owner counts the victim as gone; it may have been taken or not.
                match victim {
                    Some(victim) => {
                        self.table.set(index, Doing::Discard);
                        self.submit(index, FileOp::Remove(victim.path()));
                    }
                    None => self.table.remove(index),
                }
            }
            Doing::Quarantine { name } => match completion.result {
                Ok(_) => {
                    self.counters.quarantined += 1;
                    self.table.remove(index);
                }
                // Gone already, or no place to keep it: then it must at least not be found again.
                Err(_) => {
                    self.table.set(index, Doing::Discard);
                    self.submit(index, FileOp::Remove(name.path()));
                }
            },
            Doing::Discard => {
                let _ = self.removal_result(completion.result);
                self.table.remove(index);
            }
            Doing::Stat { name } => {
                self.table.remove(index);
                self.scanned(name, completion.result);
            }
            Doing::Sweep => {
                self.table.remove(index);
                self.swept(completion.result);
            }
        }
    }

    fn done(&mut self, index: u32, result: Result<Placed, Fault>, out: &mut Vec<PortEvent>) {
        if let Some(ticket) = self.table.take_ticket(index) {
            out.push(PortEvent::Done { ticket, result });
        }
    }

    /// A file that is missing is as good as removed.
    pub(super) fn removal_result(&mut self, result: Result<Outcome, DeviceError>) -> Result<(), Fault> {
        match result {
            Ok(_) => Ok(()),
            Err(error) if error.cause == Cause::Missing => Ok(()),
            Err(error) => Err(self.fault_of(error)),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one arm of `finish`")]
    fn finish_clear(
        &mut self,
        index: u32,
        entry: &Entry,
        key: Key,
        slot: SlotId,
        crc32: u32,
        result: Result<Outcome, DeviceError>,
        out: &mut Vec<PortEvent>,
    ) {
        let removed = self.removal_result(result);
        let given_up = entry.abandoned || self.closed || entry.deadline <= self.clock.now();
        match removed {
            Ok(()) if !given_up => self.write(index, key, slot, crc32, None, out),
            _ => {
                let fault = removed.err().unwrap_or(Fault::Expired);
                self.counters.expired += u64::from(fault == Fault::Expired);
                self.done(index, Err(fault), out);
                self.table.remove(index);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one arm of `finish`")]
    fn finish_write(
        &mut self,
        index: u32,
        entry: &Entry,
        key: Key,
        crc32: u32,
        victim: Option<BlockName>,
        result: Result<Outcome, DeviceError>,
        out: &mut Vec<PortEvent>,
    ) {
        let name = BlockName { namespace: self.options.namespace, key };
        match result {
            Ok(_) if entry.abandoned => {
                // Published although it was given up: the slot may have changed under the write, so the file has to go. Its bytes are
                // counted until the `Done`.
                self.counters.expired += 1;
                self.table.set(index, Doing::Mend);
                self.submit(index, FileOp::Remove(name.path()));
                return;
            }
            Ok(outcome) => {
                self.counters.recycled += u64::from(outcome.recycled);
                let victim_missed = victim.is_some() && !outcome.recycled;
                let allocated_bytes = outcome.stat.allocated_bytes;
                self.done(index, Ok(Placed { crc32, allocated_bytes, victim_missed }), out);
            }
            Err(error) => {
                if error.cause == Cause::Missing {
                    self.dirs.forget();
                }
                let fault = self.fault_of(error);
                let fault = if entry.abandoned { Fault::Expired } else { fault };
                // What was written may still stand under its temporary name, and its bytes are counted until the `Done`.
                self.table.set(index, Doing::Tidy { fault, victim });
                return self.submit(index, FileOp::Remove(temp_path(index)));
            }
        }
        self.table.remove(index);
    }

    #[allow(clippy::too_many_arguments, reason = "one arm of `finish`")]
    fn finish_read(
        &mut self,
        index: u32,
        entry: &Entry,
        key: Key,
        slot: SlotId,
        crc32: Option<u32>,
        result: Result<Outcome, DeviceError>,
        out: &mut Vec<PortEvent>,
    ) {
        let name = BlockName { namespace: self.options.namespace, key };
        if entry.abandoned {
            self.counters.expired += 1;
            self.done(index, Err(Fault::Expired), out);
            self.table.remove(index);
            return;
        }
        let corrupt = match result {
            Ok(_) => match self.verify(index, &key, slot, crc32) {
                Ok(crc32) => {
                    self.done(index, Ok(Placed { crc32, ..Placed::default() }), out);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            Err(DeviceError { cause: Cause::Short { got }, .. }) => Some(format!("it ends after {got} bytes")),
            Err(DeviceError { step: Step::Open, cause: Cause::Missing }) => {
                self.counters.absent += 1;
                self.done(index, Err(Fault::Absent), out);
                None
            }
            Err(error) => {
                let fault = self.fault_of(error);
                self.done(index, Err(fault), out);
                None
            }
        };
        match corrupt {
            Some(why) => {
                self.counters.corrupt += 1;
                self.done(index, Err(Fault::Corrupt), out);
                self.warn(Kind::Corrupt, &format_args!("{}: {why}", name.path()));
                self.quarantine(index, name);
            }
            None => self.table.remove(index),
        }
    }

    /// Everything that a load must satisfy beyond its length. Gives the CRC32.
    fn verify(&mut self, index: u32, key: &Key, slot: SlotId, known: Option<u32>) -> Result<u32, FooterError> {
        let payload_bytes = self.memory.block_bytes();
        let bytes = self.memory.footer(index).ok_or(FooterError::Magic)?;
        let footer = Footer::decode(bytes)?;
        footer.check(&self.options.namespace, key, payload_bytes)?;
        if self.options.verify_crc {
            let found = self.memory.payload_crc32(slot);
            if found != Some(footer.crc32) || known.is_some_and(|known| known != footer.crc32) {
                return Err(FooterError::PayloadCrc);
            }
        }
        Ok(footer.crc32)
    }

    /// Moves a bad file away in the entry of its load, so that a new store of the block waits for it.
    fn quarantine(&mut self, index: u32, name: BlockName) {
        if self.options.quarantine_files == 0 {
            self.table.set(index, Doing::Discard);
            return self.submit(index, FileOp::Remove(name.path()));
        }
        let place = self.next_quarantine % self.options.quarantine_files;
        self.next_quarantine = self.next_quarantine.wrapping_add(1);
        self.table.set(index, Doing::Quarantine { name });
        self.submit(index, FileOp::Rename { from: name.path(), to: quarantine_path(place) });
    }
}
