//! What an engine does for a request: looks it up, loads what is there, stores the rest.

use std::time::Duration;

use terrace_connector::client::SessionState;
use terrace_connector::{JobId, ManagerPort, PortQuery, RequestId, TierFilter};
use terrace_primary::Key;
use terrace_tiering::{Lookup, LookupMode, RequestContext, StorePlan, TieringError};
use terrace_tiers::{Clock, Time};

use super::super::common::Common;
use super::super::copier::Task;
use super::life::{Job, Life};
use crate::failure::Reason;

/// Nothing is asked twice within this time.
const ASK_AGAIN: Duration = Duration::from_millis(1);

pub(super) enum State {
    /// It is to be looked up.
    Waiting,
    /// So many of its keys are on their way.
    Loading(usize),
    /// So many of its keys are there, the others are to be stored.
    Computed(usize),
    Storing,
    Done,
}

pub(super) struct Request {
    pub keys: Vec<Key>,
    prefix: bool,
    pub state: State,
    waits: Waits,
}

/// When a request said that it waits, and when the daemon surely knew.
type Waits = Option<(Time, Option<Time>)>;

/// How a lookup went that was not resolved.
struct Asked {
    /// The daemon was asked, and answered.
    is_fresh: bool,
    /// The request's time to wait was over when it was asked.
    is_late: bool,
    waits: Waits,
    at: Time,
}

impl Request {
    /// A new connection, or a reset: every wait begins anew.
    pub const fn forget_waiting(&mut self) {
        self.waits = None;
    }

    /// The daemon knows all that was said.
    pub fn is_known(&mut self, now: Time) {
        if let Some((_, known)) = &mut self.waits {
            known.get_or_insert(now);
        }
    }

    /// Its transfer has ended.
    pub const fn transferred(&mut self, ok: bool) {
        self.state = match self.state {
            State::Loading(count) => State::Computed(if ok { count } else { 0 }),
            _ => State::Done,
        };
    }
}

fn contract(text: impl Into<String>) -> Reason {
    Reason::Contract(text.into())
}

fn refused(error: &TieringError) -> Reason {
    contract(format!("the client refuses: {error}"))
}

impl Life {
    pub(super) fn arrive(&mut self, common: &mut Common) -> Result<(), Reason> {
        let disks = &common.settings.disks;
        let (chain, shared) = (common.rng.below(disks.chains), disks.shared_blocks);
        let blocks = common.rng.between(1, disks.chain_blocks.min(u64::from(disks.config.primary.blocks)));
        let keys = (0..blocks).map(|depth| common.model.key(chain, depth, shared, 0)).collect();
        let id = self.new_request();
        let context = RequestContext { id: RequestId(id), tiers: TierFilter::ALL };
        self.manager.begin_request(context).map_err(|error| refused(&error))?;
        self.requests.insert(id, Request { keys, prefix: common.rng.chance(700), state: State::Waiting, waits: None });
        Ok(())
    }

