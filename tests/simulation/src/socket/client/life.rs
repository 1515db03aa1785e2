//! A process with the product's client in it, over its steps.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use terrace_config::Namespace;
use terrace_connector::client::{ClientOptions, RemoteManager, SessionState};
use terrace_connector::{JobId, ManagerPort, RequestId};
use terrace_primary::Key;
use terrace_tiers::{Clock, Time};

use super::super::common::Common;
use super::super::copier::{Copier, Task};
use super::super::wire::Process;
use super::machine::{Simulated, Surroundings};
use super::request::Request;
use super::{SharedBelow, SharedServer};
use crate::failure::Reason;

/// How long the last words may take.
const FAREWELL: Duration = Duration::from_millis(50);
/// How long copies take that are stuck: longer than the daemon keeps the leases of a lost connection.
const STUCK: Duration = Duration::from_secs(180);

/// A transfer that has not ended.
pub(super) struct Job {
    pub request: u64,
    pub keys: Vec<Key>,
    pub is_store: bool,
    /// Connections before it.
    pub connects: u64,
}

pub(crate) struct Life {
    pub(super) namespace: u8,
    pub(super) world: Rc<RefCell<Surroundings>>,
    pub(super) manager: RemoteManager<Simulated>,
    pub(super) copier: Copier,
    /// Transfers that are handed over at the end of the step.
    pub(super) planned: Vec<Task>,
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) requests: BTreeMap<u64, Request>,
    next_request: u64,
    next_job: u64,
    /// Connections so far.
    pub(super) connects: u64,
    /// Since when a reply is overdue, and how often one was before.
    pub(super) stalled: Option<(Time, u64)>,
    stuck_until: Option<Time>,
    /// A reset may not have been served yet.
    pub(super) is_resetting: bool,
    /// Steps in a row that began with nothing left to tell or to hear.
    pub(super) steps_in_sync: u32,
    /// It was told to begin nothing new, and since then had nothing left to do.
    pub(super) has_rested: bool,
    is_seen: bool,
}

impl Life {
    pub fn start(
        name: String,
        namespace: u8,
        (server, below): (&SharedServer, &SharedBelow),
        common: &mut Common,
    ) -> Self {
        let model = Namespace { model: namespace.to_string(), ..Namespace::default() };
        let mut options = ClientOptions::new("/simulated", model, common.settings.disks.config.geometry);
        options.call_budget = Duration::from_millis([1, 5, 20][common.rng.index(3)]);
        options.stall_patience = Duration::from_millis([20, 250][common.rng.index(2)]);
        options.events = common.rng.chance(300);
        let is_seen = !common.rng.chance(common.settings.unseen_per_mille);
        let process = Process::start(common.pid(), is_seen);
        let around = (common.clock.clone(), Rc::clone(server), Rc::clone(below));
        let rng = common.rng.fork("client");
        let delay = common.settings.delay_per_mille;
        let world = Surroundings::new(around, rng, (options.clone(), name, process), delay);
        let world = Rc::new(RefCell::new(world));
        Self {
            namespace,
            manager: RemoteManager::on(Simulated(Rc::clone(&world)), options),
            world,
            copier: Copier { namespace, rank: 0, parts: 1, tasks: VecDeque::new() },
            planned: Vec::new(),
            jobs: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 1,
            next_job: 0,
            connects: 0,
            stalled: None,
            stuck_until: None,
            is_resetting: false,
            steps_in_sync: 0,
            has_rested: false,
            is_seen,
        }
    }

