//! The daemon's block table: who may read it, what is found there without asking, and what the daemon makes of it.

#[path = "common/daemon.rs"]
mod daemon;

use std::time::Duration;

use daemon::*;
use terrace_config::{Geometry, Namespace};
use terrace_connector::client::{ClientCounters, ClientOptions, RemoteManager};
use terrace_connector::protocol::*;
use terrace_connector::server::{Server, ServerOptions};
use terrace_connector::{JobId, ManagerPort, PortQuery, RequestId};
use terrace_primary::SlotId;
use terrace_tiering::{Lookup as Found, LookupMode, RequestContext, TierFilter, TieringError};

const ID: RequestId = RequestId(7);

/// Engine "e", with request [`ID`] open.
fn engine(daemon: &Daemon) -> RemoteManager {
    let geometry = Geometry {
        block_bytes: BLOCK_BYTES,
        tokens_per_block: 16,
        blocks_per_chunk: 1,
        groups: 1,
        hash_bytes: HASH_BYTES,
    };
    let namespace = Namespace { model: "m".to_owned(), ..Namespace::default() };
    let mut options = ClientOptions::new(daemon.socket(), namespace, geometry);
    options.engine = "e".to_owned();
    // Far from what an answer takes here, also on a busy machine.
    options.call_budget = Duration::from_secs(5);
    let mut manager = RemoteManager::start(options).expect("a thread");
    manager.session_mut().wait_ready(PATIENCE).expect("a connection");
    manager.begin_request(RequestContext { id: ID, tiers: TierFilter::ALL }).expect("a new request");
    manager
}

/// A scheduler that copies by itself and reads the table.
fn reader(daemon: &Daemon, name: &str) -> Client {
    let mut client =
        Client::open(&daemon.socket(), &Hello { features: vec![SHARED_TABLE.to_owned()], ..scheduler(name, 0) });
    client.await_slots();
    client
}

fn look(manager: &mut RemoteManager, range: std::ops::Range<u32>) -> Vec<Found> {
    let keys: Vec<_> = range.map(key).collect();
    manager.prepare_lookup(ID, vec![PortQuery { prefix_only: true, keys: keys.clone() }]).expect("an open request");
    let mut found = Vec::new();
    manager.lookup(ID, 0, &keys, LookupMode::Prefix, &mut found).expect("an open request");
    found
}

fn load(manager: &mut RemoteManager, job: u64, range: std::ops::Range<u32>) -> Result<Vec<SlotId>, TieringError> {
    let keys: Vec<_> = range.map(key).collect();
    let mut slots = Vec::new();
    manager.prepare_load(ID, JobId(job), &keys, &mut slots).map(|()| slots)
}

/// Lookups that were answered here, lookups that the daemon answered, and all calls that waited for it.
fn calls(manager: &RemoteManager) -> [u64; 3] {
    let ClientCounters { lookups_seen, lookups, round_trips, .. } = manager.counters();
    [lookups_seen, lookups, round_trips]
}

fn lease(client: &mut Client, request: u64, seen: u64, slots: &[u32]) -> Result<u64, ErrorCode> {
    let slots = numbers_to_bytes(slots.iter().copied());
    let reply: LeaseReply = client.ask(Kind::Lease, &Lease { request, tiers: u32::MAX, seen, slots })?;
    Ok(reply.lease)
}

/// Where `range` was found, and the last change before.
fn see(client: &Client, range: std::ops::Range<u32>) -> Option<(u64, Vec<u32>)> {
    let table = client.table.as_ref().expect("a table");
    let keys: Vec<_> = range.map(key).collect();
    let (seen, mut slots) = (table.last_change(), Vec::new());
    table.find_all(&keys, |slot, _| slots.push(slot)).then_some((seen, slots))
}

