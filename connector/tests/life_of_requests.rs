//! Requests that are preempted, aborted, or meet each other; transfers that fail; the end of everything.

mod common;

use common::{Rig, Setup, TOKENS, chain, scheduled};
use terrace_connector::{ConnectorError, GpuBlock, HashList, Matched, RequestId, SchedulerHalf, StepPlan, WorkerHalf};

/// A request of `hashes` that has computed all of them in one step; its store is planned and not submitted.
fn computed(rig: &mut Rig, id: u64, hashes: &HashList, first: u32) -> (RequestId, Vec<Vec<GpuBlock>>) {
    let tokens = hashes.len() as u32 * TOKENS + 1;
    let request = rig.begin(id, tokens, hashes);
    let table = rig.table(first, hashes.len() as u32 + 1);
    let meta = rig.build(&scheduled(request, table.clone(), tokens));
    rig.work(meta, |rig| rig.compute(&table, hashes, 0));
    (request, table)
}

/// Begins a load of all of `hashes` into blocks from `first` on.
fn loading(rig: &mut Rig, id: u64, hashes: &HashList, first: u32) -> (RequestId, Vec<Vec<GpuBlock>>) {
    let request = rig.begin(id, hashes.len() as u32 * TOKENS + 1, hashes);
    let Matched::Tokens(tokens) = rig.matched(request, 0) else { panic!("not known") };
    assert_eq!(tokens, hashes.len() as u32 * TOKENS);
    let table = rig.table(first, hashes.len() as u32 + 1);
    rig.connector.update_state_after_alloc(request, &table, tokens).unwrap();
    (request, table)
}

fn assert_loaded(rig: &Rig, table: &[Vec<GpuBlock>], hashes: &HashList) {
    for (group, list) in table.iter().enumerate() {
        for (position, block) in list.iter().enumerate().take(hashes.len()) {
            assert!(rig.holds(group, *block, hashes.get(position).unwrap()), "group {group} position {position}");
        }
    }
}

/// What was stored of `hashes` is right in a fresh load.
fn assert_stored(rig: &mut Rig, hashes: &HashList) {
    let (request, table) = loading(rig, 900, hashes, 200);
    assert_eq!(rig.settle().loaded, [request]);
    assert_loaded(rig, &table, hashes);
    assert!(!rig.connector.request_finished(request).unwrap());
}

#[test]
fn a_preempted_request_is_flushed_before_its_blocks_are_reused() {
    // The store is planned only, or running.
    for running in [false, true] {
        let mut rig = Rig::new(&Setup { blocks_per_chunk: 2, ..Setup::default() });
        rig.control.set().hold = true;
        let hashes = chain(0..8);
        let (request, table) = computed(&mut rig, 1, &hashes, 0);
        if running {
            rig.step(&StepPlan::default());
        }
        assert_eq!(rig.control.pending(), usize::from(running));
        let other = rig.begin(2, 100, &chain(100..108));
        let plan = StepPlan { preempted: vec![request], ..scheduled(other, table.clone(), 4) };
        let meta = rig.build(&plan);
        assert_eq!(meta.flush.len(), 1);
        rig.work(meta, |rig| table.iter().flatten().for_each(|block| rig.poison(*block)));
        rig.control.set().hold = false;
        rig.settle();
        // Its own prefix is hit now.
        assert_eq!(rig.matched(request, 0), Matched::Tokens(8 * TOKENS));
        let again = rig.table(50, 9);
        rig.connector.update_state_after_alloc(request, &again, 8 * TOKENS).unwrap();
        assert_eq!(rig.settle().loaded, [request]);
        assert_loaded(&rig, &again, &hashes);
        for id in [request, other] {
            assert!(!rig.connector.request_finished(id).unwrap());
        }
        rig.assert_no_leak();
    }
}

