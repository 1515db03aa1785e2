//! One directory's logic: queues, deadlines, checksums and the check of every load, over a [`Device`].
//!
//! A shard owns every buffer from the command to its `Done`. It runs wherever somebody calls [`Shard::step`]: on the thread of a
//! [`ThreadedPort`](super::ThreadedPort), or inside the poll of an [`InlinePort`](super::InlinePort).
//!
//! What holds:
//! - loads start before stores, and stores leave a quarter of the device's depth to loads;
//! - commands on one file, removal and recycling included, never overlap, and stores and removals keep their order;
//! - a `Done` is given only after the device completed the last operation that touches the slot;
//! - a store that was given up leaves no file: not started, cancelled, or removed again.

mod dirs;
mod finish;
mod memory;
mod queue;
mod register;
mod scan;
mod start;
mod table;
mod warn;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Region;

use self::dirs::KnownDirs;
use self::memory::ShardMemory;
use self::queue::{Queue, Work};
use self::scan::Scan;
use self::table::Table;
use self::warn::{Kind, WarnLimit};
use super::abandon::AbandonList;
use super::device::{Cause, Completion, Device, DeviceError, Registration};
use super::port::{BlockName, Command, PortCounters, PortEvent};
use crate::clock::{Clock, Time};
use crate::tier::Fault;

/// What a shard is told.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Digest of the tier's namespace.
    pub namespace: [u8; 32],
    /// Operations in flight, 1..=4096; the device may take fewer.
    pub queue_depth: u32,
    /// Commands that wait.
    pub queue_entries: u32,
    /// Files that did not check out and are kept for inspection; the newest replace the oldest. They take
    /// `quarantine_files` times the file length, beyond the tier's capacity. 0: such files are removed.
    pub quarantine_files: u32,
    /// Whether payloads are checked against their CRC32. `false` only to prove that a simulation finds it out.
    pub verify_crc: bool,
    /// Names the directory in log lines.
    pub label: String,
}

impl ShardOptions {
    /// The defaults for a namespace.
    pub fn new(namespace: [u8; 32]) -> Self {
        Self {
            namespace,
            queue_depth: 64,
            queue_entries: 65536,
            quarantine_files: 8,
            verify_crc: true,
            label: "nvme".into(),
        }
    }
}

/// One directory's logic. Not [`Send`] where its device is not.
pub struct Shard<D: Device> {
    /// `Some` until drop.
    device: Option<D>,
    memory: ShardMemory,
    registration: Registration,
    clock: Arc<dyn Clock>,
    options: ShardOptions,
    queue: Queue,
    table: Table,
    /// Writes that may be under way.
    write_limit: u32,
    scan: Option<Scan>,
    scan_held: bool,
    dirs: KnownDirs,
    abandons: Arc<AbandonList>,
    abandons_seen: u64,
    /// Taken from the list and not dealt with.
    given_up: HashSet<u64>,
    counters: PortCounters,
    warn: WarnLimit,
    next_quarantine: u32,
    closed: bool,
    completions: Vec<Completion>,
}

impl<D: Device> Shard<D> {
    /// A shard over `device`. Blocks have the region's `block_bytes`; a region without bytes gives [`Fault::Io`] for every
    /// block. No slot is touched here: a region may still be in the making.
    pub fn new(mut device: D, region: Arc<Region>, clock: Arc<dyn Clock>, options: ShardOptions) -> Self {
        let depth = options.queue_depth.min(device.depth()).clamp(1, 4096);
        let memory = ShardMemory::new(region, depth);
        let registration = memory.announce(&mut device);
        Self {
            device: Some(device),
            memory,
            registration,
            clock,
            queue: Queue::new(options.queue_entries.max(1)),
            table: Table::new(depth),
            write_limit: (depth - depth / 4).max(1),
            scan: None,
            scan_held: false,
            dirs: KnownDirs::new(options.namespace),
            abandons: Arc::default(),
            abandons_seen: 0,
            given_up: HashSet::new(),
            counters: PortCounters::default(),
            warn: WarnLimit::default(),
            next_quarantine: 0,
            closed: false,
            completions: Vec::with_capacity(depth as usize),
            options,
        }
    }

