//! The modelled engine: a loop of scheduling steps that drives the connector as an LLM engine does.
//!
//! Requests wait, get GPU blocks and load what the connector has (`schedule.rs`), compute the rest of their prompt (fill it
//! with the bytes that its blocks demand), generate for a few steps and finish (`forward.rs`). Blocks of generated tokens
//! are not modelled. When the GPU pool is exhausted the youngest running request is preempted and starts again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use terrace_connector::{GpuBlock, GroupKind, NewRequest, RequestId, StepPlan, TierFilter, WorkerOutput};

use super::counts::Counts;
use super::gpu_memory::GpuMemory;
use super::gpu_pool::GpuPool;
use super::keys::hashes_of;
use super::request::Request;
use super::source::{Arrival, Source};
use super::stack::Stack;
use super::waits::Waits;

/// Steps without anything to do before the loop sleeps between them.
const IDLE_STEPS: u32 = 64;
/// How long it sleeps.
const IDLE_SLEEP: Duration = Duration::from_micros(50);

/// How the engine behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub concurrency: usize,
    pub step_tokens: u32,
    /// Of the modelled GPU; `None`: computing takes no time of its own.
    pub prefill_tokens_per_second: Option<u64>,
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
    pub(super) options: EngineOptions,
    pub(super) connector: Box<dyn Stack>,
    pub(super) memory: GpuMemory,
    pub(super) pool: GpuPool,
    pub(super) source: Box<dyn Source>,
    /// The next arrival, taken from the source and not due yet.
    pub(super) next: Option<Arrival>,
    pub(super) source_ended: bool,
    /// In the engine, in order of arrival.
    pub(super) requests: Vec<Request>,
    /// Finished, their GPU blocks held by a store.
    pub(super) held: HashMap<RequestId, Vec<GpuBlock>>,
    pub(super) plan: StepPlan,
    /// Blocks whose computing took its time.
    pub(super) blocks_paid: u64,
    /// What this step computes: place in `requests`, and the blocks.
    pub(super) computed: Vec<(usize, Range<u32>)>,
    pub(super) events: Vec<terrace_tiering::Event>,
    pub(super) start: Instant,
    pub(super) idle_steps: u32,
    pub(super) stop: Arc<AtomicBool>,
    /// From a request's arrival in the engine to the end of its prompt.
    pub waits: Waits,
    /// When the last request ended, from the start.
    pub served: Duration,
    pub counts: Counts,
}

impl Engine {
    /// An engine over `connector`, which has no requests and knows `memory`. Raising `stop` ends the replay early.
    pub fn new(
        options: EngineOptions,
        connector: Box<dyn Stack>,
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
            blocks_paid: 0,
            computed: Vec::new(),
            events: Vec::new(),
            start: Instant::now(),
            idle_steps: 0,
            stop,
            waits: Waits::new(),
            served: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    /// The connector, for statistics.
    pub fn connector(&self) -> &dyn Stack {
        &*self.connector
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
            || self.connector.limbo() > 0)
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
        self.compute()?;
        self.connector.wait_for_save()?;
        let mut output = WorkerOutput::default();
        self.connector.get_finished(&mut output)?;
        let finished_transfers = !output.finished.is_empty();
        let output = self.connector.update_connector_output(output)?;
        let told = !output.is_empty();
        self.take_output(output)?;
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
            // The stores of a held request have not landed: a lookup would not see its last blocks.
            if self.options.lossless && (!self.held.is_empty() || self.connector.has_cascades()) {
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
            prompt_tokens: u32::try_from(tokens).context("the tokens of a prompt that fills the GPU pool")?,
            block_hashes: hashes_of(&arrival.block_ids)?,
            tiers: TierFilter::ALL,
        })?;
        self.requests.push(Request::new(id, arrival.block_ids, groups, self.options.decode_steps));
        Ok(())
    }

    /// Ends everything, also what is in flight. Waits.
    pub fn shutdown(&mut self) {
        self.connector.shutdown();
    }
}
