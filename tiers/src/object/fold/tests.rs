use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::object::folder::rig::segment;

const WRITERS: u64 = 4;

/// Log objects of several writers; each adds its own segments, and removes and uses anybody's.
fn history() -> impl Strategy<Value = Vec<LogObject>> {
    let record = (0..3_u8, 1..=WRITERS, 1..30_u64, 1..1_000_u64);
    let object = (1..=WRITERS, proptest::collection::vec(record, 1..5));
    proptest::collection::vec(object, 1..60).prop_map(|objects| {
        let mut sequences = BTreeMap::new();
        let objects = objects.into_iter().zip(1..).map(|((writer, records), stamp)| {
            let sequence = sequences.entry(writer).or_insert(0);
            *sequence += 1;
            let records = records.into_iter().map(|(kind, other, number, at)| match kind {
                0 => {
                    let id = SegmentId { writer: WriterId(writer), number };
                    // An id stands for one segment.
                    LogRecord::Added(segment(id, Stamp(number), (number % 5) as u32 + 1))
                }
                1 => LogRecord::Removed { id: SegmentId { writer: WriterId(other), number }, at: Stamp(at) },
                _ => LogRecord::Used { id: SegmentId { writer: WriterId(other), number }, at: Stamp(at) },
            });
            let records = records.collect();
            LogObject {
                writer: WriterId(writer),
                sequence: *sequence,
                stamp: Stamp(stamp),
                node: String::new(),
                records,
            }
        });
        objects.collect()
    })
}

/// What must come out, whatever the order.
fn model(history: &[LogObject]) -> BTreeMap<SegmentId, Stamp> {
    let records = || history.iter().flat_map(|object| &object.records);
    let removed: BTreeSet<SegmentId> = records()
        .filter_map(|record| match record {
            LogRecord::Removed { id, .. } => Some(*id),
            _ => None,
        })
        .collect();
    let mut live = BTreeMap::new();
    for record in records() {
        if let LogRecord::Added(segment) = record
            && !removed.contains(&segment.id)
        {
            live.insert(segment.id, segment.created);
        }
    }
    for record in records() {
        if let LogRecord::Used { id, at } = record
            && let Some(used) = live.get_mut(id)
        {
            *used = (*used).max(*at);
        }
    }
    live
}

fn live(fold: &Fold) -> BTreeMap<SegmentId, Stamp> {
    fold.live().map(|live| (live.record.id, live.used)).collect()
}

fn check(fold: &Fold, history: &[LogObject]) {
    let expected = model(history);
    assert_eq!(live(fold), expected);
    let bytes: u64 = fold.live().map(|live| live.record.bytes).sum();
    let blocks: u64 = fold.live().map(|live| u64::from(live.record.blocks())).sum();
    assert_eq!((fold.bytes(), fold.blocks(), fold.segments()), (bytes, blocks, expected.len()));
    assert_eq!(fold.gaps().count(), 0);
}

/// A snapshot of a fold, with a part that still has segments which were removed since.
fn snapshot(fold: &Fold, stale: &[Arc<SegmentRecord>]) -> (Manifest, Part) {
    let mut segments: Vec<_> = fold.live().map(|live| (Arc::clone(&live.record), live.used)).collect();
    segments.extend(
        stale.iter().filter(|segment| fold.is_removed(segment.id)).map(|segment| (Arc::clone(segment), Stamp(0))),
    );
    let manifest = Manifest {
        number: 1,
        stamp: fold.newest(),
        writers: fold.writers().collect(),
        removed: fold.removed().collect(),
        ..Manifest::default()
    };
    (manifest, Part { segments })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any order, any repetition, snapshots taken by any reader at any time: all come to the same set, and what the changes
    /// told adds up to it.
    #[test]
    fn all_readers_come_to_the_same(
        (history, orders) in history().prop_flat_map(|history| {
            let order = proptest::collection::vec(any::<prop::sample::Index>(), history.len() * 2);
            (Just(history), proptest::collection::vec(order, 3))
        }),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut early = None;
        for order in orders {
            let mut fold = Fold::new();
            let mut told = BTreeSet::new();
            let mut stale = Vec::new();
            let shuffled = order.iter().map(|index| index.get(&history)).chain(&history).chain(history.iter().rev());
            for (place, object) in shuffled.enumerate() {
                let mut changes = Vec::new();
                let name = LogName { stamp: object.stamp, writer: object.writer, sequence: object.sequence };
                prop_assert_eq!(fold.has(&name), !fold.apply(object, &mut changes));
                prop_assert!(fold.has(&name));
                for change in changes {
                    match change {
                        FoldChange::Added(segment) => {
                            prop_assert!(told.insert(segment.id));
                            stale.push(segment);
                        }
                        FoldChange::Removed(id) => prop_assert!(told.remove(&id)),
                    }
                }
                if early.is_none() && place == cut.index(history.len()) {
                    early = Some(snapshot(&fold, &stale));
                }
            }
            check(&fold, &history);
            prop_assert_eq!(told, live(&fold).into_keys().collect::<BTreeSet<_>>());
        }
        // One that begins with the snapshot and lists everything again.
        let (manifest, part) = early.unwrap();
        let mut fold = Fold::from_snapshot(&manifest, [&part]);
        for object in history.iter().rev() {
            fold.apply(object, &mut Vec::new());
        }
        // Uses of segments that were not there yet are no part of a snapshot.
        prop_assert_eq!(live(&fold).into_keys().collect::<Vec<_>>(), model(&history).into_keys().collect::<Vec<_>>());
        prop_assert_eq!(fold.gaps().count(), 0);
    }
}

