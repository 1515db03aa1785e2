//! The driver library and its functions.
//!
//! `cudarc` brings the library and the types. Its own functions are not called: they panic where a symbol is missing, and
//! they return results as a Rust enum, which a result that a newer driver added is not a value of.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;
use libloading::Library;

use super::super::nvrtc::in_full;
use crate::engine::CopyError;

/// `cuMemcpyBatchAsync` of CUDA 12.8 and 12.9: it also says which copy failed.
pub(super) type BatchTo12 = unsafe extern "C" fn(
    *mut sys::CUdeviceptr,
    *mut sys::CUdeviceptr,
    *mut usize,
    usize,
    *mut sys::CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    sys::CUstream,
) -> c_int;

/// The same function since CUDA 13.0.
pub(super) type BatchFrom13 = unsafe extern "C" fn(
    *mut sys::CUdeviceptr,
    *mut sys::CUdeviceptr,
    *mut usize,
    usize,
    *mut sys::CUmemcpyAttributes,
    *mut usize,
    usize,
    sys::CUstream,
) -> c_int;

/// The batched copy that this driver has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batch {
    To12(BatchTo12),
    From13(BatchFrom13),
}

macro_rules! functions {
    ($($field:ident = $name:literal: ($($argument:ty),*);)*) => {
        /// The functions that every driver since CUDA 12.0 has.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// Finds them all.
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: names and signatures are those of cuda.h; a name with its version suffix never changes its signature.
                unsafe {
                    Ok(Self { $($field: *library.get(concat!($name, "\0").as_bytes())?,)* })
                }
            }
        }
    };
}

