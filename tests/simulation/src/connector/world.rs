//! The world of one seed: an engine, its process that crashes and comes back, disks that outlive it, and the model.

use std::collections::VecDeque;
use std::time::Duration;

use terrace_config::Policy;
use terrace_connector::{ConnectorError, ConnectorMeta, JobId, SchedulerHalf, StepPlan, WorkerHalf, WorkerOutput};
use terrace_tiers::{Clock, ManualClock, Time};

use super::content::Content;
use super::gpu::Gpu;
use super::life::Life;
use super::requests::{Requests, Unresolved};
use super::settings::Settings;
use crate::catalog::CatalogDisk;
use crate::counts::Counts;
use crate::disk::{Crash, Disk, Weather};
use crate::failure::Reason;
use crate::life::Start;
use crate::memory;
use crate::play::Play;
use crate::rng::Rng;
use crate::settings::MOST_SLOTS;
use crate::trace::SharedTrace;
use crate::world::End;

/// An engine whose copies hang for so long is killed by who watches it.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Places in a step at which a process may die.
const PLACES: u64 = 6;

/// Everything that a seed stands for.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) rng: Rng,
    pub(crate) trace: SharedTrace,
    pub(crate) clock: ManualClock,
    pub(crate) disk: Disk,
    pub(crate) catalog: CatalogDisk,
    pub(crate) life: Life,
    pub(crate) gpu: Gpu,
    pub(crate) content: Content,
    pub(crate) requests: Requests,
    pub(crate) next_request: u64,
    pub(crate) counts: Counts,
    /// Reports of the worker that the scheduler half has not heard of.
    reports: VecDeque<WorkerOutput>,
    /// When the manager stepped last: it knows of no later time.
    pub(crate) stepped: Time,
    /// A job that was reported.
    reported: Option<JobId>,
    verify_crc: bool,
}

/// How far a step came.
enum Came {
    ToItsEnd,
    /// The process is to die here.
    ToADeath,
}

impl World {
    pub(crate) fn new(settings: Settings, mut rng: Rng, trace: SharedTrace, verify_crc: bool) -> Self {
        let clock = ManualClock::default();
        let disks = &settings.disks;
        let disk = Disk::new(&disks.nvme().paths, clock.clone(), rng.fork("disk"), trace.clone());
        disk.set_faults(disks.faults.clone(), disks.disorder);
        let region = memory::region(&disks.config.geometry, &mut rng);
        let catalog = CatalogDisk::default();
        let gpu = Gpu::new(&settings);
        let start = Start {
            disk: &disk,
            clock: &clock,
            region: &region,
            catalog: disks.catalog.then_some(&catalog),
            namespace: 0,
            verify_crc,
            old_faults: 0,
        };
        let life = Life::start(&settings, &start, &gpu, rng.fork("copies"));
        Self {
            content: Content::new(&settings),
            settings,
            rng,
            trace,
            clock,
            disk,
            catalog,
            life,
            gpu,
            requests: Requests::new(),
            next_request: 1,
            counts: Counts::default(),
            reports: VecDeque::new(),
            stepped: Time(0),
            reported: None,
            verify_crc,
        }
    }

    /// A step without arrivals, after a while.
    pub(crate) fn idle(&mut self, after: Duration) -> Result<(), Reason> {
        self.clock.advance(after);
        self.disk.run();
        self.life.copies.run();
        self.drive(PLACES)?;
        self.check()
    }

    /// A step as an engine makes it.
    fn drive(&mut self, dies_at: u64) -> Result<Came, Reason> {
        let came = self.drive_to(dies_at);
        // Whatever a call answers when the device is lost: such a process is only good for its end.
        if self.life.copies.is_lost() && matches!(came, Err(Reason::Contract(_))) { Ok(Came::ToItsEnd) } else { came }
    }

    fn drive_to(&mut self, dies_at: u64) -> Result<Came, Reason> {
        self.reset()?;
        self.admit()?;
        let plan = self.schedule();
        if dies_at == 0 {
            return Ok(Came::ToADeath);
        }
        self.stepped = self.clock.now();
        let meta = self.life.connector.build_connector_meta(&plan);
        let meta = meta.map_err(|error| Reason::Contract(format!("build_connector_meta: {error}")))?;
        self.trace.add(format_args!("{plan:?} {meta:?}"));
        if dies_at == 1 {
            return Ok(Came::ToADeath);
        }
        self.work(&plan, meta, dies_at)
    }

