//! Lookups, promotions, holds and the deadlines that end them.

mod common;

use common::{SECOND, Stack, config, key, keys, tier_config};
use terrace_primary::BlockState;
use terrace_tiering::{Event, LookupMode, TierFilter, TieringError};
use terrace_tiers::{Fault, Locality, Medium, Refused};

#[test]
fn a_resident_prefix_is_hit_and_touches_no_tier() {
    let mut stack = Stack::new(16, 1);
    stack.store(&keys(0..8));
    let asked = stack.desk(0).asked;
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..8)), "HHHHHHHH");
    assert_eq!(stack.prefix(id, &[]), "");
    assert_eq!((stack.desk(0).asked, stack.readers()), (asked, 0));
}

#[test]
fn a_promotion_lands_block_by_block_and_is_flushed_once() {
    let mut stack = Stack::new(16, 1);
    stack.store(&keys(0..2));
    stack.end_step();
    stack.desk(0).stores_done(0, Ok(7));
    stack.desk(0).hold(&keys(2..5));
    stack.end_step();
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..6)), "HHPPP.");
    assert_eq!(stack.prefix(id, &keys(0..6)), "HHPPP.");
    assert!(stack.desk(0).loads.is_empty(), "only at the end of the step");
    stack.end_step();
    stack.end_step();
    assert_eq!(stack.desk(0).loads.len(), 1);
    assert_eq!(stack.desk(0).loads[0].blocks.len(), 3);
    stack.events();

    stack.desk(0).load_done(0, 0, Ok(42));
    assert_eq!(stack.prefix(id, &keys(0..6)), "HHHPP.");
    stack.end_step();
    stack.desk(0).load_done(0, 2, Ok(44));
    stack.desk(0).load_done(0, 1, Ok(43));
    assert_eq!(stack.prefix(id, &keys(0..6)), "HHHHH.");
    let stored = |n| Event::BlockStored { key: key(n), medium: Medium::Cpu, locality: Locality::Local };
    assert_eq!(stack.events(), [stored(2), stored(4), stored(3)]);
    let slots = stack.load(id, &keys(0..5));
    let primary = stack.manager.primary();
    assert_eq!(primary.crc32(slots[2]), Some(42));
    assert_eq!(primary.crc32(slots[0]), Some(7), "kept from the cascade");
    stack.manager.complete_load(id, &keys(0..5)).expect("complete");
    let other = stack.begin(2);
    stack.load(other, &keys(0..5));
    stack.manager.complete_load(other, &keys(0..5)).expect("complete");
    let (first, second) = (stack.manager.finish_request(id), stack.manager.finish_request(other));
    let (first, second) = (first.expect("open"), second.expect("open"));
    assert_eq!((first.hits_primary, first.hits_by_tier[0], first.promotions), (2, 3, 3));
    assert_eq!((second.hits_primary, second.hits_by_tier[0]), (5, 0), "a promotion is counted once");
    assert_eq!(stack.readers(), 0);
    stack.check();
}

#[test]
fn requests_share_one_promotion() {
    let mut stack = Stack::new(16, 1);
    stack.desk(0).hold(&keys(0..4));
    let (a, b) = (stack.begin(1), stack.begin(2));
    assert_eq!(stack.prefix(a, &keys(0..3)), "PPP");
    assert_eq!(stack.prefix(b, &keys(0..4)), "PPPP");
    stack.end_step();
    let jobs: Vec<usize> = stack.desk(0).loads.iter().map(|job| job.blocks.len()).collect();
    assert_eq!(jobs, [3, 1], "one job a request, and no key twice");
}

#[test]
fn a_prefix_promotes_nothing_behind_its_first_miss() {
    let mut stack = Stack::new(512, 1);
    stack.desk(0).hold(&keys(0..2));
    stack.desk(0).hold(&keys(3..5));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..5)), "PP...");
    stack.end_step();
    assert_eq!(stack.desk(0).loads[0].blocks.len(), 2);
    let asked = stack.desk(0).asked;
    stack.prefix(id, &keys(1000..2000));
    assert_eq!(stack.desk(0).asked - asked, 64, "the tail of a long miss is not asked for");
    assert!(stack.desk(0).largest_lookup <= 64);
}

