//! A daemon that is late, dies, or lies: nothing waits twice, nothing panics, and what was begun is undone.

mod client_support;

use std::time::Duration;

use client_support::{FakeDaemon, Told, each, hello_reply, keys, prefix, until};
use proptest::prelude::*;
use terrace_connector::client::{RemoteManager, SessionState};
use terrace_connector::protocol::{
    Answer, CompletedJob, Kind, LookupReply, PrepareStoreReply, SHARED_TABLE, encode, numbers_to_bytes,
};
use terrace_connector::{Arrival, JobId, ManagerPort, RequestId};
use terrace_tiering::{Lookup, LookupMode, StorePlan, TieringError};

const ID: RequestId = RequestId(1);

fn body<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    bytes
}

fn ask(manager: &mut RemoteManager) -> Vec<Lookup> {
    let (full, window) = (keys(0..3, 0), keys(0..3, 1));
    let mut answers = Vec::new();
    manager.prepare_lookup(ID, vec![prefix(&full), each(&window)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    answers
}

#[test]
fn one_call_runs_into_the_budget_and_the_rest_does_not_wait() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let mut options = daemon.options();
    options.call_budget = Duration::from_millis(20);
    options.stall_patience = Duration::from_millis(300);
    let mut manager = daemon.manager_with(options);
    daemon.sleep(true);
    let (full, mut plan) = (keys(0..3, 0), StorePlan::default());
    assert!(!manager.prepare_store(ID, JobId(3), &full, &mut plan).unwrap(), "no answer: no room");
    assert_eq!(manager.session().state(), SessionState::Stalled);
    assert_eq!(ask(&mut manager), [Lookup::Retry; 3], "not known yet");
    assert!(!manager.prepare_store(ID, JobId(4), &full, &mut plan).unwrap());
    manager.end_step();
    until("patience has an end", || {
        let arrived = manager.arrival(ID, &full[0]) == Arrival::Unknown;
        arrived && ask(&mut manager) == [Lookup::Miss; 3]
    });
    let counters = manager.counters();
    assert_eq!((counters.timeouts, counters.round_trips), (1, 0), "one call waited: {counters:?}");
    assert!(counters.stalled_calls >= 3, "{counters:?}");
    assert!(!manager.has_pending_work(), "an engine that drains does not wait for a daemon that is late");

    // The late answer is taken in, and what it reserved is given back.
    daemon.sleep(false);
    until("the late answer", || {
        manager.poll_once();
        manager.session().state() == SessionState::Ready
    });
    manager.end_step();
    until("the end of the step", || matches!(daemon.told.lock().unwrap().last(), Some(Told::EndStep(_))));
    let told = daemon.take_told();
    let [Told::PrepareStore(store), Told::EndStep(step)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(step.completed, [CompletedJob { job: store.job, ok: false }]);
    until("an answer in time", || ask(&mut manager) == [Lookup::Hit; 3]);
    // A busy machine may be late once more; what was late came.
    let counters = manager.counters();
    assert!(counters.timeouts > 0 && counters.late_replies == counters.timeouts, "{counters:?}");
}

#[test]
fn the_lease_of_a_late_lookup_ends() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let mut options = daemon.options();
    options.call_budget = Duration::from_millis(20);
    let mut manager = daemon.manager_with(options);
    daemon.sleep(true);
    assert_eq!(ask(&mut manager), [Lookup::Retry; 3]);
    manager.end_step();
    daemon.sleep(false);
    until("the late answer", || {
        manager.poll_once();
        manager.session().state() == SessionState::Ready
    });
    manager.end_step();
    until("the end of the step", || daemon.told.lock().unwrap().len() == 2);
    let [step] = &daemon.steps()[..] else { panic!("an end of a step ends the lease") };
    assert!(step.leases.is_empty());
}

#[test]
fn a_lost_connection_is_forgotten_and_found_again() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let mut manager = daemon.manager();
    let (full, mut plan) = (keys(0..3, 0), StorePlan::default());
    assert!(manager.prepare_store(ID, JobId(0), &full, &mut plan).unwrap());
    assert_eq!(ask(&mut manager), [Lookup::Hit; 3]);
    daemon.hang_up();
    manager.begin_request(client_support::context(2)).unwrap();
    manager.prepare_lookup(RequestId(2), vec![prefix(&keys(5..9, 0))]).unwrap();
    assert_eq!(manager.session().state(), SessionState::Away);
    let load = manager.prepare_load(ID, JobId(1), &full, &mut Vec::new());
    assert!(matches!(load, Err(TieringError::NotResident { .. })), "its lease is no more: {load:?}");
    until("a new connection", || {
        manager.poll_once();
        manager.session().state() == SessionState::Ready
    });
    daemon.take_told();
    // The end of a job of before is told first, once: the daemon keeps its slots until then.
    manager.complete_store(ID, JobId(0), &full, true).unwrap();
    assert_eq!(ask(&mut manager), [Lookup::Hit; 3]);
    manager.end_step();
    until("the end of the step", || daemon.told.lock().unwrap().len() == 3);
    let told = daemon.take_told();
    let [Told::EndStep(first), Told::Lookup(_), Told::EndStep(second)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&first.completed[..], &second.completed[..]), (&[CompletedJob { job: 1, ok: true }][..], &[][..]));
    let counters = manager.counters();
    assert_eq!((counters.connects, counters.disconnects, counters.protocol_faults), (2, 1, 0));
}

