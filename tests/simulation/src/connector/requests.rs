//! What the engine's scheduler does with requests, from arrival to end.

use std::collections::BTreeMap;
use std::ops::Range;

use terrace_connector::{
    ConnectorError, GpuBlock, GroupKind, HashList, Matched, NewRequest, ScheduledRequest, SchedulerHalf, StepPlan,
};
use terrace_tiering::{RequestId, TierFilter};
use terrace_tiers::{Clock, Time};

use super::content::Name;
use super::settings::TOKENS;
use super::world::World;
use crate::failure::Reason;
use crate::rng::splitmix;

/// A lookup that is over its deadline is asked again after so many steps at most.
const STEPS_BETWEEN_LOOKUPS: u32 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Has no blocks, and asks what is cached.
    Waiting,
    /// Has blocks, some of which a load fills.
    Loading,
    Running,
    /// Ended; its blocks are still copied.
    Held,
}

/// For how long the connector has not told what is cached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unresolved {
    pub since: Option<Time>,
    /// Asked so often after the deadline.
    late: u32,
    /// Waits for the load of another request, which takes as long as a copy takes.
    behind_another: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its full GPU blocks, from the start of the prompt on.
    pub names: Vec<Name>,
    pub prompt_tokens: u32,
    end_tokens: u32,
    pub computed_tokens: u32,
    hashes_given: usize,
    /// Per group.
    pub tables: Vec<Vec<GpuBlock>>,
    pub state: State,
    pub unresolved: Unresolved,
    /// Places of the tables that a load fills.
    pub load: Range<usize>,
    /// Its load failed, and without it a window is not there.
    pub must_restart: bool,
}

pub(crate) type Requests = BTreeMap<RequestId, Request>;

impl World {
    fn in_state(&self, state: State) -> Vec<RequestId> {
        self.requests.iter().filter(|(_, request)| request.state == state).map(|(id, _)| *id).collect()
    }

    fn hashes(&self, names: &[Name]) -> HashList {
        let mut list = HashList::new(usize::from(self.settings.disks.config.geometry.hash_bytes));
        for name in names {
            list.push(&self.content.hash(*name)).unwrap_or_else(|error| panic!("hashes have one length: {error}"));
        }
        list
    }

    /// A request of one of some families, so that prefixes meet.
    pub(crate) fn arrive(&mut self) -> Result<(), Reason> {
        if self.requests.len() > self.settings.disks.requests {
            return Ok(());
        }
        let family = self.rng.below(self.settings.families);
        let variant = self.rng.below(4);
        let shared = self.rng.below(self.settings.chain_blocks);
        let blocks = self.rng.between(shared, self.settings.chain_blocks);
        let mut name = splitmix(family);
        let mut names = Vec::new();
        for depth in 0..blocks {
            name = splitmix(name ^ if depth < shared { depth } else { depth << 8 | (variant + 1) });
            names.push(name);
        }
        self.content.announce(&names);
        let end_tokens = (blocks as u32 * TOKENS + self.rng.below(u64::from(TOKENS)) as u32).max(1);
        let prompt_tokens = end_tokens - self.rng.below(u64::from(end_tokens.min(9))) as u32;
        let hashes_given = (prompt_tokens / TOKENS) as usize;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let tiers = if self.rng.chance(50) { TierFilter::NONE } else { TierFilter::ALL };
        let block_hashes = self.hashes(&names[..hashes_given]);
        self.trace.add(format_args!("{} arrives: family {family}, {shared} + {}, {tiers:?}", id.0, blocks - shared));
        match self.life.connector.new_request(NewRequest { id, prompt_tokens, block_hashes, tiers }) {
            Ok(()) => {}
            Err(ConnectorError::Capacity(_)) => return Ok(()),
            Err(error) => return Err(Reason::Contract(format!("new_request: {error}"))),
        }
        let request = Request {
            names,
            prompt_tokens,
            end_tokens,
            computed_tokens: 0,
            hashes_given,
            tables: vec![Vec::new(); self.settings.groups.len()],
            state: State::Waiting,
            unresolved: Unresolved::default(),
            load: 0..0,
            must_restart: false,
        };
        self.requests.insert(id, request);
        Ok(())
    }

    /// The longest prefix whose blocks are in the GPU, as far as each group still needs them.
    fn in_gpu(&self, request: &Request) -> usize {
        if !self.settings.prefix_cache {
            return 0;
        }
        let most = (request.prompt_tokens.saturating_sub(1) / TOKENS) as usize;
        let is_there = |blocks: &usize| {
            (0..self.settings.groups.len()).all(|group| {
                let first = self.settings.first_kept(group, *blocks as u32 * TOKENS);
                (first..*blocks).all(|at| self.gpu.find(group, request.names[at]).is_some())
            })
        };
        (1..=most.min(request.names.len())).rev().find(is_there).unwrap_or(0)
    }

