//! An engine: a scheduler session that asks and decides, and those who copy for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use terrace_connector::protocol::{FrameFlags, Hello, Kind, SHARED_TABLE, WireGeometry, WireNamespace};
use terrace_connector::server::InlineServer;
use terrace_primary::{Key, Region, SlotId, TableReader};
use terrace_tiers::Time;

use super::common::Common;
use super::copier::{Copier, Task};
use super::rank::Rank;
use super::wire::{Process, Wire};
use crate::failure::Reason;

/// Jobs of engine `n` have names from `n` times this on.
pub(crate) const JOBS_OF_AN_ENGINE: u64 = 1_000_000;

/// What a lookup answered.
#[derive(Debug)]
pub(crate) struct Answered {
    /// 0: nothing is leased.
    pub lease: u64,
    /// Index, slot, key.
    pub hits: Vec<(u32, SlotId, Key)>,
    pub unresolved: Vec<u32>,
}

#[derive(Debug)]
pub(crate) enum State {
    /// It is to be looked up.
    Idle,
    /// Its leading blocks were found in the daemon's table, in these slots, after this change.
    Seen(u64, Vec<SlotId>),
    Asking,
    Answered(Answered),
    /// So many of its keys are there, the others are to be stored.
    Computed(usize),
    Storing,
    Done,
}

/// A request of the engine.
pub(crate) struct Request {
    pub keys: Vec<Key>,
    pub prefix: bool,
    pub state: State,
    /// When it said that it waits, and when the daemon surely knew.
    pub since: Option<(Time, Time)>,
}

/// What a sequence asked.
pub(crate) enum Asked {
    Lookup {
        request: u64,
        lease: bool,
        /// The request's time to wait was over when it was sent.
        is_late: bool,
    },
    /// A lease on what was seen.
    Lease {
        request: u64,
        slots: Vec<SlotId>,
    },
    Store {
        request: u64,
        job: u64,
        keys: Vec<Key>,
        /// Sessions that the workers had opened.
        epochs: Vec<u64>,
    },
    End {
        /// Requests, and their leases.
        waiting: Vec<(u64, u64)>,
        sent: Time,
        completed: Vec<(u64, bool)>,
    },
    Reset,
    /// What breaks a rule.
    Wrong,
    /// What may break one.
    Guess,
    Other,
}

/// A job, as the engine knows it.
pub(crate) struct Job {
    /// Ranks that have copied all of it.
    pub copied: BTreeSet<u32>,
}

/// An open session of the scheduler.
pub(crate) struct Open {
    pub region: Arc<Region>,
    /// The daemon's block table, if it was asked for.
    pub table: Option<TableReader>,
}

/// An engine, over all its lives.
pub(crate) struct Engine {
    pub number: u64,
    pub name: String,
    pub namespace: u8,
    pub process: Option<Process>,
    pub wire: Option<Wire>,
    pub open: Option<Open>,
    /// Copies where there are no workers.
    pub own: Copier,
    pub own_done: Vec<(u64, bool)>,
    pub ranks: Vec<Rank>,
    pub requests: BTreeMap<u64, Request>,
    pub next_request: u64,
    pub next_job: u64,
    pub jobs: BTreeMap<u64, Job>,
    pub asked: BTreeMap<u64, Asked>,
    /// Sequence of the last `EndStep`: leases from before have ended.
    pub last_end: u64,
    pub finished: Vec<u64>,
    /// Jobs that nobody was told of.
    pub given_up: Vec<u64>,
    /// It comes back no more.
    pub is_over: bool,
}

/// What such a session says first.
pub(crate) fn hello(role: &str, engine: &str, namespace: u8, common: &Common) -> Hello {
    let geometry = common.settings.disks.config.geometry;
    Hello {
        version_min: 1,
        version_max: 1,
        features: Vec::new(),
        role: role.to_owned(),
        engine: engine.to_owned(),
        rank: 0,
        store_workers: 0,
        load_workers: 0,
        namespace: WireNamespace { model: namespace.to_string(), ..WireNamespace::default() },
        geometry: WireGeometry {
            block_bytes: geometry.block_bytes,
            tokens_per_block: geometry.tokens_per_block,
            blocks_per_chunk: geometry.blocks_per_chunk,
            groups: geometry.groups,
            hash_bytes: geometry.hash_bytes,
        },
        foreign: None,
        client: "simulation".to_owned(),
    }
}

impl Engine {
    pub fn new(number: u64, namespace: u8, workers: u32) -> Self {
        let copier = |rank| Copier { namespace, rank, parts: workers.max(1), tasks: VecDeque::new() };
        Self {
            number,
            name: format!("engine-{number}"),
            namespace,
            process: None,
            wire: None,
            open: None,
            own: copier(0),
            own_done: Vec::new(),
            ranks: (0..workers).map(|rank| Rank::new(copier(rank))).collect(),
            requests: BTreeMap::new(),
            next_request: 1,
            next_job: number * JOBS_OF_AN_ENGINE + 1,
            jobs: BTreeMap::new(),
            asked: BTreeMap::new(),
            last_end: 0,
            finished: Vec::new(),
            given_up: Vec::new(),
            is_over: false,
        }
    }

