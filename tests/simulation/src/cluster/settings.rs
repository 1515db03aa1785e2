//! What a seed decides once about a cluster.

use std::time::Duration;

use terrace_config::{Collector, Config, Geometry, ObjectConfig, TierConfig, TierKind};
use terrace_tiers::object::Shape;

use super::faults::Faults;
use crate::model::namespace_digest;
use crate::rng::Rng;
use crate::settings::{Settings as DiskSettings, config};

/// Where everything of the nodes is in the bucket.
pub(crate) const PREFIX: &str = "terrace";

/// The settings of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of all nodes.
    pub config: Config,
    /// Nodes that use the bucket.
    pub nodes: usize,
    /// Namespaces that they are in, node by node in turn.
    pub namespaces: u8,
    /// What goes wrong with requests, and in the bucket.
    pub faults: Faults,
    /// Steps out of a thousand that change the weather of a node.
    pub weather_per_mille: u32,
    /// Steps out of a thousand in which a node crashes.
    pub crash_per_mille: u32,
    /// Steps out of a thousand in which a node restarts cleanly.
    pub restart_per_mille: u32,
    /// Steps out of a thousand in which a node is stopped for a while.
    pub stop_per_mille: u32,
    /// Steps out of a thousand in which a wall clock jumps.
    pub jump_per_mille: u32,
    /// Wall clocks are off by so many milliseconds at most.
    pub skew_ms: u64,
    /// See [`crate::settings::Settings::chains`].
    pub chains: u64,
    /// The same.
    pub chain_blocks: u64,
    /// The same.
    pub shared_blocks: u64,
    /// Requests open at once, in one node.
    pub requests: usize,
    /// What of each node's disks is so; `None`: nodes have no tier but the bucket.
    pub disks: Option<DiskSettings>,
}

impl Settings {
    /// Draws everything. Without `faults` nothing goes wrong and nothing crashes.
    pub fn draw(rng: &mut Rng, faults: bool) -> Self {
        let geometry = Geometry {
            block_bytes: [4096, 5000][rng.index(2)],
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: rng.between(1, 2) as u32,
            hash_bytes: [8, 32][rng.index(2)],
        };
        let rate = |rng: &mut Rng, rates: [u32; 4]| if faults { rates[rng.index(4)] } else { 0 };
        let mut config = config(rng, geometry);
        config.tiers = vec![TierConfig { name: "object".into(), backfill: false, kind: tier(rng, geometry, faults) }];
        let log_retention_ms = match &config.tiers[0].kind {
            TierKind::Object(object) => object.log_retention.as_millis() as u64,
            _ => 0,
        };
        Self {
            config,
            nodes: rng.between(1, 4) as usize,
            namespaces: rng.between(1, 2) as u8,
            faults: if faults { Faults::draw(rng) } else { Faults::none() },
            weather_per_mille: rate(rng, [0, 0, 5, 20]),
            crash_per_mille: rate(rng, [0, 2, 5, 15]),
            restart_per_mille: [0, 2, 5][rng.index(3)],
            stop_per_mille: rate(rng, [0, 0, 2, 5]),
            jump_per_mille: rate(rng, [0, 0, 2, 10]),
            // Two of them are apart by less than half of `log_retention`, as `docs/cluster.md` wants it.
            skew_ms: [0, 1_000, 14_000, log_retention_ms / 4][rng.index(4)],
            chains: rng.between(2, 8),
            chain_blocks: rng.between(4, 16),
            shared_blocks: rng.below(4),
            requests: rng.between(1, 6) as usize,
            disks: None,
        }
    }

    /// Draws disks for the nodes of half of the seeds, with tiers above the bucket.
    pub fn draw_disks(&mut self, rng: &mut Rng, faults: bool) {
        if rng.chance(500) {
            let disks = DiskSettings::of(rng, faults, self.config.geometry);
            self.config.tiers.splice(0..0, disks.config.tiers.iter().cloned());
            self.disks = Some(disks);
        }
    }

