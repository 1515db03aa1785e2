//! Lookups in two halves: what `locate` leases stays until its loads are complete, what `wait_for` asks for comes and is held,
//! and nothing is left of either.

mod common;

use common::{SECOND, Stack, config, key, keys, letters};
use terrace_primary::Key;
use terrace_tiering::{
    Located, Lookup, LookupMode, ReaderBudget, RequestContext, RequestId, Scan, StorePlan, TierFilter, TieringError,
};
use terrace_tiers::{Fault, Refused};

/// Plenty of readers.
const MANY: ReaderBudget = ReaderBudget { left: 1 << 20, frees_soon: false };

/// `H`it, `P`ending, `F`ound, `R`etry, miss `.`.
fn located(out: &[Located]) -> String {
    let letter = |answer: &Located| match answer {
        Located::Hit { .. } => 'H',
        Located::Pending => 'P',
        Located::Found { .. } => 'F',
        Located::Retry => 'R',
        Located::Miss => '.',
    };
    out.iter().map(letter).collect()
}

fn locate(stack: &mut Stack, id: RequestId, keys: &[Key], scan: Scan, readers: Option<&mut ReaderBudget>) -> String {
    let mut out = Vec::new();
    stack.manager.locate(id, keys, scan, readers, &mut out).expect("an open request");
    stack.check();
    located(&out)
}

fn lease(stack: &mut Stack, id: RequestId, keys: &[Key]) -> String {
    locate(stack, id, keys, Scan::Each, Some(&mut MANY.clone()))
}

fn ask(stack: &mut Stack, id: RequestId, keys: &[Key]) -> String {
    locate(stack, id, keys, Scan::Each, None)
}

fn wait(stack: &mut Stack, id: RequestId, keys: &[Key]) -> String {
    let mut out = vec![Lookup::Hit; 2];
    stack.manager.wait_for(id, keys, &mut out).expect("an open request");
    assert_eq!(out.len(), keys.len());
    stack.check();
    letters(&out)
}

fn complete(stack: &mut Stack, id: RequestId, keys: &[Key]) {
    stack.manager.complete_load(id, keys).expect("what was leased");
    stack.check();
}

/// Whether this many blocks can be stored now; they are not.
fn fits(stack: &mut Stack, keys: &[Key]) -> bool {
    let id = stack.begin(900);
    let mut plan = StorePlan::default();
    let room = stack.manager.prepare_store(id, keys, false, &mut plan).expect("an open request");
    let reserved: Vec<Key> = plan.store.iter().map(|at| keys[*at as usize]).collect();
    stack.manager.complete_store(id, &reserved, false).expect("what was reserved");
    stack.manager.finish_request(id);
    stack.check();
    room
}

#[test]
fn locate_says_where_each_key_is_and_brings_nothing() {
    let mut stack = Stack::new(16, 2);
    stack.store(&[key(0)]);
    stack.desk(0).hold(&[key(2)]);
    stack.desk(1).hold(&[key(3)]);
    stack.desk(0).unknown.insert(key(4));
    let storing = stack.begin(9);
    let mut plan = StorePlan::default();
    assert_eq!(stack.manager.prepare_store(storing, &[key(1)], false, &mut plan), Ok(true));
    let id = stack.begin(1);
    let mut out = vec![Located::Retry];
    stack.manager.locate(id, &keys(0..6), Scan::Each, None, &mut out).expect("an open request");
    let slot = stack.manager.primary().find(&key(0)).expect("stored");
    let expected = [
        Located::Retry,
        Located::Hit { slot, origin: 0 },
        Located::Pending,
        Located::Found { tier: 0 },
        Located::Found { tier: 1 },
        Located::Retry,
        Located::Miss,
    ];
    assert_eq!(out, expected, "appended to what was there");
    let stats = stack.stats();
    assert_eq!((stats.writing, stats.readers, stats.holds), (1, 0, 0), "the engine's own store");
    assert_eq!((stats.hits, stats.pending, stats.retries, stats.misses), (1, 3, 1, 1));
    stack.end_step();
    assert!(stack.desk(0).loads.is_empty() && stack.desk(1).loads.is_empty());
}

