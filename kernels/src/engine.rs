//! The contract of a copy engine.

use crate::cuda::CudaStats;

/// Which way bytes go. A host engine treats both alike; a GPU engine picks its copy queue by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Engine memory to the primary region: a store.
    DeviceToHost,
    /// Primary region to engine memory: a load.
    HostToDevice,
}

/// `len` bytes from address `src` to address `dst`. The two do not overlap. Zero bytes are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// Address of the first byte to read.
    pub src: usize,
    /// Address of the first byte to write.
    pub dst: usize,
    /// Bytes.
    pub len: usize,
}

impl CopyRun {
    /// `Invalid` if the run wraps around the address space, overlaps itself or starts at address zero.
    pub(crate) fn check(&self) -> Result<(), CopyError> {
        if self.len == 0 {
            return Ok(());
        }
        let ends = self.src.checked_add(self.len).zip(self.dst.checked_add(self.len));
        let fault = match ends {
            None => "wraps around the address space",
            Some(_) if self.src == 0 || self.dst == 0 => "has no address",
            Some((src_end, dst_end)) if self.src < dst_end && self.dst < src_end => "overlaps itself",
            Some(_) => return Ok(()),
        };
        Err(CopyError::Invalid(format!(
            "the run of {} bytes from {:#x} to {:#x} {fault}",
            self.len, self.src, self.dst
        )))
    }
}

/// A stream of the device in this process, by its driver handle (a `CUstream`, which is what `torch.cuda.Stream.cuda_stream` holds).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub u64);

/// An event of the device in this process, by its driver handle (a `CUevent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub u64);

/// A point in the work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    /// To wait for: all work that is in the stream when the copy is submitted. To be waited for by: all work that is put
    /// into it after the submission.
    Stream(StreamHandle),
    /// To wait for: what stands before the event's latest record, made before the submission. To be waited for: the
    /// event is recorded behind the copy.
    Event(EventHandle),
}

/// What a copy is ordered by. The default: nothing. No order is kept by a wait of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// No byte is touched before this earlier copy is done. One that is done already, or unknown because it was done long
    /// ago, is no hindrance.
    pub after_copy: Option<CopyId>,
    /// No byte is touched before the device has come to this point: a store waits for the stream that computes.
    pub after: Option<Token>,
    /// What comes behind this point waits for the copy: a stream that computes waits for a load.
    pub before: Option<Token>,
}

impl Order {
    /// Only behind an earlier copy.
    pub const fn behind(copy: CopyId) -> Self {
        Self { after_copy: Some(copy), after: None, before: None }
    }
}

/// Names a submitted copy; unique in the life of an engine, growing with each submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(pub u64);

/// A copy that is done: the engine touches its memory no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyDone {
    /// Which one.
    pub id: CopyId,
    /// Whether all bytes arrived; on an error the destination's content is undefined.
    pub result: Result<(), CopyError>,
    /// Bytes of all its runs.
    pub bytes: u64,
}

/// Why a copy was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// So many copies are in flight already: poll and submit again.
    #[error("{limit} copies are in flight already")]
    QueueFull {
        /// Bound of the queue.
        limit: usize,
    },
    /// A run or an argument that no engine can carry out.
    #[error("invalid copy: {0}")]
    Invalid(String),
    /// The engine has been shut down.
    #[error("the copy engine is closed")]
    Closed,
    /// This build or this machine has no such engine.
    #[error("{0}")]
    Unsupported(String),
    /// A library that must be loaded at run time is not there.
    #[error("{library} cannot be loaded: {reason}")]
    MissingLibrary {
        /// Its file name, and what brings it.
        library: &'static str,
        /// What was tried, and with what result.
        reason: String,
    },
    /// The device, or its share of host memory, has no room.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device failed in a way that ends all work on it in this process. The engine takes no more copies.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The device failed.
    #[error("copy failed: {0}")]
    Failed(String),
}

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Copies accepted.
    pub copies: u64,
    /// Runs of these.
    pub runs: u64,
    /// Bytes of these, to the host.
    pub bytes_to_host: u64,
    /// Bytes of these, to the device.
    pub bytes_to_device: u64,
    /// Submissions refused because the queue was full.
    pub refused: u64,
    /// What a GPU's engine counts beside; all 0 for the others.
    pub cuda: CudaStats,
}

impl CopyStats {
    /// Of two engines together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            copies: self.copies + other.copies,
            runs: self.runs + other.runs,
            bytes_to_host: self.bytes_to_host + other.bytes_to_host,
            bytes_to_device: self.bytes_to_device + other.bytes_to_device,
            refused: self.refused + other.refused,
            cuda: self.cuda.plus(other.cuda),
        }
    }

    /// Counts an accepted copy.
    pub(crate) fn count(&mut self, direction: Direction, runs: usize, bytes: u64) {
        self.copies += 1;
        self.runs += runs as u64;
        match direction {
            Direction::DeviceToHost => self.bytes_to_host += bytes,
            Direction::HostToDevice => self.bytes_to_device += bytes,
        }
    }
}

/// Copies batches of runs between engine memory and the primary region. Driven by one thread.
pub trait CopyEngine: Send {
    /// Takes a batch and returns at once. Copies without an order run in any order and at the same time. A refused batch
    /// has touched nothing and recorded nothing. An engine without a device refuses tokens as `Unsupported`.
    ///
    /// # Safety
    /// Until the copy is done, every `src` is valid for reads of `len` bytes and not written by others (but by work of the device that
    /// the order puts before the copy), every `dst` is valid for writes and not accessed by others (but by work of the device that
    /// the order puts before or behind it), and no `dst` overlaps another run of the same batch. Streams and events
    /// of the order are alive and belong to the engine's device.
    #[expect(unsafe_code, reason = "addresses of foreign memory: only the caller can know that they are valid")]
    unsafe fn submit(&mut self, direction: Direction, runs: &[CopyRun], order: Order) -> Result<CopyId, CopyError>;

    /// Appends each copy that became done since the last call, once. Does not wait.
    fn poll(&mut self, out: &mut Vec<CopyDone>);

    /// Waits until these copies are done. They are still reported by the next [`CopyEngine::poll`]; copies that were
    /// reported already, and unknown ones, are not waited for.
    fn wait(&mut self, ids: &[CopyId]) -> Result<(), CopyError>;

    /// Copies accepted and not yet reported by [`CopyEngine::poll`].
    fn in_flight(&self) -> usize;

    /// What this engine is, for logs.
    fn describe(&self) -> String;

    /// Whether bytes really move. An engine that answers `false` reads no address.
    fn moves_bytes(&self) -> bool;

    /// Counters now.
    fn stats(&self) -> CopyStats;
}
