//! NVIDIA's run-time compiler, loaded when it is asked for.
//!
//! Not by `cudarc`: its loader knows one set of names, takes no path (the compiler may come from a Python package, or be of
//! another release than the bindings), and panics where a symbol is missing.
#![expect(unsafe_code, reason = "a foreign library")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

use libloading::Library;

use crate::engine::CopyError;

type Program = *mut c_void;
type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// Names under which loaders find it, the newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// Bytes of a compiled kernel, or of the compiler's log, at most.
const MOST_BYTES: usize = 16 << 20;

/// An error of the loader with what it was caused by, which holds the file's name.
pub(super) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code for one compute capability, such as (9, 0).
    Machine(u32, u32),
    /// PTX, which the driver translates for this and every later capability.
    Ptx(u32, u32),
}

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    create: CreateProgram,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    version: (i32, i32),
    // Keeps the functions above where they are.
    _library: Library,
}

impl Nvrtc {
    /// Loads it from a path, or by name where the loader looks. `MissingLibrary`: not there, or not whole.
    pub fn open(path: Option<&Path>) -> Result<Self, CopyError> {
        let missing = |reason| CopyError::MissingLibrary { library: "libnvrtc (NVIDIA's run-time compiler)", reason };
        let mut reasons = Vec::new();
        let mut open = |name: &std::ffi::OsStr| {
            // SAFETY: NVIDIA's library; loading it runs its initialisers, which ask nothing of the process.
            unsafe { Library::new(name) }.map_err(|error| reasons.push(in_full(&error))).ok()
        };
        let library = match path {
            Some(path) => open(path.as_os_str()),
            None => NAMES.iter().find_map(|name| open(name.as_ref())),
        };
        let library = library.ok_or_else(|| missing(reasons.join("; ")))?;
        Self::from_library(library).map_err(|error| missing(in_full(&error)))
    }

    fn from_library(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: the signatures are those of nvrtc.h, unchanged since CUDA 11.1, when machine code came.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = *library.get(b"nvrtcVersion\0")?;
            let (mut major, mut minor) = (0, 0);
            version(&raw mut major, &raw mut minor);
            Ok(Self {
                create: *library.get(b"nvrtcCreateProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0")?,
                log: *library.get(b"nvrtcGetProgramLog\0")?,
                ptx_size: *library.get(b"nvrtcGetPTXSize\0")?,
                ptx: *library.get(b"nvrtcGetPTX\0")?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0")?,
                cubin: *library.get(b"nvrtcGetCUBIN\0")?,
                version: (major, minor),
                _library: library,
            })
        }
    }

    /// Its release, such as (12, 9).
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a source without headers. PTX ends with a zero byte, as the driver wants it. `Failed`: the compiler's log.
    pub fn compile(&self, source: &str, target: Target) -> Result<Vec<u8>, CopyError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| CopyError::Invalid("a zero byte in a text for NVRTC".to_owned()))
        };
        let source = text(source)?;
        let arch = match target {
            Target::Machine(major, minor) => text(&format!("--gpu-architecture=sm_{major}{minor}"))?,
            Target::Ptx(major, minor) => text(&format!("--gpu-architecture=compute_{major}{minor}"))?,
        };
        let options = [arch.as_ptr(), c"--std=c++14".as_ptr()];
        let mut program: Program = std::ptr::null_mut();
        let none: *const *const c_char = std::ptr::null();
        // SAFETY: texts end with zero and live on; there are no headers.
        let made = unsafe { (self.create)(&raw mut program, source.as_ptr(), c"gather.cu".as_ptr(), 0, none, none) };
        if made != 0 {
            return Err(CopyError::Failed(format!("nvrtcCreateProgram answered {made}")));
        }
        // SAFETY: the program was made above; options live on.
        let compiled = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let image = if compiled != 0 {
            // SAFETY: functions and program belong together.
            let log = unsafe { self.take(program, self.log_size, self.log) }.unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            Err(CopyError::Failed(format!(
                "nvrtcCompileProgram answered {compiled} for {target:?}: {}",
                log.trim_end_matches(['\0', '\n'])
            )))
        } else {
            let (size, get) = match target {
                Target::Machine(..) => (self.cubin_size, self.cubin),
                Target::Ptx(..) => (self.ptx_size, self.ptx),
            };
            // SAFETY: functions and program belong together.
            unsafe { self.take(program, size, get) }
        };
        // SAFETY: made above, used no more.
        unsafe { (self.destroy)(&raw mut program) };
        image
    }

    /// # Safety
    /// `get` writes as many bytes as `size` says.
    unsafe fn take(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, CopyError> {
        let mut len = 0;
        // SAFETY: the program is alive.
        let sized = unsafe { size(program, &raw mut len) };
        if sized != 0 || len == 0 || len > MOST_BYTES {
            return Err(CopyError::Failed(format!("NVRTC offers {len} bytes (answer {sized})")));
        }
        let mut bytes = vec![0_u8; len];
        // SAFETY: `len` bytes, as it asked for.
        let got = unsafe { get(program, bytes.as_mut_ptr().cast()) };
        if got == 0 { Ok(bytes) } else { Err(CopyError::Failed(format!("NVRTC answered {got} for its result"))) }
    }
}
