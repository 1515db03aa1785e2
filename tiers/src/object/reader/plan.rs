//! Which bytes of which segments to ask for: neighbours together, long runs in several ranges.

use std::ops::Range;

use super::super::port::LoadPlace;
use super::super::record::Shape;

/// Unwanted blocks up to this many bytes between two wanted ones are read along; one block always is. At a gigabyte a second it takes
/// half a millisecond, less than any request.
const GAP_BYTES: u64 = 512 << 10;

/// Places of one job that one request serves: indices into the job's places, all in one segment, by rising position. Never empty;
/// a position that two places want stands in it twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadRange {
    picks: Vec<u32>,
    first: u32,
    /// Blocks to read, unwanted ones between included.
    count: u32,
}

impl ReadRange {
    /// Indices into the job's places.
    pub fn picks(&self) -> &[u32] {
        &self.picks
    }

    /// Position of the first block, which is wanted.
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// Blocks that are read and not wanted.
    pub fn skipped(&self, places: &[LoadPlace]) -> u32 {
        let mut wanted: Vec<_> = self.picks.iter().filter_map(|pick| places.get(*pick as usize)).collect();
        wanted.dedup_by_key(|place| place.position);
        self.count.saturating_sub(wanted.len() as u32)
    }

    /// Bytes to ask for.
    pub fn bytes(&self, shape: &Shape) -> Range<u64> {
        shape.blocks_range(self.first, self.count)
    }
}

/// Ranges that cover each of `picks` (indices into `places`) exactly once. None is longer than `range_bytes`, unless it is one block; a
/// long run is cut into ranges of about the same length. Those with the earliest places of the job come first.
pub(super) fn plan(shape: &Shape, range_bytes: u64, places: &[LoadPlace], picks: &[u32]) -> Vec<ReadRange> {
    let stride = shape.stride().max(1);
    let most = u32::try_from(range_bytes / stride).unwrap_or(u32::MAX).max(1);
    let gap = u32::try_from(GAP_BYTES / stride).unwrap_or(u32::MAX).max(1);
    let mut sorted: Vec<_> = picks.iter().filter_map(|pick| Some((places.get(*pick as usize)?, *pick))).collect();
    sorted.sort_unstable_by_key(|(place, pick)| (place.segment.id, place.position, *pick));

    let near = |(before, _): &(&LoadPlace, u32), (after, _): &(&LoadPlace, u32)| {
        before.segment.id == after.segment.id && after.position.saturating_sub(before.position).saturating_sub(1) <= gap
    };
    let mut ranges = Vec::new();
    for run in sorted.chunk_by(near) {
        cut(run, most, &mut ranges);
    }
    ranges.sort_by_cached_key(|range: &ReadRange| range.picks.iter().min().copied());
    ranges
}

/// Cuts a run at the borders of blocks; each range begins and ends with a wanted one.
fn cut(run: &[(&LoadPlace, u32)], most: u32, ranges: &mut Vec<ReadRange>) {
    let span = |first: u32, last: u32| last.saturating_sub(first).saturating_add(1);
    let (Some((start, _)), Some((end, _))) = (run.first(), run.last()) else { return };
    let whole = span(start.position, end.position);
    let target = whole.div_ceil(whole.div_ceil(most));
    let mut rest = run;
    while let Some((head, _)) = rest.first() {
        let first = head.position;
        let taken = rest.partition_point(|(place, _)| span(first, place.position) <= target);
        let (range, left) = rest.split_at(taken);
        let last = range.last().map_or(first, |(place, _)| place.position);
        ranges.push(ReadRange {
            picks: range.iter().map(|(_, pick)| *pick).collect(),
            first,
            count: span(first, last),
        });
        rest = left;
    }
}
