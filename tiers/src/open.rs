//! Building the tiers that the configuration names.

use std::sync::Arc;

use terrace_config::{Geometry, NvmeConfig, TierConfig, TierKind};
use terrace_primary::Region;

use crate::catalog::NoCatalog;
use crate::clock::Clock;
use crate::error::TierError;
use crate::memory::MemoryTier;
use crate::nvme::{NullPort, NvmeOptions, NvmeTier, ShardPort};
use crate::object::{ObjectOptions, ObjectTier, SystemWallClock};
use crate::tier::SecondaryTier;

/// The tier that `config` names, over the blocks of `region`, for one namespace. Waits for the directories to be opened and
/// probed, not for what is in them. Fails where the tier could not work at all; later faults end as misses.
pub fn open_tier(
    config: &TierConfig,
    namespace: [u8; 32],
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<Box<dyn SecondaryTier>, TierError> {
    Ok(match &config.kind {
        TierKind::Memory(memory) => Box::new(MemoryTier::new(&config.name, *memory, region)),
        TierKind::Nvme(nvme) => {
            let name = config.name.clone();
            Box::new(NvmeTier::open(NvmeOptions { config: nvme, name, namespace, geometry: *geometry, region, clock })?)
        }
        TierKind::Object(object) => {
            let (name, wall) = (config.name.clone(), Arc::new(SystemWallClock));
            let geometry = *geometry;
            Box::new(ObjectTier::open(ObjectOptions {
                config: object,
                name,
                namespace,
                geometry,
                region,
                clock,
                wall,
            })?)
        }
    })
}

/// An NVMe tier that moves no byte: index, capacity and eviction are the real ones, every operation succeeds with the next
/// poll. For policy studies.
pub fn null_nvme_tier(
    name: &str,
    config: &NvmeConfig,
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<NvmeTier, TierError> {
    let ports = config
        .paths
        .iter()
        .map(|_| -> Box<dyn ShardPort> { Box::new(NullPort::new(geometry.block_bytes, config.queue_entries)) });
    let ports = ports.collect();
    let options = NvmeOptions { config, name: name.into(), namespace: [0; 32], geometry: *geometry, region, clock };
    NvmeTier::with_ports(options, ports, Box::new(NoCatalog))
}