#[test]
fn reused_blocks_are_flushed_whoever_had_them() {
    let mut rig = Rig::new(&Setup::default());
    rig.control.set().hold = true;
    let (request, table) = computed(&mut rig, 1, &chain(0..4), 0);
    let (bystander, _) = computed(&mut rig, 2, &chain(10..14), 20);
    // The engine takes one block away without a word but this.
    let plan = StepPlan { reused: vec![table[0][2], GpuBlock(77)], ..StepPlan::default() };
    let meta = rig.build(&plan);
    assert_eq!(meta.flush.len(), 1, "the bystander's store goes on");
    // start_load_kv flushes also without handle_preemptions.
    rig.connector.start_load_kv(meta).unwrap();
    rig.poison(table[0][2]);
    rig.control.set().hold = false;
    rig.settle();
    assert_stored(&mut rig, &chain(0..4));
    for id in [request, bystander] {
        assert!(!rig.connector.request_finished(id).unwrap());
    }
    rig.assert_no_leak();
}

#[test]
fn a_load_into_a_block_under_a_store_waits_for_it() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 100);
    rig.control.set().hold = true;
    let other = chain(50..54);
    let (stored, _) = computed(&mut rig, 2, &other, 0);
    // Not in `reused`, and still flushed.
    let (loaded, table) = loading(&mut rig, 3, &hashes, 2);
    let meta = rig.build(&StepPlan::default());
    assert_eq!(meta.flush.len(), 1);
    rig.work(meta, |_| {});
    rig.control.set().hold = false;
    assert_eq!(rig.settle().loaded, [loaded]);
    assert_loaded(&rig, &table, &hashes);
    assert_stored(&mut rig, &other);
    for id in [stored, loaded] {
        assert!(!rig.connector.request_finished(id).unwrap());
    }
    rig.assert_no_leak();
}

#[test]
fn a_request_that_ends_early_is_held_until_its_stores_land() {
    for running in [false, true] {
        let mut rig = Rig::new(&Setup::default());
        rig.control.set().hold = true;
        let hashes = chain(0..4);
        let (request, _) = computed(&mut rig, 1, &hashes, 0);
        if running {
            rig.step(&StepPlan::default());
        }
        assert!(rig.connector.request_finished(request).unwrap());
        assert!(rig.connector.has_pending_work());
        assert!(matches!(rig.connector.request_finished(request), Err(ConnectorError::Invalid(_))), "it has ended");
        assert!(rig.step(&StepPlan::default()).released.is_empty());
        rig.control.set().hold = false;
        assert_eq!(rig.settle().released, [request]);
        assert_stored(&mut rig, &hashes);
        rig.assert_no_leak();
    }
}

#[test]
fn a_request_can_end_while_it_loads() {
    for handed_over in [false, true] {
        let mut rig = Rig::new(&Setup::default());
        let hashes = chain(0..4);
        rig.store_all(1, &hashes, 0);
        rig.control.set().hold = true;
        let (request, _) = loading(&mut rig, 2, &hashes, 50);
        if handed_over {
            rig.step(&StepPlan::default());
        }
        assert_eq!(rig.connector.request_finished(request).unwrap(), handed_over);
        rig.control.set().hold = false;
        let output = rig.settle();
        assert_eq!(output.released, if handed_over { vec![request] } else { Vec::new() });
        assert!(output.loaded.is_empty() && output.failed_loads.is_empty(), "it has ended");
        rig.assert_no_leak();
        // Nobody waits for a load that is no more.
        assert_stored(&mut rig, &hashes);
    }
}

#[test]
fn a_load_can_be_preempted() {
    for handed_over in [false, true] {
        let mut rig = Rig::new(&Setup::default());
        let hashes = chain(0..4);
        rig.store_all(1, &hashes, 0);
        rig.control.set().hold = true;
        let (request, table) = loading(&mut rig, 2, &hashes, 50);
        if handed_over {
            rig.step(&StepPlan::default());
        }
        let meta = rig.build(&StepPlan { preempted: vec![request], ..StepPlan::default() });
        assert_eq!((meta.loads.len(), meta.flush.len()), (0, usize::from(handed_over)));
        rig.work(meta, |rig| table.iter().flatten().for_each(|block| rig.poison(*block)));
        rig.control.set().hold = false;
        let output = rig.settle();
        assert!(output.loaded.is_empty() && output.failed_loads.is_empty(), "it waits for nothing any more");
        assert!(table.iter().flatten().all(|block| !rig.holds(0, *block, hashes.get(0).unwrap())));
        assert_eq!(rig.matched(request, 0), Matched::Tokens(4 * TOKENS));
        assert!(!rig.connector.request_finished(request).unwrap());
        rig.assert_no_leak();
    }
}

