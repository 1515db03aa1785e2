//! Engines that die, close their connection, or come back.

#[path = "common/daemon.rs"]
mod daemon;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use daemon::*;
use terrace_connector::protocol::*;

/// Set in a child process: where the daemon listens.
const SOCKET: &str = "TERRACE_TEST_SOCKET";

/// Runs this test once more, in a process of its own.
fn child(test: &str, daemon: &Daemon) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(SOCKET, daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.contains("child is ready"));
    assert!(ready, "the child ended before it was ready");
    child
}

/// Tells the parent, and waits to be killed.
fn ready() -> ! {
    println!("child is ready");
    loop {
        std::thread::sleep(PATIENCE);
    }
}

fn in_child() -> Option<std::path::PathBuf> {
    std::env::var_os(SOCKET).map(Into::into)
}

/// The daemon holds nothing for anybody.
fn nothing_is_held(daemon: &Daemon) {
    for name in [READERS, WRITING, "terrace_jobs", "terrace_engines", "terrace_pins"] {
        daemon.await_stat(name, 0.0);
    }
    daemon.await_stat("terrace_requests", 0.0);
}

#[test]
fn a_killed_engine_gives_everything_back() {
    if let Some(socket) = in_child() {
        let mut boss = Client::open(&socket, &scheduler("dying", 0));
        // A store that is half written, a load that runs, a lease, a pin and open requests.
        let plan = boss.prepare(1, 1, keys(10..14));
        numbers(&plan.slots).iter().take(2).for_each(|slot| boss.write(*slot, 10));
        let found = boss.lookup(2, Scan::Prefix, keys(0..4));
        let load = LeaseEnd { lease: found.lease, job: 2, load: numbers_to_bytes([0, 1]), wait: Vec::new() };
        boss.end_step(&EndStep { leases: vec![load], ..EndStep::default() });
        let _: PinReply = boss.ask(Kind::Pin, &Pin { request: 2, ttl_ms: 60_000, keys: keys(0..1) }).expect("it pins");
        boss.lookup(3, Scan::Prefix, keys(0..4));
        ready();
    }
    let daemon = Daemon::new(16, "");
    let mut other = Client::open(&daemon.socket(), &scheduler("other", 0));
    other.await_slots();
    other.store(1, 1, 0..4);
    let mut child = child("a_killed_engine_gives_everything_back", &daemon);
    assert_eq!((daemon.stat(WRITING), daemon.stat("terrace_jobs")), (4.0, 2.0));
    assert_eq!(daemon.stat(READERS), 7.0, "two loaded, four leased, one pinned");
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    daemon.await_stat("terrace_engines", 1.0);
    assert_eq!(other.answers(10..14), [Answer::Miss; 4], "half written is not readable");
    assert_eq!(other.answers(0..4), [hit(); 4]);
    assert_eq!(daemon.stat("terrace_engines_died_total"), 1.0);
    // Its slots are to be had again.
    other.store(5, 5, 100..112);
    other.bye();
    nothing_is_held(&daemon);
}

#[test]
fn a_killed_worker_fails_what_it_owes_and_the_rest_goes_on() {
    if let Some(socket) = in_child() {
        let _hands = [1, 2].map(|rank| Client::open(&socket, &worker("e", rank)));
        ready();
    }
    let daemon = Daemon::new(16, "");
    let mut boss = Client::open(&daemon.socket(), &scheduler("e", 3));
    boss.await_slots();
    let mut first = Client::open(&daemon.socket(), &worker("e", 0));
    let mut second = Client::open(&daemon.socket(), &worker("e", 1));
    let mut child = child_after(&mut second, &daemon);
    assert!(boss.prepare(1, 1, keys(0..4)).room);
    assert!(boss.prepare(2, 2, keys(4..8)).room);
    first.complete(&[(1, true)]);
    first.ping();
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    daemon.await_stat("terrace_sessions", 2.0);
    // Both jobs lost a rank, and rank 0 has not reported the second one yet: it may still copy.
    assert_eq!((daemon.stat("terrace_jobs"), daemon.stat(WRITING)), (1.0, 4.0));
    first.complete(&[(2, true)]);
    first.ping();
    assert_eq!(daemon.stat(WRITING), 0.0);
    let reply = boss.end_step(&EndStep::default());
    assert_eq!(reply.jobs, [JobOutcome { job: 1, ok: false }, JobOutcome { job: 2, ok: false }]);
    assert_eq!((reply.workers, boss.prepare(3, 3, keys(9..10)).room), (1, false));
}

