//! What the tests of all worlds do: fixed seeds, fresh ones, the same way each time.
//!
//! `TERRACE_SEED=N` runs that seed alone, `TERRACE_SEEDS=K` that many from it on.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use terrace_simulation::{Counts, Failure, Run, run, run_many, shrink};

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds on two threads; gives what happened and the failures, in order of seeds.
pub fn run_all(template: Run, first: u64, count: u64) -> (Counts, Vec<Failure>) {
    run_many(Run { seed: first, ..template }, count, 2, |failure| println!("{failure}"))
}

/// Runs seeds none of which may fail. Tells what failed, the first of it as short as it gets.
pub fn run_seeds(template: Run, first: u64, count: u64) -> Counts {
    let (counts, failures) = run_all(template, first, count);
    if let Some(first) = failures.first() {
        panic!("{} of {count} seeds failed; the first, made short: {}", failures.len(), shrink(first.clone(), 4));
    }
    println!("{counts}");
    counts
}

/// The seeds from 0 on, of which none may fail. `None`: the environment asked for others, of which nothing more is known.
pub fn fixed_seeds(template: Run, fixed: u64) -> Option<Counts> {
    let first = from_environment("TERRACE_SEED");
    let count = from_environment("TERRACE_SEEDS").unwrap_or(if first.is_some() { 1 } else { fixed });
    let counts = run_seeds(template, first.unwrap_or(0), count);
    first.is_none().then_some(counts)
}

/// Seeds that nobody has run before; none may fail.
pub fn fresh_seeds(template: Run, fresh: u64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = since.as_micros() as u64 % 1_000_000_000_000;
    // Not `eprintln!`: what a test prints is kept back unless it fails, and these are to be seen in any case.
    let scene = template.scene;
    let _ = writeln!(std::io::stderr(), "fresh seeds, {scene:?}: {first} and the {} after it", fresh - 1);
    run_seeds(template, first, fresh);
}

/// Equal seeds run the same way, others in another.
pub fn run_the_same_way(template: Run, seeds: u64) {
    for seed in 0..seeds {
        let (first, second) = (run(&Run { seed, ..template }), run(&Run { seed, ..template }));
        assert_eq!((first.digest, &first.counts), (second.digest, &second.counts), "seed {seed}");
        assert_ne!(first.digest, run(&Run { seed: seed + 1_000, ..template }).digest, "the digest says nothing");
    }
}

/// It must not pass because nothing happened: what, how often it was seen, and how often it must be at least.
pub fn at_least<const N: usize>(wanted: [(&str, u64, u64); N]) {
    for (what, seen, least) in wanted {
        assert!(seen >= least, "only {seen} {what}, at least {least} wanted");
    }
}
