//! Sessions against a daemon in this process: versions, jobs of several workers, leases, waits, drains, pools.

#[path = "common/daemon.rs"]
mod daemon;

use std::time::Duration;

use daemon::*;
use terrace_connector::protocol::*;
use terrace_connector::server::{Server, ServerOptions};

const FILES: &str = "[[tier]]\ntype = \"nvme\"\npaths = [\"DIR/n\"]\ncapacity = \"1MiB\"\nio_uring = \"off\"\n\
                     direct_io = \"off\"\ncatalog = \"off\"\n";
const MEMORY: &str = "[[tier]]\ntype = \"memory\"\ncapacity = \"4MiB\"\n";

#[test]
fn versions_are_agreed_on_or_refused() {
    let daemon = Daemon::new(16, "");
    let newer = Hello { version_max: 7, features: vec!["telepathy".to_owned()], ..scheduler("e", 0) };
    let client = Client::open(&daemon.socket(), &newer);
    assert_eq!((client.reply.version, client.reply.features.len()), (1, 0));
    assert_eq!((client.reply.slots, client.reply.slot_stride), (16, 4096));
    assert!(client.reply.region != 0 && client.reply.region_bytes >= 16 * 4096);
    assert_eq!(client.reply.namespace.len(), 32);
    for (min, max) in [(2, 9), (0, 0)] {
        let other = Hello { version_min: min, version_max: max, ..scheduler("f", 0) };
        assert_eq!(Client::try_open(&daemon.socket(), &other).err(), Some(ErrorCode::Version));
    }
    let mut raw = Raw::connect(&daemon.socket());
    raw.send::<()>(Kind::Ping, FrameFlags::REQUEST, None);
    assert_eq!(raw.refusal(), ErrorCode::Malformed);
    assert!(raw.ends());
}

#[test]
fn a_store_counts_when_all_workers_have_reported_it() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let mut boss = Client::open(&socket, &scheduler("e", 2));
    boss.await_slots();
    assert!(!boss.prepare(1, 1, keys(0..4)).room, "no worker is there");
    let mut first = Client::open(&socket, &worker("e", 0));
    assert_eq!(boss.end_step(&EndStep::default()).workers, 1);
    assert!(!boss.prepare(1, 1, keys(0..4)).room, "one is missing");
    let mut second = Client::open(&socket, &worker("e", 1));
    let plan = boss.prepare(1, 1, keys(0..4));
    assert!(plan.room && numbers(&plan.store) == [0, 1, 2, 3]);
    let slots = numbers(&plan.slots);
    (0..4).for_each(|at| first.write(slots[at as usize], at));
    first.complete(&[(1, true)]);
    first.ping();
    assert_eq!(boss.answers(0..4), [Answer::Pending; 4], "one worker has not written its part");
    second.complete(&[(1, true)]);
    second.ping();
    assert_eq!(boss.answers(0..4), [hit(); 4]);
    // A failed part fails the store.
    assert!(boss.prepare(1, 2, keys(4..6)).room);
    first.complete(&[(2, true)]);
    second.complete(&[(2, false)]);
    first.ping();
    second.ping();
    assert_eq!(boss.answers(4..6), [Answer::Miss; 2]);
    let reply = boss.end_step(&EndStep::default());
    assert_eq!(reply.jobs, [JobOutcome { job: 1, ok: true }, JobOutcome { job: 2, ok: false }]);
    assert_eq!((reply.workers, daemon.stat(WRITING)), (2, 0.0));

    // A load: the reports of both may come before the step that begins it, or one after.
    for (job, early) in [(3, 1), (4, 2), (5, 0)] {
        let found = boss.lookup(2, Scan::Prefix, keys(0..6));
        assert_eq!(answers(&found), [hit(), hit(), hit(), hit(), Answer::Miss]);
        assert_eq!(numbers(&found.slots), slots);
        assert_eq!(second.read(slots[3]), block(3));
        let workers = [&mut first, &mut second];
        let (before, after) = if early == 2 { (2, 0) } else { (early, 2 - early) };
        let mut workers = workers.into_iter();
        for worker in workers.by_ref().take(before) {
            worker.complete(&[(job, true)]);
            worker.ping();
        }
        let lease = LeaseEnd { lease: found.lease, job, load: numbers_to_bytes([0, 1, 2, 3]), wait: Vec::new() };
        let reply = boss.end_step(&EndStep { leases: vec![lease], ..EndStep::default() });
        assert_eq!(reply.jobs.len(), usize::from(after == 0));
        assert_eq!(daemon.stat(READERS), if after == 0 { 0.0 } else { 4.0 });
        for worker in workers {
            worker.complete(&[(job, true)]);
            worker.ping();
        }
        assert_eq!(daemon.stat(READERS), 0.0);
        let jobs = boss.end_step(&EndStep::default()).jobs;
        assert_eq!(jobs.len() + reply.jobs.len(), 1);
    }
    assert_eq!(daemon.stat("terrace_early_reports_total"), 3.0);
}

