//! Engines over the pools of the daemon, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.
//!
//! `TERRACE_SEED=N cargo test --release -p terrace-simulation --test socket -- --nocapture` runs that seed alone, with
//! `TERRACE_SEEDS=K` that many from it on.

use std::time::{SystemTime, UNIX_EPOCH};

use terrace_simulation::{Counts, Failure, Run, Scene, run, run_many, shrink};

const FIXED: u64 = 60;
const FRESH: u64 = 30;
/// Long enough for some lives of everybody.
const STEPS: u32 = 600;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn template(steps: u32) -> Run {
    Run { scene: Scene::Socket, ..Run::new(0, steps) }
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
fn engines_keep_every_promise() {
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
        ("blocks loaded and compared", counts.loaded, 5_000),
        ("of these, after the last restart", counts.read_back, 1_000),
        ("promotions", counts.promoted, 400),
        ("cascades", counts.cascaded, 800),
        ("damaged copies detected", counts.corrupt, 10),
        ("deaths of the daemon", counts.crashes(), 60),
        ("clean restarts", counts.restarts, 60),
        ("resets", counts.resets, 100),
        ("stores", other("stores"), 1_000),
        ("jobs that ended well", other("jobs that ended well"), 2_000),
        ("jobs that failed", other("jobs that failed"), 150),
        ("workers that died at a copy", counts.abandoned, 50),
        ("schedulers that died", other("schedulers that died"), 100),
        ("connections cut", other("connections cut"), 400),
        ("sessions that stalled", other("stalls"), 20),
        ("broken rules", other("broken rules"), 400),
        ("refusals", other("refusals"), 300),
        ("loads of the product's client", other("loads of clients"), 1_000),
        ("stores of it", other("stores of clients"), 500),
        ("connections of it", other("connections of clients"), 250),
        ("times that nothing of it was heard", other("clients unheard"), 150),
        ("loads of it that are not to be trusted", other("doomed loads of clients"), 5),
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
