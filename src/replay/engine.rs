//! The modelled engine: a loop of scheduling steps that drives the connector as an LLM engine does.
//!
//! Requests wait, get GPU blocks, load what the connector has, compute the rest of their prompt (fill it with the bytes
//! that its blocks demand), generate for a few steps and finish. Blocks of generated tokens are not modelled. When the GPU
//! pool is exhausted the youngest running request is preempted and starts again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use terrace_connector::{
    ConnectorOutput, GpuBlock, GroupKind, Matched, NewRequest, OffloadingConnector, RequestId, ScheduledRequest,
    SchedulerHalf, StepPlan, TierFilter, WorkerHalf, WorkerOutput,
};

use super::counts::Counts;
use super::gpu_memory::GpuMemory;
use super::gpu_pool::GpuPool;
use super::keys::hashes_of;
use super::request::{Request, State};
use super::source::{Arrival, Source};

/// Steps without anything to do before the loop sleeps between them.
const IDLE_STEPS: u32 = 64;
/// How long it sleeps.
const IDLE_SLEEP: Duration = Duration::from_micros(50);

/// How the engine behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub concurrency: usize,
    pub step_tokens: u32,
    pub decode_steps: u32,
    pub tokens_per_block: u32,
    pub groups: Vec<GroupKind>,
    pub lossless: bool,
    pub speed: Option<f64>,
    /// Requests to take from the source; `None`: all.
    pub requests: Option<u64>,
}

/// The engine.
pub struct Engine {
    options: EngineOptions,
    connector: OffloadingConnector,
    memory: GpuMemory,
    pool: GpuPool,
    source: Box<dyn Source>,
    /// The next arrival, taken from the source and not due yet.
    next: Option<Arrival>,
    source_ended: bool,
    /// In the engine, in order of arrival.
    requests: Vec<Request>,
    /// Finished, their GPU blocks held by a store.
    held: HashMap<RequestId, Vec<GpuBlock>>,
    plan: StepPlan,
    /// What this step computes: place in `requests`, and the blocks.
    computed: Vec<(usize, std::ops::Range<u32>)>,
    events: Vec<terrace_tiering::Event>,
    start: Instant,
    idle_steps: u32,
    stop: Arc<AtomicBool>,
    pub counts: Counts,
}

