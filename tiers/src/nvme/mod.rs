//! The NVMe tier: one file a block, in directories on local disks.
mod capacity;
mod complete;
pub mod device;
mod fill;
pub mod format;
mod index;
mod lane;
mod null;
mod ops;
mod order;
pub mod path;
mod persist;
pub mod port;
mod store;
mod tier;
mod tier_open;

pub use device::{
    Buffer, Cause, Completion, Device, DeviceError, DirEntry, FileOp, FileStat, Outcome, ReadFile, Step, WriteFile,
};
pub use null::NullPort;
pub use path::RelPath;
pub use port::{BlockName, Command, Placed, PortCounters, PortEvent, ScannedBlock, ShardPort};
pub use tier::{NvmeOptions, NvmeTier};
