//! The NVMe tier: one file a block, in directories on local disks.
pub mod abandon;
pub mod admin;
mod capacity;
mod complete;
pub mod device;
pub mod directory;
mod fill;
pub mod format;
mod index;
mod inline;
mod lane;
mod mailbox;
pub mod name;
mod null;
mod ops;
mod order;
pub mod path;
mod persist;
pub mod port;
mod posix;
pub mod shard;
mod store;
mod sync;
mod sys;
mod threaded;
mod tier;
mod tier_open;
mod uring;
mod wake;

pub use device::{
    Buffer, Cause, Completion, Device, DeviceError, DirEntry, FileOp, FileStat, MemoryRange, Outcome, ReadFile,
    Registration, Step, WriteFile,
};
pub use directory::{DirectoryOptions, open_directory};
pub use inline::InlinePort;
pub use null::NullPort;
pub use path::RelPath;
pub use port::{BlockName, Command, Placed, PortCounters, PortEvent, ScannedBlock, ShardPort};
pub use posix::PosixDevice;
pub use shard::{Shard, ShardOptions};
pub use threaded::ThreadedPort;
pub use tier::{NvmeOptions, NvmeTier};
pub use uring::UringDevice;
pub use wake::Waker;
