//! Pieces of memory that several threads register: who takes which, and what became of each.

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Not registered yet. Not a possible address of the device.
const PENDING: u64 = 0;
/// The driver refused.
const REFUSED: u64 = u64::MAX;

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// It waits for its turn, or is being registered.
    Pending,
    /// The driver refused it.
    Refused,
    /// Registered: the address of its first byte as the device sees it.
    Registered(u64),
}

/// The pieces. A piece changes once.
#[derive(Debug)]
pub(super) struct PieceTable {
    pieces: Box<[AtomicU64]>,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl PieceTable {
    /// So many pieces, all pending.
    pub fn new(pieces: usize) -> Self {
        let pieces = (0..pieces).map(|_| AtomicU64::new(PENDING)).collect();
        Self { pieces, next: AtomicUsize::new(0), stop: AtomicBool::new(false) }
    }

    /// Pieces in all.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// A piece to register. Each is given once. `None`: there are no more, or it was stopped.
    pub fn take(&self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.pieces.len() && !self.stop.load(Ordering::Relaxed)).then_some(index)
    }

    /// Says what became of a piece that was taken: its address, `None` if the driver refused it.
    pub fn set(&self, index: usize, device: Option<u64>) {
        let state = device.filter(|device| *device != PENDING).unwrap_or(REFUSED);
        if let Some(piece) = self.pieces.get(index) {
            // Whoever sees it as registered may have the device use it: that comes after the registration.
            piece.store(state, Ordering::Release);
        }
    }

    /// What became of a piece; beyond the end: pending.
    pub fn get(&self, index: usize) -> Piece {
        match self.pieces.get(index).map_or(PENDING, |piece| piece.load(Ordering::Acquire)) {
            PENDING => Piece::Pending,
            REFUSED => Piece::Refused,
            device => Piece::Registered(device),
        }
    }

    /// No further piece is given.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
