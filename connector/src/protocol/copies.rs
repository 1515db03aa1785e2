//! Copies by the daemon between a worker's GPU memory and the slots: the messages of the feature `device-copies`.

use serde::{Deserialize, Serialize};

/// The feature's name in [`super::Hello`] and [`super::HelloReply`].
pub const DEVICE_COPIES: &str = "device-copies";
/// Memories of one [`Attach`].
pub const MAX_MEMORIES: usize = 4_096;
/// Pages of one [`Attach`], in all groups.
pub const MAX_PAGES: usize = 65_536;
/// Bytes of a handle that another process opens, of memory and of events.
pub const HANDLE_BYTES: usize = 64;
/// Bytes of a device's UUID.
pub const UUID_BYTES: usize = 16;

/// Hands over the memory that holds KV caches. Once in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// UUID of the GPU, 16 bytes: ordinals differ between processes.
    #[serde(with = "serde_bytes")]
    pub device: Vec<u8>,
    /// Allocations, as the driver exports them.
    pub memories: Vec<Memory>,
    /// For each KV-cache group its tensors, in the order in which their pages lie in the worker's part of a slot.
    pub groups: Vec<Vec<Page>>,
    /// Where the worker's part of a slot starts, in bytes.
    pub part_offset: u32,
    /// Length of that part.
    pub part_bytes: u32,
    /// A block that counts but is not copied.
    pub null_block: Option<u32>,
    /// An event of the worker, 64 bytes: recorded before each [`struct@Copy`] that stores, behind all that writes its pages.
    #[serde(with = "serde_bytes")]
    pub store_ready: Vec<u8>,
    /// Likewise before each [`struct@Copy`] that loads, behind all that uses its pages.
    #[serde(with = "serde_bytes")]
    pub load_ready: Vec<u8>,
}

/// Memory of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The driver's handle, 64 bytes.
    #[serde(with = "serde_bytes")]
    pub handle: Vec<u8>,
    /// Where the exported address lies in its allocation.
    pub offset: u64,
    /// Length of the allocation.
    pub allocation_bytes: u64,
}

/// A tensor as rows of pages, one for each GPU block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Index into [`Attach::memories`].
    pub memory: u32,
    /// Where the page of block 0 starts, from the exported address.
    pub offset: u64,
    /// GPU blocks.
    pub num_blocks: u32,
    /// Bytes of one block.
    pub page_bytes: u32,
    /// Bytes from the page of one block to that of the next.
    pub page_stride: u64,
}

/// The daemon has opened everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReply {
    /// An event of the daemon, 64 bytes: recorded behind the copies of each [`struct@Copy`] that stores.
    #[serde(with = "serde_bytes")]
    pub stored: Vec<u8>,
    /// Likewise of each [`struct@Copy`] that loads.
    #[serde(with = "serde_bytes")]
    pub loaded: Vec<u8>,
}

/// Copies pages to slots, or slots to pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// True: pages to slots.
    pub store: bool,
    /// What is copied, all of one step.
    pub jobs: Vec<CopyJob>,
}

/// The worker's part of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyJob {
    /// The job.
    pub job: u64,
    /// GPU blocks, group after group, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub blocks: Vec<u8>,
    /// Blocks of each group, likewise.
    #[serde(with = "serde_bytes")]
    pub sizes: Vec<u8>,
    /// Place of each group's first block in the request, likewise: modulo `blocks_per_chunk` the places that are
    /// skipped in its first slot.
    #[serde(with = "serde_bytes")]
    pub firsts: Vec<u8>,
    /// Slots, group after group, one for each chunk, likewise.
    #[serde(with = "serde_bytes")]
    pub slots: Vec<u8>,
}

/// Nothing is copied for these jobs any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Each job of a [`struct@Copy`] once.
    pub jobs: Vec<CopiedJob>,
}

/// How the copies of a job ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedJob {
    /// The job.
    pub job: u64,
    /// Whether all bytes are there. If not, nothing is known of any of them.
    pub ok: bool,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Microseconds from the arrival of its [`struct@Copy`] to the end of its copies.
    pub micros: u64,
}