#[test]
fn a_store_whose_answer_was_lost_is_given_up_on_the_next_connection() {
    for is_late in [true, false] {
        let mut daemon = FakeDaemon::new();
        daemon.start();
        let mut options = daemon.options();
        options.call_budget = Duration::from_millis(if is_late { 20 } else { 5_000 });
        let mut manager = daemon.manager_with(options);
        daemon.sleep(is_late);
        if !is_late {
            daemon.hang_up();
        }
        assert!(!manager.prepare_store(ID, JobId(3), &keys(0..3, 0), &mut StorePlan::default()).unwrap());
        let expected = if is_late { SessionState::Stalled } else { SessionState::Away };
        assert_eq!(manager.session().state(), expected);
        if is_late {
            daemon.hang_up();
            daemon.sleep(false);
        }
        until("a new connection", || {
            manager.poll_once();
            manager.counters().connects == 2
        });
        for _ in 0..2 {
            manager.end_step();
            manager.begin_request(client_support::context(2)).unwrap();
            manager.prepare_lookup(RequestId(2), vec![prefix(&keys(5..9, 0))]).unwrap();
            manager.finish_request(RequestId(2));
        }
        // What was sent before is served when a ping is answered.
        until("a ping", || manager.session_mut().ping().is_some());
        let told: Vec<_> = daemon.steps().into_iter().flat_map(|step| step.completed).collect();
        assert_eq!(told, [CompletedJob { job: 4, ok: false }], "once; late: {is_late}");
    }
}

