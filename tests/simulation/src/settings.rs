//! What a seed decides once: sizes, limits, deadlines, and what goes wrong.

use std::path::PathBuf;
use std::time::Duration;

use terrace_config::{
    AdmissionConfig, BreakerConfig, Choice, Config, Deadlines, Geometry, Limits, MemoryConfig, Namespace, NvmeConfig,
    Policy, PrimaryConfig, TierConfig, TierKind,
};

use crate::disk::Faults;
use crate::rng::Rng;

/// Slots that the memory of a simulated process has; the primary uses the first of them.
pub const MOST_SLOTS: u32 = 24;

/// The settings of one seed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration of the first life; later lives may change its capacity.
    pub config: Config,
    /// Faults of the disk.
    pub faults: Faults,
    /// Steps out of a thousand that change the weather.
    pub weather_per_mille: u32,
    /// Steps out of a thousand that end in a crash.
    pub crash_per_mille: u32,
    /// Crashes out of a thousand in which the power fails; in the others the process is killed.
    pub power_loss_per_mille: u32,
    /// Steps out of a thousand that end in a clean restart.
    pub restart_per_mille: u32,
    /// Whether lives have a catalog.
    pub catalog: bool,
    /// Whether the namespace may change between lives.
    pub namespaces: u8,
    /// Whether the capacity may change between lives.
    pub capacity_changes: bool,
    /// Whether a power loss may keep later changes of names and lose earlier ones.
    pub disorder: bool,
    /// Conversations, their longest length, and how many of their first blocks they share.
    pub chains: u64,
    /// See `chains`.
    pub chain_blocks: u64,
    /// See `chains`.
    pub shared_blocks: u64,
    /// Requests open at once.
    pub requests: usize,
    /// Whether the manager is reset now and then.
    pub resets: bool,
    /// Whether requests pin blocks.
    pub pins: bool,
}

impl Settings {
    /// Draws everything. Without `faults` nothing goes wrong and nothing crashes.
    pub fn draw(rng: &mut Rng, faults: bool) -> Self {
        let geometry = Geometry {
            block_bytes: [4096, 5000, 8192][rng.index(3)],
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: rng.between(1, 2) as u32,
            hash_bytes: [8, 32][rng.index(2)],
        };
        Self::of(rng, faults, geometry)
    }

    /// The same for blocks of this shape.
    pub fn of(rng: &mut Rng, faults: bool, geometry: Geometry) -> Self {
        let calm = !faults;
        Self {
            config: config(rng, geometry),
            faults: if calm { Faults::none() } else { Faults::draw(rng) },
            weather_per_mille: if calm { 0 } else { [0, 0, 5, 15][rng.index(4)] },
            crash_per_mille: if calm { 0 } else { [0, 3, 6, 12][rng.index(4)] },
            power_loss_per_mille: [0, 500, 500, 900][rng.index(4)],
            restart_per_mille: [0, 2, 5][rng.index(3)],
            catalog: rng.chance(500),
            namespaces: rng.between(1, 2) as u8,
            capacity_changes: !calm && rng.chance(200),
            disorder: !calm && rng.chance(300),
            chains: rng.between(2, 8),
            chain_blocks: rng.between(4, 16),
            shared_blocks: rng.below(4),
            requests: rng.between(1, 6) as usize,
            resets: true,
            pins: true,
        }
    }
}

impl Settings {
    /// The NVMe tier's configuration.
    pub fn nvme(&self) -> &NvmeConfig {
        let kinds = self.config.tiers.iter().map(|tier| &tier.kind);
        let found = kinds.filter_map(|kind| if let TierKind::Nvme(nvme) = kind { Some(nvme) } else { None }).next();
        found.unwrap_or_else(|| panic!("settings always have an NVMe tier"))
    }

    /// The same, to change it between two lives.
    pub fn nvme_mut(&mut self) -> &mut NvmeConfig {
        let kinds = self.config.tiers.iter_mut().map(|tier| &mut tier.kind);
        let found = kinds.filter_map(|kind| if let TierKind::Nvme(nvme) = kind { Some(nvme) } else { None }).next();
        found.unwrap_or_else(|| panic!("settings always have an NVMe tier"))
    }
}

/// A configuration with an NVMe tier.
pub(crate) fn config(rng: &mut Rng, geometry: Geometry) -> Config {
    let seconds = |rng: &mut Rng, from: u64, to: u64| Duration::from_millis(rng.between(from * 1000, to * 1000));
    let lookup = seconds(rng, 1, 3);
    let blocks = rng.between(4, u64::from(MOST_SLOTS)) as u32;
    Config {
        server: Default::default(),
        copy: Default::default(),
        primary: PrimaryConfig {
            blocks,
            policy: [Policy::Lru, Policy::Arc][rng.index(2)],
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
            check_on_load: blocks.is_multiple_of(2),
        },
        geometry,
        namespace: Namespace::default(),
        admission: AdmissionConfig { store_threshold: [1, 1, 1, 2][rng.index(4)], tracker_entries: 64 },
        limits: Limits {
            promotion_share: [0.3, 0.5, 0.8][rng.index(3)],
            cascade_share: [0.25, 0.5, 1.0][rng.index(3)],
            queued_cascades: [4, 64, 65536][rng.index(3)],
            pin_share: 0.25,
            requests: 8,
            keys_per_call: 1024,
            events: 65536,
        },
        deadlines: Deadlines {
            lookup,
            promotion: lookup + seconds(rng, 0, 2),
            cascade: seconds(rng, 1, 6),
            hold: seconds(rng, 1, 4),
            pin: seconds(rng, 2, 20),
            drain: seconds(rng, 1, 4),
        },
        breaker: BreakerConfig {
            failures: rng.between(1, 5) as u32,
            cooldown: seconds(rng, 1, 5),
            // A small one would take the scatter of the simulated devices for sickness.
            slow_factor: match rng.between(0, 40) as u32 {
                0..10 => 0,
                factor => factor,
            },
            stall: seconds(rng, 0, 3).max(Duration::from_millis(1)),
        },
        tenants: Vec::new(),
        tiers: tiers(rng, geometry),
    }
}

/// NVMe, sometimes below a memory tier.
fn tiers(rng: &mut Rng, geometry: Geometry) -> Vec<TierConfig> {
    let mut tiers = Vec::new();
    if rng.chance(250) {
        let capacity_bytes = u64::from(geometry.block_bytes) * rng.between(1, 12);
        let kind = TierKind::Memory(MemoryConfig { capacity_bytes });
        tiers.push(TierConfig { name: "memory".into(), backfill: rng.chance(500), kind });
    }
    let kind = TierKind::Nvme(nvme(rng, geometry));
    tiers.push(TierConfig { name: "nvme".into(), backfill: rng.chance(500), kind });
    tiers
}

fn nvme(rng: &mut Rng, geometry: Geometry) -> NvmeConfig {
    let file_bytes = u64::from(geometry.slot_stride()) + 4096;
    let high_watermark = [1.0, 1.0, 0.9][rng.index(3)];
    NvmeConfig {
        paths: (0..rng.between(1, 3)).map(|at| PathBuf::from(format!("/disk{at}/terrace"))).collect(),
        capacity_bytes: file_bytes * rng.between(3, 60) + rng.below(file_bytes),
        high_watermark,
        low_watermark: high_watermark - [0.0, 0.01, 0.2][rng.index(3)],
        queue_depth: rng.skewed(32) as u32,
        queue_entries: rng.between(1, 64) as u32,
        direct_io: Choice::Off,
        io_uring: Choice::Off,
        catalog: Choice::Auto,
        scrub_bytes_per_second: 0,
    }
}
