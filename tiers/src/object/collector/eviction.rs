//! Which segments go because of their age or for room. Pure.

use crate::object::id::{SegmentId, Stamp};

/// A segment that may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub id: SegmentId,
    pub bytes: u64,
    pub created: Stamp,
    pub used: Stamp,
}

/// Which may stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// With more bytes than this, segments are evicted...
    pub high_bytes: u64,
    /// ...until no more than this is left.
    pub low_bytes: u64,
    /// Segments last used before this go in any case.
    pub used_since: Stamp,
}

/// Segments that go, those first that were not used for longest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Victims {
    pub aged: Vec<(SegmentId, u64)>,
    pub evicted: Vec<(SegmentId, u64)>,
}

/// Picks what goes.
pub(super) fn victims(mut live: Vec<Candidate>, limits: Limits) -> Victims {
    let mut left: u128 = live.iter().map(|segment| u128::from(segment.bytes)).sum();
    let mut victims = Victims::default();
    live.sort_unstable_by_key(|segment| (segment.used, segment.created, segment.id));
    let aged = live.partition_point(|segment| segment.used < limits.used_since);
    let mut rest = live.into_iter();
    for segment in rest.by_ref().take(aged) {
        left -= u128::from(segment.bytes);
        victims.aged.push((segment.id, segment.bytes));
    }
    if left > u128::from(limits.high_bytes) {
        for segment in rest {
            if left <= u128::from(limits.low_bytes) {
                break;
            }
            left -= u128::from(segment.bytes);
            victims.evicted.push((segment.id, segment.bytes));
        }
    }
    victims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::id::WriterId;

    fn candidate(number: u64, bytes: u64, used: u64) -> Candidate {
        let id = SegmentId { writer: WriterId(1), number };
        Candidate { id, bytes, created: Stamp(number), used: Stamp(used) }
    }

    fn numbers(victims: &[(SegmentId, u64)]) -> Vec<u64> {
        victims.iter().map(|(id, _)| id.number).collect()
    }

    fn limits(high_bytes: u64, low_bytes: u64, used_since: u64) -> Limits {
        Limits { high_bytes, low_bytes, used_since: Stamp(used_since) }
    }

    #[test]
    fn the_least_recently_used_go_down_to_the_low_mark() {
        let live = vec![candidate(1, 10, 50), candidate(2, 10, 20), candidate(3, 10, 40), candidate(4, 10, 30)];
        assert_eq!(victims(live.clone(), limits(40, 20, 0)), Victims::default(), "not above the high mark");
        let gone = victims(live, limits(39, 20, 0));
        assert_eq!((numbers(&gone.evicted), gone.aged), (vec![2, 4], Vec::new()));
    }

    #[test]
    fn old_ones_go_first_and_count_for_room() {
        let live = vec![candidate(1, 10, 5), candidate(2, 10, 20), candidate(3, 10, 40), candidate(4, 10, 30)];
        let gone = victims(live.clone(), limits(30, 10, 20));
        assert_eq!((numbers(&gone.aged), numbers(&gone.evicted)), (vec![1], vec![]), "20 is not before 20");
        let gone = victims(live, limits(20, 10, 20));
        assert_eq!((numbers(&gone.aged), numbers(&gone.evicted)), (vec![1], vec![2, 4]));
    }

    #[test]
    fn sizes_beyond_all_sense_are_no_trouble() {
        let live = vec![candidate(1, u64::MAX, 1), candidate(2, u64::MAX, 2)];
        assert_eq!(numbers(&victims(live, limits(10, 5, 0)).evicted), [1, 2]);
    }
}
