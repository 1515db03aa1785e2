//! What the engine needs of a device: each call is one or few calls of the CUDA driver API.
//!
//! [`Gpu`](super::Gpu) is the real one; [`scripted`](super::scripted) executes the same calls on host memory, for tests.
#![expect(unsafe_code, reason = "calls with addresses and handles: only the caller can know that they are valid")]

use std::fmt::Debug;

use super::plan::Rect;
use crate::engine::{CopyError, CopyRun, Direction, EventHandle, StreamHandle};

/// A device, and what it can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Number of the device in this process (`CUDA_VISIBLE_DEVICES` changes it).
    pub ordinal: u32,
    /// The same in every process.
    pub uuid: [u8; 16],
    /// Bus address, such as `0000:18:00.0`: tells the NUMA node.
    pub bus_id: String,
    /// Marketing name.
    pub name: String,
    /// Compute capability, such as (9, 0).
    pub capability: (u32, u32),
    /// Version of the CUDA driver API, such as 12080 for 12.8.
    pub driver_version: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines that work beside kernels: 2 and more copy both ways at once.
    pub copy_engines: u32,
    /// Largest pitch of a two-dimensional copy.
    pub max_pitch: usize,
    /// Whether the driver copies many runs in one call.
    pub has_batch: bool,
}

impl DeviceFacts {
    /// The UUID as NVIDIA's tools write it.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU-");
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// For one process.
    Private,
    /// One whose handle can go to another process.
    Shared,
}

/// A kernel that is loaded on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelHandle {
    /// Driver handle of the module.
    pub module: u64,
    /// Driver handle of the function.
    pub function: u64,
}

/// Pinned host memory of the driver's, mapped for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Address for the CPU.
    pub host: usize,
    /// Address for the device.
    pub device: u64,
    /// Bytes.
    pub len: usize,
}

/// Length of the handles by which processes share memory and events.
pub const IPC_HANDLE_BYTES: usize = 64;

/// Memory of one process as another one can open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle {
    /// The driver's handle of the whole allocation.
    pub handle: [u8; IPC_HANDLE_BYTES],
    /// Where the exported address lies in the allocation.
    pub offset: u64,
    /// Bytes of the allocation.
    pub allocation_bytes: u64,
}

/// A call that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// Name of the call.
    pub call: &'static str,
    /// The driver's result, a `CUresult`.
    pub code: i32,
    /// The driver's name for it.
    pub name: String,
}

/// Results (`CUresult`) that are told apart. Numbers are fixed: they are the driver's binary interface.
pub mod code {
    /// An argument is not valid.
    pub const INVALID_VALUE: i32 = 1;
    /// No room on the device, or no host memory that could be pinned.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// The work before an event is not done.
    pub const NOT_READY: i32 = 600;
    /// A kernel touched memory that is not there. Ends the context.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// Host memory is registered already.
    pub const ALREADY_REGISTERED: i32 = 712;
    /// Host memory is not registered.
    pub const NOT_REGISTERED: i32 = 713;
    /// A kernel ended in a fault. Ends the context.
    pub const LAUNCH_FAILED: i32 = 719;
    /// The device or this driver cannot do that.
    pub const NOT_SUPPORTED: i32 = 801;
    /// Something else. Ends the context.
    pub const UNKNOWN: i32 = 999;
}

impl DriverError {
    /// Whether the device's context takes no more work: each later call in this process fails alike.
    pub const fn is_sticky(&self) -> bool {
        // deinitialised; device unavailable; context destroyed, ECC, NVLink; 700 to 720 are faults of kernels, but for those on peers and registrations.
        matches!(self.code, 4 | 46 | 201 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
    }
}

impl From<DriverError> for CopyError {
    fn from(error: DriverError) -> Self {
        let text = format!("{} answered {} ({})", error.call, error.name, error.code);
        if error.is_sticky() {
            return Self::DeviceLost(text);
        }
        match error.code {
            code::OUT_OF_MEMORY => Self::OutOfMemory(text),
            code::NOT_SUPPORTED => Self::Unsupported(text),
            _ => Self::Failed(text),
        }
    }
}

/// Calls to one device. Any thread may call; no call leaves another context current on the caller's thread than it found.
///
/// # Safety
/// The unsafe calls take handles that came from the same device and have not been given back, and addresses that stay valid, as
/// [`CopyEngine::submit`](crate::CopyEngine::submit) says, until the stream has done the work.
#[expect(clippy::missing_safety_doc, reason = "said once, at the trait")]
pub trait Driver: Send + Sync + Debug {
    /// The device.
    fn facts(&self) -> &DeviceFacts;

