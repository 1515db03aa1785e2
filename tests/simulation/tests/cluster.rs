//! Nodes on one bucket, as a test: fixed seeds, fresh ones, and that equal seeds run the same way.

mod common;

use terrace_simulation::cluster::faults::Kind;
use terrace_simulation::{Run, Scene};

const FIXED: u64 = 100;
const FRESH: u64 = 50;
/// Long enough for a bucket to fill and be collected, with the hours that a run ends with.
const STEPS: u32 = 400;

fn template(steps: u32) -> Run {
    Run { scene: Scene::Cluster, ..Run::new(0, steps) }
}

#[test]
fn nodes_on_one_bucket_keep_every_promise() {
    let Some(counts) = common::fixed_seeds(template(STEPS), FIXED) else { return };
    let other = |name: &str| counts.others.get(name).copied().unwrap_or(0);
    common::at_least([
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
    ]);
    let struck = Kind::all().filter(|kind| other(kind.name()) > 0).count();
    assert!(struck >= Kind::all().count() - 2, "only {struck} kinds of faults struck: {counts}");
}

#[test]
fn fresh_seeds_keep_every_promise() {
    common::fresh_seeds(template(STEPS), FRESH);
}

#[test]
fn a_seed_always_runs_the_same_way() {
    common::run_the_same_way(template(150), 8);
}

#[test]
fn without_faults_nothing_is_lost() {
    let counts = common::run_seeds(Run { faults: false, ..template(300) }, 5_000, 20);
    assert_eq!((counts.corrupt, counts.vanished, counts.io_errors), (0, 0, 0), "{counts}");
    assert!(counts.read_back > 100 && counts.promoted > 200, "{counts}");
}
