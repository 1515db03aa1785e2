//! What one namespace gets of a daemon's configuration.

use crate::error::ConfigError;
use crate::model::{Config, Geometry, TierKind};
use crate::namespace::Namespace;

impl Config {
    /// The configuration of the pool at `index`, `0..server.pools`, for blocks of this namespace and geometry: an equal part of every
    /// capacity. With several pools each has its own directory `pool-<index>` in every path of a tier.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if the geometry is out of bounds, or does not fit a pool's part of the capacities. `origin` stands where a
    /// file's name would.
    pub fn for_pool(
        &self,
        index: u32,
        namespace: Namespace,
        geometry: Geometry,
        origin: &str,
    ) -> Result<Self, ConfigError> {
        let pools = u64::from(self.server.pools).max(1);
        let mut pool = Self { namespace, geometry, ..self.clone() };
        let bytes = u64::from(self.primary.blocks) * u64::from(self.geometry.slot_stride()) / pools;
        let slots = bytes / u64::from(geometry.slot_stride()).max(1);
        pool.primary.blocks = u32::try_from(slots).unwrap_or(u32::MAX);
        for tier in &mut pool.tiers {
            match &mut tier.kind {
                TierKind::Memory(memory) => memory.capacity_bytes /= pools,
                TierKind::Nvme(nvme) => {
                    nvme.capacity_bytes /= pools;
                    if pools > 1 {
                        nvme.paths.iter_mut().for_each(|path| path.push(format!("pool-{index}")));
                    }
                }
            }
        }
        pool.validate(origin)?;
        Ok(pool)
    }
}
