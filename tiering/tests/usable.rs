//! A manager over a region that is still being backed.

mod common;

use common::{SECOND, Stack, key, keys};
use terrace_tiering::StorePlan;

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