    /// Nodes have no tier but the bucket.
    pub fn leave_disks_out(&mut self) {
        self.config.tiers.retain(|tier| matches!(tier.kind, TierKind::Object(_)));
        self.disks = None;
    }

    /// The tier's configuration.
    pub fn object(&self) -> &ObjectConfig {
        match self.config.tiers.last().map(|tier| &tier.kind) {
            Some(TierKind::Object(object)) => object,
            _ => panic!("the last tier of settings is an object tier"),
        }
    }

    /// The same, to change it between two lives.
    pub fn object_mut(&mut self) -> &mut ObjectConfig {
        match self.config.tiers.last_mut().map(|tier| &mut tier.kind) {
            Some(TierKind::Object(object)) => object,
            _ => panic!("the last tier of settings is an object tier"),
        }
    }

    /// No read is sent twice.
    pub fn leave_hedges_out(&mut self) {
        self.object_mut().hedge_share = 0.0;
    }

    /// Shape of the blocks of a namespace.
    pub fn shape(&self, namespace: u8) -> Shape {
        let Geometry { block_bytes, hash_bytes, .. } = self.config.geometry;
        Shape { namespace: namespace_digest(namespace), block_bytes, key_bytes: hash_bytes + 4 }
    }
}

/// Sizes are below what a configuration file may say: segments of some blocks, in several parts, read in several ranges.
fn tier(rng: &mut Rng, geometry: Geometry, faults: bool) -> TierKind {
    let block_bytes = geometry.block_bytes;
    let millis = |rng: &mut Rng, from: u64, to: u64| Duration::from_millis(rng.between(from, to));
    let capacity_blocks = [rng.between(8, 60), rng.between(60, 400)][rng.index(2)];
    let fold_interval = millis(rng, 50, 1_000);
    let orphan_age = Duration::from_secs([600, 900][rng.index(2)]);
    let high_watermark = [1.0, 0.95, 0.8][rng.index(3)];
    TierKind::Object(ObjectConfig {
        node: Some("simulated".into()),
        high_watermark,
        low_watermark: high_watermark - [0.0, 0.05, 0.3][rng.index(3)],
        max_age: [None, None, Some(Duration::from_secs(rng.between(60, 3_000)))][rng.index(3)],
        segment_bytes: block_bytes * rng.between(1, 12) as u32,
        part_bytes: block_bytes * rng.between(1, 12) as u32,
        range_bytes: block_bytes * rng.between(1, 12) as u32,
        linger: millis(rng, 0, 200),
        staging_bytes: u64::from(block_bytes) * rng.between(14, 60),
        connections: rng.skewed(32) as u32,
        queue_entries: rng.between(1, 64) as u32,
        publish_interval: millis(rng, 1, 500),
        fold_interval,
        fold_interval_max: fold_interval + millis(rng, 0, 20_000),
        hedge_share: [0.0, 0.05, 0.5][rng.index(3)],
        read_requests_per_second: if faults { [0, 0, 0, 50][rng.index(4)] } else { 0 },
        write_requests_per_second: if faults { [0, 0, 0, 20][rng.index(4)] } else { 0 },
        read_bytes_per_day: if faults && rng.chance(60) { Some(rng.below(1 << 22)) } else { None },
        write_bytes_per_day: if faults && rng.chance(60) { Some(rng.below(1 << 22)) } else { None },
        collector: Collector::Auto,
        lease: Duration::from_secs([3, 10, 30][rng.index(3)]),
        compaction_interval: millis(rng, 1_000, 60_000),
        orphan_age,
        log_retention: Duration::from_secs([60, 300, 900][rng.index(3)]),
        ..ObjectConfig::new(format!("s3://bucket/{PREFIX}"), capacity_blocks * u64::from(block_bytes + 4096))
    })
}