#[test]
fn a_prefix_ends_with_its_first_miss() {
    let mut stack = Stack::new(16, 1);
    stack.store(&keys(0..3));
    stack.store(&keys(4..6));
    stack.desk(0).hold(&keys(3..4));
    let id = stack.begin(1);
    let prefix = |stack: &mut Stack, keys: &[Key]| locate(stack, id, keys, Scan::Prefix, Some(&mut MANY.clone()));
    assert_eq!(prefix(&mut stack, &keys(0..6)), "HHHFHH", "no miss, all of it");
    assert_eq!(prefix(&mut stack, &keys(4..9)), "HH.", "up to and with the miss");
    assert_eq!(stack.readers(), 5 + 2);
    let asked = stack.desk(0).asked;
    assert_eq!(prefix(&mut stack, &keys(1000..3000)), ".");
    assert!(stack.desk(0).asked - asked <= 64, "the tail of a long miss is not asked for");
    assert_eq!(prefix(&mut stack, &[]), "");
    assert_eq!(stack.stats().misses, 3 + 2000, "what was left out is a miss too");
    complete(&mut stack, id, &[keys(0..3), keys(4..6), keys(4..6)].concat());
    assert_eq!(stack.readers(), 0);
}

#[test]
fn each_goes_on_behind_a_miss_and_answers_each_key() {
    let mut stack = Stack::new(200, 0);
    stack.store(&[key(0), key(70), key(140)]);
    let id = stack.begin(1);
    let seen = lease(&mut stack, id, &keys(0..150));
    assert_eq!(seen.len(), 150);
    assert_eq!(seen.match_indices('H').map(|(at, _)| at).collect::<Vec<_>>(), [0, 70, 140]);
    assert_eq!(stack.readers(), 3);
}

#[test]
fn what_finds_no_reader_left_is_asked_for_again_if_some_end_soon_but_not_for_ever() {
    let mut stack = Stack::new(16, 0);
    stack.store(&keys(0..6));
    let id = stack.begin(1);
    let mut budget = ReaderBudget { left: 2, frees_soon: true };
    assert_eq!(locate(&mut stack, id, &keys(0..4), Scan::Prefix, Some(&mut budget)), "HHRR", "the prefix goes on");
    complete(&mut stack, id, &keys(0..2));
    assert_eq!(wait(&mut stack, id, &keys(0..4)), "HHHH");
    stack.manager.end_step();
    stack.clock.advance(config(16).deadlines.lookup);
    budget.left = 1;
    assert_eq!(locate(&mut stack, id, &keys(0..4), Scan::Prefix, Some(&mut budget)), "H.", "it has waited long enough");
    complete(&mut stack, id, &keys(0..1));
}

#[test]
fn what_has_landed_before_it_is_waited_for_is_held_until_the_next_lookup() {
    let mut stack = Stack::new(16, 0);
    stack.store(&keys(0..3));
    let id = stack.begin(1);
    assert_eq!(wait(&mut stack, id, &keys(0..3)), "HHH");
    assert_eq!((stack.readers(), stack.stats().holds), (3, 3));
    stack.manager.end_step();
    assert_eq!(stack.readers(), 3);
    assert_eq!(lease(&mut stack, id, &keys(0..3)), "HHH");
    assert_eq!((stack.readers(), stack.stats().holds), (3, 0), "held no more, but leased");
    complete(&mut stack, id, &keys(0..3));
}

#[test]
fn readers_are_taken_as_far_as_the_number_goes() {
    let mut stack = Stack::new(16, 0);
    stack.store(&keys(0..6));
    let id = stack.begin(1);
    let mut left = ReaderBudget { left: 4, frees_soon: false };
    assert_eq!(locate(&mut stack, id, &keys(0..2), Scan::Prefix, Some(&mut left)), "HH");
    assert_eq!((left.left, stack.readers()), (2, 2));
    assert_eq!(locate(&mut stack, id, &keys(0..6), Scan::Each, Some(&mut left)), "HH....");
    assert_eq!((left.left, stack.readers(), stack.stats().leases_refused), (0, 4, 4));
    assert_eq!(locate(&mut stack, id, &keys(0..6), Scan::Prefix, Some(&mut left)), ".", "no hit that is not kept");
    assert_eq!(locate(&mut stack, id, &keys(0..6), Scan::Each, None), "HHHHHH", "who takes no readers has no limit");
    assert_eq!(stack.readers(), 4);
    // The same key twice is two readers, each to be ended.
    let mut left = ReaderBudget { left: 3, frees_soon: false };
    assert_eq!(locate(&mut stack, id, &[key(5), key(5)], Scan::Each, Some(&mut left)), "HH");
    assert_eq!((left.left, stack.readers()), (1, 6));
    complete(&mut stack, id, &[key(5), key(0), key(0), key(1), key(1), key(5)]);
    assert_eq!(stack.readers(), 0);
    assert_eq!(stack.manager.complete_load(id, &[key(5)]), Err(TieringError::NotLoading { key: key(5) }));
}