    /// Waiting requests ask, and some get blocks.
    pub(crate) fn admit(&mut self) -> Result<(), Reason> {
        for id in self.in_state(State::Waiting) {
            let Some(mut request) = self.requests.remove(&id) else { continue };
            let admitted = self.admit_one(id, &mut request);
            self.requests.insert(id, request);
            admitted?;
        }
        Ok(())
    }

    fn admit_one(&mut self, id: RequestId, request: &mut Request) -> Result<(), Reason> {
        let computed = self.in_gpu(request);
        let blocked = self.life.connector.counters().waits_for_other_load;
        let matched = self.life.connector.get_num_new_matched_tokens(id, computed as u32 * TOKENS);
        let matched = matched.map_err(|error| Reason::Contract(format!("get_num_new_matched_tokens: {error}")))?;
        let blocked = self.life.connector.counters().waits_for_other_load > blocked;
        self.trace.add(format_args!("{} has {computed} blocks, matched {matched:?}", id.0));
        let Matched::Tokens(mut external) = matched else { return self.still_unresolved(id, request, blocked) };
        request.unresolved = Unresolved::default();
        let most = request.prompt_tokens.saturating_sub(1).max(request.names.len() as u32 * TOKENS);
        if !external.is_multiple_of(TOKENS) || computed as u32 * TOKENS + external > most {
            return Err(Reason::Contract(format!("{external} tokens matched behind {computed} blocks")));
        }
        self.counts.hits += u64::from(external / TOKENS);
        self.counts.misses += u64::from(external == 0);
        if self.rng.chance(100) {
            return Ok(()); // No room today; it asks again.
        }
        let is_full = |kind: &GroupKind| *kind == GroupKind::FullAttention;
        if external > 0 && self.rng.chance(100) && self.settings.groups.iter().all(is_full) {
            external -= TOKENS;
        } else if self.rng.chance(30) {
            external = 0;
        }
        let loaded = computed + (external / TOKENS) as usize;
        let len = loaded + self.rng.index(3);
        let Some(tables) = self.allocate(request, computed, loaded, len) else { return Ok(()) };
        self.trace.add(format_args!("{} gets {tables:?}, loads {external} tokens", id.0));
        let told = self.life.connector.update_state_after_alloc(id, &tables, external);
        told.map_err(|error| Reason::Contract(format!("update_state_after_alloc: {error}")))?;
        request.tables = tables;
        request.load = computed..loaded;
        request.state = if external > 0 { State::Loading } else { State::Running };
        request.computed_tokens = computed as u32 * TOKENS;
        Ok(())
    }

    fn still_unresolved(&mut self, id: RequestId, request: &mut Request, blocked: bool) -> Result<(), Reason> {
        self.counts.unresolved += 1;
        let (now, unresolved) = (self.clock.now(), &mut request.unresolved);
        unresolved.behind_another |= blocked;
        unresolved.behind_another &= self.life.connector.transfers_in_flight() > 0;
        let since = *unresolved.since.get_or_insert(now);
        if unresolved.behind_another {
            (unresolved.since, unresolved.late) = (None, 0);
        } else if now.since(since) > self.settings.disks.config.deadlines.lookup {
            unresolved.late += 1;
            if unresolved.late > STEPS_BETWEEN_LOOKUPS {
                return Err(Reason::Unresolved(format!("request {} since {:?}", id.0, now.since(since))));
            }
        }
        Ok(())
    }

    /// Tables of `len` blocks: those before `computed` are shared, the others are new, but where a window does not reach. `None`: no
    /// room.
    fn allocate(
        &mut self,
        request: &Request,
        computed: usize,
        loaded: usize,
        len: usize,
    ) -> Option<Vec<Vec<GpuBlock>>> {
        let (mut wanted, mut shared) = (0, Vec::new());
        let firsts = |world: &Self, group: usize| {
            let first = |blocks: usize| world.settings.first_kept(group, blocks as u32 * TOKENS);
            (first(computed), first(loaded).max(computed))
        };
        for group in 0..self.settings.groups.len() {
            let (first_shared, first_new) = firsts(self, group);
            wanted += len - first_new.min(len);
            for name in &request.names[first_shared..computed] {
                shared.push(self.gpu.find(group, *name)?);
            }
        }
        wanted += shared.iter().filter(|block| self.gpu.is_free(**block)).count();
        if wanted > self.gpu.free() {
            return None;
        }
        shared.iter().for_each(|block| self.gpu.share(*block));
        let mut shared = shared.into_iter();
        let mut tables = Vec::new();
        for group in 0..self.settings.groups.len() {
            let (first_shared, first_new) = firsts(self, group);
            let mut table = vec![GpuBlock::NULL; first_shared];
            table.extend(shared.by_ref().take(computed - first_shared));
            table.resize(first_new.min(len), GpuBlock::NULL);
            while table.len() < len {
                table.push(self.gpu.take(&mut self.rng)?);
            }
            tables.push(table);
        }
        Some(tables)
    }