    /// A stream of the lowest priority (which is also that of streams made without one) that waits for no other by itself.
    fn create_stream(&self) -> Result<StreamHandle, DriverError>;
    /// Gives a stream back. Work in it still ends.
    unsafe fn destroy_stream(&self, stream: StreamHandle);
    /// Waits until all work of the stream is done.
    unsafe fn drain(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// An event that was never recorded.
    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError>;
    /// Gives an event back; streams that wait for it go on waiting for its latest record.
    unsafe fn destroy_event(&self, event: EventHandle);
    /// Records the event behind the work that is in the stream.
    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError>;
    /// Work put into the stream from now on waits for the event's latest record.
    unsafe fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;
    /// Whether the work before the event's latest record is done. Does not wait.
    unsafe fn is_done(&self, event: EventHandle) -> Result<bool, DriverError>;
    /// Waits until it is, asleep.
    unsafe fn wait(&self, event: EventHandle) -> Result<(), DriverError>;

    /// One asynchronous copy a run. Where host memory is not registered the call may wait for the stream and the copy. On an error
    /// some of them may be in the stream.
    unsafe fn copy(&self, stream: StreamHandle, direction: Direction, runs: &[CopyRun]) -> Result<(), DriverError>;
    /// All runs in few calls; their host side is registered. Only with [`DeviceFacts::has_batch`].
    unsafe fn copy_batch(&self, stream: StreamHandle, runs: &[CopyRun]) -> Result<(), DriverError>;
    /// A two-dimensional copy.
    unsafe fn copy_rect(&self, stream: StreamHandle, direction: Direction, rect: &Rect) -> Result<(), DriverError>;

    /// Sets bytes of device memory, in the order of the stream: what tests let the model's stream do.
    unsafe fn fill(&self, stream: StreamHandle, address: usize, len: usize, value: u8) -> Result<(), DriverError>;

    /// Loads the gather kernel from a cubin, or PTX that ends with a zero byte.
    fn load_kernel(&self, image: &[u8]) -> Result<KernelHandle, DriverError>;
    /// Gives a kernel back that is in no stream.
    unsafe fn unload_kernel(&self, kernel: KernelHandle);
    /// Runs the kernel over a table of `count` tiles at the device address `table`.
    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        stream: StreamHandle,
        table: u64,
        count: u32,
        blocks: u32,
    ) -> Result<(), DriverError>;

    /// Loads a kernel of the caller's, from PTX that ends with a zero byte: what tests let the model do. A device without multiprocessors
    /// answers [`code::NOT_SUPPORTED`].
    fn load_function(&self, image: &[u8], name: &std::ffi::CStr) -> Result<KernelHandle, DriverError> {
        let _ = (image, name);
        let text = "this device runs no kernels of others".to_owned();
        Err(DriverError { call: "cuModuleLoadData", code: code::NOT_SUPPORTED, name: text })
    }
    /// Runs such a kernel on a grid of one dimension. It takes these arguments, each of 8 bytes.
    unsafe fn launch_function(
        &self,
        kernel: KernelHandle,
        stream: StreamHandle,
        blocks: u32,
        threads: u32,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let _ = (kernel, stream, blocks, threads, arguments);
        let text = "this device runs no kernels of others".to_owned();
        Err(DriverError { call: "cuLaunchKernel", code: code::NOT_SUPPORTED, name: text })
    }

    /// Pins host memory and maps it for all devices of this process. The address of the first byte as the device sees it.
    unsafe fn register(&self, address: usize, len: usize) -> Result<u64, DriverError>;
    /// Ends a registration that no work uses.
    unsafe fn unregister(&self, address: usize) -> Result<(), DriverError>;

    /// Pinned memory of the driver's.
    fn allocate_pinned(&self, len: usize) -> Result<PinnedMemory, DriverError>;
    /// Gives pinned memory back that no work uses.
    unsafe fn free_pinned(&self, memory: PinnedMemory);
    /// Device memory: the address of the first byte.
    fn allocate(&self, len: usize) -> Result<usize, DriverError>;
    /// Gives device memory back that no work uses.
    unsafe fn free(&self, address: usize);

    /// The handle of the allocation around an address, for other processes. Fails for memory of virtual-memory allocators.
    fn export_memory(&self, address: usize) -> Result<MemoryHandle, DriverError>;
    /// Maps another process's allocation: its address here.
    fn open_memory(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<usize, DriverError>;
    /// Ends a mapping that no work uses.
    unsafe fn close_memory(&self, address: usize);
    /// The handle of a [`EventKind::Shared`] event.
    unsafe fn export_event(&self, event: EventHandle) -> Result<[u8; IPC_HANDLE_BYTES], DriverError>;
    /// Another process's event, to be given back with [`Driver::destroy_event`].
    fn open_event(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<EventHandle, DriverError>;
}
