//! Pieces of a mapping that several threads back: who takes which, and how far it is from the start on without a gap.

use std::collections::BTreeSet;

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, PoisonError};

/// Which pieces are taken and which are done.
#[derive(Debug)]
pub(super) struct Tally {
    bytes: usize,
    piece_bytes: usize,
    /// The next piece that nobody has taken.
    next: AtomicUsize,
    stop: AtomicBool,
    ready_bytes: AtomicU64,
    done: Mutex<Done>,
}

#[derive(Debug, Default)]
struct Done {
    /// Pieces done from the start on, without a gap.
    leading: usize,
    /// Pieces done beyond a gap: as many as there are threads, at most.
    ahead: BTreeSet<usize>,
    /// Bytes of all of them.
    bytes: usize,
}

impl Tally {
    /// `bytes` in pieces of `piece_bytes` (at least 1), the last one shorter. None is taken.
    pub fn new(bytes: usize, piece_bytes: usize) -> Self {
        Self {
            bytes,
            piece_bytes,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            ready_bytes: AtomicU64::new(0),
            done: Mutex::default(),
        }
    }

    /// The next piece, its start and its length. Each is given once. `None`: there are no more, or it was stopped.
    pub fn take(&self) -> Option<(usize, usize, usize)> {
        if self.is_stopped() {
            return None;
        }
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        let start = piece.checked_mul(self.piece_bytes).filter(|start| *start < self.bytes)?;
        Some((piece, start, self.piece_bytes.min(self.bytes - start)))
    }

    /// A taken piece of `len` bytes is done. `progress` gets the bytes of all that are done, by one thread at a time, growing.
    pub fn done(&self, piece: usize, len: usize, progress: impl FnOnce(usize)) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.bytes += len;
        done.ahead.insert(piece);
        while let leading = done.leading
            && done.ahead.remove(&leading)
        {
            done.leading += 1;
        }
        // Whoever sees these bytes as ready sees them done: those of this piece by this release, those of others by the lock before it.
        self.ready_bytes.store(self.bytes.min(done.leading * self.piece_bytes) as u64, Ordering::Release);
        progress(done.bytes);
    }

    /// Bytes from the start on that are done. Only grows.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes.load(Ordering::Acquire)
    }

    /// No further piece is given.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_gap_before_it_is_ready() {
        let tally = Tally::new(35, 10);
        let (mut seen, mut told) = (Vec::new(), Vec::new());
        for piece in [1, 3, 0, 2] {
            let len = if piece == 3 { 5 } else { 10 };
            tally.done(piece, len, |bytes| told.push(bytes));
            seen.push(tally.ready_bytes());
        }
        assert_eq!(seen, [0, 0, 20, 35]);
        assert_eq!(told, [10, 15, 25, 35]);
    }

    #[test]
    fn each_piece_is_given_once_and_none_after_a_stop() {
        let tally = Tally::new(35, 10);
        assert_eq!((tally.take(), tally.take()), (Some((0, 0, 10)), Some((1, 10, 10))));
        tally.stop();
        assert!(tally.is_stopped() && tally.take().is_none());
        let tally = Tally::new(5, 10);
        assert_eq!((tally.take(), tally.take()), (Some((0, 0, 5)), None));
    }
}
