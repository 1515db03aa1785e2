//! Engines over the daemon's real pools.
//!
//! The pools of [`InlineServer`](terrace_connector::server::InlineServer) run on the simulation's thread: sessions, leases, stores, liveness, the real
//! manager, the real [`NvmeTier`](terrace_tiers::NvmeTier) on the disks of [`crate::disk`]. Engines speak the real protocol over socket
//! pairs, through a relay that is slow and breaks at any byte. They copy into the pool's region, piece by piece, in any
//! order, and die at any moment. Some engines speak it by hand, so that they can say anything at any time; others use the product's own
//! [`RemoteManager`](terrace_connector::client::RemoteManager) on a simulated machine. Sessions of role "tier" and copies on devices need
//! threads, and are left out.
//!
//! | module | role |
//! |---|---|
//! | `settings`, `common` | what a seed decides once; what all share |
//! | `wire` | a connection as the engine sees it, with its relay; a process whose end can be seen |
//! | `copier`, `rank` | who copies; a worker with a session of its own |
//! | `client` | engines that use the product's client |
//! | `engine`, `decide`, `hear` | an engine; what its scheduler asks for; what it hears, and what must hold of that |
//! | `world`, `check`, `ending` | steps, accidents, the daemon's ends; what must hold; how a run ends |

mod check;
mod client;
mod common;
mod copier;
mod decide;
mod ending;
mod engine;
mod hear;
mod rank;
pub(crate) mod settings;
mod wire;
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
    let mut settings = Settings::draw(&mut rng.fork("socket settings"), run.faults);
    run.off.apply_to_socket(&mut settings);
    trace.add(format_args!("{settings:?}"));
    let world = World::new(settings, rng.fork("socket"), trace.clone(), run.verify_crc);
    play(run, &trace, world)
}
