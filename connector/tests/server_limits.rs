//! Clients that break rules, and bounds that they reach: each ends with its own connection.

#[path = "common/daemon.rs"]
mod daemon;

use std::io::Write as _;
use std::os::fd::AsFd as _;

use daemon::*;
use terrace_connector::protocol::*;

/// One that must not notice anything.
fn witness(daemon: &Daemon) -> Client {
    let mut witness = Client::open(&daemon.socket(), &scheduler("witness", 0));
    witness.await_slots();
    witness.store(1, 1, 0..4);
    witness
}

/// A daemon that gives each session this share of its slots.
fn shared(slots: u32, share: f64) -> Daemon {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(slots, "", dir.path());
    config.server.session_share = share;
    let handle = terrace_connector::server::Server::start(&config, Default::default()).expect("it starts");
    Daemon { handle, config, dir }
}

#[test]
fn malformed_frames_close_their_connection_and_no_other() {
    let daemon = Daemon::new(16, "");
    let mut witness = witness(&daemon);
    let ping = Raw::bytes::<()>(Kind::Ping, FrameFlags::REQUEST, 9, None);
    let damaged = |at: usize, byte: u8| {
        let mut bytes = ping.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        ("magic", damaged(0, b'X'), ErrorCode::Malformed),
        ("version", damaged(4, 2), ErrorCode::Version),
        ("kind", damaged(6, 99), ErrorCode::Malformed),
        ("flags", damaged(8, 0x80), ErrorCode::Malformed),
        ("length", damaged(15, 0xff), ErrorCode::Malformed),
        ("reserved", damaged(31, 1), ErrorCode::Malformed),
        ("a descriptor announced", damaged(24, 1), ErrorCode::Malformed),
        ("a reply", damaged(8, 1), ErrorCode::Malformed),
        (
            "a second Hello",
            Raw::bytes(Kind::Hello, FrameFlags::REQUEST, 9, Some(&scheduler("x", 0))),
            ErrorCode::Malformed,
        ),
        ("no MessagePack", Raw::bytes(Kind::Lookup, FrameFlags::REQUEST, 9, Some(&"text")), ErrorCode::Malformed),
        (
            "half a key",
            Raw::bytes(
                Kind::EndStep,
                FrameFlags::REQUEST,
                9,
                Some(&EndStep { touched: vec![1], ..EndStep::default() }),
            ),
            ErrorCode::Malformed,
        ),
    ];
    for (what, bytes, code) in cases {
        let mut client = Client::open(&daemon.socket(), &scheduler("hostile", 0));
        client.raw.stream.write_all(&bytes).expect("it is written");
        assert_eq!(client.raw.refusal(), code, "{what}");
        assert!(client.raw.ends());
        // Before a session is open the same holds.
        let mut raw = Raw::connect(&daemon.socket());
        raw.stream.write_all(&bytes).expect("it is written");
        if !what.contains("Hello") {
            assert_eq!(
                raw.refusal(),
                if what == "version" { ErrorCode::Version } else { ErrorCode::Malformed },
                "{what}"
            );
            assert!(raw.ends());
        }
    }
    assert!(daemon.stat("terrace_protocol_errors_total") >= 11.0);
    assert_eq!(witness.answers(0..4), [hit(); 4]);
}

#[test]
fn descriptors_belong_to_a_tiers_hello_alone() {
    let daemon = Daemon::new(16, "");
    let file = std::fs::File::open("/dev/null").expect("a file");
    let mut client = Client::open(&daemon.socket(), &scheduler("e", 0));
    client.raw.send_with(Kind::Stats, &(), &[file.as_fd()], 0);
    assert_eq!(client.raw.refusal(), ErrorCode::Malformed);
    assert!(client.raw.ends());
    let hello = scheduler("f", 0);
    for (fds, announced, code) in [
        (vec![file.as_fd()], 1, ErrorCode::Invalid),
        (vec![file.as_fd()], 0, ErrorCode::Malformed),
        (vec![file.as_fd(); 8], 1, ErrorCode::Malformed),
        (vec![], 1, ErrorCode::Malformed),
    ] {
        let mut raw = Raw::connect(&daemon.socket());
        raw.send_with(Kind::Hello, &hello, &fds, announced);
        assert_eq!(raw.refusal(), code, "{} sent, {announced} announced", fds.len());
        assert!(raw.ends());
    }
}

