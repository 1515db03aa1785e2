//! One life of the engine's process: the real connector over the real manager and tier, and a copy engine.

use std::sync::Arc;

use terrace_connector::{OffloadingConnector, WorkerHalf};
use terrace_primary::Region;

use super::copies::Copies;
use super::gpu::Gpu;
use super::settings::Settings;
use crate::life::{Start, open};
use crate::rng::Rng;
use crate::tier::SharedTier;

/// A running process.
pub(crate) struct Life {
    pub connector: OffloadingConnector,
    pub tier: SharedTier,
    pub copies: Copies,
    pub region: Arc<Region>,
    pub namespace: u8,
}

impl Life {
    /// Starts a process. Panics where the real one would refuse its configuration: settings are drawn legal.
    pub fn start(settings: &Settings, start: &Start<'_>, gpu: &Gpu, rng: Rng) -> Self {
        let (manager, tier) = open(&settings.disks, start);
        let region = Arc::clone(start.region);
        let copies =
            Copies::new(start.clock.clone(), rng, settings.copies.clone(), Arc::clone(&region), Arc::clone(&gpu.arena));
        let engine = Box::new(copies.clone());
        let connector = OffloadingConnector::new(settings.options(), manager, Arc::clone(&region), engine);
        let mut connector = connector.unwrap_or_else(|error| panic!("the connector does not start: {error}"));
        let registered = connector.register_kv_caches(gpu.caches());
        registered.unwrap_or_else(|error| panic!("the connector does not take the memory: {error}"));
        Self { connector, tier, copies, region, namespace: start.namespace }
    }
}