    /// What a step does for one request.
    pub(super) fn serve(&mut self, id: u64, is_ending: bool, common: &mut Common) -> Result<(), Reason> {
        let gives_up = common.rng.chance(common.settings.abort_per_mille);
        let acts = common.rng.chance(700);
        let Some(request) = self.requests.get(&id) else { return Ok(()) };
        match request.state {
            State::Done => return self.finish(id),
            State::Waiting if is_ending => return self.finish(id),
            // Its transfer goes on.
            _ if gives_up => {
                common.count("requests given up");
                return self.finish(id);
            }
            State::Waiting if acts => self.look_up(id, common)?,
            State::Computed(from) if acts => self.store(id, from, common)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, id: u64) -> Result<(), Reason> {
        self.requests.remove(&id);
        if self.manager.finish_request(RequestId(id)) { Ok(()) } else { Err(contract("a request that is not open")) }
    }

    fn look_up(&mut self, id: u64, common: &mut Common) -> Result<(), Reason> {
        let (budget, namespace, now) = (self.budget(), self.namespace, common.clock.now());
        let deadline = common.settings.disks.config.deadlines.lookup;
        let Some(request) = self.requests.get(&id) else { return Ok(()) };
        let (keys, prefix) = (request.keys.clone(), request.prefix);
        let waits = request.waits.filter(|(said, _)| common.is_unreset_since(namespace, *said));
        let known = waits.and_then(|(_, known)| known);
        let before = self.manager.counters().lookups;
        let queries = vec![PortQuery { prefix_only: prefix, keys: keys.clone() }];
        let asked = self.timed("prepare_lookup", budget, |manager| manager.prepare_lookup(RequestId(id), queries))?;
        asked.map_err(|error| refused(&error))?;
        let mode = if prefix { LookupMode::Prefix } else { LookupMode::Each };
        let mut answers = Vec::new();
        let answered = self
            .timed("lookup", Duration::ZERO, |manager| manager.lookup(RequestId(id), 0, &keys, mode, &mut answers))?;
        answered.map_err(|error| refused(&error))?;
        if answers.len() != keys.len() {
            return Err(contract(format!("{} answers to {} keys", answers.len(), keys.len())));
        }
        let is_fresh = self.manager.counters().lookups > before;
        let is_unresolved = answers.iter().any(|answer| answer.is_unresolved());
        common.counts.unresolved += u64::from(is_unresolved);
        if is_unresolved {
            let is_late = known.is_some_and(|known| now >= known.plus(deadline));
            return self.unresolved(id, &Asked { is_fresh, is_late, waits, at: now }, common);
        }
        let hits = answers.iter().zip(&keys).filter(|(answer, _)| **answer == Lookup::Hit);
        let mut hits: Vec<Key> = hits.map(|(_, key)| *key).collect();
        common.counts.hits += hits.len() as u64;
        common.counts.misses += u64::from(hits.is_empty());
        hits.truncate(if common.rng.chance(100) { common.rng.index(hits.len() + 1) } else { hits.len() });
        // Without a gap: the leading ones are there.
        let leading = keys.iter().zip(&hits).take_while(|(key, hit)| key == hit).count();
        self.load(id, &hits, leading, common)
    }

    /// The answer is not known yet.
    fn unresolved(&mut self, id: u64, asked: &Asked, common: &mut Common) -> Result<(), Reason> {
        let is_stalled = self.manager.session().state() == SessionState::Stalled;
        let patience = self.manager.session().options().stall_patience + ASK_AGAIN;
        let gives_up = common.rng.chance(100);
        let Some(request) = self.requests.get_mut(&id) else { return Ok(()) };
        if asked.is_fresh {
            if asked.is_late {
                return Err(Reason::Unresolved(format!("request {id} of {}", self.world.borrow().name)));
            }
            request.waits = asked.waits.or(Some((common.clock.now(), None)));
        } else if is_stalled {
            request.waits = None;
            let stalls = self.manager.counters().stalls;
            let since = self.stalled.filter(|(_, of)| *of == stalls).map(|(since, _)| asked.at.since(since));
            if let Some(since) = since.filter(|since| *since > patience) {
                return Err(Reason::Unresolved(format!("request {id}: the daemon is silent since {since:?}")));
            }
        }
        if gives_up {
            request.state = State::Computed(0);
        }
        Ok(())
    }

    fn load(&mut self, id: u64, hits: &[Key], leading: usize, common: &mut Common) -> Result<(), Reason> {
        let mut state = State::Computed(0);
        if !hits.is_empty() {
            let (job, mut slots) = (self.new_job(), Vec::new());
            let prepared = self.timed("prepare_load", self.budget(), |manager| {
                manager.prepare_load(RequestId(id), JobId(job), hits, &mut slots)
            })?;
            match prepared {
                Ok(()) if slots.len() == hits.len() => {
                    common.count("loads of clients");
                    let blocks = slots.into_iter().zip(hits.iter().copied()).collect();
                    self.plan(job, id, false, blocks)?;
                    state = State::Loading(leading);
                }
                Ok(()) => return Err(contract(format!("{} slots for {} hits", slots.len(), hits.len()))),
                Err(TieringError::NotResident { .. }) => common.count("loads refused to clients"),
                Err(error) => return Err(refused(&error)),
            }
            if common.rng.chance(50) && matches!(state, State::Loading(_)) {
                self.planned.retain(|task| task.job != job);
                self.complete(job, false)?;
                state = State::Computed(0);
            }
        }
        if let Some(request) = self.requests.get_mut(&id) {
            (request.state, request.waits) = (state, None);
        }
        Ok(())
    }

    fn store(&mut self, id: u64, from: usize, common: &mut Common) -> Result<(), Reason> {
        let budget = self.budget();
        let keys = self.requests.get(&id).and_then(|request| request.keys.get(from..)).unwrap_or_default().to_vec();
        let mut state = State::Done;
        if !keys.is_empty() {
            let (job, mut plan) = (self.new_job(), StorePlan::default());
            let prepared = self.timed("prepare_store", budget, |manager| {
                manager.prepare_store(RequestId(id), JobId(job), &keys, &mut plan)
            })?;
            if prepared.map_err(|error| refused(&error))? && !plan.slots.is_empty() {
                common.count("stores of clients");
                let chosen = plan.store.iter().filter_map(|at| keys.get(*at as usize).copied());
                let blocks: Vec<_> = plan.slots.iter().copied().zip(chosen).collect();
                if blocks.len() != plan.slots.len() || plan.store.len() != plan.slots.len() {
                    return Err(contract(format!("{plan:?} of {} keys", keys.len())));
                }
                for (_, key) in &blocks {
                    common.model.store(self.namespace, *key);
                }
                self.plan(job, id, true, blocks)?;
                state = State::Storing;
            }
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.state = state;
        }
        Ok(())
    }

    fn plan(
        &mut self,
        job: u64,
        request: u64,
        is_store: bool,
        blocks: Vec<(terrace_primary::SlotId, Key)>,
    ) -> Result<(), Reason> {
        let region = self.manager.region_of(JobId(job));
        let (_, region) = region.ok_or_else(|| contract(format!("job {job} has no region")))?;
        let keys = blocks.iter().map(|(_, key)| *key).collect();
        self.jobs.insert(job, Job { request, keys, is_store, connects: self.manager.counters().connects });
        self.planned.push(Task::new(job, is_store, region, blocks));
        Ok(())
    }
}