    /// Schedules running requests; preempts others when blocks run out, or for no reason.
    pub(crate) fn schedule(&mut self) -> StepPlan {
        let mut plan = StepPlan::default();
        for id in self.in_state(State::Running) {
            if self.requests.get(&id).is_some_and(|request| request.must_restart) {
                self.preempt(id, &mut plan);
            }
        }
        if self.rng.chance(self.settings.preempt_per_mille) {
            self.preempt_one(None, &mut plan);
        }
        for id in self.in_state(State::Running) {
            if !self.rng.chance(150) {
                self.schedule_one(id, &mut plan);
            }
        }
        plan.reused = std::mem::take(&mut self.gpu.reused);
        plan
    }

    fn schedule_one(&mut self, id: RequestId, plan: &mut StepPlan) {
        let Some(request) = self.requests.get(&id).filter(|request| request.state == State::Running) else { return };
        let left = request.prompt_tokens.saturating_sub(request.computed_tokens);
        let tokens = if left > 0 { (1 + self.rng.below(40) as u32).min(left) } else { 1 };
        let computed_tokens = (request.computed_tokens + tokens).min(request.end_tokens);
        let have = request.tables.first().map_or(0, Vec::len);
        let add = (computed_tokens.div_ceil(TOKENS) as usize).saturating_sub(have);
        let groups = self.settings.groups.len();
        while self.gpu.free() < add * groups {
            if !self.preempt_one(Some(id), plan) {
                return;
            }
        }
        let mut take = || (0..add).filter_map(|_| self.gpu.take(&mut self.rng)).collect::<Vec<_>>();
        let new_blocks: Vec<Vec<GpuBlock>> = (0..groups).map(|_| take()).collect();
        let Some(request) = self.requests.get_mut(&id) else { return };
        for (table, new) in request.tables.iter_mut().zip(&new_blocks) {
            table.extend_from_slice(new);
        }
        plan.scheduled.push(ScheduledRequest { id, new_blocks, computed_tokens });
    }

    /// Takes the blocks of a request that this step does not schedule.
    fn preempt_one(&mut self, except: Option<RequestId>, plan: &mut StepPlan) -> bool {
        let is_free = |id: &RequestId| Some(*id) != except && !plan.scheduled.iter().any(|other| other.id == *id);
        let mut candidates = self.in_state(State::Running);
        // Few engines take blocks away under a load; the contract allows it.
        if self.rng.chance(200) {
            candidates.extend(self.in_state(State::Loading));
        }
        candidates.retain(is_free);
        let Some(id) = self.rng.pick(&candidates).copied() else { return false };
        self.preempt(id, plan);
        true
    }

    fn preempt(&mut self, id: RequestId, plan: &mut StepPlan) {
        self.free_blocks(id);
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.state = State::Waiting;
        request.unresolved = Unresolved::default();
        request.computed_tokens = 0;
        request.must_restart = false;
        plan.preempted.push(id);
        self.trace.add(format_args!("{} is preempted", id.0));
    }

    pub(crate) fn free_blocks(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        for block in request.tables.iter_mut().flat_map(|table| table.drain(..)) {
            self.gpu.give(block);
        }
    }

    /// Ends a request, whatever it does.
    pub(crate) fn end(&mut self, id: RequestId) -> Result<(), Reason> {
        let held = self.life.connector.request_finished(id);
        let held = held.map_err(|error| Reason::Contract(format!("request_finished: {error}")))?;
        self.trace.add(format_args!("{} ends, held: {held}", id.0));
        if held {
            if let Some(request) = self.requests.get_mut(&id) {
                request.state = State::Held;
            }
        } else {
            self.free_blocks(id);
            self.requests.remove(&id);
        }
        Ok(())
    }

    /// After a step: requests that end, hashes of blocks that filled, windows that moved.
    pub(crate) fn after(&mut self) -> Result<(), Reason> {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            let Some(request) = self.requests.get(&id).filter(|request| request.state != State::Held) else { continue };
            let is_complete = request.state == State::Running && request.computed_tokens >= request.end_tokens;
            if is_complete || self.rng.chance(self.settings.abort_per_mille) {
                self.end(id)?;
            } else if request.state == State::Running {
                self.go_on(id)?;
            }
        }
        Ok(())
    }

    fn go_on(&mut self, id: RequestId) -> Result<(), Reason> {
        let Some(mut request) = self.requests.remove(&id) else { return Ok(()) };
        let full = (request.computed_tokens / TOKENS) as usize;
        let mut told = Ok(());
        if full > request.hashes_given && !self.settings.prompt_only {
            let more = self.hashes(&request.names[request.hashes_given..full]);
            request.hashes_given = full;
            told = self.life.connector.append_blocks(id, &more);
        }
        for (group, table) in request.tables.iter_mut().enumerate() {
            let first = self.settings.first_kept(group, request.computed_tokens);
            for block in table.iter_mut().take(first) {
                self.gpu.give(std::mem::replace(block, GpuBlock::NULL));
            }
        }
        self.requests.insert(id, request);
        told.map_err(|error| Reason::Contract(format!("append_blocks: {error}")))
    }
}
