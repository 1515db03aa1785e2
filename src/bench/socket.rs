//! Calls over the daemon's socket, beside an empty round trip and the same calls in process, all in one run.
//!
//! After a rest caches and processor are cold for a call in process too: calls at rest are held against calls in
//! process after the same rest, the others against calls in process back to back.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use terrace_config::Config;
use terrace_connector::client::{ClientOptions, RemoteManager};
use terrace_connector::{JobId, ManagerPort, PortQuery};
use terrace_primary::Key;
use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringOffloadingManager};
use terrace_tiers::SystemClock;

use super::outcome::Outcome;
use super::progress;

/// Keys in one lookup.
const PREFIX: u64 = 1_000;
/// Keys in one store.
const STORE: u64 = 64;
/// Rounds timed.
const ROUNDS: u64 = 2_000;
/// Rest before each call of an idle engine: long enough that the processor sleeps, as between the steps of a model.
const REST: Duration = Duration::from_millis(1);
/// Rounds before, so that both sides are warm.
const WARM_UP: u64 = 200;
/// Rounds between two uses of the prefix.
const TOUCH: u64 = 128;
/// Slots of both managers: what is looked up is used long before what is stored could evict it.
const BLOCKS: u32 = 65_536;
const BLOCK_BYTES: u32 = 4_096;
/// Far from what a call takes: one that is cut short would be no measurement.
const CALL_BUDGET: Duration = Duration::from_secs(2);
/// How long the daemon may take to be there.
const START: Duration = Duration::from_secs(20);

/// A daemon of this program over a directory of its own; both end with this value.
struct Daemon {
    child: Child,
    place: PathBuf,
}

