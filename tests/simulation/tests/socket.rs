//! Engines over the pools of the daemon, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.

mod common;

use terrace_simulation::{Run, Scene};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for some lives of everybody.
const STEPS: u32 = 600;

fn template(steps: u32) -> Run {
    Run { scene: Scene::Socket, ..Run::new(0, steps) }
}

#[test]
fn engines_keep_every_promise() {
    let Some(counts) = common::fixed_seeds(template(STEPS), FIXED) else { return };
    let other = |name: &str| counts.others.get(name).copied().unwrap_or(0);
    common::at_least([
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
    ]);
}

#[test]
fn fresh_seeds_keep_every_promise() {
    common::fresh_seeds(template(STEPS), FRESH);
}

#[test]
fn a_seed_always_runs_the_same_way() {
    common::run_the_same_way(template(300), 10);
}

#[test]
fn without_faults_nothing_is_lost() {
    let counts = common::run_seeds(Run { faults: false, ..template(300) }, 5_000, 20);
    assert_eq!((counts.corrupt, counts.io_errors), (0, 0), "{counts}");
    // A store that is given up at its deadline and published all the same is removed, and with it the file of a former life that it stood in for.
    assert!(counts.vanished <= counts.cascades_expired, "{counts}");
    assert!(counts.loaded > 500, "{counts}");
}
