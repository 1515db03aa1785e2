//! `terrace replay --connect` through a real daemon: the same hits as in process, never a wrong byte, whatever happens
//! to either side.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Replay, assert_sound, has_blocks};
use serde_json::Value;
use terrace_config::{Config, Namespace};
use terrace_connector::client::{ClientOptions, Session};

const CONFIG: &str = r#"
[primary]
blocks = 600
[geometry]
block_bytes = 16384
[server]
socket = "{place}/terrace.sock"
session_share = 1.0
[[tier]]
type = "nvme"
paths = ["{place}/nvme"]
blocks = 4000
scrub_bytes_per_second = 0
backfill = true
high_watermark = 1.0
low_watermark = 0.99
"#;
/// The same tiers of a replay in process.
const IN_PROCESS: &str = "--primary-blocks 600 --nvme-blocks 4000";
/// Small blocks, and an engine that reloads much.
const ENGINE: &str = "--block-bytes 16384 --gpu-blocks 512 --seed 7";

/// Tokens of a block of generated traffic.
const TOKENS_PER_BLOCK: u32 = 64;

/// A daemon with one pool.
struct Daemon(common::daemon::Daemon);

impl Daemon {
    fn start(place: &Path) -> Self {
        Self(common::daemon::Daemon::start(place, CONFIG))
    }

    /// A replay through this daemon.
    fn replay(&self, arguments: &str) -> Replay {
        self.0.replay().args(ENGINE.split_whitespace()).args(arguments.split_whitespace())
    }

    /// Statistics of the pool that replays with so many groups use.
    fn stats(&self, groups: u32) -> Vec<(String, f64)> {
        let config = Config::parse("[primary]\nblocks = 1\n[geometry]\nblock_bytes = 16384\n", "test").expect("valid");
        let namespace =
            Namespace { model: "replay".to_owned(), engine: "terrace replay 1".to_owned(), ..Namespace::default() };
        // What replays of generated traffic give their blocks.
        let geometry = terrace_config::Geometry { tokens_per_block: TOKENS_PER_BLOCK, groups, ..config.geometry };
        let mut options = ClientOptions::new(self.0.socket(), namespace, geometry);
        options.call_budget = Duration::from_secs(2);
        let mut session = Session::start(options).expect("a thread");
        session.wait_ready(Duration::from_secs(10)).expect("a session");
        session.stats().expect("statistics")
    }

    /// What the pool had to refuse, drop or give up, for want of room or time.
    fn losses(&self, groups: u32) -> Vec<(String, f64)> {
        let is_loss = |name: &str| {
            ["refused", "drops", "expired", "failed", "left_out", "not_given"].iter().any(|word| name.contains(word))
                && !name.contains("protocol")
        };
        let stats = self.stats(groups);
        let is_used = stats.iter().any(|(name, value)| name == "terrace_lookups_total" && *value > 0.0);
        assert!(is_used, "another pool than the replay's: {stats:?}");
        stats.into_iter().filter(|(name, value)| *value > 0.0 && is_loss(name)).collect()
    }

    /// Readers and slots being written in the pool that replays use.
    fn in_use(&self) -> f64 {
        let values = self.stats(1);
        let is_use = |name: &str| {
            name == "terrace_primary_readers"
                || name.starts_with("terrace_primary_slots{") && name.contains("\"writing\"")
        };
        let found: Vec<f64> = values.iter().filter(|(name, _)| is_use(name)).map(|(_, value)| *value).collect();
        assert_eq!(found.len(), 2, "readers and slots being written: {values:?}");
        found.iter().sum()
    }
}

fn number(report: &Value, pointer: &str) -> u64 {
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer} in {report:#}"))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_client_hits_what_it_hits_in_process() {
    for groups in [1, 2] {
        let work = format!("--limit 150 --concurrency 1 --groups {groups} --window-tokens 1500");
        let patient = format!("{work} --call-budget-ms 10000");
        let (alone, place) = (tempfile::tempdir().expect("a place"), tempfile::tempdir().expect("a place"));
        let expected = Replay::new(alone.path())
            .args(ENGINE.split_whitespace())
            .args(IN_PROCESS.split_whitespace())
            .args(work.split_whitespace())
            .run();
        let daemon = Daemon::start(place.path());
        // An answer that is late would be a miss, which the comparison is not about.
        let report = daemon.replay(&patient).run();
        assert_sound(&report, 150, &work);
        assert!(number(&report, "/hits/primary") > 0 && number(&report, "/hits/nvme") > 0, "{report:#}");
        // On a busy machine the disk may lag so far behind that a store finds every slot in use. Its blocks are computed once more then, and with
        // them the engine's own cache goes other ways. Without such losses both are equal.
        let losses = daemon.losses(groups);
        for field in ["/misses", "/hits/gpu", "/blocks_looked_up"] {
            let (got, want) = (number(&report, field), number(&expected, field));
            assert!(
                got == want || !losses.is_empty(),
                "{field}: {got} for {want}, {work}: {report:#} {expected:#} {:#?}",
                daemon.stats(groups)
            );
        }
        let asked = report["socket"]["lookups_per_request_and_step"].as_f64().expect("a number");
        assert!(asked > 0.0 && asked <= 1.0, "more than one round trip for a request and step: {report:#}");
        assert_eq!(number(&report, "/socket/protocol_faults"), 0, "{report:#}");
    }
}

