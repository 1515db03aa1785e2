//! An engine with memory of its own, over the real connector.
//!
//! The engine schedules requests with a cache of prefixes in its GPU blocks and drives the real
//! [`OffloadingConnector`](terrace_connector::OffloadingConnector): both halves, over the real manager and the real
//! [`NvmeTier`](terrace_tiers::NvmeTier) on the disks of [`crate::disk`]. Copies between GPU blocks and slots are simulated: they touch
//! their bytes piece by piece, in any order, late, or never again.
//!
//! | module | role |
//! |---|---|
//! | `settings` | what a seed decides once |
//! | `content` | what the bytes of each GPU block and of each slot must be |
//! | `gpu` | the engine's memory, who has which block, the cache of prefixes |
//! | `copies` | the copy engine |
//! | `requests`, `forward` | requests from arrival to end: admission, scheduling, preemption; the forward pass, loads that landed |
//! | `life`, `world` | one process; steps, crashes, restarts |
//! | `check`, `ending` | what must hold; how a run ends |

mod check;
mod content;
mod copies;
mod ending;
mod forward;
mod gpu;
mod life;
mod requests;
pub(crate) mod settings;
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
    let mut settings = Settings::draw(&mut rng.fork("connector settings"), run.faults);
    run.off.apply_to_connector(&mut settings);
    trace.add(format_args!("{settings:?}"));
    let world = World::new(settings, rng.fork("connector"), trace.clone(), run.verify_crc);
    play(run, &trace, world)
}
