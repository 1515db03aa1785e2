//! The world of one seed: an engine, a process that crashes and comes back, a disk that outlives it, and the model.

use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Region;
use terrace_tiering::{RequestId, TierReport};
use terrace_tiers::{Clock, ManualClock};

use crate::catalog::CatalogDisk;
use crate::counts::Counts;
use crate::disk::{Crash, Disk, Weather};
use crate::engine::{Phase, Requests};
use crate::failure::Reason;
use crate::life::{Life, Start};
use crate::memory;
use crate::model::Model;
use crate::play::Play;
use crate::rng::Rng;
use crate::settings::Settings;
use crate::trace::SharedTrace;

/// A process that is stopped for a while, or a machine that sleeps.
const PAUSE_NS: u64 = 60_000_000_000;

/// Everything that a seed stands for.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) rng: Rng,
    pub(crate) trace: SharedTrace,
    pub(crate) clock: ManualClock,
    pub(crate) disk: Disk,
    pub(crate) catalog: CatalogDisk,
    pub(crate) region: Arc<Region>,
    pub(crate) life: Life,
    pub(crate) model: Model,
    pub(crate) requests: Requests,
    pub(crate) next_request: u64,
    pub(crate) counts: Counts,
    pub(crate) file_bytes: u64,
    pub(crate) buffer: Vec<u8>,
    /// In some life before this one, see [`Life::watch_scan`].
    pub(crate) scan_was_late: bool,
    /// The next life starts with the catalog as it was left.
    pub(crate) keep_catalog: bool,
    verify_crc: bool,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is asked to, and waits for what is in flight.
    Shutdown,
    /// It is not asked.
    Crash(Crash),
}

impl World {
    pub(crate) fn new(settings: Settings, mut rng: Rng, trace: SharedTrace, verify_crc: bool) -> Self {
        let clock = ManualClock::default();
        let geometry = settings.config.geometry;
        let disk = Disk::new(&settings.nvme().paths, clock.clone(), rng.fork("disk"), trace.clone());
        disk.set_faults(settings.faults.clone(), settings.disorder);
        let region = memory::region(&geometry, &mut rng);
        let catalog = CatalogDisk::default();
        let start = Start {
            disk: &disk,
            clock: &clock,
            region: &region,
            catalog: settings.catalog.then_some(&catalog),
            namespace: 0,
            verify_crc,
            old_faults: 0,
        };
        let life = Life::start(&settings, &start);
        Self {
            model: Model::new(geometry.block_bytes, geometry.hash_bytes),
            file_bytes: u64::from(geometry.slot_stride()) + 4096,
            settings,
            rng,
            trace,
            clock,
            disk,
            catalog,
            region,
            life,
            requests: Requests::new(),
            next_request: 1,
            counts: Counts::default(),
            buffer: Vec::new(),
            scan_was_late: false,
            keep_catalog: false,
            verify_crc,
        }
    }

    /// Ends a step of the manager and checks everything.
    pub(crate) fn end_step(&mut self) -> Result<(), Reason> {
        self.life.watch_scan(self.clock.now());
        self.life.manager.end_step();
        self.counts.most_limbo = self.counts.most_limbo.max(u64::from(self.life.manager.primary().limbo()));
        if self.life.manager.stats().tiers.iter().any(|tier| tier.panicked) {
            return Err(Reason::Panic("inside the tier".into()));
        }
        self.life.tier.lock().check().map_err(Reason::Invariant)?;
        self.check()
    }

    fn pass_time(&mut self) {
        let by_ns = match self.rng.below(400) {
            0 => PAUSE_NS,
            1..10 => self.rng.below(4_000_000_000),
            10..200 => self.rng.skewed(100_000_000),
            _ => self.rng.skewed(1_000_000),
        };
        self.clock.advance(Duration::from_nanos(by_ns));
        self.disk.run();
        if self.rng.chance(100) {
            self.disk.write_back();
        }
        if self.rng.chance(100) {
            self.disk.damage();
        }
    }

    fn change_weather(&mut self) {
        if self.settings.weather_per_mille == 0 {
            return;
        }
        let root = self.rng.index(self.disk.roots());
        if self.rng.chance(self.settings.weather_per_mille) {
            let weather = Weather::FOUL[self.rng.index(Weather::FOUL.len())];
            self.trace.add(format_args!("directory {root}: {weather:?}"));
            self.disk.set_weather(root, weather);
            self.counts.foul_weather += 1;
        } else if self.rng.chance(30) {
            self.disk.set_weather(root, Weather::Fair);
        }
    }

