//! Sick tiers: breaker, panics, closing; reset, drain and shutdown.

mod common;

use common::{SECOND, Stack, key, keys};
use terrace_tiering::{BreakerState, Event, RequestId, StorePlan, TieringError};
use terrace_tiers::{Fault, Refused, TierEvent};

/// Load and store jobs given to the tier.
fn jobs(stack: &Stack) -> (usize, usize) {
    let desk = stack.desk(0);
    (desk.loads.len(), desk.stores.len())
}

/// Three loads that the device fails, as many as open the breaker.
fn fail_thrice(stack: &mut Stack) {
    for n in 0..3 {
        let id = stack.begin(100 + u64::from(n));
        stack.desk(0).hold(&[key(100 + n)]);
        assert_eq!(stack.prefix(id, &[key(100 + n)]), "P");
        stack.end_step();
        stack.desk(0).loads_done(n as usize, Err(Fault::Io));
        stack.end_step();
        stack.manager.finish_request(id);
    }
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Open);
}

#[test]
fn an_open_breaker_makes_the_tier_as_if_absent() {
    let mut stack = Stack::new(16, 2);
    fail_thrice(&mut stack);
    stack.desk(0).hold(&keys(0..2));
    stack.desk(1).hold(&keys(0..1));
    let asked = stack.desk(0).asked;
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..2)), "P.", "the next tier serves");
    stack.store(&keys(10..14));
    assert_eq!((stack.desk(0).asked, stack.manager.cascade_backlog()), (asked, 4), "only the healthy one's cascades");
    let report = &stack.stats().tiers[0];
    assert_eq!((report.cascades.dropped_off, report.breaker_opened), (4, 1));
}

#[test]
fn what_waits_for_a_tier_that_is_switched_off_is_given_up() {
    let mut stack = Stack::new(16, 1);
    let id = stack.begin(1);
    stack.desk(0).hold(&keys(0..3));
    for n in 0..3 {
        // The same key fails, is suspect, and so one key a job.
        stack.prefix(id, &[key(n)]);
        stack.end_step();
    }
    stack.desk(0).refuse = Some(Refused::Busy);
    stack.desk(0).hold(&[key(7)]);
    assert_eq!(stack.prefix(id, &[key(7)]), "P");
    stack.store(&keys(20..22));
    stack.end_step();
    (0..3).for_each(|n| stack.desk(0).loads_done(n, Err(Fault::Io)));
    assert_eq!(stack.prefix(id, &[key(7)]), ".");
    assert_eq!((stack.manager.primary().writing(), stack.manager.cascade_backlog()), (0, 0));
    stack.check();
}

#[test]
fn a_probe_lets_more_through_or_opens_the_breaker() {
    for (outcome, state) in [(Ok(1), BreakerState::HalfOpen), (Err(Fault::Io), BreakerState::Open)] {
        let mut stack = Stack::new(16, 1);
        fail_thrice(&mut stack);
        stack.advance(5 * SECOND);
        stack.desk(0).hold(&keys(0..3));
        let (a, b) = (stack.begin(1), stack.begin(2));
        assert_eq!(stack.prefix(a, &[key(0)]), "P");
        assert_eq!(stack.prefix(b, &[key(1)]), "P");
        stack.store(&keys(10..11));
        stack.end_step();
        assert_eq!(jobs(&stack), (4, 0), "one job goes");
        assert_eq!(stack.stats().tiers[0].breaker, BreakerState::HalfOpen);
        let other = stack.begin(3);
        assert_eq!(stack.prefix(other, &[key(2)]), ".", "nothing new before the probe is back");
        assert_eq!(stack.prefix(b, &[key(1)]), ".", "nor does anybody wait for its result who is not it");
        stack.end_step();
        stack.desk(0).loads_done(3, outcome);
        stack.end_step();
        assert_eq!(stack.stats().tiers[0].breaker, state);
        let more = if outcome.is_ok() { (4, 1) } else { (4, 0) };
        assert_eq!(jobs(&stack), more);
        assert_eq!(stack.prefix(b, &[key(1)]), if outcome.is_ok() { "P" } else { "." });
    }
}

