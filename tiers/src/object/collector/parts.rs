//! What of the last snapshot's parts stays, and what is written anew. Pure.
//!
//! Parts are immutable, so a snapshot costs as much as what changed. New segments make a part, together with the parts that are
//! no larger than it: sizes grow as powers of two do, so a segment is written a few times in all, and there are few small parts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::object::folder::KnownPart;
use crate::object::id::{SegmentId, Stamp};
use crate::object::record::SegmentRecord;
use crate::object::snapshot::{MAX_PART_BYTES, PART_OVERHEAD_BYTES, PartRef, part_segment_bytes};

/// Parts at least this large are not merged.
const LARGE: u64 = MAX_PART_BYTES as u64 / 2;

/// A live segment and its last use.
pub(super) type LiveEntry = (Arc<SegmentRecord>, Stamp);

/// What to do.
#[derive(Debug, Default)]
pub(super) struct PartsPlan {
    /// Parts that stay, as places in what was known.
    pub keep: Vec<usize>,
    /// Content of new parts, each small enough.
    pub write: Vec<Vec<LiveEntry>>,
}

/// Plans the parts of a snapshot of the live segments. `is_there` says whether a part can still be read.
pub(super) fn plan(
    known: &[KnownPart],
    is_there: impl Fn(&PartRef) -> bool,
    live: &HashMap<SegmentId, LiveEntry>,
) -> PartsPlan {
    let mut keep = Vec::new();
    let mut placed = HashSet::new();
    for (place, part) in known.iter().enumerate() {
        let lives = part.segments.iter().filter(|(id, _)| live.contains_key(id)).count();
        if lives > 0 && lives * 2 >= part.segments.len() && is_there(&part.reference) {
            placed.extend(part.segments.iter().map(|(id, _)| *id));
            keep.push(place);
        }
    }
    let mut pool: Vec<&LiveEntry> = live.values().filter(|(segment, _)| !placed.contains(&segment.id)).collect();
    if !pool.is_empty() {
        let segments: usize = pool.iter().map(|(segment, _)| part_segment_bytes(segment)).sum();
        let mut pool_bytes = (PART_OVERHEAD_BYTES + segments) as u64;
        keep.sort_by_key(|place| known[*place].reference.bytes);
        let mut merged = 0;
        for part in keep.iter().map(|place| &known[*place]) {
            if part.reference.bytes > pool_bytes || part.reference.bytes >= LARGE {
                break;
            }
            // A segment that stands in another part too is written once: the pool is of different ones.
            pool.extend(part.segments.iter().filter_map(|(id, _)| live.get(id)));
            pool_bytes = pool_bytes.saturating_add(part.reference.bytes);
            merged += 1;
        }
        keep.drain(..merged);
        keep.sort_unstable();
        // Those of an age are removed together: then a part dies as a whole.
        pool.sort_unstable_by_key(|(segment, _)| (segment.created, segment.id));
        pool.dedup_by_key(|(segment, _)| segment.id);
    }
    PartsPlan { keep, write: cut(pool) }
}

fn cut(pool: Vec<&LiveEntry>) -> Vec<Vec<LiveEntry>> {
    let mut parts: Vec<Vec<LiveEntry>> = Vec::new();
    let mut bytes = 0;
    for entry in pool {
        let more = part_segment_bytes(&entry.0);
        match parts.last_mut() {
            Some(part) if bytes + more <= MAX_PART_BYTES => part.push(entry.clone()),
            _ => {
                bytes = PART_OVERHEAD_BYTES;
                parts.push(vec![entry.clone()]);
            }
        }
        bytes += more;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::object::folder::rig::{SHAPE, segment};
    use crate::object::id::WriterId;
    use crate::object::names::PartName;
    use crate::object::snapshot::Part;

    fn id(number: u64) -> SegmentId {
        SegmentId { writer: WriterId(1), number }
    }

    /// Writes what a plan says, as a compaction does.
    fn carry_out(known: &[KnownPart], plan: PartsPlan, next: &mut u64) -> Vec<KnownPart> {
        let mut parts: Vec<KnownPart> = plan.keep.iter().map(|place| known[*place].clone()).collect();
        for segments in plan.write {
            *next += 1;
            let name = PartName { writer: WriterId(1), number: *next };
            let ids = segments.iter().map(|(segment, used)| (segment.id, *used)).collect();
            let (_, reference) = Part { segments }.encode(&SHAPE, name).unwrap();
            parts.push(KnownPart { reference, segments: ids });
        }
        parts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is added, removed and lost between compactions: each live segment stands in exactly one part, no part is mostly
        /// dead, and what did not change is not written.
        #[test]
        fn every_live_segment_stands_in_one_part(
            rounds in proptest::collection::vec((0..20_u64, 0..15_usize, any::<prop::sample::Index>(), 0..12_u8), 1..30),
        ) {
            let mut live: HashMap<SegmentId, LiveEntry> = HashMap::new();
            let mut parts: Vec<KnownPart> = Vec::new();
            let (mut next, mut next_part) = (0, 0);
            for (added, removed, which, lost) in rounds {
                for _ in 0..added {
                    next += 1;
                    live.insert(id(next), (segment(id(next), Stamp(next), 1 + (next % 40) as u32), Stamp(next)));
                }
                for _ in 0..removed.min(live.len()) {
                    let mut ids: Vec<_> = live.keys().copied().collect();
                    ids.sort();
                    live.remove(which.get(&ids));
                }
                let lost = (lost == 0).then(|| parts.first().map(|part| part.reference.number)).flatten();
                let plan = plan(&parts, |part| Some(part.number) != lost, &live);
                if added == 0 && removed == 0 && lost.is_none() {
                    prop_assert!(plan.write.is_empty());
                }
                parts = carry_out(&parts, plan, &mut next_part);
                prop_assert!(parts.iter().all(|part| Some(part.reference.number) != lost));
                let mut held: Vec<_> = parts.iter().flat_map(|part| part.segments.iter().map(|(id, _)| *id)).collect();
                held.retain(|id| live.contains_key(id));
                held.sort();
                let mut ids: Vec<_> = live.keys().copied().collect();
                ids.sort();
                prop_assert_eq!(held, ids);
                for part in &parts {
                    let lives = part.segments.iter().filter(|(id, _)| live.contains_key(id)).count();
                    prop_assert!(lives * 2 >= part.segments.len());
                }
            }
        }
    }

    #[test]
    fn steady_growth_writes_each_segment_a_few_times_and_leaves_few_parts() {
        let mut live: HashMap<SegmentId, LiveEntry> = HashMap::new();
        let (mut parts, mut next_part, mut written) = (Vec::new(), 0, 0);
        for round in 0..256_u64 {
            live.insert(id(round), (segment(id(round), Stamp(round), 50), Stamp(round)));
            let plan = plan(&parts, |_| true, &live);
            written += plan.write.iter().map(Vec::len).sum::<usize>();
            parts = carry_out(&parts, plan, &mut next_part);
        }
        assert!(written <= 256 * 9, "{written} for 256");
        assert!(parts.len() <= 9, "{}", parts.len());
    }

    #[test]
    fn parts_are_cut_below_their_bound() {
        let live = (0..12).map(|number| (id(number), (segment(id(number), Stamp(number), 60_000), Stamp(1)))).collect();
        let plan = plan(&[], |_| true, &live);
        assert!(plan.write.len() >= 4);
        let mut next = 0;
        assert_eq!(carry_out(&[], plan, &mut next).iter().map(|part| part.segments.len()).sum::<usize>(), 12);
    }
}
