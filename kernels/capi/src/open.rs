//! Engines from options that were read and checked.

use std::path::PathBuf;
use std::sync::Arc;

use terrace_kernels::HostCopyEngine;
use terrace_kernels::cuda::{Cuda, CudaCopyEngine, CudaOptions, DeviceId, Driver, Path, PathChoice, PinOptions};

use crate::abi;
use crate::refusal::Refusal;
use crate::session::{Copier, Session};

const QUEUE_ENTRIES: u32 = 1024;
const HOST_THREADS: u32 = 2;

/// [`abi::Options`] without pointers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plain {
    pub kind: u32,
    pub path: u32,
    pub flags: u32,
    pub device: Option<String>,
    pub nvrtc: Option<PathBuf>,
    /// `None`: the user's cache. An empty one: none.
    pub cache_dir: Option<PathBuf>,
    pub piece_bytes: u64,
    pub kernel_blocks: u32,
    pub queue_entries: u32,
    pub host_threads: u32,
    pub register_threads: u32,
}

const fn or(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

impl Plain {
    pub fn queue_entries(&self) -> usize {
        or(self.queue_entries, QUEUE_ENTRIES) as usize
    }

    fn cuda(&self) -> Result<(CudaOptions, PinOptions), Refusal> {
        let path = match self.path {
            abi::PATH_AUTO => PathChoice::Auto,
            abi::PATH_BATCH => PathChoice::Only(Path::Batch),
            abi::PATH_RUNS => PathChoice::Only(Path::Runs),
            abi::PATH_RECTS => PathChoice::Only(Path::Rects),
            abi::PATH_KERNEL => PathChoice::Only(Path::Kernel),
            other => return Err(Refusal::invalid(format!("path {other}: 0 to 4"))),
        };
        let (engine, pins) = (CudaOptions::default(), PinOptions::default());
        let engine = CudaOptions {
            queue_entries: self.queue_entries(),
            path,
            kernel_blocks: or(self.kernel_blocks, engine.kernel_blocks),
            nvrtc: self.nvrtc.clone(),
            cache_dir: match &self.cache_dir {
                None => engine.cache_dir,
                Some(dir) if dir.as_os_str().is_empty() => None,
                Some(dir) => Some(dir.clone()),
            },
            ..engine
        };
        let piece_bytes = match usize::try_from(self.piece_bytes) {
            Ok(0) => pins.piece_bytes,
            Ok(bytes) => bytes,
            Err(_) => return Err(Refusal::invalid(format!("piece_bytes {}", self.piece_bytes))),
        };
        let threads = match self.register_threads {
            0 => pins.threads,
            threads => threads as usize,
        };
        Ok((engine, PinOptions { piece_bytes, threads }))
    }

    /// The device's driver; `None` for the host's engine.
    fn driver(&self) -> Result<Option<Arc<dyn Driver>>, Refusal> {
        let id: DeviceId = self.device.as_deref().unwrap_or("0").parse()?;
        let cuda = match (self.kind, Cuda::load()) {
            (abi::HOST, _) => return Ok(None),
            (_, Ok(cuda)) => cuda,
            (abi::AUTO, Err(error)) => {
                tracing::info!("no GPU is used: {error}");
                return Ok(None);
            }
            (_, Err(error)) => return Err(error.into()),
        };
        Ok(Some(cuda.device(id)?))
    }

    /// Opens the engine that is asked for.
    pub fn open(&self) -> Result<Session, Refusal> {
        if self.kind > abi::CUDA {
            return Err(Refusal::invalid(format!("kind {}: 0 to 2", self.kind)));
        }
        if self.flags & !abi::NO_COPIES != 0 {
            return Err(Refusal::invalid(format!("flags {:#x}: a bit that is not known", self.flags)));
        }
        match self.driver()? {
            Some(driver) => self.open_on(driver),
            None => {
                // Checked alike on every machine.
                self.cuda()?;
                let threads = or(self.host_threads, HOST_THREADS) as usize;
                let engine = HostCopyEngine::new(threads, self.queue_entries())?;
                let copier = if self.copies() { Copier::Host(Box::new(engine)) } else { Copier::None };
                Ok(Session::new(copier, None, self.queue_entries(), PinOptions::default()))
            }
        }
    }

    const fn copies(&self) -> bool {
        self.flags & abi::NO_COPIES == 0
    }

    /// Opens an engine on a device.
    pub fn open_on(&self, driver: Arc<dyn Driver>) -> Result<Session, Refusal> {
        let (engine, pins) = self.cuda()?;
        let copier = if self.copies() {
            Copier::Cuda(Box::new(CudaCopyEngine::new(&driver, Vec::new(), &engine)?))
        } else {
            Copier::None
        };
        Ok(Session::new(copier, Some(driver), self.queue_entries(), pins))
    }
}