#[test]
fn leases_end_with_the_step() {
    let daemon = Daemon::new(16, "");
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 0));
    boss.await_slots();
    boss.store(1, 1, 0..4);
    let first = boss.lookup(2, Scan::Prefix, keys(0..4));
    let second = boss.lookup(3, Scan::Each, keys([9, 2, 8, 3]));
    assert_eq!(answers(&second), [Answer::Miss, hit(), Answer::Miss, hit()]);
    assert_eq!(daemon.stat(READERS), 6.0);
    let load = LeaseEnd { lease: second.lease, job: 5, load: numbers_to_bytes([3]), wait: Vec::new() };
    // What was no hit cannot be loaded, and the whole step is refused.
    for wrong in [
        LeaseEnd { load: numbers_to_bytes([0]), ..load.clone() },
        LeaseEnd { load: numbers_to_bytes([3, 3]), ..load.clone() },
        LeaseEnd { load: numbers_to_bytes([99]), ..load.clone() },
        LeaseEnd { job: 0, ..load.clone() },
    ] {
        let refused =
            boss.ask::<_, EndStepReply>(Kind::EndStep, &EndStep { leases: vec![wrong], ..EndStep::default() });
        assert_eq!(refused, Err(ErrorCode::Invalid));
    }
    let twice = EndStep { leases: vec![load.clone(), LeaseEnd { job: 6, ..load.clone() }], ..EndStep::default() };
    assert_eq!(boss.ask::<_, EndStepReply>(Kind::EndStep, &twice), Err(ErrorCode::Invalid));
    assert_eq!(daemon.stat(READERS), 6.0);
    boss.end_step(&EndStep { leases: vec![load.clone()], ..EndStep::default() });
    assert_eq!(daemon.stat(READERS), 1.0, "the job's");
    // An ended lease cannot be loaded from; a job cannot begin twice.
    assert_eq!(
        boss.ask::<_, EndStepReply>(Kind::EndStep, &EndStep { leases: vec![load.clone()], ..EndStep::default() }),
        Err(ErrorCode::Invalid)
    );
    let late = LeaseEnd { lease: first.lease, job: 7, load: numbers_to_bytes([0]), wait: numbers_to_bytes([1]) };
    let reply = boss.end_step(&EndStep { leases: vec![late], ..EndStep::default() });
    assert_eq!(reply.jobs, [JobOutcome { job: 7, ok: false }]);
    assert_eq!(reply.refused, [Refusal { lease: first.lease, keys: numbers_to_bytes([1]) }]);
    let completed = vec![CompletedJob { job: 5, ok: true }, CompletedJob { job: 77, ok: true }];
    boss.end_step(&EndStep { completed, ..EndStep::default() });
    assert_eq!(daemon.stat(READERS), 0.0);
    assert_eq!(daemon.stat("terrace_completions_ignored_total"), 1.0);
}

