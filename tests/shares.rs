//! Two tenants in one daemon: what one asks for beyond its share does not take away what the other is guaranteed, and what it borrowed
//! comes back.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Replay, files};
use serde_json::Value;

/// Blocks of both together.
const PRIMARY: u32 = 400;
const NVME: u32 = 2_000;
/// What the modest one is guaranteed of them.
const MODEST_PRIMARY: u32 = 300;
const MODEST_NVME: u32 = 1_500;
/// Blocks that each works on: half as much again as it has, so that every block that it had less would show; ten times as much.
const MODEST_BLOCKS: u32 = 2_250;
const GREEDY_BLOCKS: u32 = 10 * (NVME - MODEST_NVME);
/// Blocks of a prompt.
const PROMPT: u32 = 8;
const TENANTS: &str =
    "[[tenant]]\nname = \"modest\"\nguaranteed = 0.75\n[[tenant]]\nname = \"greedy\"\nguaranteed = 0.25\n";

struct Daemon(common::daemon::Daemon);

impl Daemon {
    fn start(place: &Path, primary: u32, nvme: u32, pools: u32, tenants: &str) -> Self {
        let text = format!(
            r#"
[primary]
blocks = {primary}
[geometry]
block_bytes = 4096
[server]
socket = "{{place}}/terrace.sock"
session_share = 1.0
pools = {pools}
[[tier]]
type = "nvme"
paths = ["{{place}}/nvme"]
blocks = {nvme}
scrub_bytes_per_second = 0
high_watermark = 1.0
low_watermark = 0.99
{tenants}"#
        );
        Self(common::daemon::Daemon::start(place, &text))
    }

    fn replay(&self, tenant: &str, trace: &Path) -> Replay {
        let mut replay = self.0.replay();
        replay.command().arg("--trace").arg(trace).args(["--tenant", tenant]);
        let engine = "--block-bytes 4096 --gpu-blocks 64 --gpu-prefix-cache off --concurrency 2 --call-budget-ms 10000";
        replay.args(engine.split_whitespace())
    }

    /// Blocks of both. The daemon stands still meanwhile: a file that takes another name would be counted twice.
    fn held_by_both(&self) -> usize {
        self.0.signal(libc::SIGSTOP);
        let held = self.held(0) + self.held(1);
        self.0.signal(libc::SIGCONT);
        held
    }

    /// Blocks in the directory of the place `seat`.
    fn held(&self, seat: u32) -> usize {
        files(&self.0.nvme().join(format!("pool-{seat}")), "blk").len()
    }
}

/// Prompts in an order that `seed` picks, each as likely as any, over so many blocks.
fn trace(path: &Path, blocks: u32, requests: u32, seed: u64) {
    let (mut state, mut text) = (seed, String::new());
    for number in 0..requests {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = ((state >> 33) as u32 % (blocks / PROMPT)) * PROMPT;
        let ids: Vec<u32> = (first..first + PROMPT).collect();
        let line = format!(
            "{{\"timestamp\": {number}, \"input_length\": {}, \"output_length\": 1, \"hash_ids\": {ids:?}}}",
            PROMPT * 512
        );
        writeln!(text, "{line}").expect("a string");
    }
    std::fs::write(path, text).expect("a trace");
}

fn hit_ratio(report: &Value) -> f64 {
    let number = |pointer: &str| {
        report
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("no number at {pointer} in {report:#}"))
    };
    let hits = number("/hits/primary") + number("/hits/nvme");
    hits / (hits + number("/misses"))
}

#[test]
fn a_tenant_at_ten_times_its_share_takes_nothing_from_another() {
    let place = tempfile::tempdir().expect("a place");
    let [warm, modest, greedy] = ["warm", "modest", "greedy"].map(|name| place.path().join(name));
    trace(&warm, MODEST_BLOCKS, 1_000, 1);
    trace(&modest, MODEST_BLOCKS, 1_000, 2);
    trace(&greedy, GREEDY_BLOCKS, 200_000, 3);

    let alone = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(alone.path(), MODEST_PRIMARY, MODEST_NVME, 1, "");
    daemon.replay("modest", &warm).run();
    let alone = hit_ratio(&daemon.replay("modest", &modest).run());
    drop(daemon);

    let both = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(both.path(), PRIMARY, NVME, 2, TENANTS);
    let mut neighbour = daemon.replay("greedy", &greedy).spawn();
    let deadline = Instant::now() + Duration::from_secs(60);
    while daemon.held(1) < NVME as usize * 9 / 10 {
        assert!(Instant::now() < deadline, "it has not borrowed what nobody uses: {} blocks", daemon.held(1));
        std::thread::sleep(Duration::from_millis(50));
    }
    // What was borrowed comes back while the other stores.
    while daemon.held(0) < MODEST_NVME as usize * 9 / 10 {
        assert!(Instant::now() < deadline, "{} blocks for {MODEST_NVME} that are guaranteed", daemon.held(0));
        daemon.replay("modest", &warm).run();
        let held = daemon.held_by_both();
        assert!(held <= NVME as usize, "{held} blocks in a tier of {NVME}");
    }
    daemon.replay("modest", &warm).run();
    let beside = hit_ratio(&daemon.replay("modest", &modest).run());
    assert!(neighbour.try_wait().expect("wait").is_none(), "the neighbour ended before the end: give it more work");
    neighbour.kill().expect("it is there");
    neighbour.wait().expect("it ends");
    println!("hit ratio alone {alone:.3}, beside a neighbour at ten times its share {beside:.3}");
    assert!(alone > 0.4 && alone < 0.9, "its share matters: {alone}");
    assert!(beside > alone - 0.02, "{beside} beside the other, {alone} alone");
}
