//! One round trip answers a request's lookup; what the search then decides goes out with the step's end.

mod client_support;

use client_support::{FakeDaemon, Told, context, each, key, keys, prefix, until};
use terrace_connector::client::{ClientOptions, SessionState};
use terrace_connector::protocol::{Answer, CompletedJob, EndStepReply, Refusal, numbers_from_bytes, numbers_to_bytes};
use terrace_connector::{Arrival, JobId, ManagerPort, RequestId};
use terrace_primary::SlotId;
use terrace_tiering::{Lookup, LookupMode, StorePlan, TieringError};

const ID: RequestId = RequestId(1);

fn numbers(bytes: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    numbers_from_bytes(bytes, &mut numbers).unwrap();
    numbers
}

fn number_of(key: &terrace_primary::Key) -> u64 {
    u64::from_be_bytes(key.hash().try_into().unwrap())
}

#[test]
fn all_searches_of_a_step_are_answered_by_one_round_trip() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    // Full attention: 0..6 are there. Window: 2, 3 and 5 are.
    daemon.say(|key| match (key.group(), number_of(key)) {
        (0, 0..6) | (1, 2 | 3 | 5) => Answer::Hit { origin: 0 },
        _ => Answer::Miss,
    });
    let mut manager = daemon.manager();
    let (full, window) = (keys(0..10, 0), keys(0..10, 1));
    let mut answers = Vec::new();
    manager.prepare_lookup(ID, vec![prefix(&full), each(&window)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    assert_eq!(answers.iter().filter(|answer| **answer == Lookup::Hit).count(), 6);
    manager.lookup(ID, 1, &window[..6], LookupMode::Suffix { window: 2 }, &mut answers).unwrap();
    let mut expected = [Lookup::Miss; 6];
    expected[2..4].fill(Lookup::Hit);
    assert_eq!(answers, expected);
    manager.lookup(ID, 1, &window[..4], LookupMode::Suffix { window: 1 }, &mut answers).unwrap();
    assert_eq!(answers, [Lookup::Miss, Lookup::Miss, Lookup::Miss, Lookup::Hit]);
    // The same again in this step: nothing is asked.
    manager.prepare_lookup(ID, vec![prefix(&full), each(&window)]).unwrap();
    assert_eq!((daemon.lookups(), manager.counters().lookups, manager.counters().round_trips), (1, 1, 1));
}

#[test]
fn a_load_names_its_places_and_goes_out_with_the_step() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|key| Answer::Hit { origin: (number_of(key) % 2) as u8 });
    let mut manager = daemon.manager();
    let (full, window) = (keys(0..5, 0), keys(0..5, 1));
    manager.prepare_lookup(ID, vec![prefix(&full), each(&window)]).unwrap();
    let wanted: Vec<_> = full.iter().chain(&window[3..]).copied().collect();
    let mut slots = Vec::new();
    manager.prepare_load(ID, JobId(4), &wanted, &mut slots).unwrap();
    assert_eq!(slots, [0, 1, 2, 3, 4, 8, 9].map(SlotId));
    assert!(daemon.steps().is_empty(), "nothing is sent before the end of the step");
    manager.end_step();
    until("the end of the step", || !daemon.told.lock().unwrap().is_empty());
    let [step] = &daemon.steps()[..] else { panic!("one end of a step") };
    let [lease] = &step.leases[..] else { panic!("one lease") };
    assert_eq!((lease.job, numbers(&lease.load), lease.wait.len()), (5, vec![0, 1, 2, 3, 4, 8, 9], 0));
    let counters = manager.counters();
    assert_eq!((counters.loaded_primary, counters.loaded_below), (4, 3));

    // The lease is over: what it named may be gone.
    let again = manager.prepare_load(ID, JobId(6), &wanted, &mut slots);
    assert!(matches!(again, Err(TieringError::NotResident { .. })), "{again:?}");

    manager.complete_load(ID, JobId(4), &wanted, true).unwrap();
    manager.end_step();
    until("the completion", || !daemon.told.lock().unwrap().is_empty());
    assert_eq!(daemon.steps()[0].completed, [CompletedJob { job: 5, ok: true }]);
}

#[test]
fn a_load_taken_back_in_its_step_is_never_told() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|_| Answer::Hit { origin: 0 });
    let mut manager = daemon.manager();
    let full = keys(0..3, 0);
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.prepare_load(ID, JobId(0), &full, &mut Vec::new()).unwrap();
    manager.complete_load(ID, JobId(0), &full, false).unwrap();
    manager.end_step();
    until("the end of the step", || daemon.told.lock().unwrap().len() == 2);
    let [step] = &daemon.steps()[..] else { panic!("the lease must end") };
    assert_eq!((step.leases.len(), step.completed.len()), (0, 0));
}

