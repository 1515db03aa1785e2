//! The simulation as a test: many seeds, and proof that it sees and that it is not vacuous.
//!
//! `TERRACE_SEED=N cargo test --release -p terrace-simulation -- --nocapture` runs that seed alone, with
//! `TERRACE_SEEDS=K` that many from it on.

use std::sync::{Mutex, PoisonError};

use terrace_simulation::{Counts, Reason, Run, run, survive};

const SEEDS: u64 = 1000;
const STEPS: u32 = 600;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds on two threads; gives what happened and the failures, in order of seeds.
fn run_seeds(first: u64, count: u64, template: Run) -> (Counts, Vec<terrace_simulation::Failure>) {
    let sum = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let sum = &sum;
            scope.spawn(move || {
                for seed in (first..first + count).filter(|seed| seed % 2 == thread) {
                    let outcome = run(&Run { seed, ..template });
                    let (counts, failures) = &mut *sum.lock().unwrap_or_else(PoisonError::into_inner);
                    counts.add(&outcome.counts);
                    failures.extend(outcome.failure);
                }
            });
        }
    });
    let (counts, mut failures) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.seed);
    (counts, failures)
}

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let first = from_environment("TERRACE_SEED");
    let count = from_environment("TERRACE_SEEDS").unwrap_or(if first.is_some() { 1 } else { SEEDS });
    let (counts, failures) = run_seeds(first.unwrap_or(0), count, Run::new(0, STEPS));
    for failure in &failures {
        println!("{failure}");
    }
    println!("{counts}");
    assert!(failures.is_empty(), "{} of {count} seeds failed, the first: {}", failures.len(), failures[0]);
    if first.is_some() {
        return;
    }
    // It must not pass because nothing happened.
    for (what, seen, least) in [
        ("hits", counts.hits, 50_000),
        ("blocks loaded and compared", counts.loaded, 20_000),
        ("blocks read back after the last restart", counts.read_back, 2_000),
        ("evictions from the primary", counts.evicted, 20_000),
        ("promotions", counts.promoted, 10_000),
        ("promotions given up", counts.promotions_expired, 100),
        ("cascades", counts.cascaded, 20_000),
        ("cascades given up", counts.cascades_expired, 100),
        ("evictions from the tier", counts.tier_evicted, 2_000),
        ("recycled files", counts.recycled, 500),
        ("damaged copies detected", counts.corrupt, 500),
        ("copies found missing", counts.vanished, 100),
        ("crashes", counts.crashes(), 500),
        ("clean restarts", counts.restarts, 500),
        ("open breakers", counts.breaker_opened, 50),
        ("slots in limbo", counts.most_limbo, 1),
    ] {
        assert!(seen >= least, "only {seen} {what}, at least {least} wanted");
    }
    assert_eq!(counts.faults.len(), terrace_simulation::disk::KIND_COUNT, "every kind of fault struck: {counts}");
}

#[test]
fn leaving_the_crc_check_out_is_found() {
    let (_, failures) = run_seeds(0, 200, Run { verify_crc: false, ..Run::new(0, STEPS) });
    let wrong = failures.iter().filter(|failure| matches!(failure.reason, Reason::WrongBytes(_))).count();
    println!("{wrong} of 200 seeds found wrong bytes");
    assert!(wrong > 0, "the simulation cannot see a wrong byte");
}

#[test]
fn a_seed_always_runs_the_same_way() {
    for seed in 0..30 {
        let (first, second) = (run(&Run::new(seed, STEPS)), run(&Run::new(seed, STEPS)));
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.counts, second.counts, "seed {seed}");
        assert_ne!(first.digest, run(&Run::new(seed + 1000, STEPS)).digest, "the digest says nothing");
    }
}

#[test]
fn what_was_stored_is_found_again() {
    let mut counts = Counts::default();
    for seed in 0..60 {
        match survive(seed) {
            Ok(survived) => counts.add(&survived),
            Err(reason) => panic!("seed {seed}: {reason}"),
        }
    }
    println!("{counts}");
    assert!(counts.promoted > 5000 && counts.evicted > 1000, "{counts}");
}

#[test]
fn without_faults_nothing_is_lost() {
    let (counts, failures) = run_seeds(5000, 100, Run { faults: false, ..Run::new(0, STEPS) });
    assert!(failures.is_empty(), "{}", failures[0]);
    println!("{counts}");
    assert!(counts.promoted > 2000 && counts.read_back > 1000, "{counts}");
    assert_eq!((counts.corrupt, counts.io_errors), (0, 0), "{counts}");
}
