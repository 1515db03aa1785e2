//! Copy engines: they move the bytes of blocks between an engine's KV memory and the slots of the primary region.
//!
//! [`HostCopyEngine`] copies memory to memory on its own threads, [`NullCopyEngine`] only counts, and [`Arena`] stands for
//! GPU memory where there is none. Every engine passes [`conformance::run`]. A CUDA engine will be one more
//! implementation of [`CopyEngine`], built by [`CopyEngineKind::Cuda`].

mod arena;
pub mod conformance;
mod engine;
mod host;
mod kind;
pub mod metrics;
mod null;

pub use arena::Arena;
pub use engine::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction};
pub use host::{HostCopyEngine, StreamKind, stream_copy};
pub use kind::CopyEngineKind;
pub use null::NullCopyEngine;
