//! Opening an NVMe tier on its directories.
use super::tier::{NvmeOptions, NvmeTier};
use crate::error::TierError;

impl NvmeTier {
    /// Opens every directory of the configuration and starts its ring thread.
    pub fn open(options: NvmeOptions<'_>) -> Result<Self, TierError> {
        Self::with_ports(options, Vec::new(), Box::new(crate::catalog::NoCatalog))
    }
}