#[test]
fn what_is_leased_is_not_evicted_and_what_was_only_asked_for_is() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let id = stack.begin(1);
    assert_eq!(ask(&mut stack, id, &keys(0..4)), "HHHH");
    assert!(fits(&mut stack, &keys(10..14)), "an answer without a lease keeps nothing");
    stack.store(&keys(0..4));
    assert_eq!(lease(&mut stack, id, &keys(0..3)), "HHH");
    assert!(!fits(&mut stack, &keys(10..12)));
    assert!(fits(&mut stack, &keys(10..11)));
    complete(&mut stack, id, &keys(0..1));
    assert!(fits(&mut stack, &keys(10..12)));
    assert!(!fits(&mut stack, &keys(10..13)));
    complete(&mut stack, id, &keys(1..3));
    assert!(fits(&mut stack, &keys(10..14)));
}

#[test]
fn a_lease_lasts_over_steps_until_its_load_is_complete() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..4)), "HHHH");
    stack.manager.begin_load(id, &keys(0..2)).expect("leased");
    complete(&mut stack, id, &keys(2..4)); // the rest of the lease
    for _ in 0..20 {
        stack.end_step();
        stack.advance(20 * SECOND);
    }
    assert_eq!(stack.readers(), 2, "no deadline ends a copy that may still run");
    assert!(!fits(&mut stack, &keys(10..13)));
    complete(&mut stack, id, &keys(0..2));
    assert_eq!(stack.readers(), 0);
}

#[test]
fn begin_load_counts_as_prepare_load_does() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..4)); // no cascades
    stack.store(&keys(2..4));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..4)), "FFHH");
    assert_eq!(wait(&mut stack, id, &keys(0..4)), "PPHH");
    complete(&mut stack, id, &keys(2..4));
    stack.end_step();
    stack.desk(0).loads_done(0, Ok(1));
    let mut out = Vec::new();
    stack.manager.locate(id, &keys(0..4), Scan::Prefix, Some(&mut MANY.clone()), &mut out).expect("open");
    let origins = |out: &[Located]| -> Vec<u8> {
        let origin = |answer: &Located| if let Located::Hit { origin, .. } = answer { *origin } else { u8::MAX };
        out.iter().map(origin).collect()
    };
    assert_eq!(origins(&out), [1, 1, 0, 0], "who brought it");
    stack.manager.begin_load(id, &keys(0..4)).expect("all are leased");
    stack.check();
    assert_eq!(stack.readers(), 4, "the same readers: begin_load takes none");
    let stats = stack.stats();
    assert_eq!((stats.loaded_primary, stats.loaded_by_tier[0]), (2, 2));
    complete(&mut stack, id, &keys(0..4));
    let mut out = Vec::new();
    stack.manager.locate(id, &keys(0..4), Scan::Prefix, None, &mut out).expect("open");
    assert_eq!(origins(&out), [0, 0, 0, 0], "brought once, counted once");
    let summary = stack.manager.finish_request(id).expect("open");
    assert_eq!((summary.hits_primary, summary.hits_by_tier[0], summary.promotions), (2, 2, 2));
}

#[test]
fn begin_load_makes_the_first_key_the_most_recent() {
    let mut stack = Stack::new(4, 0);
    stack.store(&keys(0..4));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..3)), "HHH");
    stack.manager.begin_load(id, &keys(0..3)).expect("leased");
    complete(&mut stack, id, &keys(0..3));
    // The one that was not loaded goes first, then the tail of the prefix.
    for (stored, gone) in [(10, 3), (11, 2), (12, 1)] {
        stack.store(&[key(stored)]);
        assert_eq!(stack.manager.primary().find(&key(gone)), None, "{gone}");
    }
    assert!(stack.manager.primary().find(&key(0)).is_some());
}