/// A load of `n`, on its way.
fn start_load(stack: &mut Stack, n: u32) -> RequestId {
    let id = stack.begin(1000 + u64::from(n));
    stack.desk(0).hold(&[key(n)]);
    assert_eq!(stack.prefix(id, &[key(n)]), "P", "{n}");
    stack.end_step();
    id
}

/// Loads `n` in so many milliseconds, with a step in each but the first and the last.
fn load_in(stack: &mut Stack, n: u32, millis: u32) {
    let id = start_load(stack, n);
    let nth = stack.desk(0).loads.len() - 1;
    stack.advance(SECOND / 1000 * (millis - 1));
    stack.end_step();
    stack.advance(SECOND / 1000);
    stack.desk(0).loads_done(nth, Ok(1));
    stack.end_step();
    stack.manager.finish_request(id);
}

#[test]
fn a_tier_that_answers_nothing_is_switched_off() {
    let mut stack = Stack::new(16, 1);
    let id = start_load(&mut stack, 0);
    stack.store(&keys(10..12));
    stack.end_step();
    for _ in 0..7 {
        stack.advance(SECOND / 4);
        stack.end_step();
        assert_eq!(stack.prefix(id, &[key(0)]), "P");
    }
    stack.advance(SECOND / 4);
    // The step that the last lookup has polled for, and the next.
    stack.end_step();
    stack.end_step();
    let report = &stack.stats().tiers[0];
    assert_eq!((report.breaker, report.hung, report.promotions.expired), (BreakerState::Open, 1, 1));
    assert_eq!((stack.prefix(id, &[key(0)]), stack.readers()), (".".to_owned(), 0), "nobody waits, nothing is pinned");
    assert_eq!(stack.stats().limbo, 1, "what it may still write to is not used");
    // What was under way says nothing about now; a probe does, and one that hangs ends the same way.
    stack.desk(0).loads_done(0, Ok(1));
    stack.advance(5 * SECOND);
    stack.end_step();
    start_load(&mut stack, 1);
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::HalfOpen);
    for _ in 0..8 {
        stack.advance(SECOND / 4);
        stack.end_step();
    }
    assert_eq!((stack.stats().tiers[0].hung, stack.stats().tiers[0].breaker), (2, BreakerState::Open));
    stack.advance(10 * SECOND);
    stack.end_step();
    (2..10).for_each(|n| load_in(&mut stack, n, 2));
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Closed);
    stack.check();
}

#[test]
fn a_tier_a_hundred_times_as_slow_as_it_was_is_switched_off() {
    let mut stack = Stack::new(64, 1);
    (0..10).for_each(|n| load_in(&mut stack, n, 10));
    load_in(&mut stack, 10, 1000);
    load_in(&mut stack, 11, 10);
    load_in(&mut stack, 12, 1000);
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Closed, "one is no row");
    load_in(&mut stack, 13, 1000);
    let report = &stack.stats().tiers[0];
    assert_eq!((report.breaker, report.slow, report.hung), (BreakerState::Open, 1, 0));
    let id = stack.begin(1);
    stack.desk(0).hold(&[key(40)]);
    assert_eq!(stack.prefix(id, &[key(40)]), ".");
    stack.advance(5 * SECOND);
    load_in(&mut stack, 41, 1000);
    assert_eq!(stack.stats().tiers[0].slow, 2, "one slow probe is enough");
    stack.advance(10 * SECOND);
    (42..50).for_each(|n| {
        assert_eq!(stack.stats().tiers[0].breaker, if n == 42 { BreakerState::Open } else { BreakerState::HalfOpen });
        load_in(&mut stack, n, 10);
    });
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Closed);
    stack.check();
}

#[test]
fn expiries_open_the_breaker() {
    let mut stack = Stack::new(32, 1);
    for n in 0..3 {
        stack.store(&[key(n)]);
        stack.end_step();
    }
    stack.advance(30 * SECOND);
    stack.end_step();
    let report = &stack.stats().tiers[0];
    assert_eq!((report.breaker, report.cascades.expired, stack.readers()), (BreakerState::Open, 3, 0));
}

