//! Registration of host memory, piece by piece, behind the running service.
#![expect(unsafe_code, reason = "registering memory with the driver")]

mod pieces;
mod sync;

use std::any::Any;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::driver::Driver;
use super::plan::{HostMap, HostSpan, Pinned};
use crate::engine::CopyError;
use pieces::{Piece, PieceTable};

/// How memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinOptions {
    /// Bytes of a piece, a multiple of [`PIECE_ALIGN_BYTES`]. Larger pieces are fewer seams where runs are cut; smaller ones
    /// are ready sooner.
    pub piece_bytes: usize,
    /// Threads that register, 1 to 64.
    pub threads: usize,
}

impl Default for PinOptions {
    fn default() -> Self {
        Self { piece_bytes: 256 << 20, threads: 4 }
    }
}

/// Pieces begin and end at huge pages.
pub const PIECE_ALIGN_BYTES: usize = 2 << 20;

/// Threads at most.
const MAX_THREADS: usize = 64;

/// How far a registration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinProgress {
    /// Pieces of the memory.
    pub pieces: usize,
    /// Pieces that are registered.
    pub registered: usize,
    /// Pieces that the driver refused. Their copies go as pageable.
    pub refused: usize,
    /// Bytes that are registered.
    pub bytes: u64,
}

impl PinProgress {
    /// Of two registrations together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            pieces: self.pieces + other.pieces,
            registered: self.registered + other.registered,
            refused: self.refused + other.refused,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Whether no piece waits for its turn.
    pub const fn is_over(&self) -> bool {
        self.waiting() == 0
    }

    /// Pieces that wait for their turn.
    pub const fn waiting(&self) -> usize {
        self.pieces.saturating_sub(self.registered + self.refused)
    }
}

#[derive(Debug)]
struct Shared {
    base: usize,
    len: usize,
    piece_bytes: usize,
    pieces: PieceTable,
}

impl Shared {
    /// Address and length of a piece.
    fn piece(&self, index: usize) -> (usize, usize) {
        let offset = index * self.piece_bytes;
        (self.base + offset, self.piece_bytes.min(self.len - offset))
    }
}

/// Host memory that is, or is becoming, registered with the driver. Engines of several devices share one: a registration holds
/// for all devices of the process. Dropping the last reference ends all registrations; engines keep one until their copies are done.
pub struct RegionPins {
    driver: Arc<dyn Driver>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Keeps the memory mapped. Dropped last.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for RegionPins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionPins").field("base", &self.shared.base).field("progress", &self.progress()).finish()
    }
}

impl RegionPins {
    /// Begins to register `len` bytes at `base` and returns at once. Pages that were never touched are backed by it, which is
    /// slow: prefault before.
    ///
    /// # Safety
    /// The memory is mapped, readable and writable as long as `keep` lives.
    pub unsafe fn start(
        driver: &Arc<dyn Driver>,
        base: usize,
        len: usize,
        keep: Arc<dyn Any + Send + Sync>,
        options: PinOptions,
    ) -> Result<Self, CopyError> {
        let PinOptions { piece_bytes, threads } = options;
        let whole = piece_bytes > 0 && piece_bytes.is_multiple_of(PIECE_ALIGN_BYTES);
        if base == 0 || len == 0 || base.checked_add(len).is_none() || !whole || threads == 0 || threads > MAX_THREADS {
            return Err(CopyError::Invalid(format!(
                "registering {len} bytes at {base:#x} in pieces of {piece_bytes} (a multiple of {PIECE_ALIGN_BYTES}) by {threads} \
                 threads (1 to {MAX_THREADS})"
            )));
        }
        let pieces = PieceTable::new(len.div_ceil(piece_bytes));
        let shared = Arc::new(Shared { base, len, piece_bytes, pieces });
        let mut pins = Self { driver: Arc::clone(driver), shared, threads: Vec::new(), _keep: keep };
        let began = Instant::now();
        for index in 0..threads.min(pins.shared.pieces.len()) {
            let (driver, shared) = (Arc::clone(&pins.driver), Arc::clone(&pins.shared));
            let thread = std::thread::Builder::new()
                .name(format!("terrace-pin-{index}"))
                .spawn(move || register_all(&*driver, &shared, began))
                .map_err(|error| CopyError::Failed(format!("no thread to register memory on: {error}")))?;
            pins.threads.push(thread);
        }
        Ok(pins)
    }

