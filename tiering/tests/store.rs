//! Stores, loads, cascades, pins, recency.

mod common;

use common::{SECOND, Stack, config, key, keys};
use terrace_primary::{Key, SlotId};
use terrace_tiering::{Event, StorePlan, TieringError};
use terrace_tiers::{Fault, Locality, Medium, Refused};

fn prepare(stack: &mut Stack, id: terrace_tiering::RequestId, keys: &[Key], partial: bool) -> Option<StorePlan> {
    let mut plan = StorePlan { store: vec![9], slots: vec![SlotId(9)], evicted: vec![key(9)] };
    let fits = stack.manager.prepare_store(id, keys, partial, &mut plan).expect("a valid call");
    stack.check();
    if !fits {
        assert_eq!(plan, StorePlan::default());
    }
    fits.then_some(plan)
}

fn resident(stack: &Stack, n: u32) -> bool {
    stack.manager.primary().find(&key(n)).is_some()
}

#[test]
fn a_store_skips_what_is_present_and_publishes_the_rest() {
    let mut stack = Stack::new(8, 0);
    stack.store(&keys(0..2));
    let id = stack.begin(1);
    let plan = prepare(&mut stack, id, &keys(0..4), false).expect("room");
    assert_eq!((plan.store.as_slice(), plan.slots.len(), plan.evicted.len()), (&[2u32, 3][..], 2, 0));
    let again = prepare(&mut stack, id, &keys(0..4), false).expect("room");
    assert!(again.store.is_empty(), "what is being written is present");
    assert_eq!(stack.prefix(id, &keys(0..4)), "HHPP");
    assert!(stack.manager.prepare_load(id, &keys(0..4), &mut Vec::new()).is_err());
    stack.events();
    stack.manager.finish_request(id);
    stack.manager.complete_store(id, &[key(2)], true).expect("late is fine");
    stack.manager.complete_store(id, &[key(3)], false).expect("late is fine");
    let stored = Event::BlockStored { key: key(2), medium: Medium::Cpu, locality: Locality::Local };
    assert_eq!(stack.events(), [stored]);
    assert!(resident(&stack, 2) && !resident(&stack, 3));
    assert_eq!((stack.stats().stored, stack.stats().stores_failed), (3, 1));
}

#[test]
fn eviction_is_all_or_nothing_and_spares_the_calls_own_keys() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let reader = stack.begin(1);
    stack.load(reader, &[key(3)]);
    let id = stack.begin(2);
    stack.events();
    assert_eq!(prepare(&mut stack, id, &[key(0), key(10), key(11), key(12)], false), None);
    assert!((0..4).all(|n| resident(&stack, n)) && stack.events().is_empty(), "nothing was changed");
    // Key 0 is the oldest, and part of the call.
    let plan = prepare(&mut stack, id, &[key(0), key(10), key(11)], false).expect("room");
    assert_eq!(plan.evicted, [key(2), key(1)]);
    assert!(resident(&stack, 0));
    assert_eq!(stack.stats().stores_refused, 1);
}

#[test]
fn a_partial_store_takes_the_leading_part() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let reader = stack.begin(1);
    stack.load(reader, &keys(2..4));
    let id = stack.begin(2);
    let plan = prepare(&mut stack, id, &keys(10..15), true).expect("two fit");
    assert_eq!((plan.store.as_slice(), plan.evicted.len()), (&[0u32, 1][..], 2));
    assert_eq!(prepare(&mut stack, id, &keys(20..22), true), None, "not one fits");
    assert_eq!(stack.stats().stores_left_out, 3);
}

#[test]
fn a_key_that_stands_twice_is_stored_once() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let reader = stack.begin(1);
    stack.load(reader, &keys(1..4));
    let id = stack.begin(2);
    let plan = prepare(&mut stack, id, &[key(7), key(7), key(7)], false).expect("one slot is enough");
    assert_eq!((plan.store, plan.slots.len()), (vec![0], 1));
    // The same hash in two groups is two blocks; equal first bytes are not equal keys.
    let grouped = |group| Key::new(&[5; 32], group).expect("a key");
    let longer = Key::new(&[5; 31], 0).expect("a key");
    let mut stack = Stack::new(4, 0);
    let id = stack.begin(1);
    let plan = prepare(&mut stack, id, &[grouped(0), longer, grouped(1), grouped(0)], false).expect("room");
    assert_eq!(plan.store, [0, 1, 2]);
}

