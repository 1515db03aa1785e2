//! Which copy engine to build.

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
    /// GPU copy engines of CUDA. The place for it is kept: no build has it yet.
    Cuda {
        /// Ordinal of the device.
        device: u32,
    },
}

impl CopyEngineKind {
    /// Builds the engine. `Unsupported` for [`CopyEngineKind::Cuda`].
    pub fn build(self) -> Result<Box<dyn CopyEngine>, CopyError> {
        match self {
            Self::Host { threads, queue_entries } => Ok(Box::new(HostCopyEngine::new(threads, queue_entries)?)),
            Self::Null => Ok(Box::new(NullCopyEngine::new())),
            Self::Cuda { device } => Err(CopyError::Unsupported(format!(
                "this build has no CUDA copy engine (asked for device {device}): use the host engine, whose memory is host memory"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_is_refused_in_words() {
        let error = CopyEngineKind::Cuda { device: 3 }.build().err();
        assert!(matches!(&error, Some(CopyError::Unsupported(text)) if text.contains("device 3")), "{error:?}");
    }
}