#[test]
fn what_is_waited_for_is_brought_and_what_has_no_room_is_refused() {
    let more = format!("[limits]\npromotion_share = 0.5\n{MEMORY}");
    let daemon = Daemon::new(16, &more);
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 0));
    boss.await_slots();
    boss.store(1, 1, 0..12);
    until("all is stored below", || {
        let stats = boss.stats();
        value(&stats, "terrace_tier_blocks{tier=\"memory\"}") == 12.0
    });
    boss.raw.send::<()>(Kind::Reset, FrameFlags::REQUEST, None);
    assert_eq!(boss.raw.receive().map(|frame| frame.header.flags), Some(FrameFlags::REPLY));
    let found = boss.lookup(2, Scan::Prefix, keys(0..13));
    assert_eq!(answers(&found), [vec![Answer::Found { tier: 0 }; 12], vec![Answer::Miss]].concat());
    assert_eq!(daemon.stat(WRITING), 0.0, "a lookup alone brings nothing");
    let wait = LeaseEnd { lease: found.lease, job: 0, load: Vec::new(), wait: numbers_to_bytes(0..13) };
    let reply = boss.end_step(&EndStep { leases: vec![wait], ..EndStep::default() });
    // Half of the slots may be promoted to.
    assert_eq!(reply.refused.len(), 1);
    let mut refused = numbers(&reply.refused[0].keys);
    refused.sort_unstable();
    assert_eq!(refused, [8, 9, 10, 11, 12]);
    // No further step is needed for them to land.
    until("all is there", || daemon.resident() == 8.0);
    let found = boss.lookup(2, Scan::Prefix, keys(0..8));
    assert_eq!(answers(&found), [Answer::Hit { origin: 1 }; 8]);
    for (n, slot) in numbers(&found.slots).into_iter().enumerate() {
        assert_eq!(boss.read(slot), block(n as u32));
    }
    boss.end_step(&EndStep { finished: vec![2], ..EndStep::default() });
    daemon.await_stat(READERS, 0.0);
}

#[test]
fn events_statistics_and_pins() {
    let daemon = Daemon::new(16, "");
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 0));
    boss.await_slots();
    let want = |want| EndStep { want, ..EndStep::default() };
    assert_eq!(boss.end_step(&want(WANT_EVENTS)).events, []);
    boss.store(1, 1, 0..3);
    let reply = boss.end_step(&want(WANT_EVENTS | WANT_STATS));
    assert_eq!(reply.events, [EventBatch { what: 0, medium: 0, locality: 0, keys: keys(0..3) }]);
    assert!(
        reply.stats.iter().any(|(name, value)| name == "terrace_primary_slots{state=\"evictable\"}" && *value == 3.0)
    );
    assert_eq!(boss.end_step(&want(WANT_EVENTS)).events, []);

    assert_eq!(
        boss.ask::<_, PinReply>(Kind::Pin, &Pin { request: 9, ttl_ms: 60_000, keys: keys(0..3) }),
        Err(ErrorCode::Unknown)
    );
    boss.lookup(9, Scan::Each, keys(0..1));
    let pinned: PinReply = boss.ask(Kind::Pin, &Pin { request: 9, ttl_ms: 60_000, keys: keys(0..4) }).expect("it pins");
    // A pin share of a tenth is one slot of sixteen.
    assert_eq!(f64::from(pinned.pinned), daemon.stat("terrace_pins"));
    assert!(pinned.pinned > 0);
    boss.end_step(&EndStep { finished: vec![9], ..EndStep::default() });
    let sequence = boss.raw.send(Kind::Unpin, FrameFlags::REQUEST, Some(&Unpin { request: 9, keys: keys(0..4) }));
    assert_eq!(boss.raw.receive().map(|frame| frame.header.sequence), Some(sequence));
    assert_eq!(daemon.stat("terrace_pins"), 0.0, "it ends after the request too");
}

#[test]
fn a_daemon_that_drains_waits_for_jobs_and_takes_no_more() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let mut boss = Client::open(&socket, &scheduler("e", 0));
    boss.await_slots();
    boss.store(1, 1, 0..2);
    let plan = boss.prepare(2, 2, keys(4..6));
    assert!(plan.room);
    daemon.handle.drain(Duration::from_secs(60));
    let goodbye = boss.raw.receive().expect("a goodbye");
    assert_eq!((goodbye.header.kind, goodbye.header.flags), (Kind::Goodbye, FrameFlags::ONE_WAY));
    assert!(!socket.exists(), "nobody new connects");
    assert_eq!(boss.answers(0..2), [Answer::Miss; 2]);
    assert!(!boss.prepare(3, 3, keys(7..8)).room);
    assert!(!daemon.handle.is_over(), "a job runs");
    boss.end_step(&EndStep { completed: vec![CompletedJob { job: 2, ok: true }], ..EndStep::default() });
    daemon.handle.join();
    assert!(boss.raw.ends());
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::new(16, FILES);
    let start = |config: &terrace_config::Config, socket: &str| {
        let options = ServerOptions { socket: Some(daemon.dir.path().join(socket)), ..ServerOptions::default() };
        Server::start(config, options).map(|_| ()).map_err(|error| (error.is_bad_input(), error.to_string()))
    };
    let (bad_input, text) = start(&daemon.config, "t").expect_err("the directory is in use");
    assert!(bad_input && text.contains("another daemon uses it"), "{text}");
    let other = config(16, "", daemon.dir.path());
    let (bad_input, text) = start(&other, "s").expect_err("the socket is in use");
    assert!(bad_input && text.contains("another daemon listens"), "{text}");
    start(&other, "t").expect("with another socket and no directory there is nothing to share");
    // The first one has not noticed.
    Client::open(&daemon.socket(), &scheduler("e", 0)).ping();
    drop(daemon);
}