    /// The worker's part of a step, and what is told of it.
    fn work(&mut self, plan: &StepPlan, meta: ConnectorMeta, dies_at: u64) -> Result<Came, Reason> {
        let contract = |what: &'static str| move |error: ConnectorError| Reason::Contract(format!("{what}: {error}"));
        if !meta.flush.is_empty() || self.rng.chance(500) {
            self.life.connector.handle_preemptions(&meta).map_err(contract("handle_preemptions"))?;
        }
        self.pass_microseconds();
        if dies_at == 2 {
            return Ok(Came::ToADeath);
        }
        self.life.connector.start_load_kv(meta).map_err(contract("start_load_kv"))?;
        self.pass_microseconds();
        if dies_at == 3 {
            return Ok(Came::ToADeath);
        }
        self.compute(plan)?;
        self.life.connector.wait_for_save().map_err(contract("wait_for_save"))?;
        self.pass_microseconds();
        if dies_at == 4 {
            return Ok(Came::ToADeath);
        }
        let mut report = WorkerOutput::default();
        self.life.connector.get_finished(&mut report).map_err(contract("get_finished"))?;
        self.reports.push_back(report);
        self.tell()?;
        if dies_at == 5 {
            return Ok(Came::ToADeath);
        }
        self.after()?;
        Ok(Came::ToItsEnd)
    }

    /// Hands the worker's reports over, or some of them, some steps late.
    fn tell(&mut self) -> Result<(), Reason> {
        self.tell_lies()?;
        let mut report = WorkerOutput::default();
        while !self.rng.chance(self.settings.late_report_per_mille)
            && let Some(next) = self.reports.pop_front()
        {
            report.finished.extend(next.finished);
            report.failed_blocks.extend(next.failed_blocks);
        }
        self.reported = report.finished.first().map(|(job, _)| *job).or(self.reported);
        let told = self.life.connector.update_connector_output(report);
        let told = told.map_err(|error| Reason::Contract(format!("update_connector_output: {error}")))?;
        self.take(told)
    }

    /// A report that names what is not in flight, or one job twice, is refused whole and changes nothing.
    fn tell_lies(&mut self) -> Result<(), Reason> {
        if !self.rng.chance(self.settings.false_report_per_mille) {
            return Ok(());
        }
        let mut lie = self.reports.front().cloned().unwrap_or_default();
        let false_job = match lie.finished.first() {
            Some((job, _)) if self.rng.chance(500) => *job,
            _ => self.reported.filter(|_| self.rng.chance(700)).unwrap_or(JobId(u64::MAX)),
        };
        lie.finished.push((false_job, true));
        let before = self.life.connector.transfers_in_flight();
        match self.life.connector.update_connector_output(lie) {
            Err(ConnectorError::Invalid(_)) if self.life.connector.transfers_in_flight() == before => {
                *self.counts.others.entry("false reports").or_default() += 1;
                Ok(())
            }
            other => Err(Reason::Contract(format!("a report with {false_job:?} that is not in flight: {other:?}"))),
        }
    }

    fn reset(&mut self) -> Result<(), Reason> {
        if !self.settings.disks.resets || !self.rng.chance(5) {
            return Ok(());
        }
        match self.life.connector.reset() {
            Ok(()) => {
                self.counts.resets += 1;
                self.trace.add(format_args!("reset"));
                // A reset starts every wait anew.
                self.requests.values_mut().for_each(|request| request.unresolved = Unresolved::default());
                Ok(())
            }
            // Reports that the scheduler half has not heard of.
            Err(ConnectorError::Retry(_)) => Ok(()),
            Err(error) => Err(Reason::Contract(format!("reset: {error}"))),
        }
    }

    fn pass_time(&mut self) {
        let by_ns = match self.rng.below(400) {
            0 => 60_000_000_000,
            1..6 => self.rng.below(4_000_000_000),
            6..150 => self.rng.skewed(100_000_000),
            _ => self.rng.skewed(1_000_000),
        };
        self.clock.advance(Duration::from_nanos(by_ns));
        self.disk.run();
        self.life.copies.run();
        if self.rng.chance(100) {
            self.disk.write_back();
        }
        if self.rng.chance(50) {
            self.disk.damage();
        }
    }

    /// Between two calls of a step.
    fn pass_microseconds(&mut self) {
        if self.rng.chance(700) {
            self.clock.advance(Duration::from_nanos(self.rng.skewed(5_000_000)));
            self.life.copies.run();
        }
    }

    fn change_weather(&mut self) {
        if self.settings.disks.weather_per_mille == 0 {
            return;
        }
        let root = self.rng.index(self.disk.roots());
        if self.rng.chance(self.settings.disks.weather_per_mille) {
            let weather = Weather::FOUL[self.rng.index(Weather::FOUL.len())];
            self.trace.add(format_args!("directory {root}: {weather:?}"));
            self.disk.set_weather(root, weather);
            self.counts.foul_weather += 1;
        } else if self.rng.chance(30) {
            self.disk.set_weather(root, Weather::Fair);
        }
    }

