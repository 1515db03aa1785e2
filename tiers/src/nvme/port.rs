//! The door between the tier's logic and one directory's shard.
//!
//! [`ShardPort`] has three implementations: [`ThreadedPort`](super::ThreadedPort) runs a
//! [`Shard`](super::Shard) on a thread of its own, [`InlinePort`](super::InlinePort) runs the same shard inside
//! [`ShardPort::poll`], and [`NullPort`](super::NullPort) completes everything and moves nothing.
//!
//! What holds for all of them: every command that was accepted yields exactly one [`PortEvent::Done`] with its
//! ticket, except [`Command::Remove`], which yields one too; and after that event nothing touches the command's slot.

use std::time::Duration;

use terrace_primary::{Key, SlotId};

use crate::clock::Time;
use crate::tier::Fault;

/// Names one block file: a file may belong to a namespace other than the tier's own, left by an earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName {
    /// Digest of the namespace.
    pub namespace: [u8; 32],
    /// Key of the block inside it.
    pub key: Key,
}

/// Work for one directory. Tickets are chosen by the caller and unique among the commands that are not done.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Write a slot to a file of the tier's own namespace.
    Store {
        /// Comes back with `Done`.
        ticket: u64,
        /// Name of the block.
        key: Key,
        /// Where its bytes are; they do not change until the command is done or abandoned.
        slot: SlotId,
        /// CRC32 of the payload if it is known; computed otherwise.
        crc32: Option<u32>,
        /// A block whose file may be taken over: renamed away, overwritten in place, renamed to the new name. Its file is
        /// gone when the command is done or soon after, **whatever the result**. One that is missing is no fault.
        recycle: Option<BlockName>,
        /// Given up at this time.
        deadline: Time,
    },
    /// Read a file of the tier's own namespace into a slot and verify it.
    Load {
        /// Comes back with `Done`.
        ticket: u64,
        /// Name of the block.
        key: Key,
        /// Where its bytes go.
        slot: SlotId,
        /// CRC32 that the index knows; it must match as well.
        crc32: Option<u32>,
        /// Given up at this time.
        deadline: Time,
    },
    /// Remove a file. One that is missing is no fault.
    Remove {
        /// Comes back with `Done`; `Placed` is all zero.
        ticket: u64,
        /// Whose file.
        name: BlockName,
    },
}

impl Command {
    /// The ticket.
    pub const fn ticket(&self) -> u64 {
        match self {
            Self::Store { ticket, .. } | Self::Load { ticket, .. } | Self::Remove { ticket, .. } => *ticket,
        }
    }
}

/// What became of a stored or loaded block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// CRC32 of the payload, as written or as verified.
    pub crc32: u32,
    /// Bytes that the file takes on the device, footer included. Zero for loads: unknown.
    pub allocated_bytes: u64,
    /// Stores that were told to take over a file: it was not found, and the block has a fresh one. Should the victim's file stand there all
    /// the same, it is the caller's to remove.
    pub victim_missed: bool,
}

/// A block file found by a scan. Its content was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedBlock {
    /// Whose file.
    pub name: BlockName,
    /// Bytes that it takes on the device.
    pub allocated_bytes: u64,
    /// When it was last written, nanoseconds since the epoch of the device's clock.
    pub modified_ns: u64,
}

/// What a port reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A command is done.
    Done {
        /// Its ticket.
        ticket: u64,
        /// What became of it.
        result: Result<Placed, Fault>,
    },
    /// Some files that the scan found, in no order. A file stored or removed while the scan runs may be missing or named.
    Scanned(Vec<ScannedBlock>),
    /// The scan is over.
    ScanEnd {
        /// Whether the whole directory was listed; `false`: a fault stopped it early somewhere.
        complete: bool,
    },
}

/// Counters of one directory since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Stores that took over a victim's file.
    pub recycled: u64,
    /// Loads whose file was missing.
    pub absent: u64,
    /// Loads whose file did not check out.
    pub corrupt: u64,
    /// Of those, files kept in quarantine; the others were removed.
    pub quarantined: u64,
    /// Operations that found the disk full.
    pub full: u64,
    /// Operations that the device failed for another reason.
    pub io_errors: u64,
    /// Operations given up at their deadline or abandoned.
    pub expired: u64,
    /// Stores that were published after they had been given up, and removed again.
    pub mended: u64,
    /// Commands refused because the queue was full.
    pub refused: u64,
    /// Files found by the scan that are no block files, or stand in the wrong place. They are left alone.
    pub foreign_files: u64,
    /// Temporary files of an earlier life that the scan removed.
    pub leftovers: u64,
}

/// One directory, driven by one thread. No call but `shutdown` waits for a device.
pub trait ShardPort: Send {
    /// Takes a command, or gives it back because the queue is full or the port is closed. Nothing happens before `flush`
    /// or `poll`.
    fn push(&mut self, command: Command) -> Result<(), Command>;

    /// Gives a command up. Its `Done` follows as soon as the slot is no longer touched: with the next poll for what is
    /// still queued, after the kernel's completion for what is not. A store given up never becomes readable, and its
    /// slot's content may change as soon as this returns. Unknown tickets are ignored.
    fn abandon(&mut self, ticket: u64);

    /// Starts to list the directory behind normal work, and to remove what earlier lives left in `tmp/`. One at a time:
    /// ignored while a scan runs.
    fn scan(&mut self);

    /// Wakes the shard. Once per batch of calls is enough.
    fn flush(&mut self);

    /// Appends what happened since the last call.
    fn poll(&mut self, out: &mut Vec<PortEvent>);

    /// Takes no more commands, fails what is queued with `Closed`, waits up to `within` for what is in the kernel, and joins
    /// the thread. A last `poll` gives the events. What the kernel still holds after `within` never gets an event: its
    /// memory is kept for ever.
    fn shutdown(&mut self, within: Duration);

    /// Counters now.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
