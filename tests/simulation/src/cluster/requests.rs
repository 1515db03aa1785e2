//! The engine of one node: requests that look up, load, store and finish, each at its own pace.

use std::collections::BTreeMap;

use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringError};
use terrace_tiers::{Clock, Time};

use super::world::World;
use crate::failure::Reason;

/// What a request is doing.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Asks until every answer is resolved.
    Looking { unresolved_since: Option<Time> },
    /// The engine reads these slots.
    Loading { keys: Vec<Key>, slots: Vec<SlotId> },
    /// Has computed the rest and wants to store it.
    Computed,
    /// The engine fills these slots; so many are filled.
    Storing { keys: Vec<Key>, slots: Vec<SlotId>, filled: usize },
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub keys: Vec<Key>,
    pub phase: Phase,
    /// The manager was told that it is over; what is in flight is completed late.
    pub finished: bool,
}

pub(crate) type Requests = BTreeMap<RequestId, Request>;

fn contract(what: &str, error: impl std::fmt::Display) -> Reason {
    Reason::Contract(format!("{what}: {error}"))
}

impl World {
    /// The bytes of a slot are those of the key, in the node's namespace.
    pub(crate) fn check_bytes(&mut self, node: usize, key: &Key, slot: SlotId) -> Result<(), Reason> {
        let life = &self.nodes[node].life;
        if !self.model.was_stored(life.namespace, key) {
            return Err(Reason::NeverStored(format!("{key} in {slot:?} of node {node}")));
        }
        let content = self.model.content(life.namespace, key);
        self.buffer.resize(content.len(), 0);
        if !life.region.read_slot(slot, &mut self.buffer) {
            return Err(Reason::Contract(format!("{slot:?} is not in the region")));
        }
        if self.buffer == content {
            return Ok(());
        }
        let at = self.buffer.iter().zip(content).position(|(is, must)| is != must).unwrap_or(0);
        Err(Reason::WrongBytes(format!("{key} in {slot:?} of node {node}, from byte {at} on")))
    }

