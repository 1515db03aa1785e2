//! Loads from stores that are sound, that lie once, and that lie always.

use std::time::Duration;

use proptest::prelude::*;

use super::super::id::{Stamp, WriterId};
use super::super::record::Shape;
use super::super::requests::testing::{Op, Wrong};
use super::super::segment::HEADER_BYTES;
use super::testing::{Heard, Lie, POISON, Rig, key};
use super::*;
use crate::tier::Fault;

const BLOCK: u32 = 1000;
const STRIDE: u64 = HEADER_BYTES as u64 + BLOCK as u64;
/// Of a byte in the middle of the payload at a position.
const fn payload_at(position: u64) -> u64 {
    position * STRIDE + HEADER_BYTES as u64 + 500
}

fn far(rig: &Rig) -> Time {
    rig.shared.clock.now().plus(Duration::from_secs(60))
}

async fn loaded(rig: &Rig, places: &[LoadPlace]) -> Heard {
    let mut heard = Heard::default();
    load(&rig.shared, places, far(rig), &mut heard).await;
    heard
}

/// Every place is done; those that are well hold their bytes.
fn check(rig: &Rig, places: &[LoadPlace], heard: &Heard) {
    assert_eq!(heard.done.len(), places.len());
    for (index, outcome) in &heard.done {
        let place = places.iter().find(|place| place.index == *index).expect("a place of the job");
        if let Ok(crc32) = outcome {
            let bytes = rig.slot(place.slot);
            assert_eq!((Some(*crc32), crc32fast::hash(&bytes)), (place.segment.crc32(place.position), *crc32));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_of_several_segments_land_and_gaps_are_read_along() {
    let rig = Rig::new(BLOCK, 16, 333, |config| config.range_bytes = 4 * STRIDE as u32);
    let first = rig.put_segment(1, &(0..12).collect::<Vec<_>>()).await;
    let second = rig.put_segment(2, &[20, 21]).await;
    // Twice the same block, to two slots.
    let mut places = rig.places(&first, &[0, 1, 3, 3, 9, 11], 0);
    places.extend(rig.places(&second, &[1], 6));
    let heard = loaded(&rig, &places).await;
    check(&rig, &places, &heard);
    assert!(heard.done.iter().all(|(_, outcome)| outcome.is_ok()), "{heard:?}");
    for (slot, number) in [(0, 0), (1, 1), (2, 3), (3, 3), (4, 9), (5, 11), (6, 21)] {
        assert_eq!(rig.slot(terrace_primary::SlotId(slot)), rig.payload(number));
    }
    // 0..4, 9..12 and one of the second: what lies between is small.
    assert_eq!(rig.liar.store.seen(Op::Get).len(), 3);
    assert_eq!(rig.shared.counters.blocks_skipped.get(), 2);
    for slot in 7..16 {
        assert_eq!(rig.slot(terrace_primary::SlotId(slot)), vec![POISON; BLOCK as usize]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_once_is_healed_by_the_second_request() {
    let shifted = Lie::Shifted(STRIDE);
    for lie in [Lie::Missing, Lie::Flip(payload_at(1)), Lie::Flip(STRIDE + 80), Lie::Flip(STRIDE), shifted] {
        let rig = Rig::new(BLOCK, 4, 999, |_| {});
        let segment = rig.put_segment(1, &[0, 1, 2, 3]).await;
        rig.liar.tell([lie]);
        let places = rig.places(&segment, &[0, 1, 2], 0);
        let heard = loaded(&rig, &places).await;
        check(&rig, &places, &heard);
        assert!(heard.done.iter().all(|(_, outcome)| outcome.is_ok()), "{lie:?}: {heard:?}");
        assert!(heard.lost_blocks.is_empty() && heard.lost_segments.is_empty(), "{lie:?}: {heard:?}");
        let reread = if matches!(lie, Lie::Flip(_)) { 1 } else { 3 };
        assert_eq!((rig.shared.counters.reread.get(), rig.liar.store.seen(Op::Head).len()), (reread, 0), "{lie:?}");
    }
    for wrong in [Wrong::ShortBody, Wrong::LongBody, Wrong::BrokenBody, Wrong::OtherRange, Wrong::Reset] {
        let rig = Rig::new(BLOCK, 4, 999, |_| {});
        let segment = rig.put_segment(1, &[0, 1, 2, 3]).await;
        rig.liar.store.plan(Op::Get, wrong, 1);
        let places = rig.places(&segment, &[0, 1, 2], 0);
        let heard = loaded(&rig, &places).await;
        check(&rig, &places, &heard);
        assert!(heard.done.iter().all(|(_, outcome)| outcome.is_ok()), "{wrong:?}: {heard:?}");
        assert!(heard.lost_blocks.is_empty() && heard.lost_segments.is_empty(), "{wrong:?}: {heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_twice_is_lost() {
    let rig = Rig::new(BLOCK, 8, 999, |_| {});
    let segment = rig.put_segment(1, &[0, 1, 2, 3]).await;
    let places = rig.places(&segment, &[0, 1, 2], 0);

    // One block.
    rig.liar.tell([Lie::Flip(payload_at(1)); 2]);
    let heard = loaded(&rig, &places).await;
    check(&rig, &places, &heard);
    let failed: Vec<_> = heard.done.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    assert_eq!(failed, [&(1, Err(Fault::Corrupt))]);
    assert_eq!((heard.lost_blocks, heard.lost_segments), (vec![(segment.id, 1)], vec![]));

    // The object, for a while.
    rig.liar.tell([Lie::Missing; 2]);
    let heard = loaded(&rig, &places).await;
    assert!(heard.done.iter().all(|(_, outcome)| *outcome == Err(Fault::Absent)), "{heard:?}");
    assert_eq!((heard.lost_blocks, heard.lost_segments), (vec![], vec![segment.id]));

    // In two ways: a miss, but not lost.
    rig.liar.tell([Lie::Missing, Lie::Shifted(STRIDE)]);
    let heard = loaded(&rig, &places).await;
    assert!(heard.done.iter().all(|(_, outcome)| *outcome == Err(Fault::Corrupt)), "{heard:?}");
    assert!(heard.lost_blocks.is_empty() && heard.lost_segments.is_empty(), "{heard:?}");

    // Somebody cuts all answers: that says nothing of the segment.
    rig.liar.store.plan(Op::Get, Wrong::OtherRange, 100);
    let heard = loaded(&rig, &places).await;
    assert!(heard.done.iter().all(|(_, outcome)| *outcome == Err(Fault::Corrupt)), "{heard:?}");
    assert_eq!((heard.lost_blocks.len(), heard.lost_segments), (3, vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_another_is_lost_and_fails_no_other() {
    let rig = Rig::new(BLOCK, 16, 999, |_| {});
    let numbers = [0, 1, 2, 3];
    let mut segments = Vec::new();
    for id in 1..=5 {
        segments.push(rig.put_segment(id, &numbers).await);
    }
    let whole = rig.segment_bytes(1, &numbers).1;
    // Cut, made longer, overwritten by another of its size, overwritten with anything.
    rig.put(segments[0].id, whole[..whole.len() - 1].to_vec()).await;
    rig.put(segments[1].id, [&whole[..], &[0]].concat()).await;
    rig.put(segments[2].id, rig.segment_bytes(9, &numbers).1).await;
    rig.put(segments[3].id, vec![0; whole.len()]).await;
    let mut places = Vec::new();
    for (segment, slot) in segments.iter().zip((0..).step_by(3)) {
        places.extend(rig.places(segment, &[0, 1, 3], slot));
    }
    let heard = loaded(&rig, &places).await;
    check(&rig, &places, &heard);
    for (index, outcome) in &heard.done {
        assert_eq!(outcome.is_ok(), *index >= 12, "{index}: {outcome:?}");
    }
    let mut lost = heard.lost_segments.clone();
    lost.sort();
    assert_eq!(lost, [segments[0].id, segments[1].id, segments[2].id]);
    assert!(heard.lost_blocks.iter().all(|(id, _)| *id == segments[3].id) && heard.lost_blocks.len() == 3);
    assert_eq!(rig.shared.counters.segments_lost.get(), 3);

    // Cut far before what is wanted.
    rig.put(segments[4].id, whole[..200].to_vec()).await;
    let places = rig.places(&segments[4], &[3], 12);
    let heard = loaded(&rig, &places).await;
    assert_eq!((&heard.done[..], &heard.lost_segments[..]), (&[(12, Err(Fault::Corrupt))][..], &[segments[4].id][..]));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_fails_its_own_blocks_alone() {
    let rig = Rig::new(BLOCK, 4, 999, |_| {});
    let first = rig.put_segment(1, &[0, 1]).await;
    let second = rig.put_segment(2, &[2, 3]).await;
    let places = [rig.places(&first, &[0, 1], 0), rig.places(&second, &[0, 1], 2)].concat();
    // A refusal is not tried again.
    rig.liar.store.plan(Op::Get, Wrong::Status(403), 1);
    let heard = loaded(&rig, &places).await;
    check(&rig, &places, &heard);
    for (index, outcome) in &heard.done {
        assert_eq!(outcome.err(), (*index < 2).then_some(Fault::Io));
    }
    assert_eq!(rig.liar.store.seen(Op::Get).len(), 2);
    assert!(heard.lost_segments.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_ends_at_the_deadline() {
    for wrong in [Wrong::Hang, Wrong::StalledBody] {
        let rig = Rig::new(BLOCK, 4, 999, |config| config.hedge_share = 0.0);
        let segment = rig.put_segment(1, &[0, 1, 2, 3]).await;
        rig.liar.store.plan(Op::Get, wrong, 100);
        let deadline = rig.shared.clock.now().plus(Duration::from_secs(3));
        let mut heard = Heard::default();
        let places = rig.places(&segment, &[0, 1, 2, 3], 0);
        load(&rig.shared, &places, deadline, &mut heard).await;
        check(&rig, &places, &heard);
        assert!(heard.done.iter().any(|(_, outcome)| *outcome == Err(Fault::Expired)), "{wrong:?}: {heard:?}");
        assert!(heard.done.iter().all(|(_, outcome)| matches!(outcome, Ok(_) | Err(Fault::Expired))), "{wrong:?}");
        let late = rig.shared.clock.now().since(deadline);
        assert!(late < Duration::from_millis(100), "{late:?} behind the deadline");
        assert!(heard.lost_segments.is_empty() && heard.lost_blocks.is_empty());
    }
}

#[tokio::test]
async fn places_that_no_segment_has_are_absent() {
    let rig = Rig::new(BLOCK, 4, 999, |_| {});
    let segment = rig.put_segment(1, &[0, 1]).await;
    let mut places = rig.places(&segment, &[0, 1, 1], 0);
    places[0].position = 2;
    places[1].key = key(77);
    let heard = loaded(&rig, &places).await;
    check(&rig, &places, &heard);
    assert_eq!(heard.done.iter().filter(|(_, outcome)| *outcome == Err(Fault::Absent)).count(), 2);
    assert!(loaded(&rig, &[]).await.done.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_load_that_is_dropped_touches_no_slot_afterwards() {
    let mut turns = 0;
    loop {
        let rig = Rig::new(BLOCK, 4, 150, |_| {});
        let segment = rig.put_segment(1, &[0, 1, 2, 3]).await;
        rig.liar.tell([Lie::Flip(payload_at(2))]);
        let places = rig.places(&segment, &[0, 1, 2, 3], 0);
        let mut heard = Heard::default();
        let whole = {
            let mut work = Box::pin(load(&rig.shared, &places, far(&rig), &mut heard));
            let mut whole = false;
            for _ in 0..turns {
                whole = futures_util::poll!(work.as_mut()).is_ready();
                if whole {
                    break;
                }
                tokio::task::yield_now().await;
            }
            whole
        };
        let before: Vec<_> = places.iter().map(|place| rig.slot(place.slot)).collect();
        for place in &places {
            rig.poison(place.slot);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        for place in &places {
            assert_eq!(rig.slot(place.slot), vec![POISON; BLOCK as usize], "touched behind turn {turns}");
        }
        if whole {
            assert!(before.iter().zip(0..).all(|(bytes, number)| *bytes == rig.payload(number)));
            assert!(turns > 20, "a load that ends in {turns} turns tests nothing");
            break;
        }
        turns += 1;
    }
}

#[test]
fn bytes_land_whatever_pieces_they_come_in() {
    let rig = Rig::new(40, 8, 1, |_| {});
    let (record, bytes) = rig.segment_bytes(1, &[0, 1, 2, 3]);
    let segment = std::sync::Arc::new(record);
    // Two want the same, one lies between.
    let places = rig.places(&segment, &[1, 3, 3], 0);
    let [range] = &plan(&rig.shared.shape, 1 << 20, &places, &[0, 1, 2])[..] else { panic!("one range") };
    let wanted = range.bytes(&rig.shared.shape);
    let wanted = &bytes[wanted.start as usize..wanted.end as usize];
    for piece in 1..=wanted.len() {
        (0..8).for_each(|slot| rig.poison(terrace_primary::SlotId(slot)));
        let mut landing = Landing::new(&rig.shared.shape, &rig.shared.region, &places, range);
        let mut all = Vec::new();
        for piece in wanted.chunks(piece) {
            landing.take(piece, |pick, landed| all.push((pick, landed)));
        }
        let crc = |position| Landed::Sound(segment.crc32(position).expect("a position"));
        assert_eq!(all, [(0, crc(1)), (1, crc(3)), (2, crc(3))], "pieces of {piece}");
        assert!(landing.undecided().is_empty());
        let slots: Vec<_> = (0..4).map(|slot| rig.slot(terrace_primary::SlotId(slot))).collect();
        assert_eq!(slots, [rig.payload(1), rig.payload(3), rig.payload(3), vec![POISON; 40]]);
        // Nothing comes of bytes behind the end.
        landing.take(&[0; 500], |_, _| panic!("decided twice"));
    }
    // A body that ends early leaves the rest undecided.
    let mut landing = Landing::new(&rig.shared.shape, &rig.shared.region, &places, range);
    let mut decided = 0;
    landing.take(&wanted[..wanted.len() - 1], |_, _| decided += 1);
    assert_eq!((decided, landing.undecided()), (1, &[1, 2][..]));
}

fn some_places() -> impl Strategy<Value = (Vec<LoadPlace>, u32, u64)> {
    let wanted = prop::collection::vec((0_u64..3, 0_u32..60), 0..80);
    (wanted, prop::sample::select(vec![40_u32, 4096, 300_000]), 1_u64..3_000_000).prop_map(
        |(wanted, block_bytes, range)| {
            let segments: Vec<_> = (0..3)
                .map(|number| {
                    let id = SegmentId { writer: WriterId(1), number };
                    let record = SegmentRecord::new(id, Stamp(1), 1, 36, vec![1; 60 * 36].into(), vec![0; 60].into());
                    std::sync::Arc::new(record.expect("a record"))
                })
                .collect();
            let place = |(index, (segment, position)): (usize, (u64, u32))| LoadPlace {
                index: index as u32,
                key: key(1),
                slot: terrace_primary::SlotId(index as u32),
                segment: std::sync::Arc::clone(&segments[segment as usize]),
                position,
            };
            (wanted.into_iter().enumerate().map(place).collect(), block_bytes, range)
        },
    )
}

proptest! {
    #[test]
    fn every_place_is_in_one_bounded_range((places, block_bytes, range_bytes) in some_places()) {
        let shape = Shape { namespace: [7; 32], block_bytes, key_bytes: 36 };
        let picks: Vec<_> = (0..places.len() as u32).collect();
        let ranges = plan(&shape, range_bytes, &places, &picks);
        let mut seen: Vec<_> = ranges.iter().flat_map(|range| range.picks().to_vec()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, picks);
        let mut earliest = None;
        for range in &ranges {
            let wanted: Vec<_> = range.picks().iter().map(|pick| &places[*pick as usize]).collect();
            prop_assert!(wanted.iter().all(|place| place.segment.id == wanted[0].segment.id));
            prop_assert!(wanted.is_sorted_by_key(|place| place.position));
            let (first, last) = (wanted[0].position, wanted[wanted.len() - 1].position);
            let bytes = range.bytes(&shape);
            prop_assert_eq!(&bytes, &shape.blocks_range(first, last - first + 1));
            prop_assert!(first == last || bytes.end - bytes.start <= range_bytes);
            for pair in wanted.windows(2) {
                let between = u64::from((pair[1].position - pair[0].position).saturating_sub(1));
                prop_assert!(between <= 1 || between * shape.stride() <= 512 << 10);
            }
            let mut distinct: Vec<_> = wanted.iter().map(|place| place.position).collect();
            distinct.dedup();
            prop_assert_eq!(range.skipped(&places), last - first + 1 - distinct.len() as u32);
            // The earliest blocks of the job are asked for first.
            let own = range.picks().iter().min();
            prop_assert!(earliest <= own);
            earliest = own;
        }
        // No more ranges than the gaps and the bound ask for: neighbours that would fit in one are in one.
        let most = (range_bytes / shape.stride()).max(1);
        for id in 0..3 {
            let mut spans: Vec<_> = ranges.iter()
                .filter(|range| places[range.picks()[0] as usize].segment.id.number == id)
                .map(|range| range.bytes(&shape)).collect();
            spans.sort_by_key(|span| span.start);
            for pair in spans.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start, "no byte is read twice");
                let near = pair[1].start - pair[0].end <= shape.stride();
                prop_assert!(!near || (pair[1].end - pair[0].start) / shape.stride() > most.div_ceil(2));
            }
        }
    }
}
