//! Nodes on one bucket, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.
//!
//! `TERRACE_SEED=N cargo test --release -p terrace-simulation --test cluster -- --nocapture` runs that seed alone, with
//! `TERRACE_SEEDS=K` that many from it on.

use std::time::{SystemTime, UNIX_EPOCH};

use terrace_simulation::cluster::faults::Kind;
use terrace_simulation::{Counts, Failure, Run, Scene, run, run_many, shrink};

const FIXED: u64 = 80;
const FRESH: u64 = 20;
/// Long enough for a bucket to fill and be collected, with the hours that a run ends with.
const STEPS: u32 = 400;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn template(steps: u32) -> Run {
    Run { scene: Scene::Cluster, ..Run::new(0, steps) }
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
fn nodes_on_one_bucket_keep_every_promise() {
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
        ("hits", counts.hits, 5_000),
        ("promotions", counts.promoted, 1_500),
        ("cascades", counts.cascaded, 1_500),
        ("blocks read back by new nodes", counts.read_back, 300),
        ("crashes", counts.kills, 50),
        ("clean restarts", counts.restarts, 50),
        ("segments", other("segments"), 500),
        ("log objects of others", other("logs_folded"), 1_000),
        ("snapshots", other("snapshots"), 200),
        ("segments evicted", other("segments_evicted"), 20),
        ("segments removed because of their age", other("segments_aged"), 100),
        ("orphans removed", other("segments_orphaned"), 20),
        ("lost segments found", other("segments_lost"), 10),
        ("log objects removed", other("logs_removed"), 500),
        ("retries", other("retries"), 500),
        ("hedges", other("hedges"), 3),
        ("silences", other("silences"), 3),
        ("stopped processes", other("stops"), 10),
        ("jumps of clocks", other("jumps"), 20),
    ] {
        assert!(seen >= least, "only {seen} {what}, at least {least} wanted");
    }
    let struck = Kind::all().filter(|kind| other(kind.name()) > 0).count();
    assert!(struck >= Kind::all().count() - 2, "only {struck} kinds of faults struck: {counts}");
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
    for seed in 0..8 {
        let (first, second) = (run(&Run { seed, ..template(150) }), run(&Run { seed, ..template(150) }));
        assert_eq!((first.digest, &first.counts), (second.digest, &second.counts), "seed {seed}");
        assert_ne!(first.digest, run(&Run { seed: seed + 1_000, ..template(150) }).digest, "the digest says nothing");
    }
}

#[test]
fn without_faults_nothing_is_lost() {
    let counts = run_seeds(5_000, 20, Run { faults: false, ..template(300) });
    println!("{counts}");
    assert_eq!((counts.corrupt, counts.vanished, counts.io_errors), (0, 0, 0), "{counts}");
    assert!(counts.read_back > 100 && counts.promoted > 200, "{counts}");
}
