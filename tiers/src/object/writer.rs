//! Stores: blocks of many jobs become few segments.
//!
//! Each block is copied once, out of its slot into staging memory, and hashed on the way; from there its segment goes to the
//! store without another copy. [`assembly`] decides which blocks go together, [`upload`] sends them, [`pool`] bounds the memory: what finds
//! none waits in its slot.
//!
//! **Requests.** A full segment of the default size is one PUT and a share of a log object for 15 blocks of 256 KiB. Larger ones
//! were slower: a server that buffers whole bodies needs memory for all that are on their way, and writes each at once, which takes memory
//! for its page cache in pieces of 2 MiB that a virtual machine may not have yet (`benches/RESULTS.md`). A job of a quarter of a segment
//! is a PUT of its own. Less than that waits for [`linger`](terrace_config::ObjectConfig::linger) to be joined by others.
//!
//! **Given up.** A slot may change as soon as its job is given up. The copy of a block counts only if [`GivenUp`] is not set
//! behind it.

mod assembly;
mod pool;
mod sealed;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::{Region, SlotId};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{Id, JoinError, JoinSet};

use super::id::{SegmentId, Stamp};
use super::log::LogRecord;
use super::port::{GivenUp, Report, StorePlace};
use super::publisher::PublisherHandle;

use super::record::SegmentRecord;
use super::segment::HEADER_BYTES;
use super::shared::Shared;
use crate::clock::Time;
use crate::tier::{Fault, JobId};
use assembly::{Assembly, ItemId, Limits};
use pool::Pool;

/// Bytes that are copied before others run: a tenth of a millisecond at the speed of memory.
const COPY_AT_ONCE: usize = 1 << 20;
/// Bytes that are hashed while they are still in the cache.
const CACHED_BYTES: usize = 128 << 10;
/// A job that fills this part of a segment is not kept waiting for others.
const ALONE_SHARE: u32 = 4;

/// What the writer is told.
#[derive(Debug)]
pub(crate) enum WriteCommand {
    /// Blocks of a job; one job may come in several pieces, with the same deadline.
    Store { job: JobId, blocks: Vec<StorePlace>, deadline: Time, given_up: GivenUp },
    /// What is not sealed of this job is left out.
    Abandon { job: JobId },
    /// No further command comes. What is not done by then is told as closed.
    Finish { by: Time },
}

/// What a writer needs of the log.
pub(crate) trait Publish: Send + Sync + 'static {
    /// A name for a new segment, and the time for its record.
    fn next_segment(&self) -> (SegmentId, Stamp);
    /// Names a segment in the log. True: it is in the log, for all nodes. False: it was given up.
    fn publish(&self, segment: Arc<SegmentRecord>) -> impl Future<Output = bool> + Send;
}

impl Publish for PublisherHandle {
    fn next_segment(&self) -> (SegmentId, Stamp) {
        Self::next_segment(self)
    }

    async fn publish(&self, segment: Arc<SegmentRecord>) -> bool {
        matches!(self.append(vec![LogRecord::Added(segment)]).await, Ok(Ok(())))
    }
}

/// Writes what `commands` bring until they end and all is done, or until the time that [`WriteCommand::Finish`] names. Each block is
/// reported exactly once; its slot is not read any more then. Dropping the future ends everything, with nothing more reported.
pub(crate) async fn write(
    shared: Arc<Shared>,
    publisher: impl Publish,
    reports: UnboundedSender<Report>,
    commands: UnboundedReceiver<WriteCommand>,
) {
    Writer::new(shared, publisher, reports, commands).run().await;
}

struct Writer<P> {
    shared: Arc<Shared>,
    publisher: Arc<P>,
    reports: UnboundedSender<Report>,
    /// `None`: no more will come.
    commands: Option<UnboundedReceiver<WriteCommand>>,
    finish_by: Option<Time>,
    assembly: Assembly,
    pool: Pool,
    uploads: JoinSet<Result<Arc<SegmentRecord>, Fault>>,
    sealed: HashMap<Id, Vec<ItemId>>,
    /// Bytes copied since others ran.
    copied: usize,
}

impl<P: Publish> Writer<P> {
    fn new(
        shared: Arc<Shared>,
        publisher: P,
        reports: UnboundedSender<Report>,
        commands: UnboundedReceiver<WriteCommand>,
    ) -> Self {
        let Shared { config, shape, .. } = &*shared;
        let blocks = shape.blocks_within(config.segment_bytes.into());
        let limits = Limits { blocks, alone: blocks.div_ceil(ALONE_SHARE), linger: config.linger };
        // A block's part of the index is built beside its buffer.
        let each = shape.stride() + shape.index_bytes(1).saturating_sub(shape.index_bytes(0));
        let buffers = usize::try_from(config.staging_bytes / each).unwrap_or(usize::MAX);
        let buffer_bytes = HEADER_BYTES + shape.block_bytes as usize;
        Self {
            assembly: Assembly::new(*shape, limits, reports.clone()),
            pool: Pool::new(buffer_bytes, buffers),
            publisher: Arc::new(publisher),
            reports,
            commands: Some(commands),
            finish_by: None,
            uploads: JoinSet::new(),
            sealed: HashMap::new(),
            copied: 0,
            shared,
        }
    }