    /// One step of the engine. `is_ending`: nothing new begins.
    pub fn step(&mut self, is_ending: bool, common: &mut Common) -> Result<(), Reason> {
        if is_ending {
            let mut world = self.world.borrow_mut();
            (world.is_unheard, world.delay_per_mille) = (false, 0);
            self.stuck_until = None;
        }
        self.world.borrow_mut().carry();
        self.timed("poll_once", Duration::ZERO, |manager| manager.poll_once())?;
        self.look(common)?;
        self.check_held()?;
        self.copy(common)?;
        if !is_ending && self.requests.len() < common.settings.disks.requests.min(6) && common.rng.chance(400) {
            self.arrive(common)?;
        }
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            self.serve(id, is_ending, common)?;
        }
        self.has_rested |= is_ending && self.is_idle();
        // At rest it asks for nothing: what it asked for last would still be on its way when that is looked at.
        if !self.has_rested {
            self.other_calls(common)?;
        }
        self.timed("end_step", Duration::ZERO, |manager| manager.end_step())?;
        self.copier.tasks.extend(self.planned.drain(..));
        if self.manager.session().state() != SessionState::Ready {
            self.steps_in_sync = 0;
        }
        let (state, counters) = (self.manager.session().state(), self.manager.counters());
        let now = common.clock.now();
        common.trace.add(format_args!("{} {state:?} at {now:?}, {counters:?}", self.world.borrow().name));
        Ok(())
    }

    /// How the session stands now.
    fn look(&mut self, common: &mut Common) -> Result<(), Reason> {
        if let Some(error) = self.world.borrow_mut().fault.take() {
            return Err(Reason::Contract(format!("no session: {error}")));
        }
        let (state, counters, now) = (self.manager.session().state(), self.manager.counters(), common.clock.now());
        if counters.protocol_faults > 0 {
            return Err(Reason::Contract("the client took the daemon for a liar".to_owned()));
        }
        if counters.connects > self.connects {
            common.count("connections of clients");
            self.connects = counters.connects;
            self.requests.values_mut().for_each(Request::forget_waiting);
            self.stalled = None;
        }
        if state == SessionState::Away && !self.copier.tasks.is_empty() && common.rng.chance(200) {
            self.stuck_until.get_or_insert(now.plus(STUCK));
        }
        self.stuck_until = self.stuck_until.filter(|until| now < *until);
        match state {
            SessionState::Stalled => {
                let same = self.stalled.filter(|(_, stalls)| *stalls == counters.stalls);
                self.stalled = same.or(Some((now, counters.stalls)));
            }
            _ => self.stalled = None,
        }
        let is_in_sync =
            state == SessionState::Ready && !self.manager.has_pending_work() && self.world.borrow().is_quiet();
        self.steps_in_sync = if is_in_sync { self.steps_in_sync + 1 } else { 0 };
        if is_in_sync {
            self.requests.values_mut().for_each(|request| request.is_known(now));
        }
        if self.is_resetting {
            common.may_reset(self.namespace);
        }
        self.is_resetting &= !is_in_sync;
        if !self.is_seen {
            self.break_off()?;
        }
        Ok(())
    }

    /// Copies something, and ends what is over.
    fn copy(&mut self, common: &mut Common) -> Result<(), Reason> {
        while self.stuck_until.is_none() && !common.rng.chance(common.settings.idle_per_mille) {
            if let Some(task) = self.copier.tasks.front_mut() {
                task.is_used = task.is_store || !self.manager.is_doomed(JobId(task.job));
            }
            let Some((job, ok)) = self.copier.work(common)? else { break };
            let is_doomed = self.manager.is_doomed(JobId(job));
            *common.counts.others.entry("doomed loads of clients").or_default() += u64::from(is_doomed);
            self.complete(job, ok && !is_doomed)?;
        }
        Ok(())
    }

    /// A transfer has ended.
    pub(super) fn complete(&mut self, name: u64, ok: bool) -> Result<(), Reason> {
        let Some(job) = self.jobs.remove(&name) else { return Ok(()) };
        if let Some(request) = self.requests.get_mut(&job.request) {
            request.transferred(ok);
        }
        let Job { request, keys, is_store, .. } = job;
        let ended = self.timed("complete", Duration::ZERO, |manager| match is_store {
            true => manager.complete_store(RequestId(request), JobId(name), &keys, ok),
            false => manager.complete_load(RequestId(request), JobId(name), &keys, ok),
        })?;
        ended.map_err(|error| Reason::Contract(format!("a transfer cannot end: {error}")))
    }

    /// Where the daemon sees no processes, what runs for a connection that is lost is broken off: it waits ten seconds.
    fn break_off(&mut self) -> Result<(), Reason> {
        let is_away = self.manager.session().state() == SessionState::Away;
        let connects = self.connects;
        let lost = self.jobs.iter().filter(|(_, job)| is_away || job.connects < connects);
        let lost: Vec<u64> = lost.map(|(name, _)| *name).collect();
        self.copier.tasks.retain(|task| !lost.contains(&task.job));
        lost.into_iter().try_for_each(|name| self.complete(name, false))
    }

    fn other_calls(&mut self, common: &mut Common) -> Result<(), Reason> {
        let budget = self.budget();
        if common.settings.disks.resets && common.rng.chance(3) {
            common.may_reset(self.namespace);
            common.counts.resets += 1;
            self.is_resetting = true;
            // Late, refused or away: all the same to an engine.
            let _ = self.timed("reset", budget, |manager| manager.reset())?;
            self.requests.values_mut().for_each(Request::forget_waiting);
        }
        if common.rng.chance(10) {
            self.timed("stats", budget, |manager| manager.stats())?;
        }
        if common.rng.chance(50)
            && let Some(request) = self.requests.values().next()
        {
            let keys = request.keys.clone();
            self.timed("touch", Duration::ZERO, |manager| manager.touch(&keys))?;
        }
        let mut events = Vec::new();
        self.manager.take_events(&mut events);
        *common.counts.others.entry("events of clients").or_default() += events.len() as u64;
        Ok(())
    }

    /// Ends in order, with nothing copied any more.
    pub fn shut_down(&mut self) -> Result<(), Reason> {
        self.copier.tasks.clear();
        let jobs: Vec<u64> = self.jobs.keys().copied().collect();
        jobs.into_iter().try_for_each(|name| self.complete(name, false))?;
        self.timed("shutdown", FAREWELL, |manager| manager.shutdown())?;
        self.cut();
        Ok(())
    }

    pub(super) fn budget(&self) -> Duration {
        self.manager.session().options().call_budget
    }

    pub(super) fn new_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    pub(super) fn new_job(&mut self) -> u64 {
        self.next_job += 1;
        self.next_job - 1
    }

    pub fn cut(&self) {
        self.world.borrow_mut().cut();
    }

    pub fn unhear(&self, is_unheard: bool) {
        self.world.borrow_mut().is_unheard = is_unheard;
    }

    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.requests.is_empty() && self.steps_in_sync > 1
    }

    pub const fn is_seen(&self) -> bool {
        self.is_seen
    }

    pub fn is_copying(&self) -> bool {
        !self.copier.tasks.is_empty()
    }

    pub const fn is_stuck(&self) -> bool {
        self.stuck_until.is_some()
    }

    pub fn name(&self) -> String {
        self.world.borrow().name.clone()
    }
}
