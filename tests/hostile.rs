//! Sixteen clients on one daemon: fifteen replays, and one that breaks every rule it can. The others see no wrong byte and no
//! stall, the daemon does not grow, and nothing is held at the end.

mod common;
#[path = "../connector/tests/common/daemon.rs"]
mod daemon;
#[path = "hostile/process.rs"]
mod process;
#[path = "hostile/ways.rs"]
mod ways;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Replay, assert_sound};
use process::{Daemon, Peak};
use rustix::process::Signal;
use serde_json::Value;

const REPLAYS: usize = 15;
const REQUESTS: u64 = 60;
/// How much the daemon's own memory (the region is not its own) may grow: buffers of the sessions and no more.
const GROWTH_KIB: u64 = 64 << 10;
/// Descriptors of sessions that may be open at once, with some to spare.
const DESCRIPTORS: u64 = 300;

fn number(report: &Value, pointer: &str) -> u64 {
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer} in {report:#}"))
}

fn replay(socket: &Path, seed: usize) -> Value {
    // A call that runs into so long a budget is a stall, on any machine.
    let work = format!(
        "--block-bytes 16384 --gpu-blocks 512 --seed {} --limit {REQUESTS} --concurrency 2 --call-budget-ms 20000",
        seed % 4
    );
    let mut replay = Replay::over_socket(socket);
    replay.command().env("TERRACE_LOG", "error");
    replay.args(work.split_whitespace()).run()
}

#[test]
fn fifteen_replays_do_not_notice_a_hostile_client() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    let socket = daemon.socket();
    // The pool is there and warm before it is measured.
    assert_sound(&replay(&socket, 0), REQUESTS, "alone");
    daemon.await_idle();
    let before = daemon.memory();

    let (calm, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (reports, rounds, peak) = std::thread::scope(|scope| {
        let peak = scope.spawn(|| Peak::watch(&daemon, &over));
        let hostile = scope.spawn(|| {
            let mut rounds = 0;
            // Each way at least twice, and for as long as the others run.
            while rounds < 2 || !calm.load(Ordering::Acquire) {
                ways::every_way(&socket, rounds);
                rounds += 1;
            }
            rounds
        });
        let socket = &socket;
        let replays: Vec<_> = (0..REPLAYS).map(|seed| scope.spawn(move || replay(socket, seed))).collect();
        let reports: Vec<_> = replays.into_iter().map(|replay| replay.join()).collect();
        calm.store(true, Ordering::Release);
        let rounds = hostile.join();
        // Whatever the others saw, nobody is left running.
        over.store(true, Ordering::Release);
        let reports: Vec<Value> = reports.into_iter().map(|report| report.expect("a report")).collect();
        (reports, rounds.expect("the hostile client saw what it must see"), peak.join().expect("what the daemon took"))
    });

    assert!(rounds >= 2);
    println!("{rounds} rounds; {before} KiB before, {} KiB and {} descriptors", peak.memory_kib, peak.descriptors);
    for report in &reports {
        assert_sound(report, REQUESTS, "beside a hostile client");
        for counter in ["timeouts", "stalls", "reconnects", "protocol_faults"] {
            assert_eq!(number(report, &format!("/socket/{counter}")), 0, "{counter}: {report:#}");
        }
    }
    let hits: u64 = reports.iter().map(|report| number(report, "/hits/primary") + number(report, "/hits/nvme")).sum();
    assert!(hits > 0, "replays of the same requests share blocks");
    assert!(peak.memory_kib <= before + GROWTH_KIB, "{} KiB, {before} KiB before it began", peak.memory_kib);
    assert!(peak.descriptors <= DESCRIPTORS, "{} descriptors", peak.descriptors);

    daemon.await_idle();
    // And it serves as before.
    assert_sound(&replay(&socket, 1), REQUESTS, "afterwards");
    daemon.await_idle();
    assert!(daemon.descriptors() <= 64, "descriptors are left behind: {}", daemon.descriptors());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(Duration::from_secs(30)).code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_daemon_whatever_is_owed() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    // A store that nobody ends: draining waits for it.
    let mut owing = ways::owing(&daemon.socket());
    daemon.signal(Signal::TERM);
    ways::hears_goodbye(&mut owing);
    owing.ping();
    daemon.signal(Signal::INT);
    assert_eq!(daemon.ends(Duration::from_secs(20)).code(), Some(130));
    assert!(owing.raw.ends());
}

/// The process that is killed in the middle of a store: see [`ways::killed_in_mid_store`].
#[test]
#[ignore = "runs as a process of its own, which is killed"]
fn stores_halves_until_it_is_killed() {
    ways::store_halves(Path::new(&std::env::var_os(ways::CHILD).expect("the socket")));
}
