//! The scrubber: its pace, its place behind everything else, and what becomes of its slot whatever the tier does.

mod common;

use common::{SECOND, Stack, config, key, keys};
use terrace_config::{Choice, Config, NvmeConfig, TierConfig, TierKind};
use terrace_tiering::{BreakerState, ScrubCounts};
use terrace_tiers::{Fault, Refused};

const BLOCK_BYTES: u64 = 4096;

/// Tiers that are scrubbed at these many blocks a second.
fn scrubbed(blocks: u32, paces: &[u64]) -> Stack {
    let tier = |(index, pace): (usize, &u64)| TierConfig {
        name: format!("desk{index}"),
        backfill: false,
        kind: TierKind::Nvme(NvmeConfig {
            paths: vec!["/nowhere".into()],
            capacity_bytes: 1 << 30,
            high_watermark: 1.0,
            low_watermark: 0.99,
            queue_depth: 1,
            queue_entries: 1,
            direct_io: Choice::Off,
            io_uring: Choice::Off,
            catalog: Choice::Off,
            scrub_bytes_per_second: pace * BLOCK_BYTES,
        }),
    };
    let tiers = paces.iter().enumerate().map(tier).collect();
    Stack::with(Config { tiers, ..config(blocks) }, paces.len())
}

/// Ends a step, and checks.
fn step(stack: &mut Stack) {
    stack.end_step();
    stack.manager.check().expect("consistent");
}

fn counts(stack: &Stack, tier: usize) -> ScrubCounts {
    stack.stats().tiers[tier].scrubs
}

fn loads(stack: &Stack) -> usize {
    stack.desk(0).loads.len()
}

#[test]
fn blocks_are_read_one_at_a_time_at_the_pace() {
    let mut stack = scrubbed(256, &[4]);
    stack.desk(0).cold.extend(keys(0..3));
    let mut read = Vec::new();
    for quarter in 0..12 {
        step(&mut stack);
        assert_eq!(loads(&stack), quarter + 1, "one a quarter of a second");
        assert!(stack.manager.has_pending_work(), "the engine keeps stepping for it");
        let stats = stack.stats();
        assert_eq!((stats.limbo, stats.free, stats.resident), (1, 255, 0), "a slot without a key");
        step(&mut stack);
        stack.clock.advance(SECOND / 8);
        step(&mut stack);
        assert_eq!(loads(&stack), quarter + 1, "not before its time, not two at once");
        let outcome = if quarter == 5 { Err(Fault::Corrupt) } else { Ok(1) };
        stack.desk(0).loads_done(quarter, outcome);
        stack.clock.advance(SECOND / 8);
        read.push(stack.desk(0).loads[quarter].blocks[0].key);
    }
    assert_eq!(read[..4], [key(0), key(1), key(2), key(0)], "in rounds");
    // What was missed is made up for up to a second.
    stack.clock.advance(3600 * SECOND);
    for _ in 0..20 {
        step(&mut stack);
        let last = loads(&stack) - 1;
        if stack.manager.has_pending_work() {
            stack.desk(0).loads_done(last, Ok(1));
        }
    }
    assert_eq!(loads(&stack), 12 + 5);
    assert_eq!(counts(&stack, 0), ScrubCounts { sound: 16, corrupt: 1, unread: 0 });
    assert_eq!((stack.stats().limbo, stack.stats().free), (0, 256));
    assert_eq!(stack.stats().tiers[0].breaker, BreakerState::Closed);
}

