//! One life of a node: the real manager over the real object tier, sometimes below an NVMe tier, all of it on a runtime that stands still until it is told.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use object_store::path::Path;
use terrace_primary::Region;
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::object::{ObjectOptions, ObjectTier, WriterId};

use super::bucket::Bucket;
use super::disks::NodeDisks;
use super::driver::Driver;
use super::requests::Requests;
use super::settings::{PREFIX, Settings};
use super::view::View;
use crate::memory;
use crate::model::namespace_digest;
use crate::rng::Rng;
use crate::tier::SharedTier;

/// A running node.
pub(crate) struct Life {
    pub manager: TieringOffloadingManager,
    pub driver: Driver,
    pub region: Arc<Region>,
    pub requests: Requests,
    pub namespace: u8,
    /// The tier over the node's disks.
    pub nvme: Option<SharedTier>,
}

/// What a life starts with beside the settings.
pub(crate) struct Start<'a> {
    pub bucket: &'a Bucket,
    pub node: usize,
    /// Unique among all lives.
    pub number: u64,
    pub world: Duration,
    pub off_ms: Arc<AtomicI64>,
    pub namespace: u8,
    pub disks: Option<&'a NodeDisks>,
}

impl Life {
    /// Starts a node. Panics where the real one would refuse its configuration: settings are drawn legal.
    pub fn start(settings: &Settings, rng: &mut Rng, start: Start<'_>) -> Self {
        let Start { bucket, node, number, world, off_ms, namespace, disks } = start;
        let driver = Driver::new(world, off_ms, [1, 3, 61][rng.index(3)]);
        let region = memory::region_of(&settings.config.geometry, node, rng);
        let clock = Arc::new(driver.clock().clone());
        let view = View { bucket: bucket.clone(), node, life: number, clock: driver.clock().clone() };
        let options = ObjectOptions {
            config: settings.object(),
            name: "object".into(),
            namespace: namespace_digest(namespace),
            geometry: settings.config.geometry,
            region: Arc::clone(&region),
            clock: clock.clone(),
            wall: clock.clone(),
        };
        let (writer, seed) = (WriterId(rng.next()), rng.next());
        let host = |half| driver.host(half);
        let tier = ObjectTier::with_host(options, Arc::new(view), &Path::from(PREFIX), writer, seed, host);
        let tier = tier.unwrap_or_else(|error| panic!("the tier does not open: {error}"));
        let (mut tiers, nvme) = match disks.map(|disks| disks.open(&region, namespace)) {
            Some((tiers, nvme)) => (tiers, Some(nvme)),
            None => (Vec::new(), None),
        };
        tiers.push(Box::new(tier));
        let manager = TieringOffloadingManager::new(&settings.config, tiers, clock);
        let mut manager = manager.unwrap_or_else(|error| panic!("the manager does not start: {error}"));
        if settings.config.primary.check_on_load {
            manager.check_loads(Arc::clone(&region));
        }
        Self { manager, driver, region, requests: Requests::new(), namespace, nvme }
    }
}
