//! What goes between the manager's thread and the thread that talks to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use terrace_primary::{Key, SlotId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::blocks::Blocks;
pub(crate) use super::given_up::GivenUp;
use super::id::SegmentId;
use super::record::SegmentRecord;
use crate::clock::Time;
use crate::tier::{Fault, JobId, StoreBlock};

/// A block to read: where it is, and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlace {
    /// Place of the block in its job.
    pub index: u32,
    pub key: Key,
    pub slot: SlotId,
    pub segment: Arc<SegmentRecord>,
    pub position: u32,
}

/// A block to write, with its place in its job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorePlace {
    pub index: u32,
    pub block: StoreBlock,
}

/// From the manager's thread. Bounded by the blocks that the tier accepts.
#[derive(Debug)]
pub(crate) enum Command {
    Store {
        job: JobId,
        blocks: Vec<StorePlace>,
        deadline: Time,
        given_up: GivenUp,
    },
    Load {
        job: JobId,
        blocks: Vec<LoadPlace>,
        deadline: Time,
    },
    Abandon {
        job: JobId,
    },
    /// These segments were read or touched.
    Used(Vec<SegmentId>),
    /// Somebody asks for blocks: what others stored should be known soon.
    Asked,
    /// A store found no room: the collector should make some, if it is here.
    Full,
    /// To be dropped on this thread: it is large.
    Discard(Box<Blocks>),
    /// No further command comes: finish or fail what is in flight within this time.
    Shutdown {
        within: Duration,
    },
}

/// What became of a block of a job. Their number is bounded by the blocks that the tier accepts.
///
/// The manager's side takes these before any [`Change`] that waits: what is sent first here is seen first.
#[derive(Debug)]
pub(crate) enum Report {
    /// A block of a store job is done. Ok: its segment is in the store and named in the log.
    Stored { job: JobId, index: u32, outcome: Result<u32, Fault> },
    /// A block of a load job is done; its slot is not touched any more.
    Loaded { job: JobId, index: u32, outcome: Result<u32, Fault> },
    /// A segment that this tier wrote is in the log: sent before the `Stored` of its blocks.
    Published(Arc<SegmentRecord>),
    /// A block did not check out twice: forget it.
    Lost { segment: SegmentId, position: u32, key: Key },
    /// The log could not be read: what is not known is absent until it can.
    Unreachable,
}

/// A change of what is known.
pub(crate) enum Change {
    /// All that is known, in the place of all that was known before.
    Catalog(Box<Blocks>),
    /// A segment that is in the log. `own`: this process wrote it (behind a `Catalog`: while that was made).
    Added { segment: Arc<SegmentRecord>, own: bool },
    /// A segment is gone, or going.
    Removed(SegmentId),
}

impl Change {
    /// Blocks that the manager's side has to look at.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Catalog(_) | Self::Removed(_) => 1,
            Self::Added { segment, .. } => segment.blocks() as usize + 1,
        }
    }
}

/// Blocks in changes that wait to be taken. Beyond, folding waits.
const MAX_WAITING_BLOCKS: usize = 1 << 20;
/// How often a sender looks whether there is room again.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// The way of changes to the manager's side, bounded: an engine that never polls must not fill the memory.
#[derive(Clone)]
pub(crate) struct Changes {
    sender: UnboundedSender<Change>,
    waiting: Arc<AtomicUsize>,
}

impl Changes {
    /// Sends a change once there is room for it. False: nobody takes it any more.
    pub async fn send(&self, change: Change) -> bool {
        while self.waiting.load(Ordering::Relaxed) >= MAX_WAITING_BLOCKS {
            if self.sender.is_closed() {
                return false;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        self.waiting.fetch_add(change.blocks(), Ordering::Relaxed);
        self.sender.send(change).is_ok()
    }
}

/// The other end of [`Changes`].
pub(crate) struct ChangesReceiver {
    receiver: UnboundedReceiver<Change>,
    waiting: Arc<AtomicUsize>,
}

impl ChangesReceiver {
    /// The next change, if one waits.
    pub fn take(&mut self) -> Option<Change> {
        let change = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(change.blocks(), Ordering::Relaxed);
        Some(change)
    }
}

/// Both ends.
pub(crate) fn changes() -> (Changes, ChangesReceiver) {
    let (sender, receiver) = unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Changes { sender, waiting: Arc::clone(&waiting) }, ChangesReceiver { receiver, waiting })
}