#[test]
fn admission_turns_down_what_was_not_offered_often_enough() {
    let mut config = config(8);
    config.admission.store_threshold = 2;
    let mut stack = Stack::with(config, 0);
    let id = stack.begin(1);
    assert!(prepare(&mut stack, id, &keys(0..2), false).expect("nothing to do").store.is_empty());
    assert_eq!(prepare(&mut stack, id, &keys(0..3), false).expect("room").store, [0, 1]);
    assert_eq!(stack.stats().not_admitted, 3);
}

#[test]
fn completions_of_what_is_not_running_are_errors() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..2));
    stack.desk(0).hold(&[key(5)]);
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &[key(5)]), "P");
    stack.end_step();
    assert_eq!(stack.readers(), 2, "the cascades read");
    // Neither a cascade's reader nor a promotion's slot can be taken from outside.
    let complete = stack.manager.complete_load(id, &keys(0..2));
    assert_eq!(complete, Err(TieringError::NotLoading { key: key(0) }));
    let complete = stack.manager.complete_store(id, &[key(5)], true);
    assert_eq!(complete, Err(TieringError::NotStoring { key: key(5) }));
    let complete = stack.manager.complete_store(id, &[key(1), key(77)], false);
    assert_eq!(complete, Err(TieringError::NotStoring { key: key(1) }));
    assert_eq!(stack.readers(), 2);
    // The valid ones of a call are completed all the same.
    stack.load(id, &[key(0), key(0)]);
    let complete = stack.manager.complete_load(id, &[key(0), key(9), key(0), key(0)]);
    assert_eq!(complete, Err(TieringError::NotLoading { key: key(9) }));
    assert_eq!(stack.readers(), 2);
    assert_eq!(stack.stats().completions_refused, 7);
    stack.check();
}

#[test]
fn a_load_takes_all_or_nothing() {
    let mut stack = Stack::new(8, 0);
    stack.store(&keys(0..2));
    let id = stack.begin(1);
    let mut slots = vec![SlotId(99)];
    let load = stack.manager.prepare_load(id, &keys(0..3), &mut slots);
    assert_eq!(load, Err(TieringError::NotResident { key: key(2) }));
    assert_eq!((slots.as_slice(), stack.readers()), (&[SlotId(99)][..], 0));
}

#[test]
fn a_store_cascades_to_every_tier_that_does_not_hold_it() {
    let mut stack = Stack::new(16, 2);
    stack.desk(0).hold(&[key(1)]);
    stack.store(&keys(0..3));
    assert_eq!((stack.readers(), stack.manager.cascade_backlog()), (0, 5), "queued without a reader");
    assert!(stack.manager.has_pending_work());
    stack.end_step();
    let blocks: Vec<usize> = (0..2).map(|tier| stack.desk(tier).stores[0].blocks.len()).collect();
    assert_eq!((blocks, stack.readers()), (vec![2, 3], 5));
    stack.events();
    stack.desk(0).store_done(0, 0, Ok(7));
    stack.desk(0).store_done(0, 1, Err(Fault::Full));
    stack.desk(1).stores_done(0, Ok(7));
    stack.end_step();
    assert_eq!((stack.readers(), stack.manager.cascade_backlog()), (0, 0));
    assert!(!stack.manager.has_pending_work());
    let stored = |n, locality| Event::BlockStored { key: key(n), medium: Medium::Storage, locality };
    let remote = |n| stored(n, Locality::Remote);
    assert_eq!(stack.events(), [stored(0, Locality::Local), remote(0), remote(1), remote(2)]);
    let stats = stack.stats();
    let (first, second) = (stats.tiers[0].cascades, stats.tiers[1].cascades);
    assert_eq!((first.stored, first.failed, first.present, second.stored), (1, 1, 1, 3));
    stack.desk(1).events.push(terrace_tiers::TierEvent::Removed { key: key(1) });
    stack.end_step();
    let removed = Event::BlockRemoved { key: key(1), medium: Medium::Storage, locality: Locality::Remote };
    assert_eq!(stack.events(), [removed]);
}