#[test]
fn a_suffix_takes_the_last_full_window() {
    let mut stack = Stack::new(32, 1);
    stack.desk(0).hold(&keys(0..5)); // 0..=4
    stack.desk(0).hold(&keys(6..8)); // 6, 7
    let id = stack.begin(1);
    let window = |window| LookupMode::Suffix { window };
    assert_eq!(stack.look(id, &keys(0..10), window(3)), "..PPP.....");
    assert_eq!(stack.look(id, &keys(0..10), window(2)), "......PP..");
    assert_eq!(stack.look(id, &keys(5..10), window(3)), ".....", "shorter only at the first key");
    assert_eq!(stack.look(id, &keys(6..10), window(3)), "PP..");
    assert_eq!(stack.manager.primary().writing(), 5, "what is outside of the window is not promoted");
    // Longer than one batch, the window crossing its border.
    let mut stack = Stack::new(512, 1);
    stack.desk(0).hold(&keys(30..150));
    let id = stack.begin(1);
    let seen = stack.look(id, &keys(0..200), window(100));
    assert_eq!(seen, ".".repeat(50) + &"P".repeat(100) + &".".repeat(50));
}

#[test]
fn each_key_for_itself() {
    let mut stack = Stack::new(16, 1);
    stack.store(&[key(1)]);
    stack.desk(0).hold(&[key(3)]);
    stack.desk(0).unknown.insert(key(4));
    let id = stack.begin(1);
    assert_eq!(stack.look(id, &keys(0..5), LookupMode::Each), ".H.PR");
}

#[test]
fn a_slower_tier_does_not_win_while_a_faster_one_resolves() {
    let mut stack = Stack::new(16, 2);
    stack.desk(0).unknown.extend([key(0)]);
    stack.desk(1).hold(&[key(0)]);
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &[key(0)]), "R");
    stack.desk(0).unknown.clear();
    stack.end_step();
    assert_eq!(stack.prefix(id, &[key(0)]), "P");
    stack.end_step();
    assert_eq!((stack.desk(0).loads.len(), stack.desk(1).loads.len()), (0, 1));
}

#[test]
fn a_faster_tier_that_never_resolves_loses_at_the_deadline() {
    let mut stack = Stack::new(16, 2);
    stack.desk(0).unknown.extend(keys(0..2));
    stack.desk(1).hold(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &[key(0)]), "R");
    stack.end_step();
    stack.advance(5 * SECOND);
    assert_eq!(stack.prefix(id, &[key(0)]), ".", "its own deadline");
    stack.end_step();
    let next = stack.begin(2);
    assert_eq!(stack.prefix(next, &[key(1)]), "P", "the next does not wait as long again");
    assert!(stack.stats().tiers[0].unknown_expired > 0);
}

#[test]
fn the_filter_of_a_request_is_kept() {
    let mut stack = Stack::new(16, 2);
    stack.desk(0).hold(&keys(0..1));
    stack.desk(1).hold(&keys(0..1));
    let none = stack.begin_with(1, TierFilter::NONE);
    assert_eq!(stack.prefix(none, &keys(0..1)), ".");
    let second = stack.begin_with(2, TierFilter(0b10));
    assert_eq!(stack.prefix(second, &keys(0..1)), "P");
    stack.end_step();
    assert_eq!((stack.desk(0).loads.len(), stack.desk(1).loads.len()), (0, 1));
}

#[test]
fn retry_ends_for_each_group_of_a_request() {
    // One group resolves in every step, the other never does: the wait is the request's, not the call's.
    let mut stack = Stack::new(16, 1);
    stack.store(&[key(0)]);
    stack.desk(0).unknown.extend([key(1), key(2)]);
    let id = stack.begin(1);
    for _ in 0..5 {
        assert_eq!(stack.prefix(id, &[key(0)]), "H");
        assert_eq!(stack.prefix(id, &[key(1)]), "R");
        assert_eq!(stack.prefix(id, &[key(2)]), "R");
        stack.end_step();
        stack.advance(SECOND);
    }
    assert_eq!(stack.prefix(id, &[key(1)]), ".");
    assert_eq!(stack.prefix(id, &[key(2)]), ".", "all of them in the same step");
    stack.end_step();
    stack.desk(0).unknown.insert(key(0)); // it knows something again
    let other = stack.begin(2);
    assert_eq!(stack.prefix(other, &[key(7)]), ".");
    stack.end_step();
    assert_eq!(stack.prefix(id, &[key(1)]), "R", "a new wait");
}

