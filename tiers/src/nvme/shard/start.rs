//! Starting what waits.

use terrace_primary::{Key, SlotId};

use super::Shard;
use super::queue::{Line, Work};
use super::table::{Doing, Entry, print_of};
use crate::clock::Time;
use crate::nvme::device::{Device, FileOp, ReadFile, WriteFile};
use crate::nvme::format::Footer;
use crate::nvme::name::temp_path;
use crate::nvme::port::{BlockName, PortEvent};
use crate::tier::Fault;

/// Bytes checksummed before what was started is handed to the kernel, so that it works while the next sum is computed.
const FLUSH_BYTES: u64 = 512 << 10;

impl<D: Device> Shard<D> {
    /// Starts loads, then stores and removals, until the table is full or the first of a line must wait.
    pub(super) fn start(&mut self, out: &mut Vec<PortEvent>) {
        let mut summed_bytes = 0;
        for line in [Line::Loads, Line::Stores] {
            while self.can_start(line) {
                let Some(work) = self.queue.pop(line) else { break };
                match work {
                    Work::Load { ticket, key, slot, crc32, deadline } => {
                        let files = [Some(self.own_print(&key)), None];
                        let doing = Doing::Read { key, slot, crc32 };
                        let entry =
                            Entry { doing, ticket: Some(ticket), files, deadline, cancelled: false, abandoned: false };
                        self.start_load(key, slot, entry, out);
                    }
                    Work::Remove { ticket, name } => {
                        self.start_remove(ticket, &name);
                    }
                    Work::Store { ticket, key, slot, crc32, recycle, deadline } => {
                        let Some(crc32) = self.checksum(ticket, slot, crc32, &mut summed_bytes, out) else {
                            recycle.into_iter().for_each(|name| self.queue.push_victim(name));
                            continue;
                        };
                        let files =
                            [Some(self.own_print(&key)), recycle.map(|name| print_of(&name.namespace, &name.key))];
                        let doing = Doing::Write { key, crc32, victim: recycle };
                        let entry =
                            Entry { doing, ticket: Some(ticket), files, deadline, cancelled: false, abandoned: false };
                        self.start_store(entry, key, slot, crc32, recycle, out);
                    }
                }
                if summed_bytes >= FLUSH_BYTES {
                    summed_bytes = 0;
                    self.flush();
                }
            }
        }
    }

    fn own_print(&self, key: &Key) -> u64 {
        print_of(&self.options.namespace, key)
    }

    /// Whether there is room for the first of a line and no file of it is in use.
    fn can_start(&self, line: Line) -> bool {
        if self.table.next_free().is_none() {
            return false;
        }
        match self.queue.front(line) {
            None => false,
            Some(Work::Load { key, slot, crc32, .. }) => {
                let doing = Doing::Read { key: *key, slot: *slot, crc32: *crc32 };
                !self.table.clashes([Some(self.own_print(key)), None], &doing)
            }
            Some(Work::Remove { name, .. }) => {
                self.table.writes() < self.write_limit
                    && !self.table.clashes([Some(print_of(&name.namespace, &name.key)), None], &Doing::Remove)
            }
            Some(Work::Store { key, recycle, .. }) => {
                let files = [Some(self.own_print(key)), recycle.map(|name| print_of(&name.namespace, &name.key))];
                self.table.writes() < self.write_limit
                    && !self.stores_pause()
                    && !self.table.clashes(files, &Doing::Remove)
            }
        }
    }

    /// The CRC32 to store, or `None` after the `Done` of a store that cannot go on.
    fn checksum(
        &mut self,
        ticket: u64,
        slot: SlotId,
        known: Option<u32>,
        summed_bytes: &mut u64,
        out: &mut Vec<PortEvent>,
    ) -> Option<u32> {
        if known.is_some() {
            return known;
        }
        let crc32 = self.memory.payload_crc32(slot);
        *summed_bytes += u64::from(self.memory.block_bytes());
        let Some(crc32) = crc32 else {
            self.counters.io_errors += 1;
            out.push(PortEvent::Done { ticket, result: Err(Fault::Io) });
            return None;
        };
        // Given up while the sum was computed: the slot may hold another block's bytes by now.
        if !self.abandons.is_unchanged(self.abandons_seen) && self.abandons.contains(ticket) {
            self.counters.expired += 1;
            out.push(PortEvent::Done { ticket, result: Err(Fault::Expired) });
            return None;
        }
        Some(crc32)
    }