    /// How far it is.
    pub fn progress(&self) -> PinProgress {
        let mut progress = PinProgress { pieces: self.shared.pieces.len(), ..PinProgress::default() };
        for index in 0..self.shared.pieces.len() {
            match self.shared.pieces.get(index) {
                Piece::Pending => {}
                Piece::Refused => progress.refused += 1,
                Piece::Registered(_) => {
                    progress.registered += 1;
                    progress.bytes += self.shared.piece(index).1 as u64;
                }
            }
        }
        progress
    }

    /// Waits until no piece waits for its turn.
    pub fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that registers memory ended with a panic");
            }
        }
    }
}

fn register_all(driver: &dyn Driver, shared: &Shared, began: Instant) {
    while let Some(index) = shared.pieces.take() {
        let (address, len) = shared.piece(index);
        // SAFETY: mapped, by the contract of `RegionPins::start`; each piece is registered by one thread, once.
        let device = match unsafe { driver.register(address, len) } {
            Ok(device) => Some(device),
            Err(error) => {
                tracing::warn!(
                    "{len} bytes of the region cannot be pinned, their copies are slow: {}",
                    CopyError::from(error)
                );
                None
            }
        };
        shared.pieces.set(index, device);
        if index + 1 == shared.pieces.len() {
            tracing::info!(
                bytes = shared.len,
                seconds = began.elapsed().as_secs_f64(),
                "the last piece of the region is pinned"
            );
        }
    }
}

impl Drop for RegionPins {
    fn drop(&mut self) {
        self.shared.pieces.stop();
        self.wait();
        for index in 0..self.shared.pieces.len() {
            if !matches!(self.shared.pieces.get(index), Piece::Registered(_)) {
                continue;
            }
            // SAFETY: registered by `register_all`; engines hold a reference until their copies are done, so none uses it.
            if let Err(error) = unsafe { self.driver.unregister(self.shared.piece(index).0) } {
                tracing::warn!("a piece of the region stays pinned: {}", CopyError::from(error));
            }
        }
    }
}

/// All registered memory that an engine knows.
#[derive(Debug, Default)]
pub(super) struct PinMap {
    pins: Vec<Arc<RegionPins>>,
}

impl PinMap {
    pub fn new(pins: Vec<Arc<RegionPins>>) -> Self {
        Self { pins }
    }

    pub fn progress(&self) -> PinProgress {
        self.pins.iter().fold(PinProgress::default(), |sum, pins| sum.plus(pins.progress()))
    }

    pub fn add(&mut self, pins: Arc<RegionPins>) {
        self.pins.push(pins);
    }

    pub fn remove(&mut self, pins: &Arc<RegionPins>) {
        self.pins.retain(|known| !Arc::ptr_eq(known, pins));
    }
}

impl HostMap for PinMap {
    fn locate(&self, address: usize, len: usize) -> HostSpan {
        let mut before_next = len;
        for pins in &self.pins {
            let shared = &pins.shared;
            let Some(offset) = address.checked_sub(shared.base) else {
                before_next = before_next.min(shared.base - address);
                continue;
            };
            if offset >= shared.len {
                continue;
            }
            let index = offset / shared.piece_bytes;
            let (piece, piece_len) = shared.piece(index);
            let len = len.min(piece_len - (address - piece));
            let pinned = match shared.pieces.get(index) {
                Piece::Registered(device) => Some(Pinned { piece, to_device: (device as usize).wrapping_sub(piece) }),
                Piece::Pending | Piece::Refused => None,
            };
            return HostSpan { len, pinned };
        }
        HostSpan { len: before_next, pinned: None }
    }
}
