//! A manager over a region that is still being backed.

mod common;

use std::time::Duration;

use common::{SECOND, Stack, key, keys, letters};
use terrace_tiering::{RequestId, StorePlan};

/// Slots that one request is given for `wanted` blocks, kept *writing*.
fn stored(stack: &mut Stack, request: u64, first: u32, wanted: u32) -> Vec<u32> {
    let id = stack.begin(request);
    let mut plan = StorePlan::default();
    stack.manager.prepare_store(id, &keys(first..first + wanted), true, &mut plan).expect("an open request");
    stack.check();
    plan.slots.iter().map(|slot| slot.0).collect()
}

#[test]
fn slots_are_handed_out_as_they_become_usable() {
    let mut stack = Stack::new(10, 1);
    stack.manager.set_usable_slots(0);
    assert_eq!((stack.stats().free, stored(&mut stack, 1, 0, 4)), (0, vec![]));
    stack.desk(0).hold(&keys(50..52));
    let id = stack.begin(2);
    assert_eq!(stack.prefix(id, &keys(50..52)), "..", "no room to promote to");

    stack.manager.set_usable_slots(3);
    assert_eq!(stack.stats().free, 3);
    let mut slots = stored(&mut stack, 3, 0, 10);
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    // Never fewer, and never more than there are.
    stack.manager.set_usable_slots(1);
    stack.check();
    assert_eq!((stack.manager.primary().usable(), stack.stats().free), (3, 0));
    stack.manager.set_usable_slots(1000);
    stack.check();
    assert_eq!((stack.manager.primary().usable(), stack.stats().free), (10, 7));
    let mut slots = stored(&mut stack, 4, 10, 10);
    slots.sort_unstable();
    assert_eq!(slots, [3, 4, 5, 6, 7, 8, 9]);
}

/// Every share is one half.
#[test]
fn shares_follow_the_usable_slots() {
    let mut stack = Stack::new(20, 1);
    stack.desk(0).hold(&keys(0..20));
    let id = stack.begin(1);
    // One slot of a positive share, however few there are.
    stack.manager.set_usable_slots(1);
    assert_eq!(stack.prefix(id, &keys(0..20)), "P...................");
    stack.manager.set_usable_slots(8);
    stack.end_step();
    let pending = |answer: &str| answer.matches('P').count();
    assert_eq!(pending(&stack.prefix(id, &keys(0..20))), 4);
    stack.manager.set_usable_slots(20);
    stack.end_step();
    assert_eq!(pending(&stack.prefix(id, &keys(0..20))), 10);

    let mut stack = Stack::new(20, 0);
    stack.manager.set_usable_slots(8);
    stack.store(&keys(0..8));
    let id = stack.begin(1);
    assert_eq!(stack.manager.pin(id, &keys(0..8), SECOND), Ok(4));
    stack.manager.set_usable_slots(20);
    assert_eq!(stack.manager.pin(id, &keys(0..8), SECOND), Ok(8));
    stack.check();
}

#[test]
fn a_number_that_comes_too_late_takes_nothing_away() {
    let mut stack = Stack::new(10, 0);
    stack.store(&[key(1)]);
    stack.manager.set_usable_slots(0);
    stack.check();
    assert_eq!((stack.manager.primary().usable(), stack.stats().free), (10, 9));
}

/// What a request that waits for `range` is told.
fn wait(stack: &mut Stack, id: RequestId, range: std::ops::Range<u32>) -> String {
    let mut out = Vec::new();
    stack.manager.wait_for(id, &keys(range), &mut out).expect("an open request");
    stack.end_step();
    letters(&out)
}

#[test]
fn a_request_waits_for_slots_that_are_coming() {
    let mut stack = Stack::new(20, 1);
    stack.manager.set_usable_slots(0);
    stack.desk(0).hold(&keys(0..20));
    let id = stack.begin(1);
    assert_eq!(wait(&mut stack, id, 0..4), "RRRR");
    assert_eq!(wait(&mut stack, id, 0..20), "R".repeat(20), "more than will ever fit, but nothing does yet");
    stack.clock.advance(SECOND / 2);
    stack.manager.set_usable_slots(6);
    assert_eq!(wait(&mut stack, id, 0..4), "RRRR", "the share of six slots is three");
    assert_eq!(stack.stats().promotions_deferred, 4 + 20 + 4);
    stack.clock.advance(SECOND / 2);
    stack.manager.set_usable_slots(8);
    assert_eq!(wait(&mut stack, id, 0..4), "PPPP");
    assert_eq!((stack.stats().promotions_refused, stack.desk(0).loads.len()), (0, 1));
    let other = stack.begin(2);
    assert_eq!(wait(&mut stack, other, 4..20), "R".repeat(16), "more than will ever fit, and the room is taken");
    stack.manager.set_usable_slots(12);
    assert_eq!(wait(&mut stack, other, 4..20), "PP..............", "the leading keys, as in a whole primary");
}

#[test]
fn nobody_waits_for_a_region_that_stands_still() {
    let mut stack = Stack::new(20, 1);
    stack.manager.set_usable_slots(0);
    stack.desk(0).hold(&keys(0..4));
    let id = stack.begin(1);
    stack.clock.advance(SECOND - Duration::from_millis(1));
    stack.manager.set_usable_slots(0);
    assert_eq!(wait(&mut stack, id, 0..4), "RRRR");
    stack.clock.advance(Duration::from_millis(1));
    assert_eq!(wait(&mut stack, id, 0..4), "....");
    stack.manager.set_usable_slots(2);
    assert_eq!(wait(&mut stack, id, 0..4), "RRRR", "it grows again");
    // A request that has waited for long enough waits no more.
    for slots in 3..8 {
        stack.clock.advance(SECOND - Duration::from_millis(1));
        stack.manager.set_usable_slots(slots);
        assert_eq!(wait(&mut stack, id, 0..4), "RRRR");
    }
    stack.clock.advance(Duration::from_millis(10));
    assert_eq!(wait(&mut stack, id, 0..4), "....");
    let other = stack.begin(2);
    assert_eq!(wait(&mut stack, other, 0..4), "RRRR");
}