#[test]
fn what_is_all_there_is_found_without_asking_and_leased_when_it_is_loaded() {
    let daemon = Daemon::new(16, "");
    let mut other = reader(&daemon, "other");
    other.store(1, 1, 0..8);
    let mut engine = engine(&daemon);
    assert_eq!(look(&mut engine, 0..8), [Found::Hit; 8]);
    assert_eq!((calls(&engine), daemon.stat("terrace_leases")), ([1, 0, 0], 0.0));
    let slots = load(&mut engine, 1, 0..6).expect("they are there");
    assert_eq!((calls(&engine), daemon.stat("terrace_leases_taken_total")), ([1, 0, 1], 1.0));
    daemon.await_stat(READERS, 6.0);
    for (n, slot) in (0..).zip(&slots) {
        assert_eq!(other.read(slot.0), block(n));
    }
    // From the lease to the load, and with the load's end to nothing.
    engine.end_step();
    daemon.await_stat("terrace_leases", 0.0);
    daemon.await_stat(READERS, 6.0);
    engine.complete_load(ID, JobId(1), &(0..6).map(key).collect::<Vec<_>>(), true).expect("its job");
    engine.end_step();
    daemon.await_stat(READERS, 0.0);
    assert_eq!(daemon.stat("terrace_tier_hits_total{tier=\"primary\""), 6.0);
    assert_eq!(
        (daemon.stat("terrace_lookups_total"), daemon.stat("terrace_lookup_keys_total{answer=\"hit\"")),
        (1.0, 6.0)
    );
    // Where one is missing the daemon is asked: it may be below.
    assert_eq!(look(&mut engine, 6..9), [Found::Hit, Found::Hit, Found::Miss]);
    assert_eq!(calls(&engine), [1, 1, 2]);
}

#[test]
fn a_load_taken_back_in_its_step_gives_its_lease_back() {
    let daemon = Daemon::new(16, "");
    reader(&daemon, "other").store(1, 1, 0..4);
    let mut engine = engine(&daemon);
    look(&mut engine, 0..4);
    load(&mut engine, 1, 0..4).expect("they are there");
    engine.complete_load(ID, JobId(1), &(0..4).map(key).collect::<Vec<_>>(), false).expect("its job");
    engine.end_step();
    daemon.await_stat("terrace_leases", 0.0);
    daemon.await_stat(READERS, 0.0);
    // What is only looked up costs the daemon nothing.
    look(&mut engine, 0..4);
    engine.end_step();
    assert_eq!((calls(&engine), daemon.stat("terrace_leases_taken_total")), ([2, 0, 1], 1.0));
}

#[test]
fn what_has_left_in_between_is_refused_and_then_asked_for() {
    let daemon = Daemon::new(8, "");
    let mut other = reader(&daemon, "other");
    other.store(1, 1, 0..8);
    let mut engine = engine(&daemon);
    assert_eq!(look(&mut engine, 0..8), [Found::Hit; 8]);
    // The last ones of the prefix leave.
    other.store(2, 2, 20..22);
    let refused = load(&mut engine, 1, 0..8);
    assert!(matches!(refused, Err(TieringError::NotResident { .. })), "{refused:?}");
    assert_eq!((engine.counters().leases_refused, daemon.stat("terrace_leases_refused_total")), (1, 1.0));
    assert_eq!((daemon.stat("terrace_leases"), daemon.stat(READERS)), (0.0, 0.0));
    // From now on the daemon itself is asked, for this request.
    engine.end_step();
    let asked = calls(&engine);
    let found = look(&mut engine, 0..8);
    let hits = found.iter().take_while(|found| **found == Found::Hit).count() as u32;
    assert_eq!((calls(&engine)[0], calls(&engine)[1], hits), (asked[0], asked[1] + 1, 6));
    let slots = load(&mut engine, 2, 0..hits).expect("the daemon keeps them");
    for (n, slot) in (0..).zip(slots) {
        assert_eq!(other.read(slot.0), block(n));
    }
}

#[test]
fn only_schedulers_that_ask_for_it_are_given_the_table() {
    let daemon = Daemon::new(16, "");
    let features = vec![SHARED_TABLE.to_owned(), "unknown".to_owned()];
    for (hello, given) in [
        (Hello { features: features.clone(), ..scheduler("a", 0) }, true),
        (scheduler("b", 0), false),
        (Hello { features: features.clone(), ..worker("a", 0) }, false),
    ] {
        let client = Client::open(&daemon.socket(), &hello);
        let expected: Vec<String> = given.then(|| SHARED_TABLE.to_owned()).into_iter().collect();
        assert_eq!((client.reply.features, client.table.is_some()), (expected, given));
    }
    let file = tempfile::tempfile_in("/dev/shm").expect("a file");
    file.set_len(4096).expect("its length");
    let tier = Client::tier(&daemon.socket(), "t", 1, &file).expect("a session");
    assert!(tier.reply.features.is_empty());
    // Who compares what is loaded with its checksum looks keys up itself.
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(16, "", dir.path());
    config.primary.check_on_load = true;
    let handle = Server::start(&config, ServerOptions::default()).expect("it starts");
    let checking = Daemon { handle, config, dir };
    let mut client = reader(&checking, "other");
    assert!(client.table.is_none() && client.reply.features.is_empty());
    client.store(1, 1, 0..2);
    assert_eq!(lease(&mut client, 1, 2, &[0]), Ok(0));
    let mut engine = engine(&checking);
    assert_eq!(look(&mut engine, 0..2), [Found::Hit; 2]);
    assert_eq!(calls(&engine), [0, 1, 1]);
}

