//! Sorting the blocks of an earlier life by their last use, a bounded piece per call: no step of the engine waits for a sort
//! of millions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Elements that one call sorts at most.
const RUN: usize = 4096;

/// An external merge sort in memory: runs are sorted as they fill, and merged when they are taken. 16 bytes an element.
#[derive(Debug, Default)]
pub(crate) struct RankOrder {
    filling: Vec<(u64, u32)>,
    /// Sorted, the smallest last.
    runs: Vec<Vec<(u64, u32)>>,
    heads: BinaryHeap<Reverse<(u64, u32, u32)>>,
    merging: bool,
}

impl RankOrder {
    /// Adds a row with its rank. Not after the first [`RankOrder::next`].
    pub(crate) fn push(&mut self, rank: u64, row: u32) {
        self.filling.push((rank, row));
        if self.filling.len() == RUN {
            self.end_run();
        }
    }

    /// The row of the smallest rank that is left. The first call opens the merge.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if !self.merging {
            self.merging = true;
            self.end_run();
            for run in 0..self.runs.len() {
                self.refill(run);
            }
        }
        let Reverse((_, row, run)) = self.heads.pop()?;
        self.refill(run as usize);
        Some(row)
    }

    fn end_run(&mut self) {
        self.filling.sort_unstable_by(|a, b| b.cmp(a));
        if !self.filling.is_empty() {
            self.runs.push(std::mem::take(&mut self.filling));
        }
    }

    fn refill(&mut self, run: usize) {
        if let Some((rank, row)) = self.runs.get_mut(run).and_then(Vec::pop) {
            self.heads.push(Reverse((rank, row, run as u32)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_by_rank_whatever_the_runs() {
        let mut order = RankOrder::default();
        let count = 3 * RUN as u32 + 17;
        for i in 0..count {
            let row = i.wrapping_mul(7919) % count;
            order.push(u64::from(row) * 3, row);
        }
        let rows: Vec<u32> = std::iter::from_fn(|| order.next()).collect();
        assert_eq!(rows, (0..count).collect::<Vec<_>>());
    }
}
