//! A simulated engine: requests that look up, load, store and finish, each at its own pace.

use std::collections::BTreeMap;

use terrace_primary::{Key, SlotId};
use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringError};
use terrace_tiers::{Clock, Time};

use crate::failure::Reason;
use crate::world::World;

/// What a request is doing.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Asks until every answer is resolved.
    Looking { mode: LookupMode, unresolved_since: Option<Time> },
    /// Was told what it can have and has not taken it yet.
    Found { keys: Vec<Key> },
    /// The engine reads these slots.
    Loading { keys: Vec<Key>, slots: Vec<SlotId> },
    /// Has computed the rest and wants to store it.
    Computed,
    /// The engine fills these slots; so many are filled.
    Storing { keys: Vec<Key>, slots: Vec<SlotId>, filled: usize },
    /// Nothing is left to do but to finish.
    Idle,
}

/// A request of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) keys: Vec<Key>,
    pub(crate) phase: Phase,
    /// The manager was told that it is over; what is in flight is completed late.
    pub(crate) finished: bool,
}

pub(crate) type Requests = BTreeMap<RequestId, Request>;

impl World {
    /// A new request for a prefix of some conversation.
    pub(crate) fn begin_request(&mut self) -> Result<(), Reason> {
        if self.requests.len() >= self.settings.requests {
            return Ok(());
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let chain = self.rng.below(self.settings.chains);
        let blocks = self.rng.between(1, self.settings.chain_blocks);
        let group = self.rng.below(u64::from(self.settings.config.geometry.groups)) as u32;
        let keys: Vec<Key> =
            (0..blocks).map(|depth| self.model.key(chain, depth, self.settings.shared_blocks, group)).collect();
        let tiers = if self.rng.chance(50) { TierFilter::NONE } else { TierFilter::ALL };
        match self.life.manager.begin_request(RequestContext { id, tiers }) {
            Ok(()) => {}
            Err(TieringError::TooManyRequests { .. }) => return Ok(()),
            Err(error) => return Err(Reason::Contract(format!("begin_request: {error}"))),
        }
        let mode = match self.rng.below(10) {
            0..7 => LookupMode::Prefix,
            7..9 => LookupMode::Suffix { window: self.rng.between(1, 6) as u32 },
            _ => LookupMode::Each,
        };
        self.trace.add(format_args!("begin {} chain {chain} blocks {blocks} {mode:?}", id.0));
        let phase = Phase::Looking { mode, unresolved_since: None };
        self.requests.insert(id, Request { keys, phase, finished: false });
        Ok(())
    }

    /// One request does its next thing.
    pub(crate) fn advance_request(&mut self, id: RequestId) -> Result<(), Reason> {
        let Some(mut request) = self.requests.remove(&id) else { return Ok(()) };
        if !request.finished && self.rng.chance(20) {
            self.finish(id, &mut request)?;
        }
        let phase = match std::mem::replace(&mut request.phase, Phase::Idle) {
            Phase::Looking { mode, unresolved_since } if !request.finished => {
                self.look(id, &request.keys, mode, unresolved_since)?
            }
            Phase::Found { keys } if !request.finished => self.load(id, keys)?,
            Phase::Loading { keys, slots } => self.end_load(id, keys, slots)?,
            Phase::Computed if !request.finished => self.store(id, &request.keys)?,
            Phase::Storing { keys, slots, filled } => self.fill(id, keys, slots, filled)?,
            _ => Phase::Idle,
        };
        let over = matches!(phase, Phase::Idle);
        request.phase = phase;
        if over && !request.finished {
            self.finish(id, &mut request)?;
        }
        if !over {
            self.requests.insert(id, request);
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, id: RequestId, request: &mut Request) -> Result<(), Reason> {
        request.finished = true;
        if self.rng.chance(700) {
            self.life.manager.touch(&request.keys);
        }
        match self.life.manager.finish_request(id) {
            Some(_) => Ok(()),
            None => Err(Reason::Contract(format!("finish_request: {} was open", id.0))),
        }
    }

    fn look(&mut self, id: RequestId, keys: &[Key], mode: LookupMode, since: Option<Time>) -> Result<Phase, Reason> {
        let mut answers = Vec::new();
        let looked = self.life.manager.lookup(id, keys, mode, &mut answers);
        looked.map_err(|error| Reason::Contract(format!("lookup: {error}")))?;
        self.trace.add(format_args!("lookup {} {}", id.0, answers.iter().map(letter).collect::<String>()));
        self.check_answers(keys, mode, &answers)?;
        for (key, _) in keys.iter().zip(&answers).filter(|(_, answer)| **answer == Lookup::Hit) {
            self.check_hit(key)?;
        }
        if answers.iter().any(|answer| answer.is_unresolved()) {
            let now = self.clock.now();
            let since = since.unwrap_or(now);
            self.counts.unresolved += 1;
            if now.since(since) > self.settings.config.deadlines.lookup {
                return Err(Reason::Unresolved(format!("request {} since {:?}", id.0, now.since(since))));
            }
            return Ok(Phase::Looking { mode, unresolved_since: Some(since) });
        }
        let found: Vec<Key> =
            keys.iter().zip(&answers).filter(|(_, answer)| **answer == Lookup::Hit).map(|(key, _)| *key).collect();
        self.counts.hits += found.len() as u64;
        self.counts.misses += (keys.len() - found.len()) as u64;
        match found.is_empty() {
            true => Ok(Phase::Computed),
            // Within the same step nothing can have come between.
            false if self.rng.chance(700) => self.load_now(id, found, true),
            false => Ok(Phase::Found { keys: found }),
        }
    }

    fn check_answers(&self, keys: &[Key], mode: LookupMode, answers: &[Lookup]) -> Result<(), Reason> {
        let had = |answer: &Lookup| *answer != Lookup::Miss;
        let first = answers.iter().position(had).unwrap_or(answers.len());
        let end = answers.iter().rposition(had).map_or(first, |last| last + 1);
        let run_is_whole = answers[first..end].iter().all(had);
        let right = answers.len() == keys.len()
            && match mode {
                LookupMode::Prefix => run_is_whole && (first == 0 || first == end),
                // Where not all of a window can be promoted none of it is, and what is resident is told all the same.
                LookupMode::Suffix { window } => end - first <= window as usize,
                LookupMode::Each => true,
            };
        if right { Ok(()) } else { Err(Reason::Contract(format!("{mode:?} answered {answers:?}"))) }
    }

    fn load(&mut self, id: RequestId, keys: Vec<Key>) -> Result<Phase, Reason> {
        self.load_now(id, keys, false)
    }

    fn load_now(&mut self, id: RequestId, keys: Vec<Key>, must: bool) -> Result<Phase, Reason> {
        let mut slots = Vec::new();
        match self.life.manager.prepare_load(id, &keys, &mut slots) {
            Ok(()) => {}
            Err(TieringError::NotResident { .. } | TieringError::TooManyReaders { .. }) if !must => {
                return Ok(Phase::Looking { mode: LookupMode::Prefix, unresolved_since: None });
            }
            Err(error) => return Err(Reason::Contract(format!("prepare_load after Hit: {error}"))),
        }
        self.trace.add(format_args!("load {} into the engine from {slots:?}", id.0));
        if slots.len() != keys.len() {
            return Err(Reason::Contract(format!("{} slots for {} keys", slots.len(), keys.len())));
        }
        self.check_slots(&keys, &slots)?;
        Ok(Phase::Loading { keys, slots })
    }

    fn end_load(&mut self, id: RequestId, keys: Vec<Key>, slots: Vec<SlotId>) -> Result<Phase, Reason> {
        if self.rng.chance(300) {
            return Ok(Phase::Loading { keys, slots });
        }
        // As long as the engine reads, the bytes stay.
        self.check_slots(&keys, &slots)?;
        self.counts.loaded += keys.len() as u64;
        let completed = self.life.manager.complete_load(id, &keys);
        completed.map_err(|error| Reason::Contract(format!("complete_load: {error}")))?;
        Ok(Phase::Computed)
    }

    fn store(&mut self, id: RequestId, keys: &[Key]) -> Result<Phase, Reason> {
        if self.rng.chance(200) {
            return Ok(Phase::Computed);
        }
        let mut plan = StorePlan::default();
        let partial = self.rng.chance(500);
        let planned = self.life.manager.prepare_store(id, keys, partial, &mut plan);
        let planned = planned.map_err(|error| Reason::Contract(format!("prepare_store: {error}")))?;
        self.trace.add(format_args!("store {} {planned} {plan:?}", id.0));
        self.counts.evicted += plan.evicted.len() as u64;
        if plan.store.len() != plan.slots.len() || (!planned && !plan.store.is_empty()) {
            return Err(Reason::Contract(format!("prepare_store: {planned} with {plan:?}")));
        }
        let stored: Vec<Key> = plan.store.iter().filter_map(|at| keys.get(*at as usize)).copied().collect();
        if stored.is_empty() {
            Ok(Phase::Idle)
        } else {
            Ok(Phase::Storing { keys: stored, slots: plan.slots, filled: 0 })
        }
    }

    /// Fills some more of the slots, then completes the store, or fails it.
    fn fill(&mut self, id: RequestId, keys: Vec<Key>, slots: Vec<SlotId>, filled: usize) -> Result<Phase, Reason> {
        let until = filled + self.rng.index(keys.len() - filled) + 1;
        let fails = self.rng.chance(40);
        for (key, slot) in keys.iter().zip(&slots).take(until).skip(filled) {
            let content = self.model.content(self.life.namespace, key);
            let written = if fails { content.len() / 2 } else { content.len() };
            if !self.region.write_slot(*slot, &content[..written]) {
                return Err(Reason::Contract(format!("{slot:?} is not in the region")));
            }
        }
        if !fails && until < keys.len() {
            return Ok(Phase::Storing { keys, slots, filled: until });
        }
        for key in keys.iter().filter(|_| !fails) {
            self.model.store(self.life.namespace, *key);
        }
        let completed = self.life.manager.complete_store(id, &keys, !fails);
        completed.map_err(|error| Reason::Contract(format!("complete_store: {error}")))?;
        Ok(Phase::Idle)
    }
}

const fn letter(answer: &Lookup) -> char {
    match answer {
        Lookup::Hit => 'H',
        Lookup::Pending => 'P',
        Lookup::Retry => 'R',
        Lookup::Miss => '-',
    }
}
