//! Which copy engine to build.

use std::sync::Arc;

use crate::cuda::{Cuda, CudaCopyEngine, CudaOptions, DeviceId, Driver};
use crate::engine::{CopyEngine, CopyError};
use crate::host::HostCopyEngine;
use crate::null::NullCopyEngine;

/// Kinds of copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEngineKind {
    /// Memory to memory, on own threads.
    Host {
        /// Threads that copy, 1..=64.
        threads: usize,
        /// Copies in flight at most, at least 1.
        queue_entries: usize,
    },
    /// Nothing moves.
    Null,
    /// A GPU's, with default options and no host memory that it knows to be pinned: for trying it. [`crate::cuda`] has the rest.
    Cuda {
        /// Which device.
        device: DeviceId,
    },
}

impl CopyEngineKind {
    /// Builds the engine. `MissingLibrary` or `Unsupported` for [`CopyEngineKind::Cuda`] where there is no driver, or none that works.
    pub fn build(self) -> Result<Box<dyn CopyEngine>, CopyError> {
        match self {
            Self::Host { threads, queue_entries } => Ok(Box::new(HostCopyEngine::new(threads, queue_entries)?)),
            Self::Null => Ok(Box::new(NullCopyEngine::new())),
            Self::Cuda { device } => {
                let driver: Arc<dyn Driver> = Cuda::load()?.device(device)?;
                Ok(Box::new(CudaCopyEngine::new(&driver, Vec::new(), &CudaOptions::default())?))
            }
        }
    }
}