#[test]
fn what_is_waited_for_is_said_once_and_asked_for_again_later() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    daemon.say(|key| match number_of(key) {
        0 => Answer::Hit { origin: 0 },
        1 => Answer::Pending,
        2 | 3 => Answer::Found { tier: 0 },
        _ => Answer::Miss,
    });
    let mut manager = daemon.manager();
    let full = keys(0..6, 0);
    let mut answers = Vec::new();
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    let expected = [Lookup::Hit, Lookup::Pending, Lookup::Pending, Lookup::Pending, Lookup::Miss, Lookup::Miss];
    assert_eq!(answers, expected);
    manager.end_step();
    until("the end of the step", || daemon.told.lock().unwrap().len() == 2);
    let told = daemon.take_told();
    let Some(Told::EndStep(step)) = told.last() else { panic!("{told:?}") };
    assert_eq!((step.leases[0].job, numbers(&step.leases[0].wait)), (0, vec![0, 1, 2, 3]));

    // One of them will not come: from then on the prefix ends there.
    let lease = step.leases[0].lease;
    until("an answer that is asked for anew", || manager.arrival(ID, &full[1]) == Arrival::Unknown);
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    let Some(Told::Lookup(_)) = daemon.take_told().pop() else { panic!("a second lookup") };
    // A lease is named by the sequence of its lookup; the end of the step had the one between.
    let refused = vec![Refusal { lease: lease + 2, keys: numbers_to_bytes([2]) }];
    *daemon.manners.end_step.lock().unwrap() = Some(EndStepReply { refused, ..EndStepReply::default() });
    manager.end_step();
    until("the end of the step", || daemon.told.lock().unwrap().len() == 1);
    until("the refusal", || {
        manager.poll_once();
        manager.arrival(ID, &full[1]) == Arrival::Unknown
    });
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    assert_eq!(answers[..3], [Lookup::Hit, Lookup::Pending, Lookup::Miss]);
}

#[test]
fn what_ended_between_steps_is_told_before_the_next_lookup() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    let mut manager = daemon.manager();
    manager.begin_request(context(2)).unwrap();
    let (ours, theirs) = (keys(0..3, 0), keys(10..12, 0));
    let mut plan = StorePlan::default();
    assert!(manager.prepare_store(ID, JobId(0), &ours, &mut plan).unwrap());
    assert_eq!((plan.store.len(), plan.slots.len()), (3, 3));
    manager.end_step();
    manager.complete_store(ID, JobId(0), &ours, true).unwrap();
    manager.touch(&ours);
    manager.touch(&theirs);
    assert!(manager.finish_request(ID));
    manager.prepare_lookup(RequestId(2), vec![prefix(&ours)]).unwrap();
    let told = daemon.take_told();
    let [Told::PrepareStore(store), Told::EndStep(step), Told::Lookup(lookup)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(step.completed, [CompletedJob { job: store.job, ok: true }]);
    assert_eq!(step.finished, [store.request]);
    assert_ne!(lookup.request, store.request);
    // The later touch comes first.
    assert_eq!(step.touched.first_chunk::<8>(), Some(&10u64.to_be_bytes()));
    assert_eq!(step.touched.len(), 5 * 12);
}

#[test]
fn a_session_that_is_away_holds_nobody_up() {
    let mut daemon = FakeDaemon::new();
    let mut manager = terrace_connector::client::RemoteManager::start(daemon.options()).unwrap();
    manager.begin_request(context(1)).unwrap();
    let full = keys(0..3, 0);
    let (mut answers, mut plan) = (Vec::new(), StorePlan::default());
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    assert_eq!(answers, [Lookup::Miss; 3]);
    assert!(!manager.prepare_store(ID, JobId(0), &full, &mut plan).unwrap());
    manager.touch(&full);
    manager.end_step();
    assert!(!manager.has_pending_work());
    let counters = manager.counters();
    assert_eq!((counters.round_trips, counters.timeouts, counters.dropped_stores), (0, 0, 1));

    // It comes back by itself, and the request that was opened before is known.
    daemon.say(|_| Answer::Hit { origin: 0 });
    daemon.start();
    until("a connection", || {
        manager.poll_once();
        manager.session().state() == SessionState::Ready
    });
    manager.prepare_lookup(ID, vec![prefix(&full)]).unwrap();
    manager.lookup(ID, 0, &full, LookupMode::Prefix, &mut answers).unwrap();
    assert_eq!(answers, [Lookup::Hit; 3]);
    assert_eq!(manager.arrival(ID, &key(0, 0)), Arrival::Writing, "asked for a moment ago");
}

/// Who wants events asks for them in every step, and may rest all the same.
#[test]
fn asking_for_events_is_no_pending_work() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    let mut manager = daemon.manager_with(ClientOptions { events: true, ..daemon.options() });
    daemon.sleep(true);
    manager.end_step();
    assert!(!manager.has_pending_work(), "it has only asked for events");
    manager.touch(&keys(0..1, 0));
    assert!(manager.has_pending_work(), "not told");
    manager.end_step();
    assert!(manager.has_pending_work(), "told and not confirmed");
    daemon.sleep(false);
    until("the confirmation", || {
        manager.poll_once();
        !manager.has_pending_work()
    });
    // Nothing of this lookup is loaded or waited for: its lease ends with the step all the same.
    manager.prepare_lookup(ID, vec![prefix(&keys(0..1, 0))]).unwrap();
    daemon.sleep(true);
    manager.end_step();
    assert!(manager.has_pending_work(), "a lease ends with the step");
    daemon.sleep(false);
    until("the end of the lease", || {
        manager.poll_once();
        !manager.has_pending_work()
    });
    assert_eq!(manager.session().state(), SessionState::Ready);
}

#[test]
fn shutdown_says_goodbye() {
    let mut daemon = FakeDaemon::new();
    daemon.start();
    let mut manager = daemon.manager();
    manager.shutdown();
    until("the goodbye", || {
        daemon
            .told
            .lock()
            .unwrap()
            .iter()
            .any(|told| matches!(told, Told::Other(kind) if *kind == terrace_connector::protocol::Kind::Bye))
    });
    assert!(matches!(manager.begin_request(context(9)), Err(TieringError::Closed)));
}
