//! Calls that contradict the contract are refused as a whole, and what was right before still works.

mod common;

use std::sync::Arc;

use common::{Rig, Setup, TOKENS, chain, config, geometry, options, scheduled};
use terrace_connector::{
    ConnectorError, ConnectorOptions, GpuBlock, GroupKind, HashList, JobId, KvCaches, KvTensor, Matched, NewRequest,
    OffloadingConnector, RequestId, ScheduledRequest, SchedulerHalf, StepPlan, TierFilter, WorkerHalf, WorkerOutput,
};
use terrace_kernels::{Arena, CopyEngineKind};
use terrace_primary::Region;
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::ManualClock;

fn assert_invalid<T: std::fmt::Debug>(result: Result<T, ConnectorError>) {
    assert!(matches!(result, Err(ConnectorError::Invalid(_))), "{result:?}");
}

#[test]
fn bad_requests() {
    let mut rig = Rig::new(&Setup { config: "[limits]\nrequests = 2\n", ..Setup::default() });
    let new = |id, prompt_tokens, block_hashes| NewRequest {
        id: RequestId(id),
        prompt_tokens,
        block_hashes,
        tiers: TierFilter::ALL,
    };
    let mut wide = HashList::new(32);
    wide.push(&[1; 32]).unwrap();
    assert_invalid(rig.connector.new_request(new(1, 100, wide.clone())));
    assert_invalid(rig.connector.new_request(new(1, 4 * TOKENS - 1, chain(0..4))));
    rig.connector.new_request(new(1, 4 * TOKENS, chain(0..4))).unwrap();
    assert_invalid(rig.connector.new_request(new(1, 4 * TOKENS, chain(0..4))));
    assert_invalid(rig.connector.append_blocks(RequestId(1), &wide));
    rig.connector.new_request(new(2, 0, HashList::default())).unwrap();
    let third = rig.connector.new_request(new(3, 0, HashList::default()));
    assert!(matches!(third, Err(ConnectorError::Capacity(_))), "{third:?}");
    for unknown in [RequestId(3), RequestId(u64::MAX)] {
        assert_invalid(rig.connector.append_blocks(unknown, &chain(0..1)));
        assert_invalid(rig.connector.get_num_new_matched_tokens(unknown, 0));
        assert_invalid(rig.connector.update_state_after_alloc(unknown, &[Vec::new()], 0));
        assert_invalid(rig.connector.request_finished(unknown));
    }
    assert_invalid(rig.connector.get_num_new_matched_tokens(RequestId(1), TOKENS - 1));
    assert_eq!(rig.matched(RequestId(1), u32::MAX / TOKENS * TOKENS), Matched::Tokens(0));
    assert_eq!(rig.matched(RequestId(2), 0), Matched::Tokens(0));
    for id in [1, 2] {
        assert!(!rig.connector.request_finished(RequestId(id)).unwrap());
    }
    rig.assert_no_leak();
}

#[test]
fn bad_allocations() {
    let setup = Setup {
        kinds: vec![GroupKind::FullAttention, GroupKind::SlidingWindow { window_tokens: 8 }],
        ..Setup::default()
    };
    let mut rig = Rig::new(&setup);
    let hashes = chain(0..4);
    rig.store_all(1, &hashes, 0);
    let request = rig.begin(2, 4 * TOKENS + 1, &hashes);
    let table = rig.table(100, 5);
    assert_invalid(rig.connector.update_state_after_alloc(request, &table, TOKENS)); // nothing matched yet
    assert_eq!(rig.matched(request, 0), Matched::Tokens(4 * TOKENS));
    let full = 4 * TOKENS;
    let mut bad = vec![(table[..1].to_vec(), full), (vec![table[0].clone(), table[1][..4].to_vec()], full)];
    bad.push((table.clone(), full + TOKENS));
    bad.push((table.clone(), full - 1));
    bad.push((table.clone(), full - TOKENS)); // less than the match, with a window
    bad.push((table.iter().map(|list| list[..3].to_vec()).collect(), full)); // too short for the load
    for (group, position, block) in [(0, 0, GpuBlock(256)), (0, 1, GpuBlock::NULL), (1, 3, GpuBlock::NULL)] {
        let mut wrong = table.clone();
        wrong[group][position] = block;
        bad.push((wrong, full));
    }
    for (blocks, tokens) in bad {
        assert_invalid(rig.connector.update_state_after_alloc(request, &blocks, tokens));
        assert_eq!((rig.connector.transfers_in_flight(), rig.connector.manager().stats().readers), (0, 0));
    }
    rig.connector.update_state_after_alloc(request, &table, full).unwrap();
    assert_invalid(rig.connector.update_state_after_alloc(request, &table, full)); // it loads already
    assert_eq!(rig.matched(request, 0), Matched::NotYet);
    assert_eq!(rig.settle().loaded, [request]);
    assert!(!rig.connector.request_finished(request).unwrap());
    rig.assert_no_leak();
}

