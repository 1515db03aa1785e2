//! The copy engine of NVIDIA GPUs, on the driver API, which is loaded at run time.
//!
//! [`Cuda::load`] finds the driver, [`Cuda::device`] a [`Gpu`]. [`RegionPins`] registers host memory behind the running service,
//! [`CudaCopyEngine`] copies. Everything but [`Gpu`] stands on the trait [`Driver`] and runs over [`scripted`] in tests.
//!
//! ```text
//! runs -> plan (pure: merge, cut, choose) -> lane of the direction (stream, events, tables) -> Driver -> GPU | script
//! ```

mod arena;
mod calibrate;
mod driver;
mod engine;
mod gpu;
mod kernel;
mod lane;
mod nvrtc;
mod options;
mod pins;
mod plan;
mod ring;
pub mod scripted;
mod shared;

pub use arena::DeviceArena;
pub use driver::{
    DeviceFacts, Driver, DriverError, EventKind, IPC_HANDLE_BYTES, KernelHandle, MemoryHandle, PinnedMemory, code,
};
pub use engine::{CudaCopyEngine, CudaStats};
pub use gpu::{Cuda, DeviceId, Gpu};
pub use kernel::{BUILT_IN_PTX, SOURCE as KERNEL_SOURCE};
pub use nvrtc::{Nvrtc, Target};
pub use options::{CudaOptions, default_cache_dir};
pub use pins::{PIECE_ALIGN_BYTES, PinOptions, PinProgress, RegionPins};
pub use plan::{Curves, Path, PathChoice, Point, Rect, Tile};
pub use shared::{DeviceEvent, ForeignMemory, export_memory};