#[test]
fn sixteen_faults_end_a_session() {
    let daemon = Daemon::new(16, "");
    let mut witness = witness(&daemon);
    let mut client = Client::open(&daemon.socket(), &scheduler("hostile", 0));
    for fault in 0..16 {
        match fault % 4 {
            0 => client.raw.send(Kind::Complete, FrameFlags::ONE_WAY, Some(&Complete::default())),
            1 => client.raw.send(
                Kind::Unpin,
                FrameFlags::REQUEST,
                Some(&Pin { request: 1, ttl_ms: 1, keys: keys(0..1) }),
            ),
            2 => {
                client.raw.send(Kind::Pin, FrameFlags::REQUEST, Some(&Pin { request: 1, ttl_ms: 1, keys: keys(0..1) }))
            }
            _ => {
                let store = PrepareStore { request: 1, job: 0, allow_partial: true, keys: keys(0..1) };
                client.raw.send(Kind::PrepareStore, FrameFlags::REQUEST, Some(&store))
            }
        };
        let code = client.raw.refusal();
        if fault % 4 == 1 {
            // A body of another shape is no fault that is survived.
            assert_eq!(code, ErrorCode::Malformed);
            assert!(client.raw.ends());
            client = Client::open(&daemon.socket(), &scheduler("hostile", 0));
        } else {
            assert_eq!(code, [ErrorCode::Role, ErrorCode::Internal, ErrorCode::Unknown, ErrorCode::Invalid][fault % 4]);
        }
    }
    for _ in 0..16 {
        client.raw.send(Kind::Complete, FrameFlags::ONE_WAY, Some(&Complete::default()));
    }
    assert!(client.raw.ends());
    assert_eq!(daemon.stat("terrace_closed_for_strikes_total"), 1.0);
    assert_eq!(witness.answers(0..4), [hit(); 4]);
}

#[test]
fn bounds_of_a_session_hold_and_are_counted() {
    let more = "keys_per_message = 8\njobs_per_session = 4\n[limits]\nrequests = 6\n";
    let daemon = Daemon::new(32, more);
    let mut client = Client::open(&daemon.socket(), &scheduler("e", 0));
    client.await_slots();
    assert_eq!((client.reply.limits.keys_per_message, client.reply.limits.jobs, client.reply.limits.slots), (8, 4, 32));
    client.store(1, 1, 0..8);
    let lookup = |request: u64, range: std::ops::Range<u32>| {
        let queries = vec![Query { scan: 1, keys: keys(range) }];
        Lookup { request, tiers: u32::MAX, lease: true, queries }
    };
    assert_eq!(client.ask::<_, LookupReply>(Kind::Lookup, &lookup(1, 0..9)), Err(ErrorCode::Limit));
    assert_eq!(daemon.refused("keys_per_message"), 1.0);
    for _ in 0..4 {
        client.ask::<_, LookupReply>(Kind::Lookup, &lookup(1, 0..2)).expect("a lease");
    }
    assert_eq!(client.ask::<_, LookupReply>(Kind::Lookup, &lookup(1, 0..2)), Err(ErrorCode::Limit));
    assert_eq!(daemon.refused("jobs"), 1.0);
    client.end_step(&EndStep::default());
    for request in 2..7 {
        client.ask::<_, LookupReply>(Kind::Lookup, &lookup(request, 40..41)).expect("a request");
    }
    assert_eq!(client.ask::<_, LookupReply>(Kind::Lookup, &lookup(99, 0..2)), Err(ErrorCode::Limit));
    assert_eq!(daemon.refused("requests"), 1.0);
    // Another session's requests are its own.
    let mut other = Client::open(&daemon.socket(), &scheduler("f", 0));
    assert_eq!(other.answers(0..2), [hit(); 2]);
}

#[test]
fn a_session_takes_no_more_than_its_share_of_the_slots() {
    let daemon = shared(16, 0.25);
    let mut client = Client::open(&daemon.socket(), &scheduler("e", 0));
    client.await_slots();
    assert_eq!(client.reply.limits.slots, 4);
    let plan = client.prepare(1, 1, keys(0..9));
    assert_eq!(numbers(&plan.store), [0, 1, 2, 3]);
    assert!(!client.prepare(1, 2, keys(20..21)).room);
    client.end_step(&EndStep { completed: vec![CompletedJob { job: 1, ok: true }], ..EndStep::default() });
    client.store(1, 3, 20..24);
    // Leases count too: what is beyond is a miss.
    let found = client.lookup(2, Scan::Each, keys([0, 1, 2, 20, 21, 22]));
    assert_eq!(answers(&found), [hit(), hit(), hit(), hit(), Answer::Miss, Answer::Miss]);
}

