//! An engine over the real connector, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.
//!
//! `TERRACE_SEED=N cargo test --release -p terrace-simulation --test connector -- --nocapture` runs that seed alone, with
//! `TERRACE_SEEDS=K` that many from it on.

use std::time::{SystemTime, UNIX_EPOCH};

use terrace_simulation::{Counts, Failure, Run, Scene, run, run_many, shrink};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for some lives, each with its primary filled many times over.
const STEPS: u32 = 800;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn template(steps: u32) -> Run {
    Run { scene: Scene::Connector, ..Run::new(0, steps) }
}

fn run_seeds(first: u64, count: u64, template: Run) -> Counts {
    let (counts, failures) = run_many(Run { seed: first, ..template }, count, 2, |failure| println!("{failure}"));
    refuse(&failures, count);
    counts
}

/// Tells what failed, the first of it as short as it gets.
fn refuse(failures: &[Failure], count: u64) {
    if let Some(first) = failures.first() {
        panic!("{} of {count} seeds failed; the first, made short: {}", failures.len(), shrink(first.clone(), 2));
    }
}

#[test]
fn an_engine_keeps_every_promise() {
    let first = from_environment("TERRACE_SEED");
    let count = from_environment("TERRACE_SEEDS").unwrap_or(if first.is_some() { 1 } else { FIXED });
    let counts = run_seeds(first.unwrap_or(0), count, template(STEPS));
    println!("{counts}");
    if first.is_some() {
        return;
    }
    // It must not pass because nothing happened.
    let other = |name: &str| counts.others.get(name).copied().unwrap_or(0);
    for (what, seen, least) in [
        ("blocks loaded into the GPU and compared", counts.loaded, 5_000),
        ("of these, after the last restart", counts.read_back, 500),
        ("promotions", counts.promoted, 2_000),
        ("promotions given up", counts.promotions_expired, 5),
        ("cascades", counts.cascaded, 5_000),
        ("damaged copies detected", counts.corrupt, 50),
        ("crashes", counts.crashes(), 100),
        ("clean restarts", counts.restarts, 100),
        ("resets", counts.resets, 50),
        ("blocks stored", other("blocks stored"), 20_000),
        ("failed loads", other("failed loads"), 100),
        ("failed stores", other("failed stores"), 100),
        ("jobs flushed", other("flushes"), 500),
        ("preemptions", other("preemptions"), 1_000),
        ("waits for another's load", other("waits for another load"), 20),
        ("copies torn by a death", other("copies torn by a death"), 20),
        ("devices lost", other("devices lost"), 5),
        ("false reports", other("false reports"), 100),
    ] {
        assert!(seen >= least, "only {seen} {what}, at least {least} wanted");
    }
}

#[test]
fn fresh_seeds_keep_every_promise() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = since.as_micros() as u64 % 1_000_000_000_000;
    println!("fresh seeds: {first} and the {} after it", FRESH - 1);
    run_seeds(first, FRESH, template(STEPS));
}

#[test]
fn a_seed_always_runs_the_same_way() {
    for seed in 0..10 {
        let (first, second) = (run(&Run { seed, ..template(300) }), run(&Run { seed, ..template(300) }));
        assert_eq!((first.digest, &first.counts), (second.digest, &second.counts), "seed {seed}");
        assert_ne!(first.digest, run(&Run { seed: seed + 1_000, ..template(300) }).digest, "the digest says nothing");
    }
}

#[test]
fn without_faults_nothing_is_lost() {
    let counts = run_seeds(5_000, 20, Run { faults: false, ..template(300) });
    println!("{counts}");
    assert_eq!((counts.corrupt, counts.vanished, counts.io_errors), (0, 0, 0), "{counts}");
    assert!(counts.loaded > 500, "{counts}");
}
