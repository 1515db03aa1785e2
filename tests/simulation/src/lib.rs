//! A deterministic simulation of Terrace.
//!
//! The real [`TieringOffloadingManager`](terrace_tiering::TieringOffloadingManager) drives the real
//! [`NvmeTier`](terrace_tiers::NvmeTier) and its shards over simulated disks with virtual time. One seed decides
//! everything: sizes, what the engine does, what goes wrong, and when processes die. A plain model says what the bytes of
//! every block must be; after each step the promises are checked against it.
//!
//! | module | role |
//! |---|---|
//! | [`disk`] | files that know what a crash leaves of them, operations in sub-steps, faults, the device |
//! | `catalog` | the catalog's entries over the lives of processes |
//! | `life`, `world` | one process; its crashes and restarts |
//! | `engine` | requests: look up, load, store, finish |
//! | `ending`, `survival` | how a run ends, and that what was stored is there afterwards |
//! | [`model`], `held`, `check` | what must hold |
//! | [`rng`], [`settings`], [`trace`] | chance, what a seed decides once, what tells two runs apart |
//! | `run`, `play` | which world of a seed is played; its steps, its end, what came of it |
//! | `off`, `shrink`, `many` | what can be left out, making a failure short, many seeds on several threads |
//!
//! [`cluster`] is a second world: several nodes with the real [`ObjectTier`](terrace_tiers::object::ObjectTier) on one simulated bucket,
//! in half of the seeds below an NVMe tier over the first one's disks.
//! `connector` is a third: an engine with memory of its own drives the real connector, whose copies are simulated, over the first one's disks.
//! `socket` is a fourth: engines over the daemon's real pools and the real protocol, through connections that are slow and break.

mod catalog;
mod check;
pub mod cluster;
mod connector;
pub mod counts;
pub mod disk;
mod ending;
mod engine;
pub mod failure;
mod held;
mod life;
mod many;
mod memory;
pub mod model;
mod off;
mod play;
pub mod rng;
mod run;
pub mod settings;
mod shrink;
mod socket;
mod survival;
mod tier;
pub mod trace;
mod world;

pub use counts::Counts;
pub use failure::{Failure, Reason};
pub use many::run_many;
pub use off::Off;
pub use run::{Outcome, Run, Scene, run};
pub use shrink::shrink;
pub use survival::survive;