/// Rank 1 is this process's until it says goodbye: the child takes it then.
fn child_after(second: &mut Client, daemon: &Daemon) -> Child {
    assert_eq!(Client::try_open(&daemon.socket(), &worker("e", 1)).err(), Some(ErrorCode::NotAdmitted));
    second.raw.send::<()>(Kind::Bye, FrameFlags::ONE_WAY, None);
    assert!(second.raw.ends());
    child("a_killed_worker_fails_what_it_owes_and_the_rest_goes_on", daemon)
}

#[test]
fn an_end_of_a_connection_keeps_what_may_be_copied_to() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let mut boss = Client::open(&socket, &scheduler("e", 0));
    boss.await_slots();
    let plan = boss.prepare(1, 1, keys(0..4));
    let slots = numbers(&plan.slots);
    drop(boss.raw);
    let mut again = loop {
        // The daemon may not have seen the end of the old one yet; it looks before it refuses.
        match Client::try_open(&socket, &scheduler("e", 0)) {
            Ok(client) => break client,
            Err(code) => assert_eq!(code, ErrorCode::NotAdmitted),
        }
    };
    assert_eq!((daemon.stat(WRITING), daemon.stat("terrace_jobs")), (4.0, 1.0), "this process lives");
    assert_eq!(again.answers(0..4), [Answer::Pending; 4]);
    // A job of the lost connection can still be reported, and its name is not free before.
    assert_eq!(
        again.ask::<_, PrepareStoreReply>(
            Kind::PrepareStore,
            &PrepareStore { request: 1, job: 1, allow_partial: true, keys: keys(8..9) }
        ),
        Err(ErrorCode::Invalid)
    );
    slots.iter().zip(0..).for_each(|(slot, n)| again.write(*slot, n));
    again.end_step(&EndStep { completed: vec![CompletedJob { job: 1, ok: true }], ..EndStep::default() });
    assert_eq!(again.answers(0..4), [hit(); 4]);
    again.bye();
    nothing_is_held(&daemon);
}

#[test]
fn a_worker_that_comes_back_owes_nothing_from_before() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let mut boss = Client::open(&socket, &scheduler("e", 1));
    boss.await_slots();
    let first = Client::open(&socket, &worker("e", 0));
    assert!(boss.prepare(1, 1, keys(0..4)).room);
    drop(first.raw);
    until("the worker counts as away", || boss.end_step(&EndStep::default()).workers == 0);
    assert_eq!(daemon.stat(WRITING), 4.0);
    let mut again = Client::open(&socket, &worker("e", 0));
    assert_eq!(daemon.stat(WRITING), 0.0);
    let reply = boss.end_step(&EndStep::default());
    assert_eq!((reply.jobs, reply.workers), (vec![JobOutcome { job: 1, ok: false }], 1));
    assert!(boss.prepare(2, 2, keys(0..4)).room);
    again.complete(&[(2, true)]);
    again.ping();
    assert_eq!(boss.answers(0..4), [hit(); 4]);
}

#[test]
fn a_scheduler_that_is_over_leaves_its_jobs_to_the_workers() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let mut boss = Client::open(&socket, &scheduler("e", 1));
    boss.await_slots();
    let mut hand = Client::open(&socket, &worker("e", 0));
    assert!(boss.prepare(1, 1, keys(0..4)).room);
    boss.bye();
    daemon.await_stat("terrace_sessions", 1.0);
    assert_eq!(daemon.stat(WRITING), 4.0, "the worker may be copying");
    hand.complete(&[(1, true)]);
    hand.ping();
    assert_eq!((daemon.stat(WRITING), daemon.resident()), (0.0, 4.0));
    hand.bye();
    nothing_is_held(&daemon);
}