#[test]
fn four_replays_at_once_share_blocks() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    let reports: Vec<Value> = std::thread::scope(|scope| {
        let replay = || scope.spawn(|| daemon.replay("--limit 150 --concurrency 4").run());
        let running: Vec<_> = (0..4).map(|_| replay()).collect();
        running.into_iter().map(|replay| replay.join().expect("a report")).collect()
    });
    for report in &reports {
        assert_sound(report, 150, "four at once");
        assert_eq!(number(report, "/socket/reconnects"), 0, "{report:#}");
    }
    // What they stored a fifth one finds; each of them was nearly as far as the others, and computed most itself.
    let fifth = daemon.replay("--limit 150 --concurrency 4").run();
    assert_sound(&fifth, 150, "after four");
    let misses = reports.iter().map(|report| number(report, "/misses")).max();
    let losses = daemon.losses(1);
    let is_less = misses.is_some_and(|misses| number(&fifth, "/misses") * 2 < misses);
    assert!(is_less || !losses.is_empty(), "{misses:?} before, then {fifth:#}");
    until("readers and slots being written are given back", || daemon.in_use() == 0.0);
}

#[test]
fn a_daemon_that_is_killed_and_started_again_is_found_and_hit() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    let (stored, mut again) = (daemon.0.nvme(), None);
    let replay = daemon.replay("--limit 1500 --concurrency 4");
    let (report, log) = replay.run_while(
        || has_blocks(&stored),
        || {
            daemon.0.kill();
            again = Some(Daemon::start(place.path()));
        },
    );
    assert_sound(&report, 1500, &log);
    assert!(number(&report, "/socket/reconnects") >= 1, "{report:#}");
    // What was below before is hit by a new engine on the new daemon; a warm engine has hit it too.
    let daemon = again.expect("a second daemon");
    let report = daemon.replay("--limit 300 --concurrency 4").run();
    assert_sound(&report, 300, "after a restart");
    assert!(number(&report, "/hits/nvme") + number(&report, "/hits/primary") > 0, "{report:#}");
}

#[test]
fn a_daemon_that_is_stopped_is_waited_for_once() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    let replay = daemon.replay("--limit 1500 --concurrency 4");
    let (report, log) = replay.run_while(|| has_blocks(&daemon.0.nvme()), || daemon.0.signal(libc::SIGSTOP));
    assert_sound(&report, 1500, &log);
    let (timeouts, stalled) = (number(&report, "/socket/timeouts"), number(&report, "/socket/stalled_calls"));
    // On a busy machine an answer may be late without the signal; each such time one call waits.
    let late = number(&report, "/socket/stalls");
    assert!(timeouts >= 1 && timeouts == late, "after a timeout no call waits: {report:#}");
    assert!(stalled > timeouts, "{report:#}");
    daemon.0.signal(libc::SIGCONT);
    until("what the replay held is given back", || daemon.in_use() == 0.0);
}

#[test]
fn a_replay_that_is_killed_leaves_nothing_behind() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path());
    for delay_ms in [150, 333, 700] {
        let mut replay = daemon.replay("--limit 3000 --concurrency 8").spawn();
        std::thread::sleep(Duration::from_millis(delay_ms));
        assert!(replay.try_wait().expect("wait").is_none(), "the replay ended before it was killed: give it more work");
        replay.kill().expect("it is there");
        replay.wait().expect("it ends");
        until("readers and slots being written are given back", || daemon.in_use() == 0.0);
    }
    let report = daemon.replay("--limit 100 --concurrency 4").run();
    assert_sound(&report, 100, "after kills");
}

#[test]
fn what_belongs_to_the_daemon_is_refused() {
    let place = tempfile::tempdir().expect("a place");
    for option in ["--primary-blocks 10", "--nvme-blocks 10", "--no-bytes", "--policy arc"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(["replay", "--connect"]).arg(place.path().join("none.sock")).args(option.split_whitespace());
        let output = command.output().expect("terrace starts");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = option.split_whitespace().next().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{option}: {log}");
        assert!(log.contains(name) && log.contains("--connect"), "{option}: {log}");
    }
}

#[test]
fn without_a_daemon_the_error_names_the_socket() {
    let place = tempfile::tempdir().expect("a place");
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(["replay", "--connect"]).arg(place.path().join("none.sock"));
    let output = command.output().expect("terrace starts");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("none.sock"), "{log}");
}
