//! Every way to be a bad client, each with what the daemon must answer.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use terrace_connector::protocol::*;
use terrace_primary::SlotId;

use crate::common::next;
use crate::daemon::{Client, PATIENCE, Raw, answers, hello, numbers, until};

/// The model of the replays' namespace, and another.
pub const NAMESPACE: &str = "replay";
pub const OTHER: &str = "another model";
/// Tells the child where the daemon listens.
pub const CHILD: &str = "TERRACE_HOSTILE_SOCKET";

/// A session of role `role`, in the namespace of the replays or another.
fn greeting(role: &str, model: &str, engine: &str) -> Hello {
    let geometry =
        WireGeometry { block_bytes: 16384, tokens_per_block: 64, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };
    let namespace =
        WireNamespace { model: model.to_owned(), engine: "terrace replay 1".to_owned(), ..WireNamespace::default() };
    Hello { namespace, geometry, ..hello(role, engine) }
}

/// The connection before may end a little later than it was closed here: a replay that is just being started holds a copy of it until it runs.
fn open(socket: &Path, model: &str, engine: &str) -> Client {
    let hello = greeting("scheduler", model, engine);
    let end = Instant::now() + PATIENCE;
    loop {
        match Client::try_open(socket, &hello) {
            Err(ErrorCode::NotAdmitted) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            opened => return opened.unwrap_or_else(|code| panic!("{engine:?} is refused: {code:?}")),
        }
    }
}

/// Keys that no replay has.
fn keys(salt: u8, range: std::ops::Range<u8>) -> Vec<u8> {
    range.flat_map(|n| [[salt; 31].as_slice(), &[n], &[0; 4]].concat()).collect()
}

fn look(client: &mut Client, lease: bool, keys: Vec<u8>) -> LookupReply {
    let queries = vec![Query { scan: Scan::Each as u8, keys }];
    client.ask(Kind::Lookup, &Lookup { request: 1, tiers: u32::MAX, lease, queries }).expect("an answer")
}

/// What the pool of a model holds but for this session.
pub fn held(socket: &Path, model: &str) -> Vec<(String, f64)> {
    let mut client = open(socket, model, "auditor");
    let values = client.stats().values;
    client.bye();
    let is_held = |name: &str| {
        name.starts_with("terrace_primary_readers")
            || name.starts_with("terrace_primary_slots") && name.contains("\"writing\"")
            || name.starts_with("terrace_jobs{") && !name.contains("total")
    };
    let held: Vec<_> = values.into_iter().filter(|(name, _)| is_held(name)).collect();
    assert!(held.len() >= 2, "readers and slots being written");
    held
}

/// Each way once.
pub fn every_way(socket: &Path, round: u64) {
    // It takes the daemon's patience, so once.
    let stalled = (round == 0).then(|| Stalled::start(socket));
    random_bytes(socket, round);
    broken_frames(socket);
    frames_of_the_vectors(socket);
    truncated_frames(socket);
    descriptor_floods(socket);
    what_it_does_not_own(socket);
    what_it_has_not_seen(socket, round);
    keys_of_another_namespace(socket, round as u8);
    long_lists(socket);
    strikes(socket);
    a_crowd(socket);
    killed_in_mid_store(socket, round as u8);
    if let Some(stalled) = stalled {
        stalled.ends();
    }
}

/// Before and after `Hello`.
fn random_bytes(socket: &Path, round: u64) {
    let mut seed = round;
    for after_hello in [false, true] {
        for bytes in [1, 31, 32, 4096, 300_000] {
            let mut raw = if after_hello { open(socket, NAMESPACE, "noise").raw } else { Raw::connect(socket) };
            let noise: Vec<u8> = (0..bytes).map(|_| next(&mut seed) as u8).collect();
            // It may close before all is written.
            let _ = raw.stream.write_all(&noise);
            drop(raw);
        }
    }
}

/// A header with one thing wrong, and no more: refused at once, not when the body would have come.
fn broken_frames(socket: &Path) {
    let good =
        FrameHeader { kind: Kind::Lookup, flags: FrameFlags::REQUEST, body_bytes: 0, sequence: 9, descriptors: 0 };
    let wrong: [(usize, &[u8], ErrorCode); 6] = [
        (0, b"HTTP", ErrorCode::Malformed),
        (4, &[2, 0], ErrorCode::Version),
        (6, &[99, 0], ErrorCode::Malformed),
        (12, &[0xff; 4], ErrorCode::Malformed),
        (24, &[0xff; 2], ErrorCode::Malformed),
        (26, &[1], ErrorCode::Malformed),
    ];
    for (at, bytes, code) in wrong {
        let mut header = good.to_bytes();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        let mut client = open(socket, NAMESPACE, "broken");
        client.raw.stream.write_all(&header).expect("it is written");
        assert_eq!(client.raw.refusal(), code);
        assert!(client.raw.ends());
    }
    // The first frame of a connection, of a version that is to come, and of a kind that may not stand there.
    let mut raw = Raw::connect(socket);
    let newer = Hello { version_min: 2, version_max: 9, ..greeting("scheduler", NAMESPACE, "newer") };
    raw.send(Kind::Hello, FrameFlags::REQUEST, Some(&newer));
    assert_eq!(raw.refusal(), ErrorCode::Version);
    assert!(raw.ends());
    let mut raw = Raw::connect(socket);
    raw.send::<()>(Kind::Stats, FrameFlags::REQUEST, None);
    assert_eq!(raw.refusal(), ErrorCode::Malformed);
    assert!(raw.ends());
}

