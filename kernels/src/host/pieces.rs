//! A batch of runs cut into pieces that threads can take one by one.

use crate::engine::{CopyError, CopyRun};

/// Bytes of a piece, about: large against the cost of taking one (a lock, a wake-up), small enough that the block of a few MiB
/// keeps several threads busy.
pub(super) const PIECE_BYTES: usize = 512 * 1024;

/// The runs of one batch, none longer than a piece, and where each piece ends.
#[derive(Debug)]
pub(super) struct Pieces {
    runs: Box<[CopyRun]>,
    ends: Box<[usize]>,
    pub bytes: u64,
}

impl Pieces {
    /// Cuts the runs. `Invalid` if one wraps around the address space, overlaps itself or starts at address zero.
    pub fn cut(runs: &[CopyRun]) -> Result<Self, CopyError> {
        let mut cut = Vec::with_capacity(runs.len());
        let mut ends = Vec::new();
        let (mut bytes, mut filled) = (0u64, 0usize);
        for run in runs {
            run.check()?;
            bytes += run.len as u64;
            let mut done = 0;
            while done < run.len {
                let len = (run.len - done).min(PIECE_BYTES - filled);
                cut.push(CopyRun { src: run.src + done, dst: run.dst + done, len });
                done += len;
                filled += len;
                if filled == PIECE_BYTES {
                    ends.push(cut.len());
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            ends.push(cut.len());
        }
        Ok(Self { runs: cut.into(), ends: ends.into(), bytes })
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The runs of piece `index`; empty beyond the last.
    pub fn get(&self, index: usize) -> &[CopyRun] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(index).and_then(|end| self.runs.get(start..*end)).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_runs_in_order_and_are_full() {
        let runs = [
            CopyRun { src: 1 << 30, dst: 1 << 40, len: 3 * PIECE_BYTES + 5 },
            CopyRun { src: 1 << 31, dst: 1 << 41, len: 0 },
            CopyRun { src: 1 << 32, dst: 1 << 42, len: 17 },
        ];
        let pieces = Pieces::cut(&runs).unwrap();
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces.bytes, (3 * PIECE_BYTES + 22) as u64);
        for index in 0..3 {
            assert_eq!(pieces.get(index).iter().map(|run| run.len).sum::<usize>(), PIECE_BYTES);
        }
        assert_eq!(
            pieces.get(3),
            [
                CopyRun { src: (1 << 30) + 3 * PIECE_BYTES, dst: (1 << 40) + 3 * PIECE_BYTES, len: 5 },
                CopyRun { src: 1 << 32, dst: 1 << 42, len: 17 }
            ]
        );
        assert!(pieces.get(4).is_empty());
        assert_eq!(Pieces::cut(&[]).unwrap().len(), 0);
    }

    #[test]
    fn impossible_runs_are_refused() {
        for (src, dst, len) in [(usize::MAX, 4096, 2), (4096, 4100, 8), (4096, 4096, 1), (0, 4096, 1), (4096, 0, 1)] {
            assert!(Pieces::cut(&[CopyRun { src, dst, len }]).is_err(), "{src} {dst} {len}");
        }
    }
}
