//! What one namespace gets of a daemon's configuration.

use crate::error::ConfigError;
use crate::model::{Config, Geometry, ObjectConfig, TierKind};
use crate::namespace::Namespace;

impl Config {
    /// The configuration of the pool at `index`, `0..server.pools`, for blocks of this namespace and geometry: an equal part of every
    /// capacity. With several pools each has its own directory `pool-<index>` in every path of an NVMe tier.
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
                // Pools have prefixes of their own below the url, by their namespaces.
                TierKind::Object(object) => *object = object.for_one_of(self.server.pools),
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

impl ObjectConfig {
    /// What one of `pools` pools gets: an equal part of the capacity and of every limit that is said for all pools together. What is
    /// limited stays so.
    #[must_use]
    pub fn for_one_of(&self, pools: u32) -> Self {
        let pools = pools.max(1);
        let rate = |limit: u32| if limit == 0 { 0 } else { (limit / pools).max(1) };
        let bytes = |limit: Option<u64>| limit.map(|limit| (limit / u64::from(pools)).max(1));
        Self {
            capacity_bytes: self.capacity_bytes / u64::from(pools),
            read_requests_per_second: rate(self.read_requests_per_second),
            write_requests_per_second: rate(self.write_requests_per_second),
            read_bytes_per_day: bytes(self.read_bytes_per_day),
            write_bytes_per_day: bytes(self.write_bytes_per_day),
            ..self.clone()
        }
    }
}