impl Daemon {
    fn start() -> anyhow::Result<Self> {
        let place = std::env::temp_dir().join(format!("terrace-bench-socket-{}", std::process::id()));
        std::fs::create_dir_all(&place).with_context(|| format!("{}", place.display()))?;
        let config = place.join("terrace.toml");
        std::fs::write(&config, format!("{}\n[server]\nsocket = {:?}\n", text(), place.join("bench.sock")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--config"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().context("terrace serve")?;
        Ok(Self { child, place })
    }

    /// A connected manager.
    fn connect(&self) -> anyhow::Result<RemoteManager> {
        let config = Config::parse(&text(), "bench")?;
        let mut options = ClientOptions::new(self.place.join("bench.sock"), config.namespace, config.geometry);
        options.call_budget = CALL_BUDGET;
        options.engine = "bench".to_owned();
        let mut manager = RemoteManager::start(options)?;
        manager.session_mut().wait_ready(START).map_err(|why| anyhow::anyhow!("no session: {why}"))?;
        Ok(manager)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn text() -> String {
    format!("[primary]\nblocks = {BLOCKS}\n[geometry]\nblock_bytes = {BLOCK_BYTES}\n")
}

fn key(number: u64) -> anyhow::Result<Key> {
    let mut hash = [0; 32];
    let mut state = number;
    for word in hash.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    Ok(Key::new(&hash, 0)?)
}

fn keys(numbers: std::ops::Range<u64>) -> anyhow::Result<Vec<Key>> {
    numbers.map(key).collect()
}

/// Times of one kind of call, in us.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, since: Instant) {
        self.0.push(since.elapsed().as_secs_f64() * 1e6);
    }

    /// The time that this share of the calls did not exceed.
    fn share(&mut self, share: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

/// Times of all calls of one side.
#[derive(Default)]
struct Side {
    empty: Times,
    lookup: Times,
    /// From the start of a lookup to slots that may be read: the lookup and `prepare_load`.
    load: Times,
    store: Times,
}

/// One round of an engine on any manager: looks a prefix up and loads it, stores some blocks. `from` numbers the blocks stored:
/// each is new. `rest` is slept before each call.
fn round<M: ManagerPort>(
    manager: &mut M,
    prefix: &[Key],
    from: u64,
    side: Option<&mut Side>,
    rest: Duration,
) -> anyhow::Result<()> {
    let (id, job, load) = (RequestId(from), JobId(from), JobId(from + 1));
    let stored = keys(from..from + STORE)?;
    manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
    let mut answers = Vec::with_capacity(prefix.len());
    let mut plan = StorePlan::default();
    let mut slots = Vec::with_capacity(prefix.len());
    let mut ours = Side::default();
    let side = side.unwrap_or(&mut ours);

    // The keys are made by the connector for either side.
    let queries = vec![PortQuery { prefix_only: true, keys: prefix.to_vec() }];
    thread::sleep(rest);
    let start = Instant::now();
    if M::BATCHES_LOOKUPS {
        manager.prepare_lookup(id, queries)?;
    }
    manager.lookup(id, 0, prefix, LookupMode::Prefix, &mut answers)?;
    side.lookup.add(start);
    manager.prepare_load(id, load, prefix, &mut slots)?;
    side.load.add(start);
    anyhow::ensure!(answers.iter().all(|answer| *answer == Lookup::Hit), "a resident key was not found");

    thread::sleep(rest);
    let start = Instant::now();
    let room = manager.prepare_store(id, job, &stored, &mut plan)?;
    side.store.add(start);
    anyhow::ensure!(room && plan.store.len() == stored.len(), "the manager did not take {STORE} keys");
    manager.complete_store(id, job, &stored, true)?;
    manager.complete_load(id, load, prefix, true)?;
    // What is looked up stays: it is among the most recent.
    if (from / STORE).is_multiple_of(TOUCH) {
        manager.touch(prefix);
    }
    manager.finish_request(id);
    manager.end_step();
    manager.take_events(&mut Vec::new());
    Ok(())
}

/// Makes the prefix resident.
fn fill<M: ManagerPort>(manager: &mut M, prefix: &[Key]) -> anyhow::Result<()> {
    let (id, job) = (RequestId(u64::MAX), JobId(u64::MAX - 1));
    manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
    let mut plan = StorePlan::default();
    let deadline = Instant::now() + START;
    // A daemon's slots become usable one after the other.
    while !manager.prepare_store(id, job, prefix, &mut plan)? || plan.store.len() < prefix.len() {
        if !plan.store.is_empty() {
            manager.complete_store(id, job, prefix, false)?;
        }
        manager.end_step();
        anyhow::ensure!(Instant::now() < deadline, "no room for {} blocks within {START:?}", prefix.len());
        thread::sleep(Duration::from_millis(20));
    }
    manager.complete_store(id, job, prefix, true)?;
    manager.finish_request(id);
    manager.end_step();
    Ok(())
}

fn measure_local(
    local: &mut TieringOffloadingManager,
    prefix: &[Key],
    from: u64,
    rest: Duration,
) -> anyhow::Result<Side> {
    let mut side = Side::default();
    for number in 0..WARM_UP + ROUNDS {
        round(local, prefix, from + number * STORE, (number >= WARM_UP).then_some(&mut side), rest)?;
    }
    Ok(side)
}

fn measure(remote: &mut RemoteManager, prefix: &[Key], from: u64, rest: Duration) -> anyhow::Result<Side> {
    let mut side = Side::default();
    for number in 0..WARM_UP + ROUNDS {
        let warm = number >= WARM_UP;
        for timed in [false, true] {
            thread::sleep(rest);
            let took = remote.session_mut().ping().context("the daemon did not answer a ping")?;
            // The first one waits for what was sent before without waiting.
            if warm && timed {
                side.empty.0.push(took.as_secs_f64() * 1e6);
            }
        }
        round(remote, prefix, from + number * STORE, warm.then_some(&mut side), rest)?;
    }
    anyhow::ensure!(remote.counters().timeouts == 0, "calls were cut short: nothing was measured");
    Ok(side)
}

pub(super) fn run() -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new("socket");
    let prefix = keys(0..PREFIX)?;

    progress(format_args!("in process"));
    let config = Config::parse(&text(), "bench")?;
    let mut local = TieringOffloadingManager::new(&config, Vec::new(), Arc::new(SystemClock::new()))?;
    fill(&mut local, &prefix)?;
    let mut local_awake = measure_local(&mut local, &prefix, 1 << 40, Duration::ZERO)?;
    progress(format_args!("in process, at rest between calls"));
    let mut local_idle = measure_local(&mut local, &prefix, 1 << 42, REST)?;
    drop(local);

    progress(format_args!("over the socket"));
    let daemon = Daemon::start()?;
    let mut remote = daemon.connect()?;
    fill(&mut remote, &prefix)?;
    let awake = measure(&mut remote, &prefix, 1 << 40, Duration::ZERO)?;
    progress(format_args!("over the socket, at rest between calls"));
    let idle = measure(&mut remote, &prefix, 1 << 42, REST)?;

    progress(format_args!("over the socket, beside a second client"));
    let mut other = daemon.connect()?;
    let stop = AtomicBool::new(false);
    let loaded = thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                round(&mut other, &prefix, (1 << 50) + number * STORE, None, Duration::ZERO)?;
                number += 1;
            }
            anyhow::Ok(number)
        });
        let loaded = measure(&mut remote, &prefix, 1 << 45, Duration::ZERO);
        stop.store(true, Ordering::Relaxed);
        let hammered = hammer.join().map_err(|_| anyhow::anyhow!("the second client panicked"))??;
        anyhow::ensure!(hammered > 0, "the second client did nothing");
        loaded
    })?;

    let names =
        [format!("lookup of {PREFIX}"), format!("lookup and load of {PREFIX}"), format!("prepare_store of {STORE}")];
    for (when, local) in [("at rest before each", &mut local_idle), ("back to back", &mut local_awake)] {
        for (name, times) in names.iter().zip([&mut local.lookup, &mut local.load, &mut local.store]) {
            outcome.add(format!("{name}, in process, {when}"), times.share(0.5), "us", 0.0, "-");
        }
    }
    let sides = [("idle", idle, true), ("awake", awake, false), ("under load", loaded, false)];
    for (when, mut side, rests) in sides {
        let in_process = if rests { &mut local_idle } else { &mut local_awake };
        let empty = side.empty.share(0.5);
        outcome.add(format!("empty round trip p50, {when}"), empty, "us", 0.0, "-");
        outcome.add(format!("empty round trip p99, {when}"), side.empty.share(0.99), "us", 0.0, "-");
        let calls = [
            (format!("lookup of {PREFIX} resident keys"), &mut side.lookup, &mut in_process.lookup),
            (format!("lookup and load of {PREFIX}"), &mut side.load, &mut in_process.load),
            (format!("prepare_store of {STORE}"), &mut side.store, &mut in_process.store),
        ];
        for (name, socket, local) in calls {
            let limit = 2.0 * empty + local.share(0.5);
            outcome.add(format!("{name}, {when} (2 empty + in process)"), socket.share(0.5), "us", limit, "<= 1");
            outcome.add(format!("{name}, {when}, p99"), socket.share(0.99), "us", 0.0, "-");
        }
    }
    Ok(outcome)
}
