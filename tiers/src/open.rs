//! Building the tiers that the configuration names.

use std::sync::Arc;

use terrace_config::{Geometry, NvmeConfig, TierConfig, TierKind};
use terrace_primary::Region;

use crate::catalog::NoCatalog;
use crate::clock::Clock;
use crate::error::TierError;
use crate::memory::MemoryTier;
use crate::nvme::{NullPort, NvmeOptions, NvmeTier, ShardPort};
use crate::object::{Extras, ObjectOptions, ObjectTier, SystemWallClock};
use crate::tenant::{TierNamespace, write_label};
use crate::tier::SecondaryTier;

/// The tier that `config` names, over the blocks of `region`, for one namespace. Waits for the directories to be opened and
/// probed, not for what is in them. Fails where the tier could not work at all; later faults end as misses.
///
/// A namespace that comes with its label leaves it beside its blocks. That it cannot is said in the log.
pub fn open_tier(
    config: &TierConfig,
    namespace: impl Into<TierNamespace>,
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<Box<dyn SecondaryTier>, TierError> {
    let TierNamespace { digest: namespace, label } = namespace.into();
    Ok(match &config.kind {
        TierKind::Memory(memory) => Box::new(MemoryTier::new(&config.name, *memory, region)),
        TierKind::Nvme(nvme) => {
            let name = config.name.clone();
            let tier =
                NvmeTier::open(NvmeOptions { config: nvme, name, namespace, geometry: *geometry, region, clock })?;
            // Only now: the directories are locked.
            for root in label.iter().flat_map(|_| &nvme.paths) {
                if let Err(error) = write_label(root, &namespace, label.as_deref().unwrap_or_default()) {
                    tracing::warn!(
                        directory = %root.display(),
                        %error,
                        "the namespace's label was not written: `terrace tenant ls` shows it as unknown"
                    );
                }
            }
            Box::new(tier)
        }
        TierKind::Object(object) => {
            let (name, wall) = (config.name.clone(), Arc::new(SystemWallClock));
            let geometry = *geometry;
            let options = ObjectOptions { config: object, name, namespace, geometry, region, clock, wall };
            Box::new(ObjectTier::open_with(options, Extras { label, ..Extras::default() })?)
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
