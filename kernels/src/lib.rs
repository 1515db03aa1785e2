//! Copy engines: they move the bytes of blocks between an engine's KV memory and the slots of the primary region.
//!
//! [`HostCopyEngine`] copies memory to memory on its own threads, [`cuda::CudaCopyEngine`] between a GPU and host memory,
//! [`NullCopyEngine`] only counts, and [`Arena`] stands for GPU memory where there is none. Every engine passes
//! [`conformance::run`]. [`layout`] makes the runs of an engine's blocks.

mod arena;
pub mod conformance;
pub mod cuda;
mod engine;
mod host;
mod kind;
pub mod layout;
pub mod metrics;
mod null;

pub use arena::Arena;
pub use engine::{
    CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, EventHandle, Order, StreamHandle, Token,
};
pub use host::{HostCopyEngine, StreamKind, stream_copy};
pub use kind::CopyEngineKind;
pub use null::NullCopyEngine;
