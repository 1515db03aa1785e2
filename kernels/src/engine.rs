//! The contract of a copy engine.

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
}

impl CopyStats {
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
    /// Takes a batch and returns at once. With `after`, no byte of it is touched before that earlier copy is done (a copy
    /// that is done already, or unknown because it was done long ago, is no hindrance). Copies without it run in any
    /// order and at the same time. `QueueFull` takes nothing.
    ///
    /// # Safety
    /// Until the copy is done, every `src` is valid for reads of `len` bytes and not written by others, every `dst` is valid for
    /// writes and not accessed by others, and no `dst` overlaps another run of the same batch.
    #[expect(unsafe_code, reason = "addresses of foreign memory: only the caller can know that they are valid")]
    unsafe fn submit(
        &mut self,
        direction: Direction,
        runs: &[CopyRun],
        after: Option<CopyId>,
    ) -> Result<CopyId, CopyError>;

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