/// The frames that everybody refuses, and those of another session in another order.
fn frames_of_the_vectors(socket: &Path) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol/vectors.json");
    let text = std::fs::read_to_string(file).expect("the vectors");
    let page: Value = serde_json::from_str(&text).expect("JSON");
    for part in ["refusals", "vectors"] {
        let mut client = None;
        for entry in page[part].as_array().expect("a list") {
            let hex = entry["frame_hex"].as_str().expect("a frame");
            let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
            let frame: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
            let session = client.get_or_insert_with(|| open(socket, OTHER, "vectors"));
            let closed = session.raw.stream.write_all(&frame).is_err();
            // A refusal ends the session; a message of the page may or may not.
            if part == "refusals" || closed {
                client = None;
            }
        }
    }
}

/// Parts of frames, left lying; then the connection is dropped, or kept.
fn truncated_frames(socket: &Path) {
    let mut left = Vec::new();
    for body_bytes in [1_u32, 1 << 10, 1 << 20] {
        let mut client = open(socket, NAMESPACE, &format!("part {body_bytes}"));
        let header =
            FrameHeader { kind: Kind::EndStep, flags: FrameFlags::REQUEST, body_bytes, sequence: 5, descriptors: 0 };
        client.raw.stream.write_all(&header.to_bytes()).expect("it is written");
        client.raw.stream.write_all(&vec![0x91; body_bytes as usize - 1]).expect("it is written");
        left.push(client);
    }
    let mut half = Raw::connect(socket);
    half.stream.write_all(b"TRRC\x01\0").expect("it is written");
    // Another in the same pool is served while they lie there.
    open(socket, NAMESPACE, "whole").bye();
}

/// Descriptors with `Hello`, with other frames, more than one, and more than announced.
fn descriptor_floods(socket: &Path) {
    let file = std::fs::File::open("/dev/null").expect("/dev/null");
    let many: Vec<BorrowedFd<'_>> = (0..8).map(|_| file.as_fd()).collect();
    for (count, announced) in [(1, 1), (8, 1), (8, 8), (1, 0), (0, 1)] {
        for role in ["scheduler", "tier"] {
            let mut raw = Raw::connect(socket);
            raw.send_with(Kind::Hello, &greeting(role, NAMESPACE, "flood"), &many[..count], announced);
            assert!(raw.ends(), "{count} descriptors, {announced} announced");
        }
    }
    for _ in 0..50 {
        let mut client = open(socket, NAMESPACE, "flood");
        client.raw.send_with(Kind::Lookup, &(), &many, 0);
        assert!(client.raw.ends(), "descriptors with a frame that has none");
    }
}

/// Jobs, leases and slots of others, or of nobody.
fn what_it_does_not_own(socket: &Path) {
    let mut client = open(socket, NAMESPACE, "thief");
    // Jobs of others end when others say so.
    let completed = (1..500).map(|job| CompletedJob { job, ok: true }).collect();
    client.end_step(&EndStep { completed, finished: (0..500).collect(), ..EndStep::default() });
    // A lease that is not there: nothing of it is loaded.
    let numbers = |range: std::ops::Range<u32>| numbers_to_bytes(range);
    let end = |lease, job, load| LeaseEnd { lease, job, load, wait: numbers(0..4) };
    let reply = client.end_step(&EndStep { leases: vec![end(77, 5, numbers(0..3))], ..EndStep::default() });
    assert_eq!(reply.jobs, [JobOutcome { job: 5, ok: false }]);
    // A lease of its own, but keys of it that are no hits, or far beyond it.
    for load in [numbers(0..1), numbers_to_bytes([u32::MAX])] {
        let reserved: PrepareStoreReply = client
            .ask(Kind::PrepareStore, &PrepareStore { request: 1, job: 6, allow_partial: false, keys: keys(7, 0..2) })
            .expect("an answer");
        assert!(reserved.room);
        let found = look(&mut client, true, keys(7, 0..4));
        assert_eq!(answers(&found)[..2], [Answer::Pending; 2], "what is being stored is not readable");
        let refused: Result<EndStepReply, _> =
            client.ask(Kind::EndStep, &EndStep { leases: vec![end(found.lease, 8, load)], ..EndStep::default() });
        assert_eq!(refused, Err(ErrorCode::Invalid));
        let completed = vec![CompletedJob { job: 6, ok: false }];
        client.end_step(&EndStep { completed, ..EndStep::default() });
    }
    client.bye();
    // A worker of an engine that is not there reports everything.
    let mut worker = Client::open(socket, &greeting("worker", NAMESPACE, "thief"));
    let jobs: Vec<(u64, bool)> = (0..5_000).map(|job| (job, job % 2 == 0)).collect();
    worker.complete(&jobs);
    assert_eq!(worker.raw.refusal(), ErrorCode::Limit, "more than an engine may have");
    for jobs in jobs.chunks(1_000) {
        worker.complete(jobs);
    }
    worker.ping();
    // And does what only schedulers do.
    let store = PrepareStore { request: 1, job: 1, allow_partial: true, keys: keys(7, 0..2) };
    assert_eq!(worker.ask::<_, PrepareStoreReply>(Kind::PrepareStore, &store), Err(ErrorCode::Role));
    worker.bye();
}