#[test]
fn a_hung_promotion_is_a_miss_then_limbo_then_free() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..2)), "PP");
    stack.end_step();
    stack.advance(5 * SECOND);
    assert_eq!(stack.prefix(id, &keys(0..2)), "..");
    assert!(stack.desk(0).abandoned.is_empty(), "the promotion itself may still land");
    stack.end_step();
    stack.advance(5 * SECOND);
    stack.end_step();
    assert_eq!(stack.desk(0).abandoned.len(), 1);
    let stats = stack.stats();
    assert_eq!((stats.limbo, stats.writing, stats.readers, stats.tiers[0].promotions.expired), (2, 0, 0, 2));
    assert!(!stack.manager.has_pending_work(), "nothing to step for");
    assert!(!stack.manager.drain(), "but the tier still owns the slots");
    let other = stack.begin(2);
    assert_eq!(stack.prefix(other, &keys(0..2)), "..", "not from that tier again so soon");
    // Even a late success is not used.
    stack.desk(0).load_done(0, 0, Ok(1));
    stack.desk(0).load_done(0, 1, Err(Fault::Expired));
    assert!(stack.manager.drain());
    assert_eq!((stack.stats().limbo, stack.stats().free), (0, 8));
}

#[test]
fn limbo_counts_against_the_share() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..100));
    for round in 0..20 {
        let id = stack.begin(round);
        stack.prefix(id, &keys(round as u32 * 4..round as u32 * 4 + 4));
        stack.end_step();
        stack.advance(20 * SECOND);
        stack.end_step();
        stack.manager.finish_request(id);
    }
    assert_eq!(stack.stats().limbo, 4, "half of the primary, however long the tier hangs");
}

#[test]
fn a_failed_block_is_a_miss_and_then_the_next_tiers() {
    for fault in [Fault::Absent, Fault::Corrupt, Fault::Io, Fault::Closed] {
        let mut stack = Stack::new(16, 2);
        // The first tier keeps saying that it has the block.
        stack.desk(0).hold(&keys(0..2));
        stack.desk(1).hold(&keys(0..1));
        let id = stack.begin(1);
        assert_eq!(stack.prefix(id, &keys(0..2)), "PP");
        stack.end_step();
        stack.desk(0).loads_done(0, Err(fault));
        stack.manager.poll_once();
        assert_eq!(stack.manager.primary().writing(), 0);
        assert_eq!(stack.prefix(id, &keys(0..2)), "P.");
        stack.end_step();
        stack.desk(1).loads_done(0, Ok(1));
        assert_eq!(stack.prefix(id, &keys(0..2)), "H.");
        assert_eq!(stack.desk(0).loads.len(), 1, "not tried again");
    }
}

#[test]
fn a_busy_tier_is_asked_again_in_the_next_step() {
    let mut stack = Stack::new(16, 1);
    stack.desk(0).hold(&keys(0..4));
    stack.desk(0).refuse = Some(Refused::Busy);
    let id = stack.begin(1);
    stack.prefix(id, &keys(0..2));
    stack.end_step();
    assert_eq!(stack.prefix(id, &keys(0..4)), "PPPP");
    stack.desk(0).refuse = None;
    stack.end_step();
    assert_eq!(stack.desk(0).loads.len(), 1, "one load for the request, whenever its blocks were reserved");
    assert_eq!(stack.desk(0).loads[0].blocks.len(), 4);
    // Refused until the deadline: freed, and never in limbo.
    let mut stack = Stack::new(16, 1);
    stack.desk(0).hold(&keys(0..4));
    stack.desk(0).refuse = Some(Refused::Busy);
    let id = stack.begin(1);
    stack.prefix(id, &keys(0..4));
    stack.end_step();
    stack.advance(10 * SECOND);
    stack.end_step();
    let stats = stack.stats();
    assert_eq!((stats.writing, stats.limbo, stats.tiers[0].promotions.expired), (0, 0, 4));
}