#[test]
fn lists_longer_than_what_a_session_may_have_are_refused_whole() {
    let daemon = Daemon::new(16, "jobs_per_session = 4\n[limits]\nrequests = 6\n");
    let mut client = Client::open(&daemon.socket(), &scheduler("e", 0));
    client.await_slots();
    assert!(client.prepare(1, 1, keys(0..2)).room);
    let ended = |jobs: std::ops::RangeInclusive<u64>| jobs.map(|job| CompletedJob { job, ok: true }).collect();
    let lease = |lease| LeaseEnd { lease, job: 0, load: Vec::new(), wait: Vec::new() };
    let long = [
        EndStep { completed: ended(1..=5), ..EndStep::default() },
        EndStep { completed: ended(1..=1), leases: (1..=5).map(lease).collect(), ..EndStep::default() },
        EndStep { completed: ended(1..=1), finished: (1..=7).collect(), ..EndStep::default() },
    ];
    for step in long {
        assert_eq!(client.ask::<_, EndStepReply>(Kind::EndStep, &step), Err(ErrorCode::Limit));
        assert_eq!((daemon.stat(WRITING), daemon.stat("terrace_requests")), (2.0, 1.0), "nothing of it is done");
    }
    assert_eq!((daemon.refused("jobs"), daemon.refused("requests")), (2.0, 1.0));
    let step = EndStep {
        completed: ended(1..=4),
        leases: (1..=4).map(lease).collect(),
        finished: (1..=6).collect(),
        ..EndStep::default()
    };
    assert_eq!(client.end_step(&step).jobs, [JobOutcome { job: 1, ok: true }]);
    // Those who copy have the same bound.
    let mut boss = Client::open(&daemon.socket(), &scheduler("f", 1));
    let mut hand = Client::open(&daemon.socket(), &worker("f", 0));
    assert!(boss.prepare(1, 1, keys(4..6)).room);
    hand.complete(&[(1, true), (2, true), (3, true), (4, true), (5, true)]);
    assert_eq!(hand.raw.refusal(), ErrorCode::Limit);
    assert_eq!(daemon.stat(WRITING), 2.0);
    hand.complete(&[(1, true), (2, true), (3, true), (4, true)]);
    hand.ping();
    assert_eq!(daemon.stat(WRITING), 0.0);
}

#[test]
fn a_load_names_each_key_once() {
    let daemon = Daemon::new(16, "");
    let mut client = witness(&daemon);
    let found = client.lookup(2, Scan::Each, keys(0..4));
    let end = |job, load: &[u32]| EndStep {
        leases: vec![LeaseEnd {
            lease: found.lease,
            job,
            load: numbers_to_bytes(load.iter().copied()),
            wait: Vec::new(),
        }],
        ..EndStep::default()
    };
    for wrong in [&[1, 1][..], &[0, 1, 2, 3, 0], &[4], &[u32::MAX]] {
        assert_eq!(client.ask::<_, EndStepReply>(Kind::EndStep, &end(7, wrong)), Err(ErrorCode::Invalid), "{wrong:?}");
        assert_eq!((daemon.stat(READERS), daemon.stat("terrace_jobs")), (4.0, 0.0), "the lease is as it was");
    }
    client.end_step(&end(7, &[3, 1]));
    assert_eq!((daemon.stat(READERS), daemon.stat("terrace_jobs")), (2.0, 1.0));
    client.end_step(&EndStep { completed: vec![CompletedJob { job: 7, ok: true }], ..EndStep::default() });
    assert_eq!((daemon.stat(READERS), daemon.stat("terrace_jobs")), (0.0, 0.0));
}