#[test]
fn a_tier_that_owes_too_much_gets_nothing_more() {
    let mut config = common::config(512);
    config.breaker.failures = 1000;
    let mut stack = Stack::with(config, 1);
    for n in 0..70 {
        stack.store(&[key(n)]);
        stack.end_step();
        stack.advance(30 * SECOND);
        stack.end_step();
    }
    assert_eq!(stack.desk(0).stores.len(), 64, "abandoned and not acknowledged");
    stack.desk(0).store_done(0, 0, Err(Fault::Expired));
    stack.end_step();
    stack.end_step();
    assert_eq!(stack.desk(0).stores.len(), 65);
}

#[test]
fn faults_that_are_no_sickness_do_not_open_it() {
    let mut stack = Stack::new(64, 1);
    stack.store(&keys(0..20));
    for (n, fault) in [Fault::Full, Fault::Absent, Fault::Corrupt, Fault::Full, Fault::Closed].into_iter().enumerate() {
        stack.store(&[key(50 + n as u32)]);
        stack.end_step();
        stack.desk(0).stores_done(n, Err(fault));
        stack.end_step();
    }
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Closed);
}

/// A stack with a load, a store, an abandoned load, a queued promotion and a queued cascade in its only tier.
fn busy_stack() -> (Stack, RequestId) {
    let mut config = common::config(16);
    config.breaker.failures = 100;
    let mut stack = Stack::with(config, 1);
    let id = stack.begin(1);
    stack.desk(0).hold(&keys(0..10));
    stack.prefix(id, &[key(0)]);
    stack.end_step();
    stack.advance(10 * SECOND);
    stack.end_step();
    assert_eq!(stack.stats().limbo, 1);
    stack.manager.finish_request(id); // it has waited long enough
    stack.begin(1);
    stack.store(&keys(10..12));
    stack.prefix(id, &keys(1..3));
    stack.end_step();
    stack.desk(0).refuse = Some(Refused::Busy);
    stack.prefix(id, &keys(3..5));
    stack.store(&keys(12..14));
    stack.end_step();
    let stats = stack.stats();
    assert_eq!((stats.writing, stats.readers, stack.manager.cascade_backlog()), (4, 2, 4));
    (stack, id)
}

#[test]
fn a_panic_stays_inside_the_tier() {
    for call in ["lookup", "submit_store", "submit_load", "abandon", "poll", "touch", "shutdown"] {
        let (mut stack, id) = busy_stack();
        stack.desk(0).refuse = None;
        stack.desk(0).panic_in = Some(call);
        stack.prefix(id, &keys(5..7));
        stack.manager.touch(&keys(10..12));
        stack.store(&keys(14..15));
        stack.end_step();
        stack.advance(30 * SECOND);
        stack.end_step();
        if call == "shutdown" {
            stack.manager.shutdown();
        }
        stack.check();
        let stats = stack.stats();
        assert!(stats.tiers[0].panicked, "{call}");
        assert_eq!((stats.writing, stats.readers, stack.manager.cascade_backlog()), (0, 0, 0), "{call}");
        assert_eq!(stats.limbo, stats.lost_slots, "{call}");
        assert!(stats.limbo >= 1, "{call}: what it may still write to is never handed out");
        if call != "shutdown" {
            assert_eq!(stack.prefix(id, &keys(0..2)), "..");
            stack.desk(0).panic_in = None;
            let polls = stack.desk(0).polls;
            stack.end_step();
            assert_eq!(stack.desk(0).polls, polls, "closed for good");
            assert!(stack.manager.drain());
        }
    }
    let (stack, _) = busy_stack();
    stack.desk(0).panic_in = Some("stats");
    assert_eq!(stack.stats().tiers.len(), 1);
}

#[test]
fn a_closed_tier_gets_nothing_more() {
    let mut stack = Stack::new(16, 1);
    stack.desk(0).hold(&keys(0..2));
    stack.desk(0).refuse = Some(Refused::Closed);
    let id = stack.begin(1);
    stack.prefix(id, &keys(0..2));
    stack.store(&keys(10..12));
    stack.end_step();
    assert_eq!((stack.manager.primary().writing(), stack.readers(), stack.manager.cascade_backlog()), (0, 0, 0));
    assert_eq!(stack.prefix(id, &keys(0..2)), "..");
    assert!(stack.manager.drain());
}

