//! The simulation as a test: a fixed hundred of seeds and fifty fresh ones, and proof that it sees and that it is not vacuous.
//! `tests/simulation/run` is the long run, `tests/mutants/run` puts bugs in by hand.

mod common;

use terrace_simulation::{Counts, Reason, Run, run, shrink, survive};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for a life to fill its tier, lose it and fill it again some times.
const STEPS: u32 = 2_500;

#[test]
fn a_hundred_seeds_keep_every_promise() {
    let Some(counts) = common::fixed_seeds(Run::new(0, STEPS), FIXED) else { return };
    common::at_least([
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
    ]);
    assert_eq!(counts.faults.len(), terrace_simulation::disk::KIND_COUNT, "every kind of fault struck: {counts}");
}

#[test]
fn fifty_fresh_seeds_keep_every_promise() {
    common::fresh_seeds(Run::new(0, STEPS), FRESH);
}

#[test]
fn leaving_the_crc_check_out_is_found() {
    let (_, failures) = common::run_all(Run { verify_crc: false, ..Run::new(0, 600) }, 0, 200);
    let wrong = failures.iter().filter(|failure| matches!(failure.reason, Reason::WrongBytes(_))).count();
    println!("{wrong} of 200 seeds found wrong bytes");
    assert!(wrong > 0, "the simulation cannot see a wrong byte");
}

#[test]
fn a_failure_is_made_short_and_replays() {
    let (_, failures) = common::run_all(Run { verify_crc: false, ..Run::new(0, 600) }, 0, 40);
    let long = failures.first().expect("the test above finds some").clone();
    let short = shrink(long.clone(), 4);
    // In fewer kinds of faults and parts, perhaps at a later step.
    assert!(short.run.off != long.run.off && short.is_like(&long), "{long} became {short}");
    assert_eq!(run(&short.run).failure.as_ref().map(|failure| &failure.reason), Some(&short.reason));
}

#[test]
fn a_seed_always_runs_the_same_way() {
    common::run_the_same_way(Run::new(0, 600), 30);
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
    let counts = common::run_seeds(Run { faults: false, ..Run::new(0, 600) }, 5000, 100);
    assert!(counts.promoted > 2000 && counts.read_back > 1000, "{counts}");
    assert_eq!((counts.corrupt, counts.io_errors), (0, 0), "{counts}");
}