    /// A new request for a prefix of some conversation.
    pub(crate) fn begin_request(&mut self, node: usize) -> Result<(), Reason> {
        if self.nodes[node].life.requests.len() >= self.settings.requests {
            return Ok(());
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let chain = self.rng.below(self.settings.chains);
        let blocks = self.rng.between(1, self.settings.chain_blocks);
        let group = self.rng.below(u64::from(self.settings.config.geometry.groups)) as u32;
        let keys: Vec<Key> =
            (0..blocks).map(|depth| self.model.key(chain, depth, self.settings.shared_blocks, group)).collect();
        let life = &mut self.nodes[node].life;
        match life.manager.begin_request(RequestContext { id, tiers: TierFilter::ALL }) {
            Ok(()) => {}
            Err(TieringError::TooManyRequests { .. }) => return Ok(()),
            Err(error) => return Err(contract("begin_request", error)),
        }
        self.trace.add(format_args!("node {node} begins {} chain {chain} blocks {blocks}", id.0));
        let phase = Phase::Looking { unresolved_since: None };
        life.requests.insert(id, Request { keys, phase, finished: false });
        Ok(())
    }

    /// One request does its next thing.
    pub(crate) fn advance_request(&mut self, node: usize, id: RequestId) -> Result<(), Reason> {
        let Some(mut request) = self.nodes[node].life.requests.remove(&id) else { return Ok(()) };
        if !request.finished && self.rng.chance(20) {
            self.finish(node, id, &mut request)?;
        }
        let next = match request.phase.clone() {
            Phase::Looking { unresolved_since } if !request.finished => {
                self.look(node, id, &request.keys, unresolved_since)?
            }
            Phase::Loading { keys, slots } => self.end_load(node, id, keys, slots)?,
            Phase::Computed if !request.finished => self.store(node, id, &request.keys)?,
            Phase::Storing { keys, slots, filled } => self.fill(node, id, keys, slots, filled)?,
            Phase::Looking { .. } | Phase::Computed => None,
        };
        match next {
            Some(phase) => {
                request.phase = phase;
                self.nodes[node].life.requests.insert(id, request);
            }
            None if !request.finished => self.finish(node, id, &mut request)?,
            None => {}
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, node: usize, id: RequestId, request: &mut Request) -> Result<(), Reason> {
        request.finished = true;
        let touches = self.rng.chance(700);
        let manager = &mut self.nodes[node].life.manager;
        if touches {
            manager.touch(&request.keys);
        }
        manager
            .finish_request(id)
            .map(drop)
            .ok_or_else(|| contract("finish_request", format_args!("{} was open", id.0)))
    }

    fn look(&mut self, node: usize, id: RequestId, keys: &[Key], since: Option<Time>) -> Result<Option<Phase>, Reason> {
        let mut answers = Vec::new();
        let life = &mut self.nodes[node].life;
        let looked = life.manager.lookup(id, keys, LookupMode::Prefix, &mut answers);
        looked.map_err(|error| contract("lookup", error))?;
        let now = life.driver.clock().now();
        self.trace.add(format_args!("node {node} looks up {} {answers:?}", id.0));
        if answers.iter().any(|answer| answer.is_unresolved()) {
            let since = since.unwrap_or(now);
            self.tally("unresolved", 1);
            if now.since(since) > self.settings.config.deadlines.lookup {
                return Err(Reason::Unresolved(format!(
                    "request {} of node {node} since {:?}",
                    id.0,
                    now.since(since)
                )));
            }
            return Ok(Some(Phase::Looking { unresolved_since: Some(since) }));
        }
        let found: Vec<Key> =
            keys.iter().zip(&answers).filter(|(_, answer)| **answer == Lookup::Hit).map(|(key, _)| *key).collect();
        self.counts.hits += found.len() as u64;
        self.counts.misses += (keys.len() - found.len()) as u64;
        if found.is_empty() {
            return Ok(Some(Phase::Computed));
        }
        let mut slots = Vec::new();
        let prepared = self.nodes[node].life.manager.prepare_load(id, &found, &mut slots);
        prepared.map_err(|error| contract("prepare_load after Hit", error))?;
        if slots.len() != found.len() {
            return Err(contract("prepare_load", format_args!("{} slots for {} keys", slots.len(), found.len())));
        }
        for (key, slot) in found.iter().zip(&slots) {
            self.check_bytes(node, key, *slot)?;
        }
        Ok(Some(Phase::Loading { keys: found, slots }))
    }

    fn end_load(
        &mut self,
        node: usize,
        id: RequestId,
        keys: Vec<Key>,
        slots: Vec<SlotId>,
    ) -> Result<Option<Phase>, Reason> {
        if self.rng.chance(300) {
            return Ok(Some(Phase::Loading { keys, slots }));
        }
        // As long as the engine reads, the bytes stay.
        for (key, slot) in keys.iter().zip(&slots) {
            self.check_bytes(node, key, *slot)?;
        }
        self.counts.loaded += keys.len() as u64;
        let completed = self.nodes[node].life.manager.complete_load(id, &keys);
        completed.map_err(|error| contract("complete_load", error))?;
        Ok(Some(Phase::Computed))
    }

    fn store(&mut self, node: usize, id: RequestId, keys: &[Key]) -> Result<Option<Phase>, Reason> {
        if self.rng.chance(200) {
            return Ok(Some(Phase::Computed));
        }
        let mut plan = StorePlan::default();
        let partial = self.rng.chance(500);
        let planned = self.nodes[node].life.manager.prepare_store(id, keys, partial, &mut plan);
        let planned = planned.map_err(|error| contract("prepare_store", error))?;
        self.trace.add(format_args!("node {node} stores {} {planned} {plan:?}", id.0));
        self.counts.evicted += plan.evicted.len() as u64;
        let stored: Vec<Key> = plan.store.iter().filter_map(|at| keys.get(*at as usize)).copied().collect();
        if stored.len() != plan.slots.len() || (!planned && !stored.is_empty()) {
            return Err(contract("prepare_store", format_args!("{planned} with {plan:?}")));
        }
        Ok((!stored.is_empty()).then_some(Phase::Storing { keys: stored, slots: plan.slots, filled: 0 }))
    }

    /// Fills some more of the slots, then completes the store, or fails it.
    fn fill(
        &mut self,
        node: usize,
        id: RequestId,
        keys: Vec<Key>,
        slots: Vec<SlotId>,
        filled: usize,
    ) -> Result<Option<Phase>, Reason> {
        let until = filled + self.rng.index(keys.len() - filled) + 1;
        let fails = self.rng.chance(40);
        let life = &mut self.nodes[node].life;
        for (key, slot) in keys.iter().zip(&slots).take(until).skip(filled) {
            let content = self.model.content(life.namespace, key);
            let written = if fails { content.len() / 2 } else { content.len() };
            if !life.region.write_slot(*slot, &content[..written]) {
                return Err(Reason::Contract(format!("{slot:?} is not in the region")));
            }
        }
        if !fails && until < keys.len() {
            return Ok(Some(Phase::Storing { keys, slots, filled: until }));
        }
        for key in keys.iter().filter(|_| !fails) {
            self.model.store(life.namespace, *key);
        }
        life.manager.complete_store(id, &keys, !fails).map_err(|error| contract("complete_store", error))?;
        Ok(None)
    }

    /// Every readable block of a node.
    pub(crate) fn check_primary(&mut self, node: usize) -> Result<(), Reason> {
        for slot in (0..self.settings.config.primary.blocks).map(SlotId) {
            let primary = self.nodes[node].life.manager.primary();
            if let (BlockState::Ready { .. }, Some(key)) = (primary.state(slot), primary.key(slot)) {
                self.check_bytes(node, &key, slot)?;
            }
        }
        Ok(())
    }
}
