//! The world of one seed: nodes that share a bucket, their engines, what happens to them, and the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use terrace_tiering::{Event, RequestId};
use terrace_tiers::{Locality, Medium};

use super::bucket::Bucket;
use super::disks::NodeDisks;
use super::faults::Weather;
use super::ledger::Ledger;
use super::life::{Life, Start};
use super::panics;
use super::settings::{PREFIX, Settings};
use crate::counts::Counts;
use crate::disk::Crash;
use crate::failure::Reason;
use crate::model::Model;
use crate::play::Play;
use crate::rng::Rng;
use crate::trace::SharedTrace;

/// Nodes see each other's work so much too late at most, and a long pause is at most so many such pieces.
const SLICE: Duration = Duration::from_millis(50);
const SLICES: u32 = 64;

/// A machine: its lives follow each other.
pub(crate) struct Node {
    pub life: Life,
    /// Its wall clock outlives its processes.
    off_ms: Arc<AtomicI64>,
    /// Its process is stopped until then.
    stopped_until: Option<Duration>,
    disks: Option<NodeDisks>,
}

/// Everything that a seed stands for.
pub(crate) struct World {
    pub settings: Settings,
    pub rng: Rng,
    pub trace: SharedTrace,
    /// Time since the beginning.
    pub now: Duration,
    pub bucket: Bucket,
    pub nodes: Vec<Node>,
    pub model: Model,
    pub next_request: u64,
    next_life: u64,
    pub counts: Counts,
    pub buffer: Vec<u8>,
}

impl World {
    pub fn new(settings: Settings, mut rng: Rng, trace: SharedTrace) -> Self {
        let shapes = (0..settings.namespaces).map(|namespace| settings.shape(namespace));
        let ledgers = shapes.map(|shape| Ledger::new(PREFIX, shape, settings.object().lease)).collect();
        let (faults, bucket_rng) = (settings.faults.clone(), rng.fork("bucket"));
        let bucket = Bucket::new(faults, settings.nodes, ledgers, bucket_rng, trace.clone());
        let geometry = settings.config.geometry;
        let mut world = Self {
            model: Model::new(geometry.block_bytes, geometry.hash_bytes),
            settings,
            rng,
            trace,
            now: Duration::ZERO,
            bucket,
            nodes: Vec::new(),
            next_request: 1,
            next_life: 1,
            counts: Counts::default(),
            buffer: Vec::new(),
        };
        panics::watch();
        for at in 0..world.settings.nodes {
            let off_ms = Arc::new(AtomicI64::new(world.offset()));
            let disks = world.settings.disks.clone().map(|disks| {
                let rng = world.rng.fork("disks");
                NodeDisks::new(&disks, rng, world.trace.clone())
            });
            let life = world.start(at, Arc::clone(&off_ms), disks.as_ref());
            world.nodes.push(Node { life, off_ms, stopped_until: None, disks });
        }
        world
    }

    /// Adds to a counter that only clusters have.
    pub fn tally(&mut self, name: &'static str, count: u64) {
        *self.counts.others.entry(name).or_default() += count;
    }

    /// By which a wall clock is off, in milliseconds.
    fn offset(&mut self) -> i64 {
        let most = self.settings.skew_ms;
        self.rng.below(2 * most + 1) as i64 - most as i64
    }

    fn start(&mut self, node: usize, off_ms: Arc<AtomicI64>, disks: Option<&NodeDisks>) -> Life {
        let number = self.next_life;
        self.next_life += 1;
        let namespace = (node % usize::from(self.settings.namespaces)) as u8;
        let start = Start { bucket: &self.bucket, node, number, world: self.now, off_ms, namespace, disks };
        Life::start(&self.settings, &mut self.rng, start)
    }

    /// Lets time go by, for all nodes at once but for less than a slice.
    pub fn pass(&mut self, by: Duration) {
        let until = self.now + by;
        let slice = SLICE.max(by / SLICES);
        while self.now < until {
            self.now = until.min(self.now + slice);
            self.bucket.lock().make_due(self.now, false);
            let first = self.rng.index(self.nodes.len());
            for at in 0..self.nodes.len() {
                let at = (first + at) % self.nodes.len();
                if let Some(disks) = &self.nodes[at].disks {
                    disks.run_until(self.now);
                }
                self.run(at);
            }
        }
    }

    fn run(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        match node.stopped_until {
            Some(until) if until > self.now => return,
            Some(_) => {
                node.stopped_until = None;
                self.trace.add(format_args!("node {at} goes on"));
                node.life.driver.jump_to(self.now);
            }
            None => {}
        }
        node.life.driver.run_until(self.now);
    }