#[test]
fn promotions_keep_to_their_share_and_take_the_leading_part() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..8));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..8)), "PPPP....");
    assert_eq!(stack.stats().promotions_refused, 4);
    let other = stack.begin(2);
    assert_eq!(stack.prefix(other, &keys(4..8)), "....", "a miss, never a wait");
    assert_eq!(stack.look(other, &keys(0..8), LookupMode::Each), "PPPP....");
    // A part of a window is of no use.
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..8));
    let id = stack.begin(1);
    assert_eq!(stack.look(id, &keys(0..8), LookupMode::Suffix { window: 5 }), "........");
    assert_eq!(stack.manager.primary().writing(), 0);
}

#[test]
fn a_promotion_evicts_others_but_not_what_its_request_found() {
    let mut config = config(6);
    config.limits.promotion_share = 1.0;
    let mut stack = Stack::with(config, 1);
    stack.store(&keys(0..3)); // the oldest
    stack.store(&keys(10..13));
    stack.desk(0).hold(&keys(3..8));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..8)), "HHHPPP..");
    let resident = |n: u32| stack.manager.primary().find(&key(n)).is_some();
    assert!((0..3).all(resident) && !(10..13).any(resident));
    let removed = stack.events().iter().filter(|event| matches!(event, Event::BlockRemoved { .. })).count();
    assert_eq!((removed, stack.stats().evicted), (3, 3));
}

#[test]
fn a_full_primary_is_a_miss() {
    let mut stack = Stack::new(4, 1);
    stack.store(&keys(0..4));
    let reader = stack.begin(1);
    stack.load(reader, &keys(0..4));
    stack.desk(0).hold(&keys(4..6));
    let id = stack.begin(2);
    assert_eq!(stack.prefix(id, &keys(4..6)), "..");
    assert_eq!(stack.prefix(id, &[key(0), key(4)]), "H.");
    assert_eq!(stack.stats().promotions_refused, 3);
}

#[test]
fn holds_keep_what_a_waiting_request_found() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..3)); // no cascades
    stack.store(&keys(0..3));
    stack.desk(0).hold(&[key(3)]);
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..4)), "HHHP");
    assert_eq!((stack.readers(), stack.stats().holds), (3, 3));
    stack.end_step();
    stack.desk(0).loads_done(0, Ok(1));
    stack.manager.poll_once();
    assert_eq!(stack.readers(), 4, "the promoted block too, as it lands");
    assert_eq!(stack.prefix(id, &keys(0..4)), "HHHH");
    assert_eq!(stack.readers(), 0, "resolved: it is loaded now or never");
    stack.end_step();
    // Ended by the deadline, and renewed by asking again.
    stack.desk(0).hold(&[key(4)]);
    assert_eq!(stack.prefix(id, &keys(2..5)), "HHP");
    stack.end_step();
    stack.advance(4 * SECOND);
    assert_eq!(stack.prefix(id, &keys(2..5)), "HHP");
    stack.end_step();
    stack.advance(6 * SECOND);
    stack.end_step();
    assert_eq!(stack.readers(), 2, "held anew at 4 s");
    stack.advance(4 * SECOND);
    stack.end_step();
    assert_eq!((stack.readers(), stack.stats().holds_expired), (0, 1));
    // Ended by the end of the request.
    stack.desk(0).unknown.insert(key(9));
    let other = stack.begin(2);
    assert_eq!(stack.look(other, &[key(0), key(9)], LookupMode::Each), "HR");
    assert_eq!(stack.readers(), 1);
    stack.manager.finish_request(other);
    assert_eq!(stack.readers(), 0);
}

#[test]
fn a_block_that_lands_renews_the_holds() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..3));
    stack.store(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..3)), "HHP");
    stack.end_step();
    stack.advance(4 * SECOND);
    stack.desk(0).loads_done(0, Ok(1));
    stack.end_step();
    stack.advance(6 * SECOND);
    stack.end_step();
    assert_eq!(stack.readers(), 3);
    stack.advance(4 * SECOND);
    stack.end_step();
    assert_eq!(stack.readers(), 0);
}

