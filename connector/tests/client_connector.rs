//! A connector over a daemon: what the engine is told of its loads is true, whatever becomes of the connection.

mod client_support;

use std::sync::Arc;

use client_support::{FakeDaemon, geometry, until};
use terrace_connector::client::SessionState;
use terrace_connector::protocol::Answer;
use terrace_connector::{
    ConnectorError, ConnectorOptions, ConnectorOutput, GpuBlock, HashList, KvCaches, KvTensor, Matched, NewRequest,
    RemoteConnector, RequestId, SchedulerHalf, StepPlan, TierFilter, WorkerHalf, WorkerOutput,
};
use terrace_kernels::{Arena, HostCopyEngine};

const BLOCKS: u32 = 8;
const PAGE: u32 = 4096;

fn connector(daemon: &FakeDaemon) -> (RemoteConnector, Arc<Arena>) {
    let engines = || Ok(Box::new(HostCopyEngine::new(1, 64).map_err(ConnectorError::from)?) as Box<_>);
    let options = ConnectorOptions::new(geometry(), BLOCKS);
    let mut connector = RemoteConnector::start(options, daemon.options(), Box::new(engines)).expect("valid options");
    connector.wait_ready(std::time::Duration::from_secs(10)).expect("a connection");
    let bytes = (BLOCKS * PAGE) as usize;
    let arena = Arc::new(Arena::new(2 * bytes).expect("memory"));
    assert!(arena.fill(0, 2 * bytes, 0xEE));
    let tensor = |group: usize| KvTensor::in_arena(&arena, group * bytes, BLOCKS, PAGE).expect("it fits");
    let caches = KvCaches { groups: vec![vec![tensor(0)], vec![tensor(1)]] };
    connector.register_kv_caches(caches).expect("they fit");
    (connector, arena)
}

/// A request of two blocks and a token that begins to load all of them.
fn begin_load(connector: &mut RemoteConnector) -> RequestId {
    let id = RequestId(3);
    let mut hashes = HashList::new(8);
    (0..2u64).for_each(|number| hashes.push(&number.to_be_bytes()).expect("the right width"));
    let request = NewRequest { id, prompt_tokens: 33, block_hashes: hashes, tiers: TierFilter::ALL };
    connector.new_request(request).expect("a new request");
    assert_eq!(connector.get_num_new_matched_tokens(id, 0).expect("an answer"), Matched::Tokens(32));
    let tables = [vec![GpuBlock(0), GpuBlock(1)], vec![GpuBlock(2), GpuBlock(3)]];
    connector.update_state_after_alloc(id, &tables, 32).expect("an allocation");
    id
}

/// Steps until the engine is told something.
fn told(connector: &mut RemoteConnector) -> ConnectorOutput {
    let mut told = ConnectorOutput::default();
    until("the end of the load", || {
        let meta = connector.build_connector_meta(&StepPlan::default()).expect("an empty plan");
        connector.start_load_kv(meta).expect("what was planned");
        let mut output = WorkerOutput::default();
        connector.get_finished(&mut output).expect("a report");
        told = connector.update_connector_output(output).expect("its own jobs");
        !told.is_empty()
    });
    told
}

#[test]
fn a_load_lands() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let (mut connector, arena) = connector(&daemon);
    let id = begin_load(&mut connector);
    let told = told(&mut connector);
    assert_eq!((told.loaded, told.failed_loads), (vec![id], vec![]));
    // The daemon's slots are all zero; blocks that were not loaded are as they were.
    let mut bytes = vec![1; PAGE as usize];
    for (offset, expected) in [(0, 0), (PAGE, 0), (2 * PAGE, 0xEE), ((BLOCKS + 2) * PAGE, 0), (BLOCKS * PAGE, 0xEE)] {
        assert!(arena.read(offset as usize, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == expected), "at {offset}");
    }
    assert_eq!((connector.client_counters().doomed_loads, connector.transfers_in_flight()), (0, 0));
}

#[test]
fn a_load_that_the_daemon_may_never_have_heard_of_has_failed() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let (mut connector, _arena) = connector(&daemon);
    let id = begin_load(&mut connector);
    // The frame that tells of the load is the last one that comes: it is not answered.
    daemon.hang_up();
    let meta = connector.build_connector_meta(&StepPlan::default()).expect("an empty plan");
    assert_eq!(meta.loads.len(), 1);
    until("the end of the connection", || {
        connector.get_finished(&mut WorkerOutput::default()).expect("a report");
        connector.manager().session().state() == SessionState::Away
    });
    connector.start_load_kv(meta).expect("what was planned");
    let told = told(&mut connector);
    let blocks = told.failed_loads.first().map(|(id, blocks)| (*id, blocks.len()));
    assert_eq!((told.loaded, blocks), (vec![], Some((id, 4))));
    assert_eq!(connector.client_counters().doomed_loads, 1);
    assert!(!connector.request_finished(id).expect("it is open"));
    connector.shutdown();
    assert!(matches!(connector.build_connector_meta(&StepPlan::default()), Err(ConnectorError::Closed)));
}