#[test]
fn back_pressure_drops_cascades_and_never_pins() {
    let mut config = config(8);
    config.limits.queued_cascades = 6;
    let mut stack = Stack::with(config, 1);
    stack.store(&keys(0..8));
    assert_eq!(stack.stats().tiers[0].cascades.dropped_full, 2);
    stack.end_step();
    assert_eq!((stack.readers(), stack.manager.cascade_backlog()), (4, 6), "half of the primary at most");
    stack.end_step();
    assert_eq!(stack.readers(), 4);
    // Those that wait can be evicted; those that are read cannot.
    assert_eq!(stack.desk(0).stores[0].blocks.iter().map(|block| block.key).collect::<Vec<_>>(), keys(2..6));
    let plan = stack.store(&keys(10..14));
    assert_eq!(plan.evicted, [key(7), key(6), key(1), key(0)], "the tail first");
    stack.desk(0).stores_done(0, Ok(1));
    stack.end_step();
    let counts = stack.stats().tiers[0].cascades;
    assert_eq!((counts.dropped_evicted, counts.dropped_full, counts.stored), (2, 2, 4));
    assert_eq!(stack.desk(0).stores[1].blocks.len(), 4);
}

#[test]
fn store_jobs_are_bounded() {
    let mut config = config(2048);
    config.limits.queued_cascades = 4096;
    let mut stack = Stack::with(config, 1);
    stack.store(&keys(0..1000));
    stack.end_step();
    let sizes: Vec<usize> = stack.desk(0).stores.iter().map(|job| job.blocks.len()).collect();
    assert_eq!(sizes, [256, 256, 256, 232]);
}

#[test]
fn a_busy_tier_gets_its_cascades_later_in_order() {
    let mut stack = Stack::new(16, 1);
    stack.desk(0).refuse = Some(Refused::Busy);
    stack.store(&keys(0..3));
    stack.end_step();
    assert_eq!((stack.readers(), stack.manager.cascade_backlog()), (0, 3));
    stack.desk(0).refuse = None;
    stack.end_step();
    assert_eq!(stack.desk(0).stores[0].blocks.iter().map(|block| block.key).collect::<Vec<_>>(), keys(0..3));
    assert_eq!(stack.stats().tiers[0].cascades.jobs_refused, 1);
}

#[test]
fn a_hung_cascade_lets_go_at_its_deadline() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..2));
    stack.end_step();
    stack.advance(30 * SECOND);
    stack.end_step();
    assert_eq!((stack.desk(0).abandoned.len(), stack.readers()), (1, 0));
    let counts = stack.stats().tiers[0].cascades;
    assert_eq!((counts.expired, counts.abandoned), (2, 2));
    // Stored before the tier heard of it: it is there, and observers learn it; the slot may hold something else by now.
    stack.events();
    stack.store(&keys(10..18));
    stack.desk(0).store_done(0, 0, Ok(5));
    stack.desk(0).store_done(0, 1, Err(Fault::Expired));
    stack.manager.poll_once();
    let below = |event: &&Event| matches!(event, Event::BlockStored { medium: Medium::Storage, .. });
    assert_eq!(stack.events().iter().filter(below).count(), 1);
    let crc32 = |n| stack.manager.primary().find(&key(n)).and_then(|slot| stack.manager.primary().crc32(slot));
    assert!((10..18).all(|n| crc32(n).is_none()));
    stack.check();
}