    /// The engine does something.
    fn act(&mut self) -> Result<(), Reason> {
        match self.rng.below(100) {
            0..25 => self.begin_request(),
            25..96 => {
                let ids: Vec<RequestId> = self.requests.keys().copied().collect();
                self.rng.pick(&ids).copied().map_or(Ok(()), |id| self.advance_request(id))
            }
            96..99 if self.settings.pins => self.pin(),
            99 if self.settings.resets && self.rng.chance(200) => {
                self.counts.resets += 1;
                self.trace.add(format_args!("reset"));
                // A reset starts every wait anew.
                for request in self.requests.values_mut() {
                    if let Phase::Looking { unresolved_since, .. } = &mut request.phase {
                        *unresolved_since = None;
                    }
                }
                self.life.manager.reset().map_err(|error| Reason::Contract(format!("reset: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn pin(&mut self) -> Result<(), Reason> {
        let open: Vec<RequestId> =
            self.requests.iter().filter(|(_, request)| !request.finished).map(|(id, _)| *id).collect();
        let Some(id) = self.rng.pick(&open).copied() else { return Ok(()) };
        let Some(request) = self.requests.get(&id) else { return Ok(()) };
        if self.rng.chance(200) {
            self.life.manager.unpin(id, &request.keys);
            return Ok(());
        }
        let ttl = Duration::from_nanos(self.rng.skewed(30_000_000_000));
        let pinned = self.life.manager.pin(id, &request.keys, ttl);
        let pinned = pinned.map_err(|error| Reason::Contract(format!("pin: {error}")))?;
        self.trace.add(format_args!("pin {} {pinned}", id.0));
        Ok(())
    }

    /// The process ends and another one starts on what is left.
    pub(crate) fn end_life(&mut self, end: End) {
        self.trace.add(format_args!("{end:?} at {:?}", self.clock.now()));
        let abandoned = |tiers: Vec<TierReport>| tiers.iter().map(|tier| tier.cascades.abandoned).sum::<u64>();
        self.counts.abandoned += abandoned(self.life.manager.stats().tiers) + self.disk.removals_held();
        let how = match end {
            End::Shutdown => {
                self.counts.restarts += 1;
                if self.rng.chance(500) {
                    self.drain();
                }
                self.life.manager.shutdown();
                Crash::Kill
            }
            End::Crash(how) => {
                match how {
                    Crash::Kill => self.counts.kills += 1,
                    Crash::PowerLoss => self.counts.power_losses += 1,
                }
                how
            }
        };
        self.counts.add_life(&self.life.manager.stats());
        self.disk.crash(how);
        self.catalog.crash(&mut self.rng);
        self.scan_was_late |= self.life.scan_is_late;
        // The dead process is only let go of: its operations end by themselves and touch nothing.
        for _ in 0..4 {
            self.life.manager.end_step();
        }
        self.requests.clear();
        self.start_life(end == End::Shutdown);
    }

    /// Lets the manager finish what it can in reasonable time, as before a clean stop.
    fn drain(&mut self) {
        for _ in 0..50 {
            self.clock.advance(Duration::from_millis(5));
            self.disk.run();
            if self.life.manager.drain() {
                break;
            }
        }
    }

    /// `asked`: the last life ended as it should.
    fn start_life(&mut self, asked: bool) {
        if self.settings.capacity_changes && self.rng.chance(500) {
            let file_bytes = self.file_bytes;
            let capacity_bytes = file_bytes * self.rng.between(3, 60) + self.rng.below(file_bytes);
            self.settings.nvme_mut().capacity_bytes = capacity_bytes;
        }
        // A process that does not use the catalog leaves it behind, and worthless.
        let catalog = self.settings.catalog && (self.keep_catalog || !self.rng.chance(100));
        if !catalog || (!self.keep_catalog && self.rng.chance(100)) {
            self.catalog.lose();
        }
        // A clean catalog is believed; every other start looks at the files.
        let old_faults = if catalog && asked { self.life.old_faults } else { self.disk.failures() };
        let namespace = self.rng.below(u64::from(self.settings.namespaces)) as u8;
        self.region = memory::region(&self.settings.config.geometry, &mut self.rng);
        let start = Start {
            disk: &self.disk,
            clock: &self.clock,
            region: &self.region,
            catalog: catalog.then_some(&self.catalog),
            namespace,
            verify_crc: self.verify_crc,
            old_faults,
        };
        self.life = Life::start(&self.settings, &start);
    }
}

impl Play for World {
    fn step(&mut self) -> Result<(), Reason> {
        self.pass_time();
        self.life.watch_scan(self.clock.now());
        self.change_weather();
        for _ in 0..self.rng.between(0, 6) {
            self.act()?;
        }
        self.end_step()?;
        let dice = self.rng.below(1000) as u32;
        let Settings { crash_per_mille, restart_per_mille, .. } = self.settings;
        if dice < crash_per_mille {
            let how = if self.rng.chance(self.settings.power_loss_per_mille) { Crash::PowerLoss } else { Crash::Kill };
            self.end_life(End::Crash(how));
        } else if dice < crash_per_mille + restart_per_mille {
            self.end_life(End::Shutdown);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Reason> {
        self.come_to_rest()?;
        self.read_back()
    }

    fn take_counts(&mut self) -> Counts {
        let mut counts = std::mem::take(&mut self.counts);
        counts.add_life(&self.life.manager.stats());
        counts.faults = self.disk.faults_struck().filter(|(_, times)| *times > 0).collect();
        counts
    }
}
