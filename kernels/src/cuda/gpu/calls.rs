//! The driver's calls for a device.
//!
//! Each call makes the device's context current for its own length: the caller's thread may have another one.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::super::driver::{
    DeviceFacts, Driver, DriverError, EventKind, IPC_HANDLE_BYTES, KernelHandle, MemoryHandle, PinnedMemory, code,
};
use super::super::kernel;
use super::super::plan::Rect;
use super::Gpu;
use super::symbols::{Batch, Functions};
use crate::engine::{CopyRun, Direction, EventHandle, StreamHandle};

/// `CU_STREAM_NON_BLOCKING`: no order with the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`: who waits sleeps. `CU_EVENT_DISABLE_TIMING`: cheap to record, and needed for events of several processes.
const EVENT_FLAGS: c_uint = 1 | 2;
/// `CU_EVENT_INTERPROCESS`.
const EVENT_INTERPROCESS: c_uint = 4;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`, and the same numbers for `cuMemHostAlloc`.
const HOST_FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const IPC_LAZY_PEER_ACCESS: c_uint = 1;

fn stream_of(stream: StreamHandle) -> sys::CUstream {
    stream.0 as usize as sys::CUstream
}

fn event_of(event: EventHandle) -> sys::CUevent {
    event.0 as usize as sys::CUevent
}

impl Gpu {
    /// Runs calls with the device's context current on this thread.
    fn within<T>(&self, calls: impl FnOnce(&Functions) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let functions = &*self.cuda.functions;
        // SAFETY: the context is retained as long as `self` lives.
        self.check("cuCtxPushCurrent", unsafe { (functions.context_push)(self.context as sys::CUcontext) })?;
        let answer = calls(functions);
        let mut popped = std::ptr::null_mut();
        // SAFETY: pushed above; writes one handle.
        let result = unsafe { (functions.context_pop)(&raw mut popped) };
        answer.and_then(|answer| self.check("cuCtxPopCurrent", result).map(|()| answer))
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), DriverError> {
        self.cuda.check(call, result)
    }

    /// For what is given back: there is nobody who could do anything about a failure.
    fn give_back(&self, calls: impl FnOnce(&Functions) -> Result<(), DriverError>) {
        if let Err(error) = self.within(calls) {
            tracing::debug!("{}", crate::CopyError::from(error));
        }
    }
}

impl Driver for Gpu {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.within(|functions| {
            let (mut least, mut greatest) = (0, 0);
            // SAFETY: writes two numbers.
            self.check("cuCtxGetStreamPriorityRange", unsafe {
                (functions.priority_range)(&raw mut least, &raw mut greatest)
            })?;
            let mut stream = std::ptr::null_mut();
            // SAFETY: writes one handle.
            self.check("cuStreamCreateWithPriority", unsafe {
                (functions.stream_create)(&raw mut stream, STREAM_NON_BLOCKING, least)
            })?;
            Ok(StreamHandle(stream as u64))
        })
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) {
        self.give_back(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuStreamDestroy", unsafe { (functions.stream_destroy)(stream_of(stream)) })
        });
    }

    unsafe fn drain(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuStreamSynchronize", unsafe { (functions.stream_synchronize)(stream_of(stream)) })
        })
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        let flags = match kind {
            EventKind::Private => EVENT_FLAGS,
            EventKind::Shared => EVENT_FLAGS | EVENT_INTERPROCESS,
        };
        self.within(|functions| {
            let mut event = std::ptr::null_mut();
            // SAFETY: writes one handle.
            self.check("cuEventCreate", unsafe { (functions.event_create)(&raw mut event, flags) })?;
            Ok(EventHandle(event as u64))
        })
    }

    unsafe fn destroy_event(&self, event: EventHandle) {
        // SAFETY: the caller's promise.
        self.give_back(|functions| self.check("cuEventDestroy", unsafe { (functions.event_destroy)(event_of(event)) }));
    }

    unsafe fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuEventRecord", unsafe { (functions.event_record)(event_of(event), stream_of(stream)) })
        })
    }

    unsafe fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuStreamWaitEvent", unsafe { (functions.stream_wait)(stream_of(stream), event_of(event), 0) })
        })
    }

    unsafe fn is_done(&self, event: EventHandle) -> Result<bool, DriverError> {
        // SAFETY: the caller's promise.
        self.within(|functions| match unsafe { (functions.event_query)(event_of(event)) } {
            code::NOT_READY => Ok(false),
            result => self.check("cuEventQuery", result).map(|()| true),
        })
    }

    unsafe fn wait(&self, event: EventHandle) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuEventSynchronize", unsafe { (functions.event_synchronize)(event_of(event)) })
        })
    }

    unsafe fn copy(&self, stream: StreamHandle, direction: Direction, runs: &[CopyRun]) -> Result<(), DriverError> {
        if runs.is_empty() {
            return Ok(());
        }
        let stream = stream_of(stream);
        self.within(|functions| {
            for run in runs {
                // SAFETY: the caller's promise.
                let result = unsafe {
                    match direction {
                        Direction::DeviceToHost => {
                            (functions.copy_to_host)(run.dst as *mut c_void, run.src as u64, run.len, stream)
                        }
                        Direction::HostToDevice => {
                            (functions.copy_to_device)(run.dst as u64, run.src as *const c_void, run.len, stream)
                        }
                    }
                };
                self.check("cuMemcpyAsync", result)?;
            }
            Ok(())
        })
    }

    unsafe fn copy_batch(&self, stream: StreamHandle, runs: &[CopyRun]) -> Result<(), DriverError> {
        let Some(batch) = self.batch else {
            let name = "no such function in this driver".to_owned();
            return Err(DriverError { call: "cuMemcpyBatchAsync", code: code::NOT_SUPPORTED, name });
        };
        if runs.is_empty() {
            return Ok(());
        }
        let mut dsts: Vec<u64> = runs.iter().map(|run| run.dst as u64).collect();
        let mut srcs: Vec<u64> = runs.iter().map(|run| run.src as u64).collect();
        let mut sizes: Vec<usize> = runs.iter().map(|run| run.len).collect();
        let nowhere = || sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        // Sources are read in the order of the stream. Hints of places are for managed memory only.
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere(),
            dstLocHint: nowhere(),
            flags: 0,
        };
        // The attributes hold from the first copy on.
        let (mut first, mut failed) = (0_usize, usize::MAX);
        let (dsts, srcs, sizes, count) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr(), runs.len());
        let (attributes, first, stream) = (&raw mut attributes, &raw mut first, stream_of(stream));
        self.within(|functions| {
            let _ = functions;
            // SAFETY: three lists of `count` entries and one of attributes, all read during the call; memory by the caller's
            // promise; the stream is not the default stream.
            let result = unsafe {
                match batch {
                    Batch::To12(call) => call(dsts, srcs, sizes, count, attributes, first, 1, &raw mut failed, stream),
                    Batch::From13(call) => call(dsts, srcs, sizes, count, attributes, first, 1, stream),
                }
            };
            self.check("cuMemcpyBatchAsync", result)
        })
    }

    unsafe fn copy_rect(&self, stream: StreamHandle, direction: Direction, rect: &Rect) -> Result<(), DriverError> {
        use sys::CUmemorytype::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST};
        let to_host = direction == Direction::DeviceToHost;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: if to_host { DEVICE } else { HOST },
            srcHost: if to_host { std::ptr::null() } else { rect.src as *const c_void },
            srcDevice: if to_host { rect.src as u64 } else { 0 },
            srcArray: std::ptr::null_mut(),
            srcPitch: rect.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: if to_host { HOST } else { DEVICE },
            dstHost: if to_host { rect.dst as *mut c_void } else { std::ptr::null_mut() },
            dstDevice: if to_host { 0 } else { rect.dst as u64 },
            dstArray: std::ptr::null_mut(),
            dstPitch: rect.dst_pitch,
            WidthInBytes: rect.width,
            Height: rect.rows,
        };
        self.within(|functions| {
            // SAFETY: the description is read during the call; memory by the caller's promise.
            self.check("cuMemcpy2DAsync", unsafe { (functions.copy_2d)(&raw const copy, stream_of(stream)) })
        })
    }

    unsafe fn fill(&self, stream: StreamHandle, address: usize, len: usize, value: u8) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            let filled = unsafe { (functions.fill)(address as u64, value, len, stream_of(stream)) };
            self.check("cuMemsetD8Async", filled)
        })
    }

    fn load_kernel(&self, image: &[u8]) -> Result<KernelHandle, DriverError> {
        self.load_function(image, kernel::NAME)
    }

    fn load_function(&self, image: &[u8], name: &std::ffi::CStr) -> Result<KernelHandle, DriverError> {
        self.within(|functions| {
            let mut module = std::ptr::null_mut();
            // SAFETY: machine code says its own length, PTX ends with zero: the contract of this function.
            self.check("cuModuleLoadData", unsafe { (functions.module_load)(&raw mut module, image.as_ptr().cast()) })?;
            let mut function = std::ptr::null_mut();
            // SAFETY: the module was loaded above; the name ends with zero.
            let found = unsafe { (functions.module_function)(&raw mut function, module, name.as_ptr()) };
            if let Err(error) = self.check("cuModuleGetFunction", found) {
                // SAFETY: loaded above, used by nobody.
                unsafe { (functions.module_unload)(module) };
                return Err(error);
            }
            Ok(KernelHandle { module: module as u64, function: function as u64 })
        })
    }

    unsafe fn unload_kernel(&self, kernel: KernelHandle) {
        self.give_back(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuModuleUnload", unsafe { (functions.module_unload)(kernel.module as usize as sys::CUmodule) })
        });
    }

    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        stream: StreamHandle,
        table: u64,
        count: u32,
        blocks: u32,
    ) -> Result<(), DriverError> {
        // More warps than tiles would only end.
        let blocks = blocks.min(count.div_ceil(kernel::BLOCK_THREADS / 32)).max(1);
        // The kernel's second parameter has 4 bytes: the lower half of the number, which stands first.
        const { assert!(cfg!(target_endian = "little")) };
        // SAFETY: the kernel takes an address and a number. Memory by the caller's promise.
        unsafe { self.launch_function(kernel, stream, blocks, kernel::BLOCK_THREADS, &[table, count.into()]) }
    }

    unsafe fn launch_function(
        &self,
        kernel: KernelHandle,
        stream: StreamHandle,
        blocks: u32,
        threads: u32,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        let mut parameters: Vec<*mut c_void> =
            arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect();
        let function = kernel.function as usize as sys::CUfunction;
        self.within(|functions| {
            // SAFETY: pointers to as many arguments as the kernel takes, which are read during the call, by the caller's promise.
            let result = unsafe {
                (functions.launch)(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream_of(stream),
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            self.check("cuLaunchKernel", result)
        })
    }

    unsafe fn register(&self, address: usize, len: usize) -> Result<u64, DriverError> {
        self.within(|functions| {
            let memory = address as *mut c_void;
            // SAFETY: the caller's promise.
            self.check("cuMemHostRegister", unsafe { (functions.host_register)(memory, len, HOST_FLAGS) })?;
            let mut device = 0;
            // SAFETY: registered above and mapped for devices; writes one address.
            let mapped = unsafe { (functions.host_device_pointer)(&raw mut device, memory, 0) };
            if let Err(error) = self.check("cuMemHostGetDevicePointer", mapped) {
                // SAFETY: registered above, used by nobody.
                unsafe { (functions.host_unregister)(memory) };
                return Err(error);
            }
            Ok(device)
        })
    }

    unsafe fn unregister(&self, address: usize) -> Result<(), DriverError> {
        self.within(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuMemHostUnregister", unsafe { (functions.host_unregister)(address as *mut c_void) })
        })
    }

    fn allocate_pinned(&self, len: usize) -> Result<PinnedMemory, DriverError> {
        self.within(|functions| {
            let mut memory = std::ptr::null_mut();
            // SAFETY: writes one address.
            self.check("cuMemHostAlloc", unsafe { (functions.host_allocate)(&raw mut memory, len, HOST_FLAGS) })?;
            let mut device = 0;
            // SAFETY: allocated above and mapped for devices; writes one address.
            let mapped = unsafe { (functions.host_device_pointer)(&raw mut device, memory, 0) };
            if let Err(error) = self.check("cuMemHostGetDevicePointer", mapped) {
                // SAFETY: allocated above, used by nobody.
                unsafe { (functions.host_free)(memory) };
                return Err(error);
            }
            Ok(PinnedMemory { host: memory as usize, device, len })
        })
    }

    unsafe fn free_pinned(&self, memory: PinnedMemory) {
        self.give_back(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuMemFreeHost", unsafe { (functions.host_free)(memory.host as *mut c_void) })
        });
    }

    fn allocate(&self, len: usize) -> Result<usize, DriverError> {
        self.within(|functions| {
            let mut address = 0;
            // SAFETY: writes one address.
            self.check("cuMemAlloc", unsafe { (functions.allocate)(&raw mut address, len) })?;
            Ok(address as usize)
        })
    }

    unsafe fn free(&self, address: usize) {
        // SAFETY: the caller's promise.
        self.give_back(|functions| self.check("cuMemFree", unsafe { (functions.free)(address as u64) }));
    }

    fn export_memory(&self, address: usize) -> Result<MemoryHandle, DriverError> {
        self.within(|functions| {
            let (mut base, mut len) = (0, 0);
            // SAFETY: writes an address and a length; an address that is none of the device's is refused.
            self.check("cuMemGetAddressRange", unsafe {
                (functions.address_range)(&raw mut base, &raw mut len, address as u64)
            })?;
            let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
            // SAFETY: writes a handle; memory that cannot be exported is refused.
            self.check("cuIpcGetMemHandle", unsafe { (functions.ipc_memory_handle)(&raw mut handle, base) })?;
            Ok(MemoryHandle {
                handle: handle.reserved.map(|byte| byte as u8),
                offset: (address as u64).saturating_sub(base),
                allocation_bytes: len as u64,
            })
        })
    }

    fn open_memory(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<usize, DriverError> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        self.within(|functions| {
            let mut base = 0;
            // SAFETY: writes an address; bytes that are no handle are refused.
            self.check("cuIpcOpenMemHandle", unsafe {
                (functions.ipc_open_memory)(&raw mut base, handle, IPC_LAZY_PEER_ACCESS)
            })?;
            Ok(base as usize)
        })
    }

    unsafe fn close_memory(&self, address: usize) {
        self.give_back(|functions| {
            // SAFETY: the caller's promise.
            self.check("cuIpcCloseMemHandle", unsafe { (functions.ipc_close_memory)(address as u64) })
        });
    }

    unsafe fn export_event(&self, event: EventHandle) -> Result<[u8; IPC_HANDLE_BYTES], DriverError> {
        self.within(|functions| {
            let mut handle = sys::CUipcEventHandle { reserved: [0; IPC_HANDLE_BYTES] };
            // SAFETY: writes a handle; the event by the caller's promise.
            self.check("cuIpcGetEventHandle", unsafe {
                (functions.ipc_event_handle)(&raw mut handle, event_of(event))
            })?;
            Ok(handle.reserved.map(|byte| byte as u8))
        })
    }

    fn open_event(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<EventHandle, DriverError> {
        let handle = sys::CUipcEventHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        self.within(|functions| {
            let mut event = std::ptr::null_mut();
            // SAFETY: writes a handle; bytes that are no handle are refused.
            self.check("cuIpcOpenEventHandle", unsafe { (functions.ipc_open_event)(&raw mut event, handle) })?;
            Ok(EventHandle(event as u64))
        })
    }
}