#[test]
fn a_load_of_what_is_not_leased_is_refused_and_nothing_is_done() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..3));
    let id = stack.begin(1);
    stack.desk(0).hold(&[key(5)]);
    assert_eq!(lease(&mut stack, id, &[key(0), key(1), key(5)]), "HHF");
    for (wrong, name) in [(2, "resident, no reader"), (5, "in a tier"), (6, "nowhere")] {
        let load = stack.manager.begin_load(id, &[key(0), key(wrong), key(1)]);
        assert_eq!(load, Err(TieringError::NotLoading { key: key(wrong) }), "{name}");
        stack.check();
    }
    assert_eq!((stack.readers(), stack.stats().loaded_primary), (2, 0));
    stack.manager.begin_load(id, &keys(0..2)).expect("leased");
    complete(&mut stack, id, &keys(0..2));
    let late = stack.manager.begin_load(id, &keys(0..1));
    assert_eq!(late, Err(TieringError::NotLoading { key: key(0) }), "its readers are gone");
}

#[test]
fn what_a_request_waits_for_is_brought_and_held_as_it_lands() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..4)); // no cascades
    stack.store(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..5)), "HHFF.");
    assert_eq!(wait(&mut stack, id, &keys(0..4)), "HHPP");
    complete(&mut stack, id, &keys(0..2)); // the lease ends with the step
    assert_eq!((stack.readers(), stack.stats().holds), (2, 2), "held instead");
    stack.end_step();
    let blocks: Vec<usize> = stack.desk(0).loads.iter().map(|job| job.blocks.len()).collect();
    assert_eq!(blocks, [2], "one job");
    assert_eq!(lease(&mut stack, id, &keys(0..4)), "HHPP");
    assert_eq!(stack.stats().holds, 0, "holds are of the step before");
    assert_eq!(wait(&mut stack, id, &keys(0..4)), "HHPP");
    complete(&mut stack, id, &keys(0..2));
    stack.end_step();
    stack.desk(0).loads_done(0, Ok(1));
    stack.manager.poll_once();
    assert_eq!(stack.readers(), 4, "as they land");
    assert!(!fits(&mut stack, &keys(10..15)));
    stack.end_step();
    assert_eq!(lease(&mut stack, id, &keys(0..4)), "HHHH");
    assert_eq!((stack.readers(), stack.stats().holds), (4, 0), "the lease has taken over");
    stack.manager.begin_load(id, &keys(0..4)).expect("leased");
    complete(&mut stack, id, &keys(0..4));
    stack.manager.finish_request(id);
    assert_eq!(stack.readers(), 0);
}

#[test]
fn holds_of_one_that_never_comes_back_end_at_their_deadline() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..2)); // no cascades
    stack.store(&keys(0..2));
    stack.desk(0).unknown.insert(key(2));
    let id = stack.begin(1);
    assert_eq!(ask(&mut stack, id, &keys(0..3)), "HHR");
    assert_eq!(wait(&mut stack, id, &keys(0..3)), "HHR");
    stack.end_step();
    stack.advance(9 * SECOND);
    stack.end_step();
    assert_eq!(stack.readers(), 2);
    stack.advance(SECOND);
    stack.end_step();
    assert_eq!((stack.readers(), stack.stats().holds_expired), (0, 1));
}

#[test]
fn what_does_not_fit_is_refused_and_the_leading_keys_come() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..8));
    let id = stack.begin(1);
    assert_eq!(ask(&mut stack, id, &keys(0..8)), "FFFFFFFF");
    assert_eq!(wait(&mut stack, id, &keys(0..8)), "PPPP....", "half of the primary");
    assert_eq!(stack.stats().promotions_refused, 4);
    let other = stack.begin(2);
    assert_eq!(ask(&mut stack, other, &keys(0..8)), "PPPPFFFF", "on their way for both");
    assert_eq!(wait(&mut stack, other, &keys(4..8)), "RRRR", "they fit as soon as the first request is done");
    stack.end_step();
    assert_eq!((stack.desk(0).loads.len(), stack.manager.primary().writing()), (1, 4));
    assert_eq!((stack.stats().promotions_refused, stack.stats().promotions_deferred), (4, 4));
    stack.manager.finish_request(id);
    stack.desk(0).loads_done(0, Ok(7));
    stack.end_step();
    assert_eq!(wait(&mut stack, other, &keys(4..8)), "PPPP");
}

#[test]
fn standing_in_line_ends_at_the_deadline() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..8));
    let (first, second) = (stack.begin(1), stack.begin(2));
    assert_eq!(wait(&mut stack, first, &keys(0..4)), "PPPP");
    assert_eq!(wait(&mut stack, second, &keys(4..8)), "RRRR");
    stack.end_step();
    stack.clock.advance(config(8).deadlines.lookup);
    assert_eq!(ask(&mut stack, second, &keys(4..8)), "....");
}

