//! The world of one seed: a daemon, engines that connect to it, disks that outlive it, and the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use terrace_config::{Choice, Config};
use terrace_connector::server::{InlineServer, PoolParts, ReadySlots};
use terrace_primary::{Region, RegionOptions, SlotId};
use terrace_tiers::{Clock, ManualClock, Time};

use super::check::Reader;
use super::client::{Client, SharedBelow, SharedServer};
use super::common::Common;
use super::engine::Engine;
use super::settings::Settings;
use crate::catalog::CatalogDisk;
use crate::counts::Counts;
use crate::disk::{Crash, Disk, Weather};
use crate::failure::Reason;
use crate::life::{Start, open_tiers};
use crate::play::Play;
use crate::rng::Rng;
use crate::tier::SharedTier;
use crate::trace::SharedTrace;

/// What a namespace has below its pool.
#[derive(Clone)]
pub(crate) struct Below {
    pub disk: Disk,
    pub catalog: CatalogDisk,
    /// Of the pool that is open.
    pub tier: Option<SharedTier>,
}

/// Everything that a seed stands for.
pub(crate) struct World {
    pub common: Common,
    pub server: SharedServer,
    pub engines: Vec<Engine>,
    pub clients: Vec<Client>,
    /// By namespace.
    pub below: SharedBelow,
    /// Sessions whose replies do not go out: since when, and how long ago the daemon could have seen it.
    pub stalled: BTreeMap<Reader, (Time, Option<Time>)>,
    verify_crc: bool,
}

