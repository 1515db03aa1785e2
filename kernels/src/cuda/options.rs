//! Options of a CUDA engine, and where its compiled kernels are kept.

use std::path::PathBuf;

use super::plan::PathChoice;

/// What a CUDA engine is built with.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Copies in flight at most, at least 1.
    pub queue_entries: usize,
    /// Which way to copy.
    pub path: PathChoice,
    /// Thread blocks of the gather kernel, 1 to 1024: as many multiprocessors work for it at most. 16 of 512 threads have 1 MiB in
    /// flight, several times what a PCIe 5 link needs.
    pub kernel_blocks: u32,
    /// Bytes of the kernel's tables in each direction: 24 bytes for up to 4 KiB of a batch. 0: no kernel.
    pub table_bytes: usize,
    /// Bytes on the device, and as much pinned memory, for measuring the paths when the engine is built; 64 MiB take a few hundred
    /// milliseconds. 0: the choice is made blindly.
    pub calibrate_bytes: usize,
    /// Path of `libnvrtc`. `None`: where the loader finds it. Without it the PTX that is built in is taken.
    pub nvrtc: Option<PathBuf>,
    /// Directory for compiled kernels, made if it is not there. `None`: nothing is kept.
    pub cache_dir: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            queue_entries: 1024,
            path: PathChoice::Auto,
            kernel_blocks: 16,
            table_bytes: 4 << 20,
            calibrate_bytes: 64 << 20,
            nvrtc: None,
            cache_dir: default_cache_dir(),
        }
    }
}

/// `$XDG_CACHE_HOME/terrace/kernels`, or `~/.cache/terrace/kernels`. `None` without either variable.
pub fn default_cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("terrace/kernels"))
}