#[test]
fn every_wait_ends() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..2));
    stack.desk(0).unknown.insert(key(2));
    stack.desk(0).refuse = Some(Refused::Busy);
    let id = stack.begin(1);
    for _ in 0..5 {
        let asked = ask(&mut stack, id, &keys(0..3));
        assert!(asked == "FFR" || asked == "PPR", "{asked}");
        assert_eq!(wait(&mut stack, id, &keys(0..3)), "PPR");
        stack.end_step();
        stack.advance(SECOND);
    }
    assert_eq!(ask(&mut stack, id, &keys(2..3)), ".", "5 s after the wait began");
    assert_eq!(wait(&mut stack, id, &keys(2..3)), ".");
    stack.end_step();
    // What it waited for was resolved: the next wait is a new one.
    assert_eq!(ask(&mut stack, id, &keys(5..6)), ".");
    stack.end_step();
    stack.desk(0).unknown.insert(key(7));
    assert_eq!(ask(&mut stack, id, &keys(7..8)), "R");
}

#[test]
fn asking_without_waiting_starts_no_wait() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..1));
    let id = stack.begin(1);
    for _ in 0..10 {
        assert_eq!(ask(&mut stack, id, &keys(0..1)), "F", "only an engine that waits runs out of time");
        stack.end_step();
        stack.advance(SECOND);
    }
    assert_eq!(wait(&mut stack, id, &keys(0..1)), "P");
}

#[test]
fn a_block_that_fails_on_its_way_is_a_miss_and_leaves_nothing() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(ask(&mut stack, id, &keys(0..2)), "FF");
    assert_eq!(wait(&mut stack, id, &keys(0..2)), "PP");
    stack.end_step();
    stack.desk(0).load_done(0, 0, Ok(1));
    stack.desk(0).load_done(0, 1, Err(Fault::Corrupt));
    assert_eq!(lease(&mut stack, id, &keys(0..2)), "H.");
    assert_eq!(stack.manager.primary().writing(), 0);
    stack.manager.begin_load(id, &keys(0..1)).expect("leased");
    complete(&mut stack, id, &keys(0..1));
    stack.end_step();
    assert_eq!((stack.readers(), stack.stats().holds), (0, 0));
}

#[test]
fn the_filter_of_a_request_is_kept() {
    let mut stack = Stack::new(8, 2);
    stack.desk(0).hold(&keys(0..1));
    stack.desk(1).hold(&keys(0..1));
    stack.store(&[key(1)]);
    let none = stack.begin_with(1, TierFilter::NONE);
    assert_eq!(ask(&mut stack, none, &keys(0..2)), ".H");
    assert_eq!(wait(&mut stack, none, &keys(0..2)), ".H", "waiting asks no further than looking up does");
    let second = stack.begin_with(2, TierFilter(0b10));
    let mut out = Vec::new();
    stack.manager.locate(second, &keys(0..1), Scan::Each, None, &mut out).expect("open");
    assert_eq!(out, [Located::Found { tier: 1 }]);
    assert_eq!(wait(&mut stack, second, &keys(0..1)), "P");
    stack.end_step();
    assert_eq!((stack.desk(0).loads.len(), stack.desk(1).loads.len()), (0, 1));
}

#[test]
fn a_finished_request_leaves_its_leases_to_those_who_copy() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..2));
    stack.desk(0).unknown.insert(key(2));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..3)), "HHR");
    assert_eq!(wait(&mut stack, id, &keys(0..3)), "HHR");
    stack.manager.begin_load(id, &keys(0..1)).expect("leased");
    stack.manager.finish_request(id);
    stack.check();
    assert_eq!((stack.readers(), stack.stats().holds), (2, 0), "the holds end, the leases do not");
    // A load of a request that is over may still begin: its readers are there.
    stack.manager.begin_load(id, &keys(1..2)).expect("leased");
    complete(&mut stack, id, &keys(0..2));
    assert_eq!(stack.readers(), 0);
    let mut out = Vec::new();
    let unknown = Err(TieringError::UnknownRequest(id));
    assert_eq!(stack.manager.locate(id, &keys(0..1), Scan::Each, Some(&mut MANY.clone()), &mut out), unknown);
    assert_eq!(stack.manager.wait_for(id, &keys(0..1), &mut Vec::new()), unknown);
    assert!(out.is_empty() && stack.readers() == 0);
}