#[test]
fn bad_plans_change_nothing() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..4);
    let request = rig.begin(1, 4 * TOKENS, &hashes);
    let table = rig.table(0, 4);
    let good = scheduled(request, table.clone(), 4 * TOKENS);
    let one = good.scheduled[0].clone();
    let with = |change: &dyn Fn(&mut StepPlan)| {
        let mut plan = good.clone();
        change(&mut plan);
        plan
    };
    let bad = [
        with(&|plan| plan.scheduled.push(one.clone())),
        with(&|plan| plan.preempted.push(request)),
        with(&|plan| plan.preempted.push(RequestId(9))),
        with(&|plan| plan.reused.push(GpuBlock(256))),
        with(&|plan| plan.reused.push(GpuBlock::NULL)),
        with(&|plan| plan.scheduled.push(ScheduledRequest { id: RequestId(9), ..one.clone() })),
        with(&|plan| plan.scheduled[0].computed_tokens += 1),
        with(&|plan| plan.scheduled[0].new_blocks.push(Vec::new())),
        with(&|plan| plan.scheduled[0].new_blocks[0][2] = GpuBlock::NULL),
        with(&|plan| plan.scheduled[0].new_blocks[0][2] = GpuBlock(256)),
    ];
    for plan in bad {
        assert_invalid(rig.connector.build_connector_meta(&plan));
        assert_eq!(rig.connector.transfers_in_flight(), 0, "{plan:?}");
    }
    let meta = rig.build(&good);
    assert_eq!(meta.stores[0].copies.len(), 4);
    let job = meta.stores[0].job;
    rig.work(meta, |_| {});
    for finished in [vec![(JobId(99), true)], vec![(job, true), (job, true)], vec![(job, true), (JobId(99), true)]] {
        assert_invalid(rig.connector.update_connector_output(WorkerOutput { finished, ..WorkerOutput::default() }));
        assert_eq!(rig.connector.transfers_in_flight(), 1);
    }
    rig.settle();
    assert!(!rig.connector.request_finished(request).unwrap());
    rig.assert_no_leak();
}

#[test]
fn bad_metadata_is_refused_by_the_worker() {
    let mut rig = Rig::new(&Setup { blocks_per_chunk: 2, ..Setup::default() });
    let request = rig.begin(1, 4 * TOKENS, &chain(0..4));
    let meta = rig.build(&scheduled(request, rig.table(0, 4), 4 * TOKENS));
    for wrong in 0..6 {
        let mut bad = meta.clone();
        let mut copies = bad.stores[0].copies.to_vec();
        match wrong {
            0 => copies[1].slot.0 = 64,
            1 => copies[1].block = GpuBlock(256),
            2 => copies[1].group = 1,
            3 => copies[1].place = 2,
            4 => bad.loads = bad.stores.clone(),
            _ => bad.stores.push(bad.stores[0].clone()),
        }
        bad.stores[0].copies = copies.into();
        assert_invalid(rig.connector.start_load_kv(bad));
        assert_eq!(rig.control.pending(), 0);
    }
    rig.connector.start_load_kv(meta.clone()).unwrap();
    assert_invalid(rig.connector.start_load_kv(meta)); // the jobs are known
    rig.settle();
    assert!(!rig.connector.request_finished(request).unwrap());
    rig.assert_no_leak();
}

fn parts(setup: &Setup) -> (ConnectorOptions, TieringOffloadingManager, Arc<Region>) {
    let geometry = geometry(setup);
    let region = Region::null(setup.slots, geometry.slot_stride(), geometry.block_bytes);
    let manager = TieringOffloadingManager::new(&config(setup), Vec::new(), Arc::new(ManualClock::default()));
    (options(setup), manager.expect("a manager"), region)
}

