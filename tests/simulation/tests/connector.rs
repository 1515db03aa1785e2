//! An engine over the real connector, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.

mod common;

use terrace_simulation::{Run, Scene};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for some lives, each with its primary filled many times over.
const STEPS: u32 = 800;

fn template(steps: u32) -> Run {
    Run { scene: Scene::Connector, ..Run::new(0, steps) }
}

#[test]
fn an_engine_keeps_every_promise() {
    let Some(counts) = common::fixed_seeds(template(STEPS), FIXED) else { return };
    let other = |name: &str| counts.others.get(name).copied().unwrap_or(0);
    common::at_least([
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
    assert_eq!((counts.corrupt, counts.vanished, counts.io_errors), (0, 0, 0), "{counts}");
    assert!(counts.loaded > 500, "{counts}");
}