    /// The process ends and another one starts on what is left.
    pub(crate) fn end_life(&mut self, end: End) {
        self.trace.add(format_args!("{end:?} at {:?}", self.clock.now()));
        let how = match end {
            End::Shutdown => {
                self.counts.restarts += 1;
                self.life.connector.shutdown();
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
        self.life.copies.die();
        self.count_life();
        self.disk.crash(how);
        self.catalog.crash(&mut self.rng);
        // The dead process is only let go of: its operations end by themselves and touch nothing.
        self.life.connector.shutdown();
        self.requests.clear();
        self.reports.clear();
        self.reported = None;
        self.gpu.restart(&mut self.rng);
        self.start_life();
    }

    /// Another process, perhaps with another configuration.
    fn start_life(&mut self) {
        let geometry = self.settings.disks.config.geometry;
        if self.settings.disks.capacity_changes && self.rng.chance(500) {
            let file_bytes = u64::from(geometry.slot_stride()) + 4096;
            self.settings.disks.nvme_mut().capacity_bytes = file_bytes * self.rng.between(3, 60);
            let config = &mut self.settings.disks.config;
            config.primary.blocks = self.rng.between(8, u64::from(MOST_SLOTS)) as u32;
            config.primary.policy = [Policy::Lru, Policy::Arc][self.rng.index(2)];
            config.limits.promotion_share = [0.3, 0.5, 0.8][self.rng.index(3)];
            config.limits.cascade_share = [0.25, 0.5, 1.0][self.rng.index(3)];
            self.trace.add(format_args!("reconfigured: {:?} {:?}", config.primary, config.limits));
        }
        let catalog = self.settings.disks.catalog && !self.rng.chance(100);
        if !catalog {
            self.catalog.lose();
        }
        let namespace = self.rng.below(u64::from(self.settings.disks.namespaces)) as u8;
        let region = memory::region(&geometry, &mut self.rng);
        let start = Start {
            disk: &self.disk,
            clock: &self.clock,
            region: &region,
            catalog: catalog.then_some(&self.catalog),
            namespace,
            verify_crc: self.verify_crc,
            old_faults: 0,
        };
        self.life = Life::start(&self.settings, &start, &self.gpu, self.rng.fork("copies"));
    }

    /// Adds up what a process counted.
    pub(crate) fn count_life(&mut self) {
        self.counts.add_life(&self.life.connector.manager().stats());
        let (connector, copies) = (self.life.connector.counters(), self.life.copies.counts());
        for (name, count) in [
            ("blocks stored", connector.stored_blocks),
            ("stores", connector.stores),
            ("failed stores", connector.failed_stores),
            ("not offered", connector.not_offered),
            ("waits for another load", connector.waits_for_other_load),
            ("flushes", connector.flushes),
            ("preemptions", connector.preemptions),
            ("copies", self.life.connector.copy_stats().copies),
            ("copies that failed", copies.failed),
            ("copies refused", copies.refused),
            ("slow copies", copies.slow),
            ("copies that hang", copies.hung),
            ("copies torn by a death", copies.torn),
        ] {
            *self.counts.others.entry(name).or_default() += count;
        }
    }
}

impl Play for World {
    fn step(&mut self) -> Result<(), Reason> {
        self.pass_time();
        self.change_weather();
        let dice = self.rng.below(1000) as u32;
        let (crash, restart) = (self.settings.disks.crash_per_mille, self.settings.disks.restart_per_mille);
        let dies_at = if dice < crash { self.rng.below(PLACES) } else { PLACES };
        while self.rng.chance(self.settings.arrival_per_mille / 2) {
            self.arrive()?;
        }
        if matches!(self.drive(dies_at)?, Came::ToADeath) {
            let power = self.rng.chance(self.settings.disks.power_loss_per_mille);
            self.end_life(End::Crash(if power { Crash::PowerLoss } else { Crash::Kill }));
        } else if self.life.copies.is_lost() || self.life.copies.hangs_since(WATCHDOG) {
            *self.counts.others.entry("devices lost").or_default() += 1;
            self.end_life(End::Crash(Crash::Kill));
        } else if dice >= crash && dice < crash + restart {
            self.end_life(End::Shutdown);
        }
        self.check()
    }

    fn end(&mut self) -> Result<(), Reason> {
        self.come_to_rest()?;
        self.read_back()
    }

    fn take_counts(&mut self) -> Counts {
        self.count_life();
        let mut counts = std::mem::take(&mut self.counts);
        counts.faults = self.disk.faults_struck().filter(|(_, times)| *times > 0).collect();
        counts
    }
}