fn object(sequence: u64, records: Vec<LogRecord>) -> LogObject {
    LogObject { writer: WriterId(1), sequence, stamp: Stamp(sequence), node: String::new(), records }
}

fn name(sequence: u64) -> LogName {
    LogName { stamp: Stamp(sequence), writer: WriterId(1), sequence }
}

#[test]
fn a_missing_object_is_a_gap_until_it_comes_or_is_given_up() {
    let mut fold = Fold::new();
    fold.apply(&object(2, Vec::new()), &mut Vec::new());
    assert_eq!(fold.gaps().collect::<Vec<_>>(), [WriterId(1)]);
    fold.apply(&object(5, Vec::new()), &mut Vec::new());
    fold.apply(&object(1, Vec::new()), &mut Vec::new());
    assert_eq!(fold.gaps().count(), 1);
    assert_eq!(fold.writers().collect::<Vec<_>>(), [(WriterId(1), 2, Stamp(5))]);
    fold.close_gaps(WriterId(1));
    assert_eq!(fold.gaps().count(), 0);
    assert_eq!(fold.writers().collect::<Vec<_>>(), [(WriterId(1), 5, Stamp(5))]);
    assert!(!fold.apply(&object(4, Vec::new()), &mut Vec::new()), "given up");
}

#[test]
fn numbers_at_the_end_of_their_range_are_no_trouble() {
    let mut fold = Fold::new();
    for sequence in [u64::MAX, 0, u64::MAX - 1] {
        fold.apply(&object(sequence, Vec::new()), &mut Vec::new());
    }
    fold.close_gaps(WriterId(1));
    assert_eq!(fold.writers().collect::<Vec<_>>(), [(WriterId(1), u64::MAX, Stamp(u64::MAX))]);
    assert!(!fold.apply(&object(u64::MAX, Vec::new()), &mut Vec::new()));
}

#[test]
fn what_is_behind_a_gap_is_bounded() {
    let mut fold = Fold::new();
    for sequence in 1..=10_000 {
        fold.apply(&object(sequence * 2, Vec::new()), &mut Vec::new());
    }
    let (_, contiguous, _) = fold.writers().next().unwrap();
    assert_eq!(contiguous, (10_000 - 4_096) * 2, "the oldest gaps are given up");
}

#[test]
fn behind_one_that_was_listed_as_many_are_folded_and_the_rest_waits() {
    let mut fold = Fold::new();
    fold.miss(&name(2));
    for sequence in [1].into_iter().chain(3..=10_000) {
        fold.apply(&object(sequence, Vec::new()), &mut Vec::new());
    }
    assert_eq!((fold.missed(WriterId(1)), fold.earliest_missed()), (Some(Stamp(2)), Some(Stamp(2))));
    assert_eq!(fold.writers().next(), Some((WriterId(1), 1, Stamp(10_000))), "it is not given up");
    assert!(fold.has(&name(4_098)) && !fold.has(&name(4_099)));
    fold.prune(Stamp(20_000), |_| false);
    assert_eq!(fold.gaps().count(), 1, "a writer is not forgotten with what is missing of it");
    assert!(fold.apply(&object(2, Vec::new()), &mut Vec::new()));
    assert_eq!(fold.gaps().count(), 1, "the rest is known to be there");
    for sequence in 4_099..=10_000 {
        assert!(fold.apply(&object(sequence, Vec::new()), &mut Vec::new()));
    }
    assert_eq!((fold.gaps().count(), fold.earliest_missed()), (0, None));
}

#[test]
fn a_tombstone_that_a_part_still_needs_is_kept() {
    let id = |number| SegmentId { writer: WriterId(1), number };
    let mut fold = Fold::new();
    let removed = |number, at| LogRecord::Removed { id: id(number), at: Stamp(at) };
    fold.apply(&object(1, vec![removed(1, 10), removed(2, 10), removed(3, 30)]), &mut Vec::new());
    fold.prune(Stamp(20), |other| other == id(2));
    let mut left: Vec<_> = fold.removed().collect();
    left.sort();
    assert_eq!(left, [(id(2), Stamp(10)), (id(3), Stamp(30))]);
}