    fn change_weather(&mut self) {
        if self.settings.weather_per_mille == 0 {
            return;
        }
        let node = self.rng.index(self.nodes.len());
        let weather = if self.rng.chance(self.settings.weather_per_mille) {
            self.counts.foul_weather += 1;
            Weather::FOUL[self.rng.index(Weather::FOUL.len())]
        } else if self.rng.chance(30) {
            Weather::Fair
        } else {
            return;
        };
        self.trace.add(format_args!("node {node}: {weather:?}"));
        self.bucket.lock().weather[node] = weather;
    }

    fn disturb_disks(&mut self) {
        if self.settings.disks.is_none() {
            return;
        }
        let node = self.rng.index(self.nodes.len());
        if let Some(disks) = &self.nodes[node].disks {
            disks.disturb(&mut self.rng);
        }
    }

    fn act(&mut self) -> Result<(), Reason> {
        let node = self.rng.index(self.nodes.len());
        if self.nodes[node].stopped_until.is_some() {
            return Ok(());
        }
        match self.rng.below(100) {
            0..25 => self.begin_request(node),
            25..99 => {
                let ids: Vec<RequestId> = self.nodes[node].life.requests.keys().copied().collect();
                self.rng.pick(&ids).copied().map_or(Ok(()), |id| self.advance_request(node, id))
            }
            _ => {
                let turns = self.rng.below(8);
                self.nodes[node].life.driver.turns(turns);
                Ok(())
            }
        }
    }

    /// Ends a step of every node and checks everything.
    pub fn end_step(&mut self) -> Result<(), Reason> {
        for at in 0..self.nodes.len() {
            if self.nodes[at].stopped_until.is_some() {
                continue;
            }
            let life = &mut self.nodes[at].life;
            life.manager.end_step();
            life.manager.check().map_err(Reason::Invariant)?;
            if life.manager.stats().tiers.iter().any(|tier| tier.panicked) {
                return Err(Reason::Panic(format!("inside the tier of node {at}")));
            }
            if let Some(nvme) = &self.nodes[at].life.nvme {
                nvme.lock().check().map_err(Reason::Invariant)?;
            }
            self.check_primary(at)?;
            self.check_events(at)?;
        }
        if panics::seen() {
            return Err(Reason::Panic("in a task of a tier".into()));
        }
        self.bucket.check()
    }

    /// What the object tier tells that it holds, the log names.
    fn check_events(&mut self, at: usize) -> Result<(), Reason> {
        let mut events = Vec::new();
        let life = &mut self.nodes[at].life;
        life.manager.take_events(&mut events);
        let bucket = self.bucket.lock();
        for event in events {
            if let Event::BlockStored { key, medium: Medium::Storage, locality: Locality::Remote } = event
                && !bucket.ledgers[usize::from(life.namespace)].was_named(&key)
            {
                return Err(Reason::Contract(format!("node {at} says that {key} is stored, and no log names it")));
            }
        }
        Ok(())
    }

    /// Something happens to a node, its clock, or the bucket.
    fn strike(&mut self) -> Result<(), Reason> {
        let node = self.rng.index(self.nodes.len());
        let dice = self.rng.below(1000) as u32;
        let Settings { crash_per_mille, restart_per_mille, stop_per_mille, jump_per_mille, .. } = self.settings;
        let crash = crash_per_mille;
        let restart = crash + restart_per_mille;
        let stop = restart + stop_per_mille;
        let jump = stop + jump_per_mille;
        if dice < crash {
            self.crash(node);
        } else if dice < restart && self.nodes[node].stopped_until.is_none() {
            self.restart(node)?;
        } else if dice < stop {
            let until = self.now + Duration::from_millis(self.rng.skewed(120_000));
            self.trace.add(format_args!("node {node} is stopped until {until:?}"));
            self.tally("stops", 1);
            self.nodes[node].stopped_until = Some(until);
        } else if dice < jump {
            let to = self.offset();
            self.trace.add(format_args!("the clock of node {node} jumps, to be off by {to} ms"));
            self.tally("jumps", 1);
            self.nodes[node].off_ms.store(to, Ordering::Relaxed);
        }
        self.bucket.lock().damage();
        Ok(())
    }

    /// The process ends where it stands, and another one starts.
    fn crash(&mut self, node: usize) {
        let turns = self.rng.below(20);
        self.trace.add(format_args!("node {node} crashes after {turns} turns"));
        let disks = self.nodes[node].disks.as_ref();
        let how = disks.map_or(Crash::Kill, |disks| disks.draw_crash(&mut self.rng));
        match how {
            Crash::Kill => self.counts.kills += 1,
            Crash::PowerLoss => self.counts.power_losses += 1,
        }
        if self.nodes[node].stopped_until.is_none() {
            self.nodes[node].life.driver.turns(turns);
        }
        self.count_life(node);
        self.nodes[node].life.driver.kill();
        self.begin_life(node, how);
    }