#[test]
fn what_lost_connections_hold_counts_against_the_next_of_their_process() {
    let daemon = shared(16, 0.5);
    let socket = &daemon.socket();
    let mut first = Client::open(socket, &scheduler("first", 0));
    first.await_slots();
    first.store(1, 1, 0..8);
    first.bye();
    // Each takes all that it gets, and its connection is lost. None of them comes back under its name.
    let mut leased = 0;
    for round in 0..20 {
        let mut client = Client::open(socket, &scheduler(&format!("round {round}"), 0));
        let found = client.lookup(1, Scan::Each, keys(0..5));
        leased += found.slots.len() / 4;
        // Slots that are stored to count as well.
        let stored = client.prepare(1, 1, keys(100 * (round + 1)..100 * (round + 1) + 9));
        leased += stored.slots.len() / 4;
        drop(client.raw);
    }
    assert_eq!(leased, 8, "one share for all of them");
    // Who holds nothing is over, and wishes do not outlive a connection.
    daemon.await_stat("terrace_engines", 1.0);
    daemon.await_stat("terrace_requests", 0.0);
    assert_eq!((daemon.stat(READERS), daemon.stat(WRITING)), (5.0, 3.0));
    // The engine that was lost has its jobs to report, and what it gives back can be had again.
    let mut again = Client::open(socket, &scheduler("round 0", 0));
    assert_eq!(answers(&again.lookup(1, Scan::Each, keys(0..1))), [Answer::Miss]);
    let completed = vec![CompletedJob { job: 1, ok: false }];
    again.end_step(&EndStep { completed, ..EndStep::default() });
    assert_eq!(answers(&again.lookup(1, Scan::Each, keys(0..4))), [hit(), hit(), hit(), Answer::Miss]);
}

#[test]
fn jobs_whose_scheduler_is_over_count_against_its_engine() {
    let daemon = shared(32, 0.5);
    let mut hand = Client::open(&daemon.socket(), &worker("e", 0));
    let mut taken = 0;
    for round in 0..4 {
        let mut boss = Client::open(&daemon.socket(), &scheduler("e", 1));
        boss.await_slots();
        let keys = keys(100 * round..100 * round + 9);
        taken += boss.prepare(1, u64::from(round) + 1, keys).slots.len() / 4;
        boss.bye();
    }
    assert_eq!((taken, daemon.stat(WRITING)), (16, 16.0), "one share for all of them");
    hand.complete(&[(1, true)]);
    hand.ping();
    // Nine slots are readable now; seven are still written for nobody.
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 1));
    let found = boss.lookup(1, Scan::Each, keys(0..9));
    assert_eq!(answers(&found), [hit(); 9]);
    assert!(!boss.prepare(1, 9, keys(900..901)).room, "nine leased and seven behind");
}

#[test]
fn sessions_and_unopened_connections_are_bounded() {
    let daemon = Daemon::new(16, "sessions = 2\n");
    let _first = Client::open(&daemon.socket(), &scheduler("a", 0));
    let second = Client::open(&daemon.socket(), &scheduler("b", 0));
    assert_eq!(Client::try_open(&daemon.socket(), &scheduler("c", 0)).err(), Some(ErrorCode::Limit));
    second.bye();
    daemon.await_stat("terrace_sessions", 1.0);
    Client::open(&daemon.socket(), &scheduler("c", 0)).bye();
    // Sixty-four may think about what to say; the next is sent away, and those that say nothing too.
    let mut silent: Vec<Raw> = (0..64).map(|_| Raw::connect(&daemon.socket())).collect();
    daemon.await_stat("terrace_connections_total", 4.0 + 64.0);
    assert_eq!(Raw::connect(&daemon.socket()).refusal(), ErrorCode::Retry);
    assert_eq!(silent[0].refusal(), ErrorCode::NotAdmitted);
    silent.iter_mut().for_each(|raw| assert!(raw.ends()));
    assert_eq!(daemon.refused("hello_deadline"), 64.0);
    assert_eq!(daemon.refused("unopened"), 1.0);
    Client::open(&daemon.socket(), &scheduler("d", 0)).ping();
}

#[test]
fn one_that_does_not_read_is_closed_and_the_others_are_served() {
    let daemon = Daemon::new(16, "message_bytes = \"1MiB\"\n");
    let mut witness = witness(&daemon);
    let mut stalled = Client::open(&daemon.socket(), &scheduler("stalled", 0));
    stalled.raw.stream.set_nonblocking(true).expect("a mode");
    let frames = Raw::bytes::<()>(Kind::Stats, FrameFlags::REQUEST, 1, None).repeat(1_000);
    let mut sent = 0;
    let mut refused = 0;
    // Until it is read from no more, and then on until it is closed.
    until("the stalled reader is closed", || {
        match stalled.raw.stream.write(&frames[sent % frames.len()..]) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refused += 1;
                assert_eq!(witness.answers(0..4), [hit(); 4]);
            }
            Err(_) => return true,
        }
        false
    });
    assert!(refused > 0, "it was not read from without bound: {sent} bytes");
    assert_eq!(daemon.refused("out_buffer"), 1.0);
    assert_eq!(witness.answers(0..4), [hit(); 4]);
}