#[test]
fn a_finished_request_cancels_what_it_waited_for() {
    let mut stack = Stack::new(8, 1);
    stack.desk(0).hold(&keys(0..2));
    let id = stack.begin(1);
    assert_eq!(ask(&mut stack, id, &keys(0..2)), "FF");
    assert_eq!(wait(&mut stack, id, &keys(0..2)), "PP");
    stack.manager.finish_request(id);
    stack.end_step();
    assert_eq!((stack.manager.primary().writing(), stack.desk(0).loads.len()), (0, 0));
}

#[test]
fn while_a_reset_runs_all_is_a_miss_and_the_last_reader_ends_it() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..4));
    stack.desk(0).hold(&keys(0..5));
    let id = stack.begin(1);
    assert_eq!(lease(&mut stack, id, &keys(0..5)), "HHHHF");
    assert_eq!(wait(&mut stack, id, &keys(3..5)), "HP");
    stack.manager.begin_load(id, &keys(0..2)).expect("leased");
    complete(&mut stack, id, &keys(2..4));
    stack.manager.reset().expect("open");
    stack.check();
    assert_eq!((stack.readers(), stack.stats().holds, stack.stats().resident), (2, 0, 2), "what is being copied");
    let prefix = locate(&mut stack, id, &keys(0..5), Scan::Prefix, Some(&mut MANY.clone()));
    assert_eq!((prefix.as_str(), lease(&mut stack, id, &keys(0..5)).as_str()), (".", "....."));
    assert_eq!(wait(&mut stack, id, &keys(0..5)), ".....");
    assert_eq!(stack.readers(), 2);
    complete(&mut stack, id, &keys(0..1));
    assert_eq!(ask(&mut stack, id, &keys(4..5)), ".");
    complete(&mut stack, id, &keys(1..2));
    stack.end_step();
    assert_eq!(ask(&mut stack, id, &keys(0..5)), "FFFFF", "the reset is over");
    assert_eq!(stack.stats().resident, 0);
}

#[test]
fn both_kinds_of_lookup_go_together() {
    let mut stack = Stack::new(8, 1);
    stack.store(&keys(0..2));
    stack.desk(0).hold(&keys(2..3));
    let (old, new) = (stack.begin(1), stack.begin(2));
    assert_eq!(stack.look(old, &keys(0..3), LookupMode::Prefix), "HHP");
    assert_eq!(lease(&mut stack, new, &keys(0..3)), "HHP");
    let slots = stack.load(old, &keys(0..2));
    stack.manager.begin_load(new, &keys(0..2)).expect("leased");
    assert_eq!((slots.len(), stack.readers()), (2, 4), "its holds ended with its load");
    complete(&mut stack, old, &keys(0..2));
    assert_eq!(stack.readers(), 2, "one reader each, whoever took it");
    complete(&mut stack, new, &keys(0..2));
    assert_eq!(stack.readers(), 0);
}

#[test]
fn nonsense_is_an_error_value() {
    let mut config = config(8);
    config.limits.keys_per_call = 4;
    let mut stack = Stack::with(config, 1);
    stack.store(&keys(0..2));
    let id = stack.begin(1);
    let mut out = Vec::new();
    let many = TieringError::TooManyKeys { got: 5, limit: 4 };
    assert_eq!(stack.manager.locate(id, &keys(0..5), Scan::Prefix, None, &mut out), Err(many));
    assert_eq!(stack.manager.wait_for(id, &keys(0..5), &mut Vec::new()), Err(many));
    assert!(out.is_empty());
    let long = Key::new(&[1; 64], 0).expect("a key");
    stack.desk(0).hold(&[long]);
    assert_eq!((ask(&mut stack, id, &[long]).as_str(), wait(&mut stack, id, &[long]).as_str()), ("F", "."));
    assert_eq!(lease(&mut stack, id, &keys(0..2)), "HH");
    stack.manager.shutdown();
    assert_eq!(stack.manager.locate(id, &keys(0..1), Scan::Each, None, &mut out), Err(TieringError::Closed));
    assert_eq!(stack.manager.wait_for(id, &keys(0..1), &mut Vec::new()), Err(TieringError::Closed));
    assert_eq!(stack.manager.begin_load(id, &keys(0..1)), Err(TieringError::Closed));
    complete(&mut stack, id, &keys(0..2));
    assert_eq!(stack.readers(), 0, "what copies may end after the manager");
    let context = RequestContext { id: RequestId(5), tiers: TierFilter::ALL };
    assert!(stack.manager.begin_request(context).is_err());
}