    /// The list that a port on another thread puts abandoned tickets on.
    pub fn abandons(&self) -> Arc<AbandonList> {
        Arc::clone(&self.abandons)
    }

    /// Queues a command, or gives it back: queue full, or closed.
    pub fn push(&mut self, command: Command) -> Result<(), Command> {
        if self.closed || self.queue.is_full() {
            self.counters.refused += 1;
            return Err(command);
        }
        self.queue.push(Work::from(command));
        Ok(())
    }

    /// Queues a command whose number the caller has bounded.
    pub(super) fn accept(&mut self, command: Command) {
        self.queue.push(Work::from(command));
    }

    /// Removes the file of a victim whose store never started.
    pub(super) fn remove_victim(&mut self, name: BlockName) {
        if !self.closed {
            self.queue.push_victim(name);
        }
    }

    /// Whether tickets were given up and not taken yet.
    pub(super) fn is_asked_to_abandon(&self) -> bool {
        self.abandons.seen() != self.abandons_seen
    }

    /// Whether reported blocks may pile up further: a port holds the scan while nobody collects its events.
    pub const fn hold_scan(&mut self, hold: bool) {
        self.scan_held = hold;
    }

    /// Starts a scan unless one runs.
    pub fn scan(&mut self) {
        if self.scan.is_none() && !self.closed {
            self.scan = Some(Scan::new());
        }
    }

    /// Does all that can be done without waiting: collects completions, gives up what expired, starts what fits. While the region is being
    /// registered with the kernel, one piece of it a step: some milliseconds each.
    pub fn step(&mut self, out: &mut Vec<PortEvent>) {
        // Before completions: what was given up by now must not be reported as stored.
        self.give_up(out);
        self.reap(out);
        let now = self.clock.now();
        self.expire(now, out);
        self.start(out);
        self.step_scan(out);
        self.step_registration();
    }