#[test]
fn a_reset_leaves_nothing_that_no_transfer_uses() {
    let (mut stack, id) = busy_stack();
    stack.manager.pin(id, &[key(13)], SECOND).expect("a pin");
    stack.events();
    stack.store(&keys(14..15));
    stack.desk(0).events.push(TierEvent::Removed { key: key(99) });
    stack.manager.poll_once();
    stack.manager.reset().expect("a reset");
    stack.check();
    let stats = stack.stats();
    assert_eq!((stats.resident, stats.writing, stats.readers, stats.limbo), (0, 0, 0, 3));
    assert_eq!(stack.manager.cascade_backlog(), 0);
    assert!(matches!(stack.events()[..], [Event::AllBlocksCleared, Event::BlockRemoved { .. }]), "no stale news");
    // At once in use again, but for what a tier may still write to.
    stack.desk(0).held.clear();
    stack.store(&keys(20..33));
    let mut plan = StorePlan::default();
    assert_eq!(stack.manager.prepare_store(id, &keys(40..54), false, &mut plan), Ok(false));
    stack.desk(0).loads_done(0, Err(Fault::Expired));
    stack.desk(0).loads_done(1, Ok(3));
    stack.manager.drain();
    assert_eq!(stack.stats().limbo, 0);
    stack.check();
}

#[test]
fn a_reset_waits_for_engine_transfers_without_blocking() {
    let mut stack = Stack::new(8, 0);
    stack.store(&keys(0..4));
    let id = stack.begin(1);
    stack.load(id, &[key(0), key(0), key(1)]);
    let mut plan = StorePlan::default();
    assert_eq!(stack.manager.prepare_store(id, &keys(4..5), false, &mut plan), Ok(true));
    stack.manager.reset().expect("a reset");
    stack.check();
    assert_eq!((stack.stats().resident, stack.stats().writing), (2, 1), "only what transfers use is left");
    assert_eq!(stack.prefix(id, &keys(0..5)), ".....");
    assert!(stack.manager.prepare_load(id, &[key(0)], &mut Vec::new()).is_err());
    assert_eq!(stack.manager.prepare_store(id, &keys(6..7), true, &mut plan), Ok(false));
    assert_eq!(stack.manager.pin(id, &[key(0)], SECOND), Ok(0));
    stack.manager.complete_load(id, &[key(0), key(1)]).expect("running");
    stack.manager.complete_store(id, &[key(4)], true).expect("running");
    stack.check();
    assert_eq!(stack.prefix(id, &keys(0..5)), ".....", "one reader is left");
    stack.manager.complete_load(id, &[key(0)]).expect("running");
    assert_eq!(stack.stats().free, 8);
    stack.store(&keys(0..2));
    assert_eq!(stack.prefix(id, &keys(0..3)), "HH.");
}

#[test]
fn drain_goes_on_until_nothing_is_owed() {
    let mut stack = Stack::new(16, 1);
    stack.store(&keys(0..10));
    assert!(!stack.manager.drain());
    stack.desk(0).stores_done(0, Ok(1));
    assert!(!stack.manager.drain());
    stack.desk(0).stores_done(1, Ok(1));
    assert!(stack.manager.drain());
    assert_eq!(stack.stats().tiers[0].cascades.stored, 10);
}

#[test]
fn shutdown_settles_everything_and_refuses_the_rest() {
    let (mut stack, id) = busy_stack();
    let engine = stack.begin(5);
    stack.load(engine, &[key(13)]);
    stack.manager.shutdown();
    stack.check();
    assert!(stack.desk(0).shut_down);
    let stats = stack.stats();
    assert_eq!((stats.writing, stats.readers, stats.requests, stats.limbo), (0, 1, 0, 3));
    assert_eq!(stats.lost_slots, 3, "the tier did not say that it let go");
    let mut out = Vec::new();
    let lookup = stack.manager.lookup(id, &keys(0..1), terrace_tiering::LookupMode::Prefix, &mut out);
    assert_eq!(lookup, Err(TieringError::Closed));
    assert_eq!(stack.manager.reset(), Err(TieringError::Closed));
    stack.manager.complete_load(engine, &[key(13)]).expect("transfers still end");
    assert_eq!(stack.readers(), 0);
    stack.manager.end_step();
    stack.manager.shutdown();
    assert!(!stack.manager.has_pending_work());
}