#[test]
fn a_failed_load_names_its_blocks_and_can_be_computed() {
    let mut rig = Rig::new(&Setup { blocks_per_chunk: 2, ..Setup::default() });
    let hashes = chain(0..8);
    rig.store_all(1, &hashes, 0);
    let request = rig.begin(2, 8 * TOKENS + 1, &hashes);
    assert_eq!(rig.matched(request, 3 * TOKENS), Matched::Tokens(5 * TOKENS));
    let table = rig.table(50, 9);
    rig.connector.update_state_after_alloc(request, &table, 5 * TOKENS).unwrap();
    rig.control.set().fail_percent = 100;
    let output = rig.settle();
    assert!(output.loaded.is_empty());
    assert_eq!(output.failed_loads, [(request, table[0][3..8].to_vec())]);
    rig.control.set().fail_percent = 0;
    // The engine computes exactly those; they are offered again and found present.
    let meta = rig.build(&scheduled(request, vec![Vec::new()], 8 * TOKENS + 1));
    assert!(meta.stores.is_empty());
    rig.work(meta, |rig| rig.compute(&table, &hashes, 3));
    assert!(!rig.connector.request_finished(request).unwrap());
    rig.assert_no_leak();
    assert_eq!(rig.connector.counters().failed_loads, 1);
}

#[test]
fn blocks_evicted_after_the_lookup_make_a_failed_load() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 0);
    let request = rig.begin(2, 100, &hashes);
    assert_eq!(rig.matched(request, 0), Matched::Tokens(4 * TOKENS));
    rig.connector.manager_mut().reset().unwrap();
    let table = rig.table(50, 5);
    rig.connector.update_state_after_alloc(request, &table, 4 * TOKENS).unwrap();
    assert!(rig.connector.has_pending_work());
    let output = rig.step(&StepPlan::default());
    assert_eq!(output.failed_loads, [(request, table[0][..4].to_vec())]);
    // Computed instead, and stored anew.
    let meta = rig.build(&scheduled(request, vec![Vec::new()], 4 * TOKENS));
    assert_eq!(meta.stores[0].copies.len(), 4);
    rig.work(meta, |rig| rig.compute(&table, &hashes, 0));
    rig.settle();
    rig.connector.request_finished(request).unwrap();
    assert_stored(&mut rig, &hashes);
    rig.assert_no_leak();
}

#[test]
fn a_failed_store_leaves_nothing() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    let (request, _) = computed(&mut rig, 1, &hashes, 0);
    rig.control.set().fail_percent = 100;
    rig.settle();
    rig.control.set().fail_percent = 0;
    let other = rig.begin(2, 100, &hashes);
    assert_eq!(rig.matched(other, 0), Matched::Tokens(0));
    for id in [request, other] {
        assert!(!rig.connector.request_finished(id).unwrap());
    }
    assert_eq!((rig.connector.counters().failed_stores, rig.connector.manager().primary().resident()), (1, 0));
    rig.assert_no_leak();
}

#[test]
fn two_requests_do_not_load_one_block_twice() {
    for (gpu_prefix_cache, fails) in [(true, false), (true, true), (false, false)] {
        let mut rig = Rig::new(&Setup { gpu_prefix_cache, ..Setup::default() });
        let hashes = chain(0..6);
        rig.store_all(1, &hashes, 0);
        rig.control.set().hold = true;
        let (first, _) = loading(&mut rig, 2, &hashes, 50);
        let longer = chain((0..6).chain(70..75));
        let second = rig.begin(3, 100, &longer);
        let unrelated = rig.begin(4, 100, &chain(80..83));
        for _ in 0..3 {
            let expected = if gpu_prefix_cache { Matched::NotYet } else { Matched::Tokens(6 * TOKENS) };
            assert_eq!(rig.matched(second, 0), expected);
            assert_eq!(rig.matched(unrelated, 0), Matched::Tokens(0));
            rig.step(&StepPlan::default());
        }
        rig.control.set().hold = false;
        rig.control.set().fail_percent = if fails { 100 } else { 0 };
        rig.settle();
        // In the GPU now, or free to be loaded.
        assert_eq!(rig.matched(second, 6 * TOKENS), Matched::Tokens(0));
        assert_eq!(rig.matched(second, 0), Matched::Tokens(6 * TOKENS));
        assert_eq!(rig.connector.counters().waits_for_other_load, u64::from(gpu_prefix_cache));
        for id in [first, second, unrelated] {
            assert!(!rig.connector.request_finished(id).unwrap());
        }
        rig.assert_no_leak();
    }
}