    /// One step: hears, copies, decides, sends.
    pub fn step(&mut self, server: &mut InlineServer, common: &mut Common) -> Result<(), Reason> {
        if self.is_over {
            return Ok(());
        }
        if self.asked.values().any(|asked| matches!(asked, Asked::Reset)) {
            common.may_reset(self.namespace);
        }
        self.hear(server, common)?;
        let mut reports = Vec::new();
        for rank in &mut self.ranks {
            rank.step((&self.name, self.number), server, common, &mut reports)?;
        }
        while !common.rng.chance(common.settings.idle_per_mille) {
            let Some((job, ok)) = self.own.work(common)? else { break };
            self.own_done.push((job, ok));
            reports.push((job, 0, ok));
        }
        for (job, rank, ok) in reports {
            if let Some(job) = self.jobs.get_mut(&job).filter(|_| ok) {
                job.copied.insert(rank);
            }
        }
        self.connect(server, common);
        if self.open.is_some() && self.wire.as_ref().is_some_and(|wire| !wire.stalls) {
            self.decide(common);
        }
        if let Some(wire) = &mut self.wire {
            wire.carry(&mut common.rng, common.settings.delay_per_mille);
        }
        Ok(())
    }

    fn connect(&mut self, server: &mut InlineServer, common: &mut Common) {
        if self.process.is_none() && common.rng.chance(200) {
            let is_seen = !common.rng.chance(common.settings.unseen_per_mille);
            self.process = Some(Process::start(common.pid(), is_seen));
        }
        if self.wire.is_some() || !common.rng.chance(300) {
            return;
        }
        // What its last session began is over before it says Hello again.
        let is_copying = !self.own.tasks.is_empty() || self.ranks.iter().any(|rank| !rank.copier.tasks.is_empty());
        let Some(process) = self.process.as_mut().filter(|_| !is_copying) else { return };
        let mut wire = Wire::connect(server, process);
        let workers = self.ranks.len() as u32;
        let message = Hello {
            store_workers: workers,
            load_workers: workers,
            features: common
                .rng
                .chance(common.settings.readers_per_mille)
                .then(|| SHARED_TABLE.to_owned())
                .into_iter()
                .collect(),
            ..hello("scheduler", &self.name, self.namespace, common)
        };
        wire.send(Kind::Hello, FrameFlags::REQUEST, &message);
        self.wire = Some(wire);
    }

    /// Hands a job to those who copy.
    pub fn begin(&mut self, job: u64, is_store: bool, region: &Arc<Region>, blocks: &[(SlotId, Key)]) {
        self.jobs.insert(job, Job { copied: BTreeSet::new() });
        let task = || Task::new(job, is_store, Arc::clone(region), blocks.to_vec());
        if self.ranks.is_empty() {
            self.own.tasks.push_back(task());
        }
        for rank in &mut self.ranks {
            rank.take(task());
        }
    }

    /// The sessions that the workers have opened.
    pub fn epochs(&self) -> Vec<u64> {
        self.ranks.iter().map(|rank| if rank.is_connected() { rank.epoch } else { 0 }).collect()
    }

    /// The scheduler's connection is over: all that it said and heard is forgotten, and what runs is finished.
    pub fn lose(&mut self) {
        (self.wire, self.open) = (None, None);
        self.requests.clear();
        for asked in std::mem::take(&mut self.asked).into_values() {
            match asked {
                // No worker will hear of it: the next connection ends it.
                Asked::Store { job, .. } => self.given_up.push(job),
                // Perhaps it did not arrive.
                Asked::End { completed, .. } => self.own_done.extend(completed),
                _ => {}
            }
        }
        self.finished.clear();
        self.last_end = 0;
        if !self.ranks.is_empty() {
            self.jobs.clear();
        }
    }

    /// The scheduler's connection breaks.
    pub fn cut(&mut self, common: &mut Common) {
        if let Some(wire) = &mut self.wire {
            wire.cut(&mut common.rng);
        }
    }

    /// The daemon is gone. Who has not mapped its region yet never will.
    pub fn orphan(&mut self) {
        if self.open.is_none() {
            self.lose();
        }
    }

    /// The scheduler's process is gone. Workers go on, and nobody looks at what they load.
    pub fn die(&mut self, common: &mut Common) {
        self.cut(common);
        self.lose();
        self.process = None;
        self.jobs.clear();
        self.given_up.clear();
        self.own.tasks.clear();
        self.own_done.clear();
        for task in self.ranks.iter_mut().flat_map(|rank| rank.copier.tasks.iter_mut()) {
            task.is_used = false;
        }
    }

    /// Nothing is copied any more.
    pub fn break_off(&mut self) {
        self.own_done.extend(self.own.break_off().into_iter().map(|job| (job, false)));
        self.ranks.iter_mut().for_each(Rank::break_off);
    }

    /// No process of it lives.
    pub fn is_dead(&self) -> bool {
        self.process.is_none() && self.ranks.iter().all(|rank| rank.process.is_none())
    }

    /// Whether the daemon has closed the scheduler's session, read or not.
    pub fn is_hung_up(&self) -> bool {
        self.wire.as_ref().is_none_or(Wire::has_hung_up)
    }

    /// Slots that it may read now, with their keys: leased hits.
    pub fn readable(&self) -> impl Iterator<Item = (&Arc<Region>, SlotId, &Key)> {
        let region = self.open.as_ref().map(|open| &open.region);
        let answered = self.requests.values().filter_map(|request| match &request.state {
            State::Answered(answered) if answered.lease > self.last_end => Some(answered),
            _ => None,
        });
        let hits = answered.flat_map(|answered| answered.hits.iter());
        hits.filter_map(move |(_, slot, key)| Some((region?, *slot, key)))
    }
}