functions! {
    init = "cuInit": (c_uint);
    driver_version = "cuDriverGetVersion": (*mut c_int);
    error_name = "cuGetErrorName": (c_int, *mut *const c_char);
    proc_address = "cuGetProcAddress_v2": (*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
    device_count = "cuDeviceGetCount": (*mut c_int);
    device_get = "cuDeviceGet": (*mut sys::CUdevice, c_int);
    device_name = "cuDeviceGetName": (*mut c_char, c_int, sys::CUdevice);
    device_uuid = "cuDeviceGetUuid_v2": (*mut sys::CUuuid, sys::CUdevice);
    device_attribute = "cuDeviceGetAttribute": (*mut c_int, c_int, sys::CUdevice);
    device_bus_id = "cuDeviceGetPCIBusId": (*mut c_char, c_int, sys::CUdevice);
    context_retain = "cuDevicePrimaryCtxRetain": (*mut sys::CUcontext, sys::CUdevice);
    context_release = "cuDevicePrimaryCtxRelease_v2": (sys::CUdevice);
    context_push = "cuCtxPushCurrent_v2": (sys::CUcontext);
    context_pop = "cuCtxPopCurrent_v2": (*mut sys::CUcontext);
    priority_range = "cuCtxGetStreamPriorityRange": (*mut c_int, *mut c_int);
    stream_create = "cuStreamCreateWithPriority": (*mut sys::CUstream, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2": (sys::CUstream);
    stream_synchronize = "cuStreamSynchronize": (sys::CUstream);
    stream_wait = "cuStreamWaitEvent": (sys::CUstream, sys::CUevent, c_uint);
    event_create = "cuEventCreate": (*mut sys::CUevent, c_uint);
    event_destroy = "cuEventDestroy_v2": (sys::CUevent);
    event_record = "cuEventRecord": (sys::CUevent, sys::CUstream);
    event_query = "cuEventQuery": (sys::CUevent);
    event_synchronize = "cuEventSynchronize": (sys::CUevent);
    copy_to_device = "cuMemcpyHtoDAsync_v2": (sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
    copy_to_host = "cuMemcpyDtoHAsync_v2": (*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
    copy_2d = "cuMemcpy2DAsync_v2": (*const sys::CUDA_MEMCPY2D, sys::CUstream);
    fill = "cuMemsetD8Async": (sys::CUdeviceptr, std::ffi::c_uchar, usize, sys::CUstream);
    module_load = "cuModuleLoadData": (*mut sys::CUmodule, *const c_void);
    module_function = "cuModuleGetFunction": (*mut sys::CUfunction, sys::CUmodule, *const c_char);
    module_unload = "cuModuleUnload": (sys::CUmodule);
    launch = "cuLaunchKernel": (
        sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void, *mut *mut c_void
    );
    host_register = "cuMemHostRegister_v2": (*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister": (*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2": (*mut sys::CUdeviceptr, *mut c_void, c_uint);
    host_allocate = "cuMemHostAlloc": (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": (*mut c_void);
    allocate = "cuMemAlloc_v2": (*mut sys::CUdeviceptr, usize);
    free = "cuMemFree_v2": (sys::CUdeviceptr);
    address_range = "cuMemGetAddressRange_v2": (*mut sys::CUdeviceptr, *mut usize, sys::CUdeviceptr);
    ipc_memory_handle = "cuIpcGetMemHandle": (*mut sys::CUipcMemHandle, sys::CUdeviceptr);
    ipc_open_memory = "cuIpcOpenMemHandle_v2": (*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint);
    ipc_close_memory = "cuIpcCloseMemHandle": (sys::CUdeviceptr);
    ipc_event_handle = "cuIpcGetEventHandle": (*mut sys::CUipcEventHandle, sys::CUevent);
    ipc_open_event = "cuIpcOpenEventHandle": (*mut sys::CUevent, sys::CUipcEventHandle);
}

/// What brings the library.
const LIBRARY: &str = "libcuda.so.1 (it comes with the NVIDIA driver; CUDA itself is not needed)";

impl Functions {
    /// Loads the library and finds its functions. `MissingLibrary`: it is not there, or older than CUDA 12.0.
    pub fn load() -> Result<Self, CopyError> {
        let missing = |reason: String| CopyError::MissingLibrary { library: LIBRARY, reason };
        // SAFETY: loading NVIDIA's library runs its initialisers, which ask nothing of the process.
        if !unsafe { sys::is_culib_present() } {
            // SAFETY: as above; only for the loader's words.
            let tried = unsafe { Library::new("libcuda.so.1") };
            return Err(missing(
                tried.err().map_or_else(|| "it was there a moment later".to_owned(), |error| in_full(&error)),
            ));
        }
        // `culib` panics if the library is not there; it was a moment ago.
        // SAFETY: as above.
        let library = unsafe { sys::culib() };
        Self::find(library).map_err(|error| missing(format!("the driver is older than CUDA 12.0: {}", in_full(&error))))
    }

    /// The driver's batched copy, in the form of the oldest interface that has it: later drivers keep it.
    pub fn batch(&self) -> Option<Batch> {
        let find = |version: c_int| {
            let (mut address, mut status): (*mut c_void, c_int) = (std::ptr::null_mut(), 0);
            // SAFETY: the name ends with zero; the driver writes an address, or null, and what it thinks of the name.
            let result = unsafe {
                (self.proc_address)(c"cuMemcpyBatchAsync".as_ptr(), &raw mut address, version, 0, &raw mut status)
            };
            (result == 0 && status == 0 && !address.is_null()).then_some(address)
        };
        if let Some(address) = find(12_080) {
            // SAFETY: for version 12.8 the driver gives the function in 12.8's form.
            return Some(Batch::To12(unsafe { std::mem::transmute::<*mut c_void, BatchTo12>(address) }));
        }
        // SAFETY: for version 13.0 it gives the form without the index of the failed copy.
        find(13_000).map(|address| Batch::From13(unsafe { std::mem::transmute::<*mut c_void, BatchFrom13>(address) }))
    }

    /// The driver's name of a result.
    pub fn name(&self, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a text of its own, or null.
        let named = unsafe { (self.error_name)(code, &raw mut text) };
        if named != 0 || text.is_null() {
            return "a result without a name".to_owned();
        }
        // SAFETY: the driver's texts end with zero and stay.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