#[test]
fn pins_are_bounded_and_end_by_themselves() {
    let mut stack = Stack::new(8, 0);
    stack.store(&keys(0..6));
    let id = stack.begin(1);
    assert_eq!(stack.manager.pin(id, &keys(0..7), 10 * SECOND), Ok(4), "half of the primary");
    assert_eq!(stack.manager.pin(id, &keys(0..1), 500 * SECOND), Ok(1), "longer");
    assert_eq!(stack.manager.pin(id, &keys(0..1), SECOND), Ok(1), "not shorter");
    assert_eq!((stack.readers(), stack.stats().pins, stack.stats().pins_refused), (4, 4, 2));
    stack.manager.finish_request(id);
    assert_eq!(stack.readers(), 4, "pins outlive their request");
    let other = stack.begin(2);
    stack.manager.unpin(other, &keys(0..6));
    assert_eq!(stack.readers(), 4, "another's");
    stack.manager.unpin(id, &keys(1..2));
    assert_eq!(stack.readers(), 3);
    stack.advance(10 * SECOND);
    stack.end_step();
    assert_eq!(stack.readers(), 1);
    stack.advance(290 * SECOND);
    stack.end_step();
    assert_eq!((stack.readers(), stack.stats().pins_expired), (0, 3), "cut to deadlines.pin");
}

#[test]
fn the_tail_of_a_prefix_is_evicted_first() {
    let mut stack = Stack::new(6, 1);
    stack.store(&keys(0..6));
    let mut tiers: Vec<u32> = Vec::new();
    stack.manager.touch(&[key(0), key(1), key(2), key(50)]);
    for at in &stack.desk(0).touched {
        tiers.push((0..60).find(|n| key(*n) == *at).expect("a known key"));
    }
    assert_eq!(tiers, [50, 2, 1, 0], "the head last: most recent");
    let plan = stack.store(&keys(10..15));
    assert_eq!(plan.evicted, [key(5), key(4), key(3), key(2), key(1)]);
}

#[test]
fn groups_of_a_chunk_leave_together() {
    let grouped = |chunk: u8, group| Key::new(&[chunk; 32], group).expect("a key");
    let chunks = |range: std::ops::Range<u8>| -> Vec<Key> {
        range.flat_map(|chunk| [grouped(chunk, 0), grouped(chunk, 1)]).collect()
    };
    let mut stack = Stack::new(8, 0);
    stack.store(&chunks(0..4));
    stack.manager.touch(&chunks(0..4));
    let plan = stack.store(&chunks(10..12));
    assert_eq!(plan.evicted, [grouped(3, 1), grouped(3, 0), grouped(2, 1), grouped(2, 0)]);
}

#[test]
fn requests_and_events_are_bounded() {
    let mut config = config(64);
    config.limits.requests = 2;
    config.limits.events = 4;
    let mut stack = Stack::with(config, 0);
    stack.store(&keys(0..10));
    assert_eq!((stack.events().len(), stack.stats().events_dropped), (4, 6));
    stack.begin(1);
    stack.begin(2);
    let context = |n| terrace_tiering::RequestContext { id: terrace_tiering::RequestId(n), tiers: Default::default() };
    assert_eq!(stack.manager.begin_request(context(3)), Err(TieringError::TooManyRequests { limit: 2 }));
    let open = TieringError::RequestOpen(terrace_tiering::RequestId(1));
    assert_eq!(stack.manager.begin_request(context(1)), Err(open));
    assert_eq!(stack.stats().requests_refused, 1);
    assert!(stack.manager.finish_request(terrace_tiering::RequestId(9)).is_none());
}

#[test]
fn a_key_longer_than_the_geometry_says_is_refused() {
    let mut stack = Stack::new(4, 0);
    let id = stack.begin(1);
    let long = Key::new(&[1; 33], 0).expect("a key");
    let mut plan = StorePlan::default();
    let result = stack.manager.prepare_store(id, &[key(0), long], false, &mut plan);
    assert_eq!(result, Err(TieringError::KeyTooLong { key: long, hash_bytes: 32 }));
    assert_eq!(stack.manager.primary().writing(), 0);
}