/// Leases on slots that it has not looked at, by guesses at the last change. What is readable there it may read; the replays must not notice that it is
/// kept for a moment, and it is given back when the connection breaks.
fn what_it_has_not_seen(socket: &Path, round: u64) {
    let mut client = open(socket, NAMESPACE, "guesser");
    let any = [vec![u32::MAX], vec![0; 600], (0..600).collect(), vec![client.reply.slots, 0], Vec::new()];
    for seen in (0..64).map(|bit| (1 << bit) + round).chain([0, u64::MAX]) {
        for (request, slots) in (10..).zip(&any) {
            let slots = numbers_to_bytes(slots.iter().copied());
            let message = Lease { request, tiers: u32::MAX, seen, slots };
            let reply: LeaseReply = client.ask(Kind::Lease, &message).expect("an answer");
            let is_there = reply.lease == 0 || reply.lease == client.raw.sequence;
            assert!(
                is_there && (reply.lease == 0 || request == 11 || request == 12),
                "{reply:?} for request {request}"
            );
        }
        if seen % 2 == 0 {
            client.end_step(&EndStep { finished: (10..15).collect(), ..EndStep::default() });
        }
    }
}

/// The same key in two namespaces is two blocks, in two regions.
fn keys_of_another_namespace(socket: &Path, salt: u8) {
    let mut here = open(socket, NAMESPACE, "here");
    let mut there = open(socket, OTHER, "there");
    assert!(here.reply.namespace != there.reply.namespace && here.reply.region != there.reply.region);
    let store = PrepareStore { request: 1, job: 1, allow_partial: false, keys: keys(salt, 100..104) };
    let plan: PrepareStoreReply = here.ask(Kind::PrepareStore, &store).expect("an answer");
    let completed = vec![CompletedJob { job: 1, ok: true }];
    here.end_step(&EndStep { completed, finished: vec![1], ..EndStep::default() });
    if !plan.slots.is_empty() {
        assert!(answers(&look(&mut here, false, keys(salt, 100..104))).iter().all(|a| matches!(a, Answer::Hit { .. })));
    }
    // The tiers of a pool that has just been opened do not know at once what they hold. Then they say so, and nothing
    // else: no key of here is there.
    until("the other namespace has none of these keys", || {
        let seen = answers(&look(&mut there, true, keys(salt, 100..104)));
        assert!(seen.iter().all(|answer| matches!(answer, Answer::Miss | Answer::Retry)), "{seen:?}");
        there.end_step(&EndStep::default());
        seen.iter().all(|answer| *answer == Answer::Miss)
    });
    // Keys of another length.
    there.raw.send(
        Kind::Lookup,
        FrameFlags::REQUEST,
        Some(&Lookup { request: 2, tiers: u32::MAX, lease: true, queries: vec![Query { scan: 1, keys: vec![1; 37] }] }),
    );
    assert_eq!(there.raw.refusal(), ErrorCode::Malformed);
    assert!(there.raw.ends());
    here.bye();
}