fn start(
    settings: &Settings,
    clock: &ManualClock,
    below: &Rc<RefCell<Vec<Below>>>,
    mut rng: Rng,
    verify_crc: bool,
) -> InlineServer {
    let (disks, simulated, below) = (settings.disks.clone(), clock.clone(), Rc::clone(below));
    let (backing, backed_per_mille) = (settings.backing, settings.backed_per_mille);
    let open = move |config: &Config| {
        let namespace: u8 = config.namespace.model.parse().map_err(|_| "a namespace of nobody".to_owned())?;
        let mut below = below.borrow_mut();
        let below = below.get_mut(usize::from(namespace)).ok_or("a namespace of nobody")?;
        let geometry = config.geometry;
        let options = RegionOptions {
            slots: config.primary.blocks,
            slot_stride: geometry.slot_stride(),
            block_bytes: geometry.block_bytes,
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        };
        let region = Region::create(&options, &|_, _| {}).map_err(|error| error.to_string())?;
        let noise: Vec<u8> = (0..geometry.slot_stride() / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
        for slot in (0..config.primary.blocks).map(SlotId) {
            region.write_slot(slot, &noise);
        }
        let start = Start {
            disk: &below.disk,
            clock: &simulated,
            region: &region,
            catalog: disks.catalog.then_some(&below.catalog),
            namespace,
            verify_crc,
            old_faults: 0,
        };
        let (tiers, tier) = open_tiers(&disks, &start);
        below.tier = Some(tier);
        let ready = backed(&simulated, config.primary.blocks, backing, backed_per_mille);
        Ok(PoolParts { region, ready, clock: Arc::new(simulated.clone()), tiers })
    };
    let server = InlineServer::new(settings.disks.config.clone(), Arc::new(clock.clone()), open);
    server.unwrap_or_else(|error| panic!("the daemon does not start: {error}"))
}

/// Slots are backed one after the other from now on, all in `backing`; and none any more from `per_mille` of them on.
fn backed(clock: &ManualClock, slots: u32, backing: Duration, per_mille: u32) -> ReadySlots {
    let (clock, since) = (clock.clone(), clock.now());
    let last = u64::from(slots) * u64::from(per_mille) / 1000;
    Box::new(move || {
        let passed = clock.now().since(since).as_micros() as u64;
        let ready = (u64::from(slots) * passed).checked_div(backing.as_micros() as u64).unwrap_or(u64::MAX);
        ready.min(last) as u32
    })
}

impl World {
    pub fn new(settings: Settings, mut rng: Rng, trace: SharedTrace, verify_crc: bool) -> Self {
        let (disk_rng, common) = (rng.fork("disks"), Common::new(settings, rng, trace.clone()));
        let mut common = common;
        let mut disk_rng = disk_rng;
        let disks = &common.settings.disks;
        let below = (0..disks.namespaces).map(|_| {
            let roots = &disks.nvme().paths;
            let disk = Disk::new(roots, common.clock.clone(), disk_rng.fork("disk"), trace.clone());
            disk.set_faults(disks.faults.clone(), disks.disorder);
            Below { disk, catalog: CatalogDisk::default(), tier: None }
        });
        let below: Vec<Below> = below.collect();
        let below = Rc::new(RefCell::new(below));
        let engines = (0..common.settings.engines as u64).map(|number| {
            let namespace = common.rng.below(u64::from(common.settings.disks.namespaces)) as u8;
            Engine::new(number, namespace, common.rng.below(4) as u32)
        });
        let engines = engines.collect();
        let daemon = common.rng.fork("daemon");
        let server = Rc::new(RefCell::new(start(&common.settings, &common.clock, &below, daemon, verify_crc)));
        let clients = (0..common.settings.clients as u64).map(|number| {
            let namespace = common.rng.below(u64::from(common.settings.disks.namespaces)) as u8;
            Client::new(number, namespace)
        });
        let clients = clients.collect();
        Self { common, server, engines, clients, below, stalled: Default::default(), verify_crc }
    }

    /// A step in which nothing happens but time and work.
    pub fn idle(&mut self, after: Duration) -> Result<(), Reason> {
        self.pass_time(after);
        self.drive()
    }

    fn drive(&mut self) -> Result<(), Reason> {
        let mut server = self.server.borrow_mut();
        self.engines.iter_mut().try_for_each(|engine| engine.step(&mut server, &mut self.common))?;
        server.pass();
        // Clients let it pass while they wait.
        drop(server);
        for client in &mut self.clients {
            client.step(&self.server, &self.below, &mut self.common)?;
        }
        self.server.borrow_mut().pass();
        self.break_off();
        self.check()
    }

    /// A process whose end nobody tells has stopped copying when the daemon has closed its connection.
    fn break_off(&mut self) {
        let server = self.server.borrow();
        for engine in &mut self.engines {
            let name = engine.name.clone();
            let pool = server.pools().find(|pool| pool.sessions().any(|session| session.engine == name));
            let is_connected = |rank: Option<u32>| {
                pool.is_some_and(|pool| {
                    let mut sessions = pool.sessions();
                    sessions.any(|of| of.engine == name && of.rank == rank && of.is_connected)
                })
            };
            if engine.process.as_ref().is_some_and(|process| !process.is_seen()) && !is_connected(None) {
                engine.break_off();
            }
            for rank in &mut engine.ranks {
                let is_unseen = rank.process.as_ref().is_some_and(|process| !process.is_seen());
                if is_unseen && !is_connected(Some(rank.copier.rank)) {
                    rank.break_off();
                }
            }
        }
    }

    fn pass_time(&mut self, by: Duration) {
        self.common.clock.advance(by);
        for below in self.below.borrow().iter() {
            below.disk.run();
            if self.common.rng.chance(100) {
                below.disk.write_back();
            }
            if self.common.rng.chance(50) {
                below.disk.damage();
            }
        }
    }

    fn change_weather(&mut self) {
        let weather_per_mille = self.common.settings.disks.weather_per_mille;
        if weather_per_mille == 0 {
            return;
        }
        for below in self.below.borrow().iter() {
            let root = self.common.rng.index(below.disk.roots());
            if self.common.rng.chance(weather_per_mille) {
                let weather = Weather::FOUL[self.common.rng.index(Weather::FOUL.len())];
                below.disk.set_weather(root, weather);
                self.common.counts.foul_weather += 1;
            } else if self.common.rng.chance(30) {
                below.disk.set_weather(root, Weather::Fair);
            }
        }
    }

    /// Connections break, and processes die.
    fn accidents(&mut self) {
        let (cut, death) = (self.common.settings.cut_per_mille, self.common.settings.death_per_mille);
        let common = &mut self.common;
        for engine in &mut self.engines {
            if common.rng.chance(cut) {
                common.count("connections cut");
                engine.cut(common);
            }
            let dies = common.rng.chance(death);
            if dies {
                common.count("schedulers that died");
                engine.die(common);
            }
            for rank in &mut engine.ranks {
                if common.rng.chance(cut) {
                    common.count("connections cut");
                    rank.cut(common);
                }
                if common.rng.chance(if dies { 700 } else { death }) {
                    common.count("workers that died");
                    common.counts.abandoned += u64::from(!rank.copier.tasks.is_empty());
                    rank.die(common);
                }
            }
            if let Some(wire) = engine.wire.as_mut().filter(|wire| wire.stalls)
                && common.rng.chance(20)
            {
                wire.stalls = false;
            }
        }
    }

    /// The same to those that use the product's client.
    fn accidents_of_clients(&mut self) {
        let common = &mut self.common;
        let settings = &common.settings;
        let (cut, death, unheard) = (settings.cut_per_mille, settings.death_per_mille, settings.unheard_per_mille);
        for client in &mut self.clients {
            if common.rng.chance(cut) {
                common.count("connections cut");
                client.cut();
            }
            if common.rng.chance(unheard) {
                common.count("clients unheard");
                client.unhear(true);
            } else if common.rng.chance(200) {
                client.unhear(false);
            }
            if common.rng.chance(death) {
                client.die(common);
            }
        }
    }

    /// The daemon ends, in order or not, and another starts on what is left.
    pub fn end_daemon(&mut self, how: Option<Crash>) {
        self.common.trace.add(format_args!("the daemon ends: {how:?}"));
        match how {
            None => {
                self.common.counts.restarts += 1;
                self.server.borrow_mut().stop();
            }
            Some(Crash::Kill) => self.common.counts.kills += 1,
            Some(Crash::PowerLoss) => self.common.counts.power_losses += 1,
        }
        self.count_life();
        for below in self.below.borrow_mut().iter_mut() {
            below.disk.crash(how.unwrap_or(Crash::Kill));
            below.catalog.crash(&mut self.common.rng);
            below.tier = None;
        }
        self.engines.iter_mut().for_each(Engine::orphan);
        self.stalled.clear();
        let daemon = self.common.rng.fork("daemon");
        let server = start(&self.common.settings, &self.common.clock, &self.below, daemon, self.verify_crc);
        *self.server.borrow_mut() = server;
    }

    /// Adds up what the pools counted.
    pub fn count_life(&mut self) {
        for pool in self.server.borrow().pools() {
            self.common.counts.add_life(&pool.manager().stats());
        }
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.common.clock.now()
    }
}

impl Play for World {
    fn step(&mut self) -> Result<(), Reason> {
        let long = if self.clients.iter().any(Client::is_stuck) { 20 } else { 1 };
        let by_ns = match self.common.rng.below(400) {
            at if at < long => 60_000_000_000,
            1..8 => self.common.rng.below(4_000_000_000),
            8..150 => self.common.rng.skewed(100_000_000),
            _ => self.common.rng.skewed(1_000_000),
        };
        self.pass_time(Duration::from_nanos(by_ns));
        self.change_weather();
        self.accidents();
        self.accidents_of_clients();
        self.drive()?;
        let dice = self.common.rng.below(1000) as u32;
        let disks = &self.common.settings.disks;
        let (crash, restart) = (disks.crash_per_mille, disks.restart_per_mille);
        if dice < crash {
            let power = self.common.rng.chance(self.common.settings.disks.power_loss_per_mille);
            self.end_daemon(Some(if power { Crash::PowerLoss } else { Crash::Kill }));
        } else if dice < crash + restart {
            self.end_daemon(None);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Reason> {
        self.come_to_rest()?;
        self.read_back()
    }

    fn take_counts(&mut self) -> Counts {
        self.count_life();
        let mut counts = std::mem::take(&mut self.common.counts);
        counts.faults = self.faults_struck();
        counts
    }

    fn let_go(self) {
        World::let_go(self);
    }
}