#[test]
fn promotions_go_first_and_what_the_primary_holds_is_passed_over() {
    let mut stack = scrubbed(256, &[1000]);
    let id = stack.begin(1);
    stack.desk(0).hold(&keys(0..2));
    assert_eq!(stack.prefix(id, &keys(0..2)), "PP");
    stack.desk(0).cold.extend(keys(0..4));
    step(&mut stack);
    stack.clock.advance(SECOND);
    step(&mut stack);
    assert_eq!(loads(&stack), 1, "the promotion alone");
    stack.desk(0).loads_done(0, Ok(1));
    step(&mut stack);
    assert_eq!(stack.desk(0).loads[1].blocks[0].key, key(2));
    // Who wants the block that is being read gets a promotion of its own.
    stack.desk(0).hold(&[key(2)]);
    assert_eq!(stack.prefix(id, &[key(2)]), "P");
    step(&mut stack);
    assert_eq!(loads(&stack), 3);
    stack.desk(0).loads_done(1, Ok(1));
    stack.desk(0).loads_done(2, Ok(1));
    stack.manager.poll_once();
    assert_eq!(stack.prefix(id, &[key(2)]), "H");
}

#[test]
fn a_full_primary_lends_its_least_recent_slot_and_a_small_one_none() {
    let mut stack = scrubbed(256, &[1]);
    stack.store(&keys(1000..1256));
    stack.desk(0).cold.extend(keys(0..4));
    // The cascade holds readers on all of what it may, and the rest is queued: something can still be evicted.
    step(&mut stack);
    assert_eq!((loads(&stack), stack.stats().evicted), (1, 1));
    let mut small = scrubbed(255, &[1]);
    small.desk(0).cold.extend(keys(0..4));
    step(&mut small);
    assert_eq!(loads(&small), 0);
}

#[test]
fn a_tier_that_does_not_answer_keeps_the_slot_until_it_does() {
    let mut stack = scrubbed(256, &[1]);
    stack.desk(0).cold.extend(keys(0..4));
    step(&mut stack);
    stack.clock.advance(11 * SECOND);
    step(&mut stack);
    assert_eq!(stack.desk(0).abandoned.len(), 1);
    assert!(!stack.manager.has_pending_work(), "nobody waits for it");
    for _ in 0..3 {
        stack.clock.advance(11 * SECOND);
        step(&mut stack);
    }
    assert_eq!((loads(&stack), stack.stats().limbo), (1, 1));
    assert_eq!(stack.desk(0).abandoned.len(), 1);
    stack.desk(0).loads_done(0, Err(Fault::Expired));
    step(&mut stack);
    assert_eq!(counts(&stack, 0).unread, 1);
    assert_eq!(loads(&stack), 2, "and goes on");
}

#[test]
fn refusals_panics_and_a_sick_tier_leave_nothing_behind() {
    let mut stack = scrubbed(256, &[1, 1]);
    stack.desk(0).cold.extend(keys(0..4));
    stack.desk(0).refuse = Some(Refused::Busy);
    step(&mut stack);
    assert_eq!((stack.stats().limbo, stack.stats().free), (0, 256));
    stack.desk(0).refuse = None;
    stack.clock.advance(2 * SECOND);
    step(&mut stack);
    assert_eq!(loads(&stack), 1);
    stack.desk(0).panic_in = Some("poll");
    step(&mut stack);
    assert_eq!((stack.stats().limbo, stack.stats().lost_slots), (1, 1));
    stack.desk(1).cold.extend(keys(0..4));
    stack.desk(1).panic_in = Some("next_to_scrub");
    stack.clock.advance(2 * SECOND);
    step(&mut stack);
    assert!(stack.stats().tiers.iter().all(|tier| tier.panicked));
    stack.manager.shutdown();
    stack.manager.check().expect("consistent");
}

#[test]
fn reset_drain_and_shutdown_settle_it() {
    let mut stack = scrubbed(256, &[1]);
    stack.desk(0).cold.extend(keys(0..4));
    step(&mut stack);
    stack.manager.reset().expect("a reset");
    assert!(!stack.manager.drain());
    stack.desk(0).loads_done(0, Ok(1));
    assert!(stack.manager.drain());
    stack.clock.advance(2 * SECOND);
    step(&mut stack);
    assert_eq!(loads(&stack), 2);
    stack.manager.shutdown();
    assert_eq!(stack.desk(0).abandoned.len(), 1);
    assert_eq!(stack.stats().lost_slots, 1, "the tier did not answer");
    stack.manager.check().expect("consistent");
}