/// As much in one message as fits: lists cost the daemon more than they cost the sender.
fn long_lists(socket: &Path) {
    let mut client = open(socket, NAMESPACE, "lists");
    let leases = (0..90_000).map(|lease| LeaseEnd { lease, job: 0, load: Vec::new(), wait: Vec::new() }).collect();
    let finished = (0..100_000).collect();
    for step in [EndStep { leases, ..EndStep::default() }, EndStep { finished, ..EndStep::default() }] {
        assert_eq!(client.ask::<_, EndStepReply>(Kind::EndStep, &step), Err(ErrorCode::Limit));
    }
    let many: Vec<u8> = keys(9, 0..1).repeat(10_000);
    let message = Lookup { request: 1, tiers: 0, lease: true, queries: vec![Query { scan: 1, keys: many }] };
    assert_eq!(client.ask::<_, LookupReply>(Kind::Lookup, &message), Err(ErrorCode::Limit));
    client.bye();
}

/// One who goes on breaking rules is closed.
fn strikes(socket: &Path) {
    let mut client = open(socket, NAMESPACE, "stubborn");
    let complete = Complete::default();
    for _ in 0..16 {
        client.raw.send(Kind::Complete, FrameFlags::ONE_WAY, Some(&complete));
        assert_eq!(client.raw.refusal(), ErrorCode::Role);
    }
    assert!(client.raw.ends());
}

/// Connections that say nothing: beyond the limit they are turned away, and none of them keeps an engine out for long.
fn a_crowd(socket: &Path) {
    let crowd: Vec<Raw> = (0..100).map(|_| Raw::connect(socket)).collect();
    drop(crowd);
    until("an engine gets in again", || {
        Client::try_open(socket, &greeting("scheduler", NAMESPACE, "in the crowd")).map(Client::bye).is_ok()
    });
}

/// Killed with half a block written: nobody reads it, and its slots are free again.
fn killed_in_mid_store(socket: &Path, salt: u8) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", "--nocapture", "stores_halves_until_it_is_killed"])
        .env(CHILD, socket)
        .env("TERRACE_HOSTILE_SALT", salt.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let storing = lines.map_while(Result::ok).find(|line| line.contains("half is written"));
    assert!(storing.is_some(), "the child did not get so far");
    let mut client = open(socket, NAMESPACE, "witness");
    assert!(answers(&look(&mut client, false, half_keys(salt))).iter().all(|answer| *answer == Answer::Pending));
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    until("what a killed process was storing is given back", || {
        let answers = answers(&look(&mut client, false, half_keys(salt)));
        assert!(!answers.iter().any(|answer| matches!(answer, Answer::Hit { .. })), "half a block is readable");
        answers.iter().all(|answer| *answer == Answer::Miss)
    });
    client.bye();
}

fn half_keys(salt: u8) -> Vec<u8> {
    keys(salt ^ 0x55, 200..232)
}

/// The child of [`killed_in_mid_store`].
pub fn store_halves(socket: &Path) {
    let salt = std::env::var("TERRACE_HOSTILE_SALT").expect("a number").parse().expect("a number");
    let mut client = open(socket, NAMESPACE, "victim");
    let store = PrepareStore { request: 1, job: 1, allow_partial: false, keys: half_keys(salt) };
    let plan: PrepareStoreReply = client.ask(Kind::PrepareStore, &store).expect("an answer");
    let region = client.region.as_ref().expect("a region");
    for slot in numbers(&plan.slots) {
        assert!(region.write_slot(SlotId(slot), &[0xee; 2048]));
    }
    assert_eq!(plan.slots.len(), 4 * 32);
    println!("half is written");
    std::thread::sleep(Duration::from_secs(60));
}

/// A session with a store that has not ended.
pub fn owing(socket: &Path) -> Client {
    let mut client = open(socket, NAMESPACE, "owing");
    client.await_slots();
    let store = PrepareStore { request: 1, job: 1, allow_partial: false, keys: keys(1, 0..4) };
    let plan: PrepareStoreReply = client.ask(Kind::PrepareStore, &store).expect("an answer");
    assert_eq!(plan.slots.len(), 4 * 4);
    client
}

pub fn hears_goodbye(client: &mut Client) {
    let frame = client.raw.receive().expect("a frame and no end");
    assert_eq!(frame.header.kind, Kind::Goodbye);
}

/// Asks and asks, and never reads.
struct Stalled(Raw);

impl Stalled {
    fn start(socket: &Path) -> Self {
        let mut raw = open(socket, NAMESPACE, "deaf").raw;
        raw.stream.set_nonblocking(true).expect("a socket");
        for sequence in 1..20_000 {
            let frame = Raw::bytes::<()>(Kind::Stats, FrameFlags::REQUEST, sequence, None);
            if raw.stream.write_all(&frame).is_err() {
                break;
            }
        }
        raw.stream.set_nonblocking(false).expect("a socket");
        Self(raw)
    }

    /// The daemon closes it, though it never read.
    fn ends(self) {
        until("a client that does not read is closed", || {
            let mut fds = [PollFd::new(&self.0.stream, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut fds, Some(&now)).expect("poll");
            fds[0].revents().contains(PollFlags::HUP)
        });
    }
}