#[test]
fn a_table_is_of_one_namespace() {
    let daemon = Daemon::new(16, "pools = 2");
    let mut ours = reader(&daemon, "ours");
    ours.store(1, 1, 0..4);
    let namespace = WireNamespace { model: "another".to_owned(), ..WireNamespace::default() };
    let hello = Hello { namespace, features: vec![SHARED_TABLE.to_owned()], ..scheduler("theirs", 0) };
    let mut theirs = Client::open(&daemon.socket(), &hello);
    theirs.await_slots();
    assert!(see(&ours, 0..4).is_some() && see(&theirs, 0..1).is_none());
    let (seen, slots) = see(&ours, 0..4).expect("all are there");
    assert_eq!(lease(&mut theirs, 1, seen, &slots), Ok(0), "nothing is in those slots of theirs");
}

#[test]
fn leases_are_given_on_what_was_seen_and_on_nothing_else() {
    let daemon = Daemon::new(8, "");
    let mut other = reader(&daemon, "other");
    other.store(1, 1, 0..6);
    let mut client = reader(&daemon, "client");
    let (seen, slots) = see(&client, 0..6).expect("all are there");
    let free: Vec<u32> = (0..8).filter(|slot| !slots.contains(slot)).collect();
    let one = slots[0];
    for (what, seen, slots) in [
        ("nothing", seen, vec![]),
        ("a change that has not been", seen + 1, vec![one]),
        ("the last change of all", u64::MAX, vec![one]),
        ("before it came", 0, vec![one]),
        ("a free slot", seen, vec![one, free[0]]),
        ("a slot that is none", seen, vec![one, 8]),
        ("the largest number", seen, vec![u32::MAX]),
        ("more than the session's slots", seen, vec![one; 9]),
    ] {
        assert_eq!(lease(&mut client, 1, seen, &slots), Ok(0), "{what}");
        assert_eq!((daemon.stat("terrace_leases"), daemon.stat(READERS)), (0.0, 0.0), "{what}");
    }
    assert_eq!(daemon.stat("terrace_leases_refused_total"), 8.0);
    // Twice the same: two readers, and both go.
    let twice = lease(&mut client, 1, seen, &[one, one]).expect("an answer");
    assert_eq!((twice != 0, daemon.stat(READERS)), (true, 2.0));
    let all = lease(&mut client, 2, seen, &slots).expect("an answer");
    assert_eq!((all != 0, daemon.stat(READERS)), (true, 8.0));
    let ending = |lease, load: &[u32], job| LeaseEnd {
        lease,
        job,
        load: numbers_to_bytes(load.iter().copied()),
        wait: Vec::new(),
    };
    let leases = vec![ending(twice, &[0, 1], 5), ending(all, &[3], 6)];
    client.end_step(&EndStep { leases, ..EndStep::default() });
    daemon.await_stat(READERS, 3.0);
    let completed = [5, 6].map(|job| CompletedJob { job, ok: true }).to_vec();
    client.end_step(&EndStep { completed, ..EndStep::default() });
    daemon.await_stat(READERS, 0.0);
    assert_eq!(daemon.stat("terrace_tier_hits_total{tier=\"primary\""), 3.0);
    // What it holds goes with it.
    assert_ne!(lease(&mut client, 3, seen, &slots), Ok(0));
    client.bye();
    daemon.await_stat(READERS, 0.0);
    let mut client = reader(&daemon, "client");
    // Half a slot ends the connection, as half a key does.
    let half = Lease { request: 1, tiers: u32::MAX, seen, slots: vec![0; 5] };
    assert_eq!(client.ask::<_, LeaseReply>(Kind::Lease, &half).err(), Some(ErrorCode::Malformed));
    assert!(client.raw.ends());
    // It is not for workers.
    let mut worker = Client::open(&daemon.socket(), &worker("w", 0));
    assert_eq!(lease(&mut worker, 1, seen, &slots), Err(ErrorCode::Role));
    assert_eq!(see(&other, 0..6).map(|(_, slots)| slots.len()), Some(6));
}
