//! What one namespace gets of a daemon's configuration.

use std::path::{Path, PathBuf};

use crate::error::ConfigError;
use crate::model::{Config, Geometry, ObjectConfig, TierKind};
use crate::namespace::Namespace;

impl Config {
    /// The configuration of the pool at `index`, `0..server.pools`, for blocks of this namespace and geometry: an equal part of every
    /// capacity, or its share ([`Config::share_at`]; of NVMe tiers the most that it can have). With several pools each has its own directory `pool-<index>` in every path of an NVMe tier.
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
        let share = self.share_at(index);
        // Of what is divided once, and the most of what can be borrowed.
        let fixed = |bytes: u64| share.map_or(bytes / pools, |share| (bytes as f64 * share.fixed) as u64);
        let most = |bytes: u64| share.map_or(bytes / pools, |share| (bytes as f64 * share.maximum) as u64);
        let mut pool = Self { namespace, geometry, ..self.clone() };
        let bytes = fixed(u64::from(self.primary.blocks) * u64::from(self.geometry.slot_stride()));
        let slots = bytes / u64::from(geometry.slot_stride()).max(1);
        pool.primary.blocks = u32::try_from(slots).unwrap_or(u32::MAX);
        for tier in &mut pool.tiers {
            match &mut tier.kind {
                TierKind::Memory(memory) => memory.capacity_bytes = fixed(memory.capacity_bytes),
                // Pools have prefixes of their own below the url, by their namespaces.
                TierKind::Object(object) => {
                    let capacity_bytes = fixed(object.capacity_bytes);
                    *object = ObjectConfig { capacity_bytes, ..object.for_one_of(self.server.pools) };
                }
                TierKind::Nvme(nvme) => {
                    nvme.capacity_bytes = most(nvme.capacity_bytes);
                    for path in &mut nvme.paths {
                        *path = Self::pool_path(path, self.server.pools, index);
                    }
                }
            }
        }
        pool.validate(origin)?;
        Ok(pool)
    }

    /// The directory of the pool at `index`, `0..pools`, in a path of an NVMe tier.
    pub fn pool_path(path: &Path, pools: u32, index: u32) -> PathBuf {
        if pools > 1 { path.join(format!("pool-{index}")) } else { path.to_owned() }
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
