//! A directory that is not there: every store succeeds at once, no byte moves.

use std::collections::VecDeque;
use std::time::Duration;

use super::format::file_bytes;
use super::port::{Command, Placed, PortCounters, PortEvent, ShardPort};
use crate::tier::Fault;

/// Completes every command with the next poll, for policy studies. It keeps nothing: a load succeeds because the tier's index
/// says that the block is there.
#[derive(Debug)]
pub struct NullPort {
    allocated_bytes: u64,
    queue_entries: usize,
    events: VecDeque<PortEvent>,
    scanning: bool,
    closed: bool,
    counters: PortCounters,
}

impl NullPort {
    /// A port for blocks of `block_bytes` that takes `queue_entries` commands between two polls.
    pub fn new(block_bytes: u32, queue_entries: u32) -> Self {
        Self {
            allocated_bytes: file_bytes(block_bytes),
            queue_entries: queue_entries.max(1) as usize,
            events: VecDeque::new(),
            scanning: false,
            closed: false,
            counters: PortCounters::default(),
        }
    }
}

impl ShardPort for NullPort {
    fn push(&mut self, command: Command) -> Result<(), Command> {
        if self.closed || self.events.len() >= self.queue_entries {
            self.counters.refused += 1;
            return Err(command);
        }
        let placed = match &command {
            Command::Store { crc32, recycle, .. } => {
                self.counters.recycled += u64::from(recycle.is_some());
                Placed { crc32: crc32.unwrap_or(0), allocated_bytes: self.allocated_bytes, victim_missed: false }
            }
            Command::Load { crc32, .. } => Placed { crc32: crc32.unwrap_or(0), ..Placed::default() },
            Command::Remove { .. } => Placed::default(),
        };
        self.events.push_back(PortEvent::Done { ticket: command.ticket(), result: Ok(placed) });
        Ok(())
    }

    fn abandon(&mut self, ticket: u64) {
        for event in &mut self.events {
            if let PortEvent::Done { ticket: done, result } = event
                && *done == ticket
            {
                *result = Err(Fault::Expired);
                self.counters.expired += 1;
            }
        }
    }

    fn scan(&mut self) {
        self.scanning = !self.closed;
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut Vec<PortEvent>) {
        out.extend(self.events.drain(..));
        if std::mem::take(&mut self.scanning) {
            out.push(PortEvent::ScanEnd { complete: true });
        }
    }

    fn shutdown(&mut self, _within: Duration) {
        self.closed = true;
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
