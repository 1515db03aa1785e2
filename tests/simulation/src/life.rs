//! One life of the simulated process: the real manager over the real tier over simulated disks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use terrace_config::TierKind;
use terrace_primary::{Key, Region};
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::catalog::{CatalogStore, NoCatalog};
use terrace_tiers::nvme::{InlinePort, NvmeOptions, ShardOptions, ShardPort};
use terrace_tiers::{Clock, ManualClock, MemoryTier, NvmeTier, SecondaryTier, Time};

use crate::catalog::CatalogDisk;
use crate::disk::Disk;
use crate::model::namespace_digest;
use crate::settings::Settings;
use crate::tier::SharedTier;

/// What a life starts with beside the settings.
pub(crate) struct Start<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) clock: &'a ManualClock,
    pub(crate) region: &'a Arc<Region>,
    /// `None`: no catalog, the files are scanned.
    pub(crate) catalog: Option<&'a CatalogDisk>,
    pub(crate) namespace: u8,
    pub(crate) verify_crc: bool,
    /// See [`Life::old_faults`].
    pub(crate) old_faults: u64,
}

/// A running process.
pub(crate) struct Life {
    pub(crate) manager: TieringOffloadingManager,
    pub(crate) tier: SharedTier,
    pub(crate) namespace: u8,
    pub(crate) capacity_bytes: u64,
    /// What the files took when it started.
    pub(crate) inherited_bytes: u64,
    /// The least that they took since, as the tier counts or as they do: above the capacity it only falls.
    pub(crate) least_bytes: u64,
    /// Files of an earlier life that a catalog may not know, until the scan behind normal work has shown them.
    pub(crate) unseen_files: u64,
    /// Faults and failures of the disk before the last start that looked at every file: what they left is counted.
    pub(crate) old_faults: u64,
    /// The scan took so long that it may have been taken for hung.
    pub(crate) scan_is_late: bool,
    started: Time,
    /// What the events say is readable in the primary.
    pub(crate) told: BTreeSet<Key>,
    /// A reset waits for transfers of the engine.
    pub(crate) reset_pending: bool,
}

/// Opens the tiers and starts the manager over them. Panics where the real one would refuse its configuration: settings are drawn legal.
pub(crate) fn open(settings: &Settings, start: &Start<'_>) -> (TieringOffloadingManager, SharedTier) {
    let (tiers, tier) = open_tiers(settings, start);
    let manager = TieringOffloadingManager::new(&settings.config, tiers, Arc::new(start.clock.clone()));
    let mut manager = manager.unwrap_or_else(|error| panic!("the manager does not start: {error}"));
    if settings.config.primary.check_on_load {
        manager.check_loads(Arc::clone(start.region));
    }
    (manager, tier)
}

/// Opens the tiers: all of them, and the NVMe tier among them once more.
pub(crate) fn open_tiers(settings: &Settings, start: &Start<'_>) -> (Vec<Box<dyn SecondaryTier>>, SharedTier) {
    let config = &settings.config;
    let nvme = settings.nvme();
    let namespace = namespace_digest(start.namespace);
    let clock = Arc::new(start.clock.clone());
    let ports = (0..nvme.paths.len()).map(|root| -> Box<dyn ShardPort> {
        let options = ShardOptions {
            queue_depth: nvme.queue_depth,
            queue_entries: nvme.queue_entries,
            quarantine_files: 2,
            verify_crc: start.verify_crc,
            ..ShardOptions::new(namespace)
        };
        let device = start.disk.device(root, nvme.queue_depth);
        Box::new(InlinePort::new(device, Arc::clone(start.region), clock.clone(), options))
    });
    let options = NvmeOptions {
        config: nvme,
        name: "nvme".into(),
        namespace,
        geometry: config.geometry,
        region: Arc::clone(start.region),
        clock: clock.clone(),
    };
    let catalog: Box<dyn CatalogStore> = match start.catalog {
        Some(disk) => Box::new(disk.open()),
        None => Box::new(NoCatalog),
    };
    let tier = NvmeTier::with_ports(options, ports.collect(), catalog);
    let tier = tier.unwrap_or_else(|error| panic!("the tier does not open: {error}"));
    let tier = SharedTier::new(tier, start.clock.clone());
    let tiers = config.tiers.iter().map(|configured| -> Box<dyn SecondaryTier> {
        match &configured.kind {
            TierKind::Memory(memory) => Box::new(MemoryTier::new(&configured.name, *memory, Arc::clone(start.region))),
            TierKind::Nvme(_) => Box::new(tier.clone()),
            TierKind::Object(_) => panic!("the simulation has no object tier"),
        }
    });
    (tiers.collect(), tier)
}

impl Life {
    /// Starts a process.
    pub(crate) fn start(settings: &Settings, start: &Start<'_>) -> Self {
        let (manager, tier) = open(settings, start);
        Self {
            manager,
            tier,
            namespace: start.namespace,
            capacity_bytes: settings.nvme().capacity_bytes,
            inherited_bytes: start.disk.used().bytes,
            least_bytes: start.disk.used().bytes,
            unseen_files: if start.catalog.is_some() { 64 } else { 0 },
            old_faults: start.old_faults,
            scan_is_late: false,
            started: start.clock.now(),
            told: BTreeSet::new(),
            reset_pending: false,
        }
    }

    /// To be called before each poll: a tier takes a scan that shows nothing for 30 s for hung.
    pub(crate) fn watch_scan(&mut self, now: Time) {
        self.scan_is_late |= now.since(self.started) >= Duration::from_secs(29) && !self.tier.lock().is_known();
    }
}