#[test]
fn a_lie_ends_the_connection_and_nothing_else() {
    let lookup = |lease, answers: &[u8], slots: &[u32]| {
        body(&LookupReply { lease, answers: answers.to_vec(), slots: numbers_to_bytes(slots.iter().copied()) })
    };
    let store = |store: &[u32], slots: &[u32]| {
        let numbers = |list: &[u32]| numbers_to_bytes(list.iter().copied());
        body(&PrepareStoreReply { room: true, store: numbers(store), slots: numbers(slots) })
    };
    let lies = [
        (Kind::Lookup, lookup(1, &[1, 1, 1, 0, 0, 0], &[0, 1, 64]), "a slot beyond the region"),
        (Kind::Lookup, lookup(1, &[1, 1, 1, 0, 0, 0], &[0, 1]), "fewer slots than hits"),
        (Kind::Lookup, lookup(1, &[1, 1, 1, 0, 0, 0], &[0, 1, 2, 3]), "more slots than hits"),
        (Kind::Lookup, lookup(0, &[1, 1, 1, 0, 0, 0], &[0, 1, 2]), "hits without a lease"),
        (Kind::Lookup, lookup(1, &[0, 0], &[]), "fewer answers than keys"),
        (Kind::Lookup, lookup(1, &[0, 0, 0, 0, 0, 0, 0], &[]), "more answers than keys"),
        (Kind::Lookup, lookup(1, &[7, 0, 0, 0, 0, 0], &[]), "an answer that is none"),
        (Kind::Lookup, vec![0xC1; 9], "no MessagePack"),
        (Kind::PrepareStore, store(&[0, 3], &[0, 1]), "a key that was not offered"),
        (Kind::PrepareStore, store(&[1, 0], &[0, 1]), "out of order"),
        (Kind::PrepareStore, store(&[0, 0], &[0, 1]), "a key twice"),
        (Kind::PrepareStore, store(&[0, 1], &[0]), "a key without a slot"),
        (Kind::PrepareStore, store(&[0], &[u32::MAX]), "a slot beyond the region"),
    ];
    for (kind, lie, what) in lies {
        let mut daemon = FakeDaemon::new();
        daemon.start();
        let mut manager = daemon.manager();
        daemon.lie(kind, lie);
        if kind == Kind::Lookup {
            assert_eq!(ask(&mut manager), [Lookup::Miss; 3], "{what}");
        } else {
            let mut plan = StorePlan::default();
            assert!(!manager.prepare_store(ID, JobId(0), &keys(0..3, 0), &mut plan).unwrap(), "{what}");
            assert!(plan.slots.is_empty() && plan.store.is_empty(), "{what}");
        }
        assert_eq!(manager.session().state(), SessionState::Away, "{what}");
        assert_eq!(manager.counters().protocol_faults, 1, "{what}");
    }
}

#[test]
fn a_session_that_does_not_fit_is_never_opened() {
    let mut other_namespace = hello_reply();
    other_namespace.namespace[0] ^= 1;
    let mut too_small = hello_reply();
    too_small.slots += 1;
    let mut no_messages = hello_reply();
    no_messages.limits.message_bytes = 100;
    let mut no_table = hello_reply();
    no_table.features = vec![SHARED_TABLE.to_owned()];
    for (reply, expected) in
        [(other_namespace, "namespace"), (too_small, "region"), (no_messages, "limits"), (no_table, "descriptors")]
    {
        let mut daemon = FakeDaemon::new();
        daemon.lie(Kind::Hello, body(&reply));
        daemon.start();
        let mut manager = RemoteManager::start(daemon.options()).unwrap();
        until_refused(&mut manager, expected);
    }
    let mut daemon = FakeDaemon::new();
    daemon.manners.unsealed.store(true, std::sync::atomic::Ordering::SeqCst);
    daemon.start();
    let mut manager = RemoteManager::start(daemon.options()).unwrap();
    // A region that can be cut off under our feet.
    until_refused(&mut manager, "f_seal_shrink");
}

/// No session comes, and in the end the reason says this.
fn until_refused(manager: &mut RemoteManager, expected: &str) {
    until(expected, || {
        let why = manager.session_mut().wait_ready(Duration::from_millis(100)).unwrap_err();
        why.to_lowercase().contains(expected)
    });
}

#[test]
fn without_a_daemon_the_error_names_the_socket_and_the_fix() {
    let daemon = FakeDaemon::new();
    let mut manager = RemoteManager::start(daemon.options()).unwrap();
    until_refused(&mut manager, "daemon.sock");
    until_refused(&mut manager, "terrace serve");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_from_a_daemon_are_worse_than_a_miss(
        kind in prop::sample::select(vec![Kind::Lookup, Kind::PrepareStore, Kind::EndStep]),
        lie in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut daemon = FakeDaemon::new();
        daemon.start();
        let mut manager = daemon.manager();
        daemon.lie(kind, lie);
        let answers = ask(&mut manager);
        prop_assert_eq!(answers.len(), 3);
        let mut plan = StorePlan::default();
        let _ = manager.prepare_store(ID, JobId(0), &keys(0..3, 0), &mut plan);
        prop_assert_eq!(plan.store.len(), plan.slots.len());
        manager.end_step();
        manager.poll_once();
    }
}