    async fn run(mut self) {
        loop {
            self.take_commands();
            while let Some(ended) = self.uploads.try_join_next_with_id() {
                self.uploaded(ended);
            }
            let now = self.shared.clock.now();
            self.assembly.expire(now);
            let last = self.commands.is_none();
            if last && self.assembly.is_idle() && self.uploads.is_empty() {
                return;
            }
            if self.finish_by.is_some_and(|by| by <= now) {
                return self.assembly.end(Fault::Closed);
            }
            if self.assembly.is_due(last, now) {
                self.send_segment();
            } else if !self.copy_next().await {
                self.wait().await;
            }
        }
    }

    fn take_commands(&mut self) {
        while let Some(commands) = &mut self.commands {
            match commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.commands = None,
            }
        }
    }

    fn take(&mut self, command: WriteCommand) {
        match command {
            WriteCommand::Store { job, blocks, deadline, given_up } => {
                self.assembly.store(job, blocks, deadline, given_up, self.shared.clock.now());
            }
            WriteCommand::Abandon { job } => self.assembly.give_up(job, Fault::Expired),
            WriteCommand::Finish { by } => {
                self.finish_by = Some(by);
                self.commands = None;
            }
        }
    }

    /// Copies one block, if one waits and there is memory.
    async fn copy_next(&mut self) -> bool {
        let Some(copy) = self.assembly.next_copy() else { return false };
        let Some(mut buffer) = self.pool.take() else { return false };
        let crc32 = self.copy(copy.slot(), buffer.as_mut()).await;
        self.assembly.copied(&copy, crc32.map(|crc32| (buffer, crc32)), self.shared.clock.now());
        true
    }

    /// The payload of `slot` behind the room for its header. Answers its CRC32; `None` where the slot cannot be read.
    async fn copy(&mut self, slot: SlotId, buffer: &mut [u8]) -> Option<u32> {
        let mut crc32 = crc32fast::Hasher::new();
        let mut at = 0;
        for piece in buffer.get_mut(HEADER_BYTES..)?.chunks_mut(CACHED_BYTES) {
            read(&self.shared.region, slot, at, piece)?;
            crc32.update(piece);
            at += piece.len();
            self.copied += piece.len();
            if self.copied >= COPY_AT_ONCE {
                self.copied = 0;
                tokio::task::yield_now().await;
            }
        }
        Some(crc32.finalize())
    }

    fn send_segment(&mut self) {
        let (id, created) = self.publisher.next_segment();
        let Some((sealed, items)) = self.assembly.seal(id, created) else { return };
        let upload = upload::upload(Arc::clone(&self.shared), Arc::clone(&self.publisher), sealed);
        self.sealed.insert(self.uploads.spawn(upload).id(), items);
    }

    fn uploaded(&mut self, ended: Result<(Id, Result<Arc<SegmentRecord>, Fault>), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => {
                tracing::error!(tier = %self.shared.tier, %error, "the upload of a segment panicked");
                (error.id(), Err(Fault::Io))
            }
        };
        let items = self.sealed.remove(&id).unwrap_or_default();
        let outcome = outcome.map(|segment| {
            // First that it can be found, then that it is stored.
            let _ = self.reports.send(Report::Published(segment));
        });
        self.assembly.done(&items, outcome);
    }

    /// Until something happens that may matter.
    async fn wait(&mut self) {
        let at = self.assembly.next_time().into_iter().chain(self.finish_by).min();
        let pause = at.map_or(Duration::MAX, |at| at.since(self.shared.clock.now()));
        let command = async {
            match &mut self.commands {
                Some(commands) => commands.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            command = command => match command {
                Some(command) => self.take(command),
                None => self.commands = None,
            },
            Some(ended) = self.uploads.join_next_with_id() => self.uploaded(ended),
            () = self.pool.freed(), if self.assembly.has_waiting() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Copies from `slot`. A null region holds no bytes: all are zero. `None`: the slot is not there or too small.
fn read(region: &Region, slot: SlotId, at: usize, to: &mut [u8]) -> Option<()> {
    if region.moves_bytes() {
        return region.read_slot_at(slot, at, to).then_some(());
    }
    to.fill(0);
    Some(())
}
