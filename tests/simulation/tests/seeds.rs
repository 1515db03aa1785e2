//! The simulation as a test: a fixed hundred of seeds and fifty fresh ones, and proof that it sees and that it is not vacuous.
//! `tests/simulation/run` is the long run, `tests/mutants/run` puts bugs in by hand.
//!
//! `TERRACE_SEED=N cargo test --release -p terrace-simulation -- --nocapture` runs that seed alone, with
//! `TERRACE_SEEDS=K` that many from it on.

use std::time::{SystemTime, UNIX_EPOCH};

use terrace_simulation::{Counts, Failure, Reason, Run, run, run_many, shrink, survive};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for a life to fill its tier, lose it and fill it again some times.
const STEPS: u32 = 2_500;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds on two threads; gives what happened and the failures, in order of seeds.
fn run_seeds(first: u64, count: u64, template: Run) -> (Counts, Vec<Failure>) {
    run_many(Run { seed: first, ..template }, count, 2, |failure| println!("{failure}"))
}

/// Tells what failed, the first of it as short as it gets.
fn refuse(failures: &[Failure], count: u64) {
    if let Some(first) = failures.first() {
        panic!("{} of {count} seeds failed; the first, made short: {}", failures.len(), shrink(first.clone(), 4));
    }
}

#[test]
fn a_hundred_seeds_keep_every_promise() {
    let first = from_environment("TERRACE_SEED");
    let count = from_environment("TERRACE_SEEDS").unwrap_or(if first.is_some() { 1 } else { FIXED });
    let (counts, failures) = run_seeds(first.unwrap_or(0), count, Run::new(0, STEPS));
    println!("{counts}");
    refuse(&failures, count);
    if first.is_some() {
        return;
    }
    // It must not pass because nothing happened.
    for (what, seen, least) in [
        ("hits", counts.hits, 20_000),
        ("blocks loaded and compared", counts.loaded, 10_000),
        ("blocks read back after the last restart", counts.read_back, 300),
        ("evictions from the primary", counts.evicted, 10_000),
        ("promotions", counts.promoted, 5_000),
        ("promotions given up", counts.promotions_expired, 20),
        ("cascades", counts.cascaded, 10_000),
        ("cascades given up", counts.cascades_expired, 20),
        ("evictions from the tier", counts.tier_evicted, 1_000),
        ("recycled files", counts.recycled, 300),
        ("damaged copies detected", counts.corrupt, 200),
        ("copies found missing", counts.vanished, 50),
        ("crashes", counts.crashes(), 200),
        ("clean restarts", counts.restarts, 200),
        ("open breakers", counts.breaker_opened, 20),
        ("slots in limbo", counts.most_limbo, 1),
    ] {
        assert!(seen >= least, "only {seen} {what}, at least {least} wanted");
    }
    assert_eq!(counts.faults.len(), terrace_simulation::disk::KIND_COUNT, "every kind of fault struck: {counts}");
}

#[test]
fn fifty_fresh_seeds_keep_every_promise() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = since.as_micros() as u64 % 1_000_000_000_000;
    println!("fresh seeds: {first} and the {} after it", FRESH - 1);
    let (_, failures) = run_seeds(first, FRESH, Run::new(0, STEPS));
    refuse(&failures, FRESH);
}

#[test]
fn leaving_the_crc_check_out_is_found() {
    let (_, failures) = run_seeds(0, 200, Run { verify_crc: false, ..Run::new(0, 600) });
    let wrong = failures.iter().filter(|failure| matches!(failure.reason, Reason::WrongBytes(_))).count();
    println!("{wrong} of 200 seeds found wrong bytes");
    assert!(wrong > 0, "the simulation cannot see a wrong byte");
}

#[test]
fn a_failure_is_made_short_and_replays() {
    let (_, failures) = run_seeds(0, 40, Run { verify_crc: false, ..Run::new(0, 600) });
    let long = failures.first().expect("the test above finds some").clone();
    let short = shrink(long.clone(), 4);
    // In fewer kinds of faults and parts, perhaps at a later step.
    assert!(short.run.off != long.run.off && short.is_like(&long), "{long} became {short}");
    assert_eq!(run(&short.run).failure.as_ref().map(|failure| &failure.reason), Some(&short.reason));
}

#[test]
fn a_seed_always_runs_the_same_way() {
    for seed in 0..30 {
        let (first, second) = (run(&Run::new(seed, 600)), run(&Run::new(seed, 600)));
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.counts, second.counts, "seed {seed}");
        assert_ne!(first.digest, run(&Run::new(seed + 1000, 600)).digest, "the digest says nothing");
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
    let (counts, failures) = run_seeds(5000, 100, Run { faults: false, ..Run::new(0, 600) });
    assert!(failures.is_empty(), "{}", failures[0]);
    println!("{counts}");
    assert!(counts.promoted > 2000 && counts.read_back > 1000, "{counts}");
    assert_eq!((counts.corrupt, counts.io_errors), (0, 0), "{counts}");
}