#[test]
fn a_small_copy_queue_only_delays() {
    let mut rig = Rig::new(&Setup { slots: 200, ..Setup::default() });
    rig.control.set().queue_entries = 2;
    rig.control.set().hold = true;
    let chains: Vec<_> = (0..10).map(|n| chain([n * 100, 1, 2])).collect();
    let open: Vec<_> =
        chains.iter().zip(0..).map(|(hashes, n)| computed(&mut rig, n, hashes, n as u32 * 4).0).collect();
    rig.step(&StepPlan::default());
    assert_eq!((rig.control.pending(), rig.connector.transfers_in_flight()), (2, 10));
    // A flush gets through the queue.
    let meta = rig.build(&StepPlan { preempted: vec![open[9]], ..StepPlan::default() });
    rig.work(meta, |rig| (36..40).for_each(|block| rig.poison(GpuBlock(block))));
    rig.control.set().hold = false;
    rig.settle();
    for (id, hashes) in open.into_iter().zip(&chains) {
        assert!(!rig.connector.request_finished(id).unwrap());
        assert_stored(&mut rig, hashes);
    }
    rig.assert_no_leak();
}

#[test]
fn a_reset_waits_for_copies_and_tells_of_them() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 0);
    rig.control.set().hold = true;
    let (request, table) = loading(&mut rig, 2, &hashes, 50);
    assert!(matches!(rig.connector.reset(), Err(ConnectorError::Retry(_))), "a step is half planned");
    rig.step(&StepPlan::default());
    let (storing, _) = computed(&mut rig, 3, &chain(60..64), 100);
    rig.connector.reset().unwrap();
    assert_eq!(rig.connector.manager().primary().resident(), 0);
    let output = rig.step(&StepPlan::default());
    assert_eq!(output.loaded, [request]);
    assert_loaded(&rig, &table, &hashes);
    for id in [request, storing] {
        assert!(!rig.connector.request_finished(id).unwrap());
    }
    rig.assert_no_leak();
}

#[test]
fn a_load_that_a_reset_ended_is_not_told_of_a_request_that_was_preempted_since() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 0);
    rig.control.set().hold = true;
    let (request, _) = loading(&mut rig, 2, &hashes, 50);
    rig.step(&StepPlan::default());
    rig.connector.reset().unwrap();
    let output = rig.step(&StepPlan { preempted: vec![request], ..StepPlan::default() });
    assert!(output.is_empty(), "its blocks are another's: {output:?}");
    assert!(!rig.connector.request_finished(request).unwrap());
    rig.assert_no_leak();
}

#[test]
fn shutdown_finishes_what_runs_and_closes() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 0);
    rig.control.set().hold = true;
    loading(&mut rig, 2, &hashes, 50);
    rig.step(&StepPlan::default());
    computed(&mut rig, 3, &chain(60..64), 100);
    let plan = chain(0..4);
    let third = rig.begin(4, 100, &plan);
    assert_eq!(rig.matched(third, 0), Matched::NotYet);
    rig.connector.shutdown();
    assert_eq!((rig.control.pending(), rig.connector.transfers_in_flight()), (0, 0));
    let stats = rig.connector.manager().stats();
    assert_eq!((stats.readers, stats.writing), (0, 0), "{stats:?}");
    assert!(matches!(rig.connector.get_num_new_matched_tokens(RequestId(2), 0), Err(ConnectorError::Closed)));
    assert!(matches!(rig.connector.build_connector_meta(&StepPlan::default()), Err(ConnectorError::Closed)));
    assert!(matches!(rig.connector.wait_for_save(), Err(ConnectorError::Closed)));
    rig.connector.shutdown();
}
