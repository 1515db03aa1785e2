//! The disks of one node, and the NVMe tier over them: in half of the seeds every block cascades to both tiers.

use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Region;
use terrace_tiers::{Clock, ManualClock, SecondaryTier, Time};

use crate::catalog::CatalogDisk;
use crate::disk::{Crash, Disk, Weather};
use crate::life::{self, Start};
use crate::rng::Rng;
use crate::settings::Settings;
use crate::tier::SharedTier;
use crate::trace::SharedTrace;

/// What of a node's disks outlives its processes.
pub(crate) struct NodeDisks {
    pub disk: Disk,
    catalog: CatalogDisk,
    /// The time of the world, as far as it has come.
    clock: ManualClock,
    settings: Settings,
}

impl NodeDisks {
    pub fn new(settings: &Settings, rng: Rng, trace: SharedTrace) -> Self {
        let clock = ManualClock::default();
        let disk = Disk::new(&settings.nvme().paths, clock.clone(), rng, trace);
        disk.set_faults(settings.faults.clone(), settings.disorder);
        Self { disk, catalog: CatalogDisk::default(), clock, settings: settings.clone() }
    }

    /// Lets everything happen that happens until this time of the world, whether or not a process runs.
    pub fn run_until(&self, world: Duration) {
        self.clock.advance(Time(world.as_nanos() as u64).since(self.clock.now()));
        self.disk.run();
    }

    /// Opens the tiers for a process that starts now.
    pub fn open(&self, region: &Arc<Region>, namespace: u8) -> (Vec<Box<dyn SecondaryTier>>, SharedTier) {
        let catalog = self.settings.catalog.then_some(&self.catalog);
        let (disk, clock) = (&self.disk, &self.clock);
        let start = Start { disk, clock, region, catalog, namespace, verify_crc: true, old_faults: 0 };
        life::open_tiers(&self.settings, &start)
    }

    /// How a process that was not asked to ends.
    pub fn draw_crash(&self, rng: &mut Rng) -> Crash {
        if rng.chance(self.settings.power_loss_per_mille) { Crash::PowerLoss } else { Crash::Kill }
    }

    /// The process is gone.
    pub fn end(&self, how: Crash, tier: &mut SharedTier, rng: &mut Rng) {
        self.disk.crash(how);
        self.catalog.crash(rng);
        // Only let go of: its operations end by themselves and touch nothing.
        for _ in 0..4 {
            tier.poll(&mut Vec::new());
        }
    }

    /// What happens to disks in a step, beside what happens to their operations.
    pub fn disturb(&self, rng: &mut Rng) {
        if rng.chance(100) {
            self.disk.write_back();
        }
        if rng.chance(100) {
            self.disk.damage();
        }
        let root = rng.index(self.disk.roots());
        if rng.chance(self.settings.weather_per_mille) {
            self.disk.set_weather(root, Weather::FOUL[rng.index(Weather::FOUL.len())]);
        } else if rng.chance(30) {
            self.disk.set_weather(root, Weather::Fair);
        }
    }

    /// Nothing goes wrong any more, and what hung goes on.
    pub fn heal(&mut self) {
        self.settings.weather_per_mille = 0;
        self.disk.heal(true);
    }
}