    fn start_load(&mut self, key: Key, slot: SlotId, entry: Entry, out: &mut Vec<PortEvent>) {
        let path = BlockName { namespace: self.options.namespace, key }.path();
        let index = self.table.next_free();
        let buffers = index.and_then(|index| self.memory.buffers(slot, index));
        let (Some((payload, footer)), Some(index)) = (buffers, index) else {
            self.counters.io_errors += 1;
            out.extend(entry.ticket.map(|ticket| PortEvent::Done { ticket, result: Err(Fault::Io) }));
            return;
        };
        self.table.insert(entry);
        self.submit(index, FileOp::Read(ReadFile { path, payload, footer }));
    }

    pub(super) fn start_remove(&mut self, ticket: Option<u64>, name: &BlockName) {
        let files = [Some(print_of(&name.namespace, &name.key)), None];
        let entry =
            Entry { doing: Doing::Remove, ticket, files, deadline: Time(u64::MAX), cancelled: false, abandoned: false };
        if let Some(index) = self.table.insert(entry) {
            self.submit(index, FileOp::Remove(name.path()));
        }
    }

    /// Makes the directory where needed, then removes a victim that cannot be taken over, or writes at once.
    fn start_store(
        &mut self,
        mut entry: Entry,
        key: Key,
        slot: SlotId,
        crc32: u32,
        recycle: Option<BlockName>,
        out: &mut Vec<PortEvent>,
    ) {
        let foreign = recycle.filter(|victim| victim.namespace != self.options.namespace);
        if foreign.is_some() {
            entry.doing = Doing::Clear { key, slot, crc32 };
        }
        let Some(index) = self.table.insert(entry) else { return };
        match foreign {
            // A file of another namespace may have another length, and is not ours to resize: it goes, and a fresh one comes.
            Some(victim) => self.submit(index, FileOp::Remove(victim.path())),
            None => self.write(index, key, slot, crc32, recycle, out),
        }
    }

    /// Submits the write of table entry `index`, or gives its `Done` and frees it.
    pub(super) fn write(
        &mut self,
        index: u32,
        key: Key,
        slot: SlotId,
        crc32: u32,
        recycle: Option<BlockName>,
        out: &mut Vec<PortEvent>,
    ) {
        let name = BlockName { namespace: self.options.namespace, key };
        let made = match &mut self.device {
            Some(device) => self.dirs.ensure(device, name.fan_out()),
            None => return,
        };
        let buffers = made.map(|()| self.memory.buffers(slot, index));
        let (payload, footer) = match buffers {
            Ok(Some(buffers)) => buffers,
            Ok(None) => return self.fail_write(index, Fault::Io, recycle, out),
            Err(error) => {
                let fault = self.fault_of(error);
                return self.fail_write(index, fault, recycle, out);
            }
        };
        let block = Footer { namespace: name.namespace, key, payload_bytes: self.memory.block_bytes(), crc32 };
        if let Some(bytes) = self.memory.footer(index) {
            block.encode(bytes);
        }
        self.table.set(index, Doing::Write { key, crc32, victim: recycle });
        let op = WriteFile {
            temp: temp_path(index),
            target: name.path(),
            recycle: recycle.map(|victim| victim.path()),
            payload,
            footer,
        };
        self.submit(index, FileOp::Write(op));
    }

    /// Ends a store that never reached the device; its victim is removed in the same entry, because its bytes were counted
    /// as freed.
    fn fail_write(&mut self, index: u32, fault: Fault, recycle: Option<BlockName>, out: &mut Vec<PortEvent>) {
        if let Some(ticket) = self.table.take_ticket(index) {
            out.push(PortEvent::Done { ticket, result: Err(fault) });
        }
        match recycle {
            Some(victim) => {
                self.table.set(index, Doing::Remove);
                self.submit(index, FileOp::Remove(victim.path()));
            }
            None => self.table.remove(index),
        }
    }

    pub(super) fn submit(&mut self, index: u32, op: FileOp) {
        if let Some(device) = &mut self.device {
            device.submit(u64::from(index), op);
        }
    }
}