#[test]
fn bad_parts() {
    let setup = Setup::default();
    let (good, manager, region) = parts(&setup);
    let host = CopyEngineKind::Host { threads: 1, queue_entries: 8 }.build().unwrap();
    let mixed = OffloadingConnector::new(good.clone(), manager, region, host);
    assert!(matches!(mixed, Err(ConnectorError::Unsupported(_))), "a null region under a host engine");
    let changes: [&dyn Fn(&mut ConnectorOptions); 7] = [
        &|options| options.groups.clear(),
        &|options| options.geometry.groups = 2,
        &|options| options.geometry.tokens_per_block = 0,
        &|options| options.geometry.blocks_per_chunk = u32::MAX,
        &|options| options.geometry.hash_bytes = 65,
        &|options| options.gpu_blocks = 0,
        &|options| options.groups = vec![GroupKind::SlidingWindow { window_tokens: 0 }],
    ];
    for change in changes {
        let (mut bad, manager, region) = parts(&setup);
        change(&mut bad);
        let result = OffloadingConnector::new(bad, manager, region, CopyEngineKind::Null.build().unwrap());
        assert!(matches!(result, Err(ConnectorError::Invalid(_))));
    }
}

#[test]
fn bad_kv_caches() {
    let mut rig = Rig::new(&Setup::default());
    assert_invalid(rig.connector.register_kv_caches(KvCaches { groups: vec![Vec::new()] })); // registered already
    let setup = Setup::default();
    let (options, manager, region) = parts(&setup);
    let mut connector =
        OffloadingConnector::new(options, manager, region, CopyEngineKind::Null.build().unwrap()).expect("a connector");
    let caches = |tensors: Vec<KvTensor>| KvCaches { groups: vec![tensors] };
    assert_invalid(connector.register_kv_caches(KvCaches::default()));
    assert_invalid(connector.register_kv_caches(caches(Vec::new())));
    assert_invalid(connector.register_kv_caches(caches(vec![KvTensor::none(256, 0)])));
    assert_invalid(connector.register_kv_caches(caches(vec![KvTensor::none(255, 64)])));
    assert_invalid(connector.register_kv_caches(caches(vec![KvTensor::none(256, 65), KvTensor::none(256, 65)])));
    let arena = Arc::new(Arena::new(4096).unwrap());
    assert_invalid(KvTensor::in_arena(&arena, 1, 64, 64));
    assert_invalid(KvTensor::in_arena(&arena, 0, u32::MAX, u32::MAX));
    connector.register_kv_caches(caches(vec![KvTensor::none(256, 64), KvTensor::none(256, 65)])).unwrap();
}

#[test]
fn without_bytes_everything_is_counted() {
    let setup = Setup { blocks_per_chunk: 2, ..Setup::default() };
    let (options, manager, region) = parts(&setup);
    let mut connector =
        OffloadingConnector::new(options, manager, region, CopyEngineKind::Null.build().unwrap()).expect("a connector");
    connector.register_kv_caches(KvCaches { groups: vec![vec![KvTensor::none(256, 100)]] }).unwrap();
    let hashes = chain(0..6);
    let blocks = |first: u32| vec![(first..first + 7).map(GpuBlock).collect::<Vec<_>>()];
    let step = |connector: &mut OffloadingConnector, plan: &StepPlan| {
        let meta = connector.build_connector_meta(plan).unwrap();
        connector.start_load_kv(meta).unwrap();
        let mut output = WorkerOutput::default();
        connector.get_finished(&mut output).unwrap();
        connector.update_connector_output(output).unwrap()
    };
    let new = |id| NewRequest {
        id: RequestId(id),
        prompt_tokens: 6 * TOKENS + 1,
        block_hashes: hashes.clone(),
        tiers: TierFilter::ALL,
    };
    connector.new_request(new(1)).unwrap();
    step(&mut connector, &scheduled(RequestId(1), blocks(0), 6 * TOKENS));
    step(&mut connector, &StepPlan::default());
    connector.new_request(new(2)).unwrap();
    assert_eq!(connector.get_num_new_matched_tokens(RequestId(2), TOKENS).unwrap(), Matched::Tokens(5 * TOKENS));
    connector.update_state_after_alloc(RequestId(2), &blocks(10), 5 * TOKENS).unwrap();
    assert_eq!(step(&mut connector, &StepPlan::default()).loaded, [RequestId(2)]);
    let stats = connector.copy_stats();
    assert_eq!((stats.bytes_to_host, stats.bytes_to_device), (600, 500));
    for id in [1, 2] {
        assert!(!connector.request_finished(RequestId(id)).unwrap());
    }
}