impl Engine {
    /// An engine over `connector`, which has no requests and knows `memory`. Raising `stop` ends the replay early.
    pub fn new(
        options: EngineOptions,
        connector: OffloadingConnector,
        memory: GpuMemory,
        pool: GpuPool,
        source: Box<dyn Source>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            options,
            connector,
            memory,
            pool,
            source,
            next: None,
            source_ended: false,
            requests: Vec::new(),
            held: HashMap::new(),
            plan: StepPlan::default(),
            computed: Vec::new(),
            events: Vec::new(),
            start: Instant::now(),
            idle_steps: 0,
            stop,
            counts: Counts::default(),
        }
    }

    /// The connector, for statistics.
    pub fn connector(&self) -> &OffloadingConnector {
        &self.connector
    }

    /// How far the source is.
    pub fn progress(&self) -> super::source::Progress {
        self.source.progress()
    }

    /// Replays everything; `watch` is called after each step. Then waits, `drain` at most, for what the tiers still do.
    pub fn run(&mut self, drain: Duration, mut watch: impl FnMut(&Self)) -> Result<()> {
        self.start = Instant::now();
        while !self.is_finished() {
            self.step()?;
            watch(self);
        }
        let deadline = Instant::now() + drain;
        while (self.connector.has_pending_work()
            || self.connector.transfers_in_flight() > 0
            || self.connector.manager().primary().limbo() > 0)
            && Instant::now() < deadline
        {
            self.step()?;
            watch(self);
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        let no_more = self.source_ended || self.stop.load(Ordering::Relaxed);
        no_more && self.requests.is_empty() && self.held.is_empty()
    }

    /// One scheduling step.
    fn step(&mut self) -> Result<()> {
        self.plan.scheduled.clear();
        self.plan.preempted.clear();
        self.plan.reused.clear();
        self.computed.clear();
        self.admit()?;
        self.schedule_running();
        self.schedule_waiting()?;

        let meta = self.connector.build_connector_meta(&self.plan)?;
        let has_transfers = !meta.loads.is_empty() || !meta.stores.is_empty();
        self.connector.handle_preemptions(&meta)?;
        self.connector.start_load_kv(meta)?;
        self.compute();
        self.connector.wait_for_save()?;
        let mut output = WorkerOutput::default();
        self.connector.get_finished(&mut output)?;
        let finished_transfers = !output.finished.is_empty();
        let output = self.connector.update_connector_output(output)?;
        let told = !output.is_empty();
        self.take_output(output);
        let ended = self.finish_requests()?;
        self.events.clear();
        self.connector.take_events(&mut self.events);
        self.counts.events += self.events.len() as u64;
        self.counts.steps += 1;

        let busy = has_transfers || finished_transfers || told || ended || !self.plan.scheduled.is_empty();
        self.idle_steps = if busy { 0 } else { self.idle_steps + 1 };
        if self.idle_steps > IDLE_STEPS {
            std::thread::sleep(IDLE_SLEEP);
        } else if !busy {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Takes arrivals while there is a place for them.
    fn admit(&mut self) -> Result<()> {
        while self.requests.len() < self.options.concurrency && !self.stop.load(Ordering::Relaxed) {
            if self.options.lossless && self.connector.manager().cascade_backlog() > 0 {
                return Ok(());
            }
            if self.options.requests.is_some_and(|limit| self.counts.requests_arrived >= limit) {
                self.source_ended = true;
                return Ok(());
            }
            if self.next.is_none() && !self.source_ended {
                self.next = self.source.next_arrival()?;
                self.source_ended = self.next.is_none();
            }
            let due_ms = self.options.speed.map(|speed| self.start.elapsed().as_secs_f64() * 1e3 * speed);
            let is_due = |arrival: &mut Arrival| due_ms.is_none_or(|now_ms| arrival.timestamp_ms <= now_ms);
            let Some(arrival) = self.next.take_if(is_due) else { return Ok(()) };
            self.open(arrival)?;
        }
        Ok(())
    }

    fn open(&mut self, mut arrival: Arrival) -> Result<()> {
        let id = RequestId(self.counts.requests_arrived);
        self.counts.requests_arrived += 1;
        self.counts.blocks_looked_up += arrival.block_ids.len() as u64;
        let groups = self.options.groups.len() as u32;
        let most = (self.pool.blocks() / groups) as usize;
        if arrival.block_ids.len() > most {
            self.counts.truncated_blocks += (arrival.block_ids.len() - most) as u64;
            arrival.block_ids.truncate(most);
        }
        let tokens = arrival.block_ids.len() as u64 * u64::from(self.options.tokens_per_block) + 1;
        self.connector.new_request(NewRequest {
            id,
            // One token more than the blocks: the last block of the prompt can be a hit as well.
            prompt_tokens: u32::try_from(tokens)?,
            block_hashes: hashes_of(&arrival.block_ids)?,
            tiers: TierFilter::ALL,
        })?;
        self.requests.push(Request::new(id, arrival.block_ids, groups, self.options.decode_steps));
        Ok(())
    }

    /// Gives running requests their part of the step, oldest first.
    fn schedule_running(&mut self) {
        let mut budget = (self.options.step_tokens / self.options.tokens_per_block).max(1);
        for at in 0..self.requests.len() {
            if self.requests[at].state != State::Running {
                continue;
            }
            let left = self.requests[at].blocks() - self.requests[at].done_blocks;
            if left == 0 {
                self.requests[at].decode_left = self.requests[at].decode_left.saturating_sub(1);
                self.plan_request(at, 0);
                continue;
            }
            let wanted = left.min(budget);
            if wanted > 0 && self.make_room(at, wanted) {
                let got = wanted.min(self.pool.free() / self.options.groups.len() as u32);
                budget -= got;
                self.plan_request(at, got);
            }
        }
    }

    /// Preempts younger requests until at least one block for each group is free for the request at `at`; the request itself if
    /// there is no younger one. True: there is room.
    fn make_room(&mut self, at: usize, wanted: u32) -> bool {
        let groups = self.options.groups.len() as u32;
        while self.pool.free() < wanted.min(1) * groups {
            let Some(victim) = self.requests.iter().rposition(|request| request.state == State::Running) else {
                return false;
            };
            self.preempt(victim);
            if victim <= at {
                return false;
            }
        }
        true
    }

    fn preempt(&mut self, at: usize) {
        let request = &mut self.requests[at];
        self.plan.preempted.push(request.id);
        request.state = State::Waiting;
        request.done_blocks = 0;
        request.take_blocks().for_each(|block| self.pool.release(block));
        self.counts.preemptions += 1;
    }

    /// Schedules `blocks` further blocks of a request; 0: a step of generation.
    fn plan_request(&mut self, at: usize, blocks: u32) {
        let mut new_blocks = vec![Vec::with_capacity(blocks as usize); self.options.groups.len()];
        for list in &mut new_blocks {
            list.extend((0..blocks).map_while(|_| self.pool.allocate()));
        }
        let request = &mut self.requests[at];
        for (table, list) in request.tables.iter_mut().zip(&new_blocks) {
            table.extend(list);
            self.plan.reused.extend(list);
        }
        let first = request.done_blocks;
        request.done_blocks += blocks;
        // The prompt's last token lies in no block that is modelled.
        let computed_tokens = request.done_blocks * self.options.tokens_per_block;
        self.computed.push((at, first..request.done_blocks));
        self.plan.scheduled.push(ScheduledRequest { id: request.id, new_blocks, computed_tokens });
    }

    /// Starts waiting requests, oldest first.
    fn schedule_waiting(&mut self) -> Result<()> {
        for at in 0..self.requests.len() {
            if self.requests[at].state == State::Waiting && !self.plan.preempted.contains(&self.requests[at].id) {
                self.start_request(at)?;
            }
        }
        Ok(())
    }

    fn start_request(&mut self, at: usize) -> Result<()> {
        let tokens_per_block = self.options.tokens_per_block;
        let request = &self.requests[at];
        let cached = self.cached_blocks(request);
        let asked = Instant::now();
        let matched = self.connector.get_num_new_matched_tokens(request.id, cached * tokens_per_block)?;
        self.counts.lookup_ns += asked.elapsed().as_nanos() as u64;
        self.counts.keys_asked += u64::from(request.blocks() - cached) * self.options.groups.len() as u64;
        let Matched::Tokens(external_tokens) = matched else {
            self.counts.retries += 1;
            return Ok(());
        };
        let (id, external) = (request.id, external_tokens / tokens_per_block);
        // Cached blocks that nobody uses are in the free list: take them first, so that what is allocated is not one of them.
        let mut tables = self.share_cached(at, cached);
        let boundary = cached + external;
        let first_needed: Vec<_> = self.options.groups.iter().map(|kind| self.first_needed(*kind, boundary)).collect();
        let needed: u32 = first_needed.iter().map(|first| boundary - (*first).clamp(cached, boundary)).sum();
        if needed > self.pool.free() {
            let taken = tables.iter_mut().flat_map(|table| table.drain(..).rev());
            taken.for_each(|block| self.pool.release(block));
            return Ok(());
        }
        for (table, first) in tables.iter_mut().zip(first_needed) {
            table.resize(first.clamp(cached, boundary) as usize, GpuBlock::NULL);
            while (table.len() as u32) < boundary {
                let Some(block) = self.pool.allocate() else { break };
                table.push(block);
                self.plan.reused.push(block);
            }
        }
        self.connector.update_state_after_alloc(id, &tables, external_tokens)?;
        let request = &mut self.requests[at];
        if !request.counted {
            self.counts.hits_gpu += u64::from(cached);
        }
        request.tables = tables;
        request.done_blocks = cached;
        if external > 0 {
            request.state = State::Loading { from: cached, to: boundary };
        } else {
            request.state = State::Running;
            request.counted = true;
        }
        Ok(())
    }

    /// First block that a group needs to go on at a boundary.
    fn first_needed(&self, kind: GroupKind, boundary: u32) -> u32 {
        match kind {
            GroupKind::FullAttention => 0,
            GroupKind::SlidingWindow { window_tokens } => {
                let tokens = u64::from(boundary) * u64::from(self.options.tokens_per_block);
                let reach = tokens.saturating_sub(u64::from(window_tokens) - 1);
                (reach / u64::from(self.options.tokens_per_block)) as u32
            }
        }
    }

    /// Leading blocks of a request that the GPU holds in every group.
    fn cached_blocks(&self, request: &Request) -> u32 {
        if !self.pool.caches() {
            return 0;
        }
        let groups = self.options.groups.len() as u32;
        let held = |id: &&u64| (0..groups).all(|group| self.pool.cached((**id, group)).is_some());
        request.block_ids.iter().take_while(held).count() as u32
    }

    fn share_cached(&mut self, at: usize, blocks: u32) -> Vec<Vec<GpuBlock>> {
        let ids = &self.requests[at].block_ids[..blocks as usize];
        let groups = 0..self.options.groups.len() as u32;
        let tables: Vec<Vec<_>> =
            groups.map(|group| ids.iter().filter_map(|id| self.pool.cached((*id, group))).collect()).collect();
        tables.iter().flatten().for_each(|block| self.pool.share(*block));
        tables
    }

    /// The forward pass: writes the scheduled blocks.
    fn compute(&mut self) {
        for (at, blocks) in std::mem::take(&mut self.computed) {
            let request = &self.requests[at];
            for place in blocks {
                let id = request.block_ids[place as usize];
                for (group, table) in (0u32..).zip(&request.tables) {
                    self.memory.fill(group, table[place as usize], id);
                    self.pool.name(table[place as usize], (id, group));
                }
                self.counts.computed_blocks += 1;
            }
        }
    }

    fn take_output(&mut self, output: ConnectorOutput) {
        for id in output.loaded {
            self.loaded(id, &[]);
        }
        for (id, failed) in output.failed_loads {
            self.counts.failed_loads += 1;
            self.loaded(id, &failed);
        }
        for id in output.released {
            for block in self.held.remove(&id).into_iter().flatten() {
                self.pool.release(block);
            }
        }
    }

    /// A load ended: what arrived is compared with what its blocks demand, what failed is computed.
    fn loaded(&mut self, id: RequestId, failed: &[GpuBlock]) {
        let Some(at) = self.requests.iter().position(|request| request.id == id) else { return };
        let State::Loading { from, to } = self.requests[at].state else { return };
        for place in from..to {
            let request = &self.requests[at];
            let (mut hit, content) = (true, request.block_ids[place as usize]);
            for (group, table) in (0u32..).zip(&request.tables) {
                let block = table[place as usize];
                if block == GpuBlock::NULL {
                    continue;
                }
                if failed.contains(&block) {
                    hit = false;
                    self.counts.recomputed_blocks += 1;
                    self.memory.fill(group, block, content);
                } else if !self.memory.is_right(group, block, content) {
                    self.counts.wrong_blocks += 1;
                    tracing::error!(request = id.0, place, group, "a loaded block holds wrong bytes");
                    self.memory.fill(group, block, content);
                }
                self.pool.name(block, (content, group));
            }
            if hit && !request.counted {
                self.counts.hits_external += 1;
            }
        }
        let request = &mut self.requests[at];
        request.done_blocks = to;
        request.state = State::Running;
        request.counted = true;
    }

    /// Ends the requests that have generated all they had to. True: there were some.
    fn finish_requests(&mut self) -> Result<bool> {
        let mut ended = false;
        let mut at = 0;
        while let Some(request) = self.requests.get(at) {
            let done = request.state == State::Running
                && request.done_blocks == request.blocks()
                && request.decode_left == 0;
            if !done {
                at += 1;
                continue;
            }
            let mut request = self.requests.remove(at);
            let blocks = request.take_blocks();
            if self.connector.request_finished(request.id)? {
                self.held.insert(request.id, blocks.collect());
            } else {
                blocks.for_each(|block| self.pool.release(block));
            }
            self.counts.requests += 1;
            ended = true;
        }
        Ok(ended)
    }

    /// Ends everything, also what is in flight. Waits.
    pub fn shutdown(&mut self) {
        self.connector.shutdown();
    }
}