#[test]
fn a_pool_without_sessions_gives_way() {
    let daemon = Daemon::new(16, FILES);
    let socket = daemon.socket();
    let of = |model: &str| {
        let namespace = WireNamespace { model: model.to_owned(), ..WireNamespace::default() };
        Hello { namespace, ..scheduler("e", 0) }
    };
    let mut first = Client::open(&socket, &of("a"));
    first.await_slots();
    first.store(1, 1, 0..4);
    assert_eq!(Client::try_open(&socket, &of("b")).err(), Some(ErrorCode::Limit), "the one pool is in use");
    let region = first.reply.region;
    first.bye();
    daemon.await_stat("terrace_sessions", 0.0);
    let mut second = Client::open(&socket, &of("b"));
    assert!(second.reply.region != region);
    until("another namespace has none of it", || second.answers(0..4) == [Answer::Miss; 4]);
    second.bye();
    daemon.await_stat("terrace_sessions", 0.0);
    let mut third = Client::open(&socket, &of("a"));
    until("what the first stored is found below", || third.answers(0..4) == [Answer::Found { tier: 0 }; 4]);
}

#[test]
fn namespaces_have_pools_of_their_own_as_far_as_they_go() {
    let daemon = Daemon::new(16, "pools = 2\n");
    let socket = daemon.socket();
    let of = |model: &str| {
        let namespace = WireNamespace { model: model.to_owned(), ..WireNamespace::default() };
        Hello { namespace, ..scheduler("e", 0) }
    };
    let mut first = Client::open(&socket, &of("a"));
    let mut second = Client::open(&socket, &of("b"));
    assert_eq!((first.reply.slots, second.reply.slots), (8, 8), "half of the slots each");
    assert!(first.reply.region != second.reply.region);
    first.await_slots();
    first.store(1, 1, 0..4);
    assert_eq!((first.answers(0..4), second.answers(0..4)), (vec![hit(); 4], vec![Answer::Miss; 4]));
    assert_eq!(Client::try_open(&socket, &of("c")).err(), Some(ErrorCode::Limit));
    assert_eq!(daemon.refused("pools"), 1.0);
}

/// DRAM can rot, and whoever maps the region can write where it may not.
#[test]
fn a_block_that_changed_in_memory_is_brought_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(16, MEMORY, dir.path());
    config.primary.check_on_load = true;
    let handle = Server::start(&config, ServerOptions::default()).expect("the daemon starts");
    let daemon = Daemon { handle, config, dir };
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 0));
    boss.await_slots();
    let plan = boss.prepare(1, 1, keys(0..4));
    let slots = numbers(&plan.slots);
    for (n, slot) in slots.iter().enumerate() {
        boss.write(*slot, n as u32);
    }
    boss.end_step(&EndStep { completed: vec![CompletedJob { job: 1, ok: true }], ..EndStep::default() });
    until("all is stored below", || value(&boss.stats(), "terrace_tier_blocks{tier=\"memory\"}") == 4.0);
    boss.write(slots[2], 77);
    let found = boss.lookup(2, Scan::Prefix, keys(0..4));
    assert_eq!(answers(&found), [hit(), hit(), Answer::Retry, hit()]);
    let wait = LeaseEnd { lease: found.lease, job: 0, load: Vec::new(), wait: numbers_to_bytes([2]) };
    boss.end_step(&EndStep { leases: vec![wait], ..EndStep::default() });
    until("it is there again", || daemon.resident() == 4.0);
    let found = boss.lookup(2, Scan::Prefix, keys(0..4));
    assert_eq!(answers(&found), [hit(), hit(), Answer::Hit { origin: 1 }, hit()]);
    assert_eq!(boss.read(numbers(&found.slots)[2]), block(2));
    assert_eq!(daemon.stat("terrace_primary_checks_total{outcome=\"damaged\""), 1.0);
}