    /// Sleeps until there may be something to do (a completion, a deadline, somebody woke the device) or `timeout` passed.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        let deadline = self.queue.earliest().min(self.table.earliest());
        let to_deadline = (deadline != Time(u64::MAX)).then(|| deadline.since(self.clock.now()));
        let timeout = match (self.scan_can_go_on(), timeout, to_deadline) {
            (true, ..) => Some(Duration::ZERO),
            (false, Some(timeout), Some(to_deadline)) => Some(timeout.min(to_deadline)),
            (false, timeout, to_deadline) => timeout.or(to_deadline),
        };
        let timeout = match self.registration_wait() {
            Some(at_most) => Some(timeout.map_or(at_most, |timeout| timeout.min(at_most))),
            None => timeout,
        };
        if let Some(device) = &mut self.device {
            device.wait(timeout);
        }
    }

    /// Hands what was started to the kernel without waiting.
    pub fn flush(&mut self) {
        if let Some(device) = &mut self.device {
            device.flush();
        }
    }

    /// Takes no more commands and fails what is queued with [`Fault::Closed`]; what is under way goes on.
    pub fn close(&mut self, out: &mut Vec<PortEvent>) {
        self.closed = true;
        self.queue.clear(|ticket| out.push(PortEvent::Done { ticket, result: Err(Fault::Closed) }));
        if self.scan.take().is_some() {
            out.push(PortEvent::ScanEnd { complete: false });
        }
    }

    /// Whether nothing is under way: no operation of this shard touches any memory or file.
    pub fn is_quiet(&self) -> bool {
        self.table.in_use() == 0 && self.device.as_ref().is_none_or(|device| device.unfinished() == 0)
    }

    /// Operations under way.
    pub fn unfinished(&self) -> usize {
        self.table.in_use()
    }

    /// Counters now.
    pub const fn counters(&self) -> PortCounters {
        self.counters
    }

    /// The device, for a simulator that moves its time or its faults.
    pub const fn device_mut(&mut self) -> Option<&mut D> {
        self.device.as_mut()
    }

    /// Ends the shard as a crash would, and gives the device back. The memory that its operations own is leaked: the device
    /// may still refer to it.
    pub fn into_device(mut self) -> Option<D> {
        self.device.take()
    }

    /// Takes what is on the list of abandoned tickets. Their commands must have been pushed before the next
    /// [`Shard::step`]: call this, then push what came from the other thread, then step.
    pub fn take_abandoned(&mut self) {
        if self.abandons.seen() != self.abandons_seen {
            let mut tickets = Vec::new();
            self.abandons_seen = self.abandons.take(&mut tickets);
            self.given_up.extend(tickets);
        }
    }

    fn give_up(&mut self, out: &mut Vec<PortEvent>) {
        if self.given_up.is_empty() {
            return;
        }
        let tickets = std::mem::take(&mut self.given_up);
        let counters = &mut self.counters;
        self.queue.abandon(&tickets, |ticket| {
            counters.expired += 1;
            out.push(PortEvent::Done { ticket, result: Err(Fault::Expired) });
        });
        let Some(device) = &mut self.device else { return };
        for (index, entry) in self.table.iter_mut() {
            let is_given_up = entry.ticket.is_some_and(|ticket| tickets.contains(&ticket));
            if is_given_up && !matches!(entry.doing, table::Doing::Remove) {
                entry.abandoned = true;
                if !entry.cancelled {
                    entry.cancelled = true;
                    device.cancel(u64::from(index));
                }
            }
        }
    }

    fn expire(&mut self, now: Time, out: &mut Vec<PortEvent>) {
        let counters = &mut self.counters;
        self.queue.expire(now, |ticket| {
            counters.expired += 1;
            out.push(PortEvent::Done { ticket, result: Err(Fault::Expired) });
        });
        if self.table.earliest() > now {
            return;
        }
        let Some(device) = &mut self.device else { return };
        for (index, entry) in self.table.iter_mut() {
            if entry.deadline <= now && entry.ticket.is_some() && !entry.cancelled {
                entry.cancelled = true;
                device.cancel(u64::from(index));
            }
        }
    }

    /// Counts and logs a failed operation, and says what its owner is told.
    fn fault_of(&mut self, error: DeviceError) -> Fault {
        let (kind, fault) = match error.cause {
            Cause::Cancelled => {
                self.counters.expired += 1;
                return Fault::Expired;
            }
            Cause::NoSpace => {
                self.counters.full += 1;
                (Kind::Full, Fault::Full)
            }
            cause => {
                self.counters.io_errors += 1;
                let kind = match cause {
                    Cause::ReadOnly => Kind::ReadOnly,
                    Cause::Missing => Kind::Missing,
                    _ => Kind::Io,
                };
                (kind, Fault::Io)
            }
        };
        self.warn(kind, &error);
        fault
    }

    fn warn(&mut self, kind: Kind, problem: &dyn std::fmt::Display) {
        let Some(held_back) = self.warn.pass(kind, self.clock.now()) else { return };
        let what = match kind {
            Kind::Full => "the disk is full before the tier's capacity is: blocks are not stored",
            Kind::ReadOnly => "the directory became read-only: blocks are not stored",
            Kind::Missing => "the directory or a part of it is gone: blocks are not stored",
            Kind::Io => "the device failed an operation: the block is a miss",
            Kind::Corrupt => "a block file did not check out: it is quarantined and the block is a miss",
            Kind::Scan => "the scan skips a part of the directory",
        };
        tracing::warn!(directory = %self.options.label, held_back, "{what}: {problem}");
    }
}

impl<D: Device> Drop for Shard<D> {
    fn drop(&mut self) {
        let quiet = self.is_quiet();
        let Some(device) = self.device.take() else { return };
        if quiet {
            // The device goes first: it is what the memory is registered with.
            drop(device);
            // SAFETY: nothing is unfinished, the device is gone, and nobody uses `memory` after drop.
            #[expect(unsafe_code, reason = "frees the memory that operations owned")]
            unsafe {
                self.memory.release();
            }
        } else {
            // The kernel may still touch what the operations own: all of it stays for ever, the device included.
            std::mem::forget(device);
        }
    }
}
