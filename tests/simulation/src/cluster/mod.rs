//! Several nodes on one bucket.
//!
//! Each node is the real manager over the real [`ObjectTier`](terrace_tiers::object::ObjectTier), in half of the seeds below the real NVMe
//! tier over disks of its own, with a paused runtime and clocks of its own; the bucket is a table with faults. One thread runs all of them in turn, a few milliseconds each, so that one seed
//! decides everything.
//!
//! | module | role |
//! |---|---|
//! | `clock`, `driver` | virtual time of a node, and running its tasks until then |
//! | `bucket`, `view`, `upload` | objects; the way to them, with its faults |
//! | `ledger` | what a bucket's log says, and what must follow from it |
//! | `disks` | a node's disks, and the tier over them |
//! | `life`, `requests` | one process, its engine |
//! | `world`, `ending` | what happens to nodes; how a run ends |
//! | [`faults`], `settings`, `panics` | what goes wrong, what a seed decides once, panics that tasks hide |

mod bucket;
mod clock;
mod disks;
mod driver;
mod ending;
pub mod faults;
mod ledger;
mod life;
mod panics;
mod requests;
pub(crate) mod settings;
mod upload;
mod view;
mod world;

use self::settings::Settings;
use self::world::World;
use crate::play::play;
use crate::rng::Rng;
use crate::run::{Outcome, Run};
use crate::trace::SharedTrace;

/// Runs one seed to its end or to its first failure.
pub(crate) fn run(run: &Run) -> Outcome {
    let trace = SharedTrace::new(run.print);
    let mut rng = Rng::new(run.seed);
    let mut settings = Settings::draw(&mut rng.fork("cluster settings"), run.faults);
    settings.namespaces = settings.namespaces.min(settings.nodes as u8);
    let of_world = rng.fork("cluster");
    settings.draw_disks(&mut rng.fork("cluster disks"), run.faults);
    run.off.apply_to_cluster(&mut settings);
    trace.add(format_args!("{settings:?}"));
    let world = World::new(settings, of_world, trace.clone());
    play(run, &trace, world)
}