    /// The process ends as it should, and another one starts.
    pub fn restart(&mut self, node: usize) -> Result<(), Reason> {
        self.trace.add(format_args!("node {node} restarts"));
        self.counts.restarts += 1;
        let life = &mut self.nodes[node].life;
        life.manager.shutdown();
        let (ended, then) = (!life.driver.is_running(), life.driver.clock().world());
        self.count_life(node);
        // The others catch up.
        self.now = self.now.max(then);
        if !ended {
            return Err(Reason::Leak(format!("the tier of node {node} did not end in its time")));
        }
        self.begin_life(node, Crash::Kill);
        Ok(())
    }

    /// What the last process leaves on the node's disks is decided by how it ended.
    fn begin_life(&mut self, node: usize, ended: Crash) {
        let disks = self.nodes[node].disks.take();
        if let (Some(disks), Some(nvme)) = (&disks, &mut self.nodes[node].life.nvme) {
            disks.run_until(self.now);
            disks.end(ended, nvme, &mut self.rng);
        }
        let used = disks.as_ref().filter(|_| self.settings.disks.is_some());
        let life = self.start(node, Arc::clone(&self.nodes[node].off_ms), used);
        self.nodes[node].life = life;
        self.nodes[node].disks = disks;
        self.nodes[node].stopped_until = None;
    }

    /// Adds how often disks failed.
    pub fn count_disks(&mut self) {
        for disks in self.nodes.iter().filter_map(|node| node.disks.as_ref()) {
            for (kind, times) in disks.disk.faults_struck().filter(|(_, times)| *times > 0) {
                *self.counts.faults.entry(kind).or_default() += times;
            }
        }
    }

    /// Adds what a life has counted.
    pub fn count_life(&mut self, node: usize) {
        let stats = self.nodes[node].life.manager.stats();
        self.counts.add_life(&stats);
        for report in &stats.tiers {
            let object = &report.tier.object;
            for (name, count) in [
                ("segments", object.segments_stored),
                ("hedges", object.hedges),
                ("retries", object.retries),
                ("throttled", object.throttled),
                ("silences", object.silences),
                ("logs_published", object.logs_published),
                ("logs_folded", object.logs_folded),
                ("resyncs", object.resyncs),
                ("snapshots", object.snapshots),
                ("segments_evicted", object.segments_evicted),
                ("segments_aged", object.segments_aged),
                ("segments_orphaned", object.segments_orphaned),
                ("segments_lost", object.segments_lost),
                ("logs_removed", object.logs_removed),
                ("uploads_aborted", object.uploads_aborted),
                ("over_budget", object.over_budget),
                ("reread", object.reread),
                ("full", report.tier.full),
            ] {
                self.tally(name, count);
            }
        }
    }

    /// From here on nothing goes wrong any more, and everybody runs.
    pub fn heal(&mut self) {
        {
            let bucket = &mut *self.bucket.lock();
            bucket.faults.cease();
            bucket.weather.fill(Weather::Fair);
            bucket.make_due(self.now, true);
        }
        for node in &mut self.nodes {
            node.stopped_until = node.stopped_until.map(|_| self.now);
            if let Some(disks) = &mut node.disks {
                disks.heal();
            }
        }
        let s = &mut self.settings;
        (s.weather_per_mille, s.crash_per_mille, s.stop_per_mille, s.jump_per_mille) = (0, 0, 0, 0);
    }
}

impl Play for World {
    fn step(&mut self) -> Result<(), Reason> {
        let by = match self.rng.below(400) {
            0 => Duration::from_secs(60),
            1..10 => Duration::from_nanos(self.rng.below(4_000_000_000)),
            10..200 => Duration::from_nanos(self.rng.skewed(100_000_000)),
            _ => Duration::from_nanos(self.rng.skewed(1_000_000)),
        };
        self.pass(by);
        self.change_weather();
        self.disturb_disks();
        for _ in 0..self.rng.between(0, 6) {
            self.act()?;
        }
        self.end_step()?;
        self.strike()
    }

    fn end(&mut self) -> Result<(), Reason> {
        self.come_to_rest()?;
        self.collect()?;
        self.read_back()
    }

    fn take_counts(&mut self) -> Counts {
        for node in 0..self.nodes.len() {
            self.count_life(node);
        }
        self.count_disks();
        let bucket = self.bucket.lock();
        self.counts.others.insert("requests", bucket.requests);
        for (kind, times) in bucket.faults.struck().filter(|(_, times)| *times > 0) {
            self.counts.others.insert(kind.name(), times);
        }
        std::mem::take(&mut self.counts)
    }
}