#[test]
fn holds_keep_to_the_share_counting_slots() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..6));
    stack.desk(0).unknown.insert(key(6));
    let (a, b) = (stack.begin(1), stack.begin(2));
    assert_eq!(stack.prefix(a, &keys(0..7)), "HHHHHHR");
    assert_eq!(stack.prefix(b, &keys(0..7)), "HHHHHHR");
    let stats = stack.stats();
    assert_eq!((stats.holds, stats.readers, stats.holds_refused), (4, 8, 4));
}

#[test]
fn a_finished_request_cancels_what_it_queued() {
    let mut stack = Stack::new(16, 1);
    stack.desk(0).hold(&keys(0..4));
    let (a, b) = (stack.begin(1), stack.begin(2));
    stack.prefix(a, &keys(0..3));
    assert_eq!(stack.prefix(b, &keys(0..4)), "PPPP");
    stack.manager.finish_request(a);
    stack.check();
    assert_eq!(stack.manager.primary().writing(), 1);
    stack.end_step();
    assert_eq!(stack.desk(0).loads.len(), 1);
    assert_eq!(stack.prefix(b, &keys(0..4)), "PPPP", "found anew by the other");
    stack.end_step();
    // One that is submitted goes on, and lands unheld.
    stack.manager.finish_request(b);
    stack.desk(0).loads_done(0, Ok(1));
    stack.desk(0).loads_done(1, Ok(1));
    stack.end_step();
    assert_eq!((stack.stats().resident, stack.readers()), (4, 0));
    assert!(stack.manager.drain());
}

#[test]
fn a_promotion_backfills_the_faster_tiers_it_passed() {
    let mut config = config(16);
    config.tiers = vec![tier_config("a", true), tier_config("b", false), tier_config("c", true)];
    let mut stack = Stack::with(config, 3);
    stack.desk(2).hold(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(stack.prefix(id, &keys(0..2)), "PP");
    stack.end_step();
    stack.desk(2).loads_done(0, Ok(9));
    stack.end_step();
    let stores: Vec<usize> = (0..3).map(|tier| stack.desk(tier).stores.len()).collect();
    assert_eq!(stores, [1, 0, 0]);
    let job = stack.desk(0).stores[0].clone();
    assert_eq!((job.blocks.len(), job.blocks[0].crc32), (2, Some(9)));
}

#[test]
fn nonsense_is_an_error_value() {
    let mut stack = Stack::new(4, 1);
    let id = stack.begin(1);
    let mut out = Vec::new();
    let unknown = terrace_tiering::RequestId(7);
    let lookup = stack.manager.lookup(unknown, &keys(0..1), LookupMode::Prefix, &mut out);
    assert_eq!(lookup, Err(TieringError::UnknownRequest(unknown)));
    let many = stack.manager.lookup(id, &keys(0..5000), LookupMode::Prefix, &mut out);
    assert_eq!(many, Err(TieringError::TooManyKeys { got: 5000, limit: 4096 }));
    let long = terrace_primary::Key::new(&[1; 64], 0).expect("a key");
    assert_eq!(stack.prefix(id, &[long]), ".");
    stack.desk(0).hold(&[long]);
    assert_eq!(stack.prefix(id, &[long]), ".", "no slot can hold it");
    assert_eq!(stack.look(id, &[], LookupMode::Suffix { window: 0 }), "");
    // The same key twice in a call.
    stack.desk(0).hold(&[key(1)]);
    assert_eq!(stack.prefix(id, &[key(1), key(1)]), "PP");
    let slot = stack.manager.primary().find(&key(1)).expect("reserved");
    assert_eq!(stack.manager.primary().state(slot), BlockState::Writing);
    stack.check();
    // Events that no job accounts for.
    stack.end_step();
    stack.desk(0).load_done(0, 0, Ok(1));
    stack.desk(0).load_done(0, 0, Ok(1));
    stack.desk(0).load_done(0, 77, Ok(1));
    stack.end_step();
    assert_eq!(stack.stats().tiers[0].protocol_faults, 2);
}
