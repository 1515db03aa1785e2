//! Building the tiers that the configuration names.

use std::sync::Arc;

use terrace_config::{Choice, Geometry, NvmeConfig, TierConfig, TierKind};
use terrace_primary::{Region, RegionOptions};

use crate::catalog::NoCatalog;
use crate::clock::Clock;
use crate::error::TierError;
use crate::memory::MemoryTier;
use crate::nvme::{NullPort, NvmeOptions, NvmeTier, ShardPort};
use crate::object::{Extras, ObjectOptions, ObjectTier, SystemWallClock};
use crate::tenant::{ENVELOPE_BYTES, KeyedTier, Keyring, SealedTier, Sealer, TierNamespace, write_label};
use crate::tier::SecondaryTier;

/// Staging memory of a tier that keeps blocks sealed, as far as the bounds below let it.
const STAGING_BYTES: u32 = 128 << 20;
/// Least and most staging slots.
const STAGING_SLOTS: (u32, u32) = (16, 1024);

/// The tier that `config` names, over the blocks of `region`, for one namespace. Waits for the directories to be opened and
/// probed, not for what is in them. Fails where the tier could not work at all; later faults end as misses.
///
/// A namespace that comes with its label leaves it beside its blocks. That it cannot is said in the log. One that comes with keys stands
/// below their layers; a memory tier keeps nothing that anybody else could read, and has none.
pub fn open_tier(
    config: &TierConfig,
    namespace: impl Into<TierNamespace>,
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<Box<dyn SecondaryTier>, TierError> {
    let namespace = namespace.into();
    match (&config.kind, namespace.keys.clone()) {
        (TierKind::Memory(_), _) | (_, None) => open_bare(config, &namespace, geometry, region, clock),
        (_, Some(keys)) if keys.is_sealed() => {
            let sealed = open_sealed(config, &namespace, &keys, geometry, region, clock)?;
            Ok(Box::new(KeyedTier::new(Box::new(sealed), keys)))
        }
        (_, Some(keys)) => Ok(Box::new(KeyedTier::new(open_bare(config, &namespace, geometry, region, clock)?, keys))),
    }
}

/// A tier over staging slots, and what seals into them.
fn open_sealed(
    config: &TierConfig,
    namespace: &TierNamespace,
    keys: &Arc<Keyring>,
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<SealedTier, TierError> {
    let below = Geometry { block_bytes: geometry.block_bytes.saturating_add(ENVELOPE_BYTES as u32), ..*geometry };
    let (least, most) = STAGING_SLOTS;
    let staging = Region::create(
        &RegionOptions {
            slots: (STAGING_BYTES / below.slot_stride().max(1)).clamp(least, most),
            slot_stride: below.slot_stride(),
            block_bytes: below.block_bytes,
            huge_pages: Choice::Auto,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        },
        &|_, _| {},
    );
    let staging = staging.map_err(|error| TierError::System {
        step: "the staging memory of a tier with encryption",
        source: std::io::Error::other(error),
    })?;
    let inner = open_bare(config, namespace, &below, Arc::clone(&staging), Arc::clone(&clock))?;
    SealedTier::new(inner, Sealer::new(namespace.digest, Arc::clone(keys)), region, staging, clock)
}

fn open_bare(
    config: &TierConfig,
    namespace: &TierNamespace,
    geometry: &Geometry,
    region: Arc<Region>,
    clock: Arc<dyn Clock>,
) -> Result<Box<dyn SecondaryTier>, TierError> {
    let TierNamespace { digest: namespace, label, .. } = namespace.clone();
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
