//! The scheduler half: what is matched, loaded and stored, and when a request's GPU blocks are free.
//!
//! One thread drives it. A request costs work in proportion to its blocks once, at its lookup, and from then on in
//! proportion to what each step adds.

mod finish;
mod jobs;
mod keys;
mod load;
mod lookup;
mod output;
mod request;
mod step;
mod store;

use std::collections::HashMap;

use terrace_primary::{Key, SlotId};
use terrace_tiering::{Event, Lookup, RequestContext, RequestId, StorePlan};

use crate::api::{
    ConnectorMeta, ConnectorOutput, GpuBlock, JobId, Matched, NewRequest, SchedulerHalf, StepPlan, Transfer,
    WorkerOutput,
};
use crate::counters::Counters;
use crate::error::ConnectorError;
use crate::groups::{ConnectorOptions, GroupKind};
use crate::hashes::HashList;
use crate::port::ManagerPort;
use jobs::Jobs;
use keys::{ByFingerprint, ChunkRef, chunk_key};
use request::{Matching, Request};

/// Blocks of one request: positions stay far from the end of 32 bits.
const MOST_BLOCKS: usize = 1 << 30;

/// The scheduler half over a manager.
pub(crate) struct Scheduler<M> {
    options: ConnectorOptions,
    manager: M,
    requests: HashMap<RequestId, Request>,
    jobs: Jobs,
    /// Fingerprints of the blocks that are being loaded, with the load.
    loading: HashMap<u64, JobId, ByFingerprint>,
    /// Loads of this step, not yet handed over.
    planned_loads: Vec<Transfer>,
    /// What the engine is told by the next `update_connector_output`.
    outcome: ConnectorOutput,
    /// Number of the current step, from 1; wraps around.
    step: u32,
    /// Number of plans validated, to see duplicates in one.
    plans: u64,
    counters: Counters,
    closed: bool,
    scratch: Scratch,
}

/// Vectors that are used again in each call.
#[derive(Default)]
struct Scratch {
    keys: Vec<Key>,
    chunks: Vec<ChunkRef>,
    answers: Vec<Lookup>,
    slots: Vec<SlotId>,
    plan: StorePlan,
}

impl<M: ManagerPort> Scheduler<M> {
    /// A scheduler half without requests.
    pub(crate) fn new(options: ConnectorOptions, manager: M) -> Result<Self, ConnectorError> {
        options.validate()?;
        Ok(Self {
            jobs: Jobs::new(options.gpu_blocks),
            options,
            manager,
            requests: HashMap::new(),
            loading: HashMap::default(),
            planned_loads: Vec::new(),
            outcome: ConnectorOutput::default(),
            step: 1,
            plans: 0,
            counters: Counters::default(),
            closed: false,
            scratch: Scratch::default(),
        })
    }

    pub(crate) fn manager(&self) -> &M {
        &self.manager
    }

    pub(crate) fn manager_mut(&mut self) -> &mut M {
        &mut self.manager
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn jobs_in_flight(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn requests_open(&self) -> usize {
        self.requests.len()
    }

    /// Whether loads wait for `build_connector_meta`.
    pub(crate) fn is_planning(&self) -> bool {
        !self.planned_loads.is_empty()
    }

    fn ensure_open(&self) -> Result<(), ConnectorError> {
        if self.closed { Err(ConnectorError::Closed) } else { Ok(()) }
    }

    /// A request that has not ended.
    fn running(&self, id: RequestId) -> Result<&Request, ConnectorError> {
        self.requests.get(&id).filter(|request| !request.finished).ok_or_else(|| unknown(id))
    }

    /// As [`Scheduler::running`], to be changed.
    fn running_mut(&mut self, id: RequestId) -> Result<&mut Request, ConnectorError> {
        self.requests.get_mut(&id).filter(|request| !request.finished).ok_or_else(|| unknown(id))
    }

    /// Checks lists of GPU blocks per group: as many as groups, equally long, ids in range, `NULL` in sliding windows only.
    fn check_blocks(&self, id: RequestId, blocks: &[Vec<GpuBlock>]) -> Result<(), ConnectorError> {
        let refuse = |text: String| Err(ConnectorError::Invalid(format!("request {}: {text}", id.0)));
        if blocks.len() != self.options.groups.len() {
            return refuse(format!("blocks of {} groups, there are {}", blocks.len(), self.options.groups.len()));
        }
        let len = blocks.first().map_or(0, Vec::len);
        for (group, (list, kind)) in blocks.iter().zip(&self.options.groups).enumerate() {
            if list.len() != len {
                return refuse(format!("{} blocks of group {group}, {len} of group 0", list.len()));
            }
            let null_allowed = matches!(kind, GroupKind::SlidingWindow { .. });
            let bad =
                |block: &&GpuBlock| block.0 >= self.options.gpu_blocks && !(null_allowed && **block == GpuBlock::NULL);
            if let Some(block) = list.iter().find(bad) {
                return refuse(format!(
                    "GPU block {} of group {group}, there are {}",
                    block.0, self.options.gpu_blocks
                ));
            }
        }
        Ok(())
    }

    /// Fills `keys` with the keys of these chunks of a request.
    fn fill_keys(&self, id: RequestId, chunks: &[ChunkRef], keys: &mut Vec<Key>) {
        keys.clear();
        if let Some(request) = self.requests.get(&id) {
            let per_chunk = self.options.geometry.blocks_per_chunk;
            keys.extend(chunks.iter().filter_map(|chunk| chunk_key(&request.hashes, per_chunk, *chunk)));
        }
    }

    /// Counts and reports what the manager should never answer.
    fn note_inconsistency(&mut self, what: &str, error: &dyn std::fmt::Display) {
        self.counters.inconsistencies += 1;
        tracing::error!("{what}: {error}");
    }
}

fn unknown(id: RequestId) -> ConnectorError {
    ConnectorError::Invalid(format!("request {} is not open", id.0))
}

impl<M: ManagerPort> SchedulerHalf for Scheduler<M> {
    fn new_request(&mut self, request: NewRequest) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        let NewRequest { id, prompt_tokens, block_hashes, tiers } = request;
        let geometry = &self.options.geometry;
        if self.requests.contains_key(&id) {
            return Err(ConnectorError::Invalid(format!("request {} is open already", id.0)));
        }
        if !block_hashes.is_empty() && block_hashes.hash_bytes() != usize::from(geometry.hash_bytes) {
            return Err(ConnectorError::Invalid(format!(
                "block hashes of {} bytes, hash_bytes is {}",
                block_hashes.hash_bytes(),
                geometry.hash_bytes
            )));
        }
        if block_hashes.len() as u64 > u64::from(prompt_tokens / geometry.tokens_per_block) {
            return Err(ConnectorError::Invalid(format!(
                "{} block hashes for {prompt_tokens} tokens in blocks of {}",
                block_hashes.len(),
                geometry.tokens_per_block
            )));
        }
        if block_hashes.len() > MOST_BLOCKS {
            return Err(ConnectorError::Capacity(format!("request {}: more than {MOST_BLOCKS} blocks", id.0)));
        }
        let block_hashes =
            if block_hashes.is_empty() { HashList::new(usize::from(geometry.hash_bytes)) } else { block_hashes };
        self.manager.begin_request(RequestContext { id, tiers })?;
        self.requests.insert(id, Request::new(prompt_tokens, block_hashes, self.options.groups.len()));
        Ok(())
    }

    fn append_blocks(&mut self, id: RequestId, hashes: &HashList) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        let request = self.running_mut(id)?;
        if request.hashes.len().saturating_add(hashes.len()) > MOST_BLOCKS {
            return Err(ConnectorError::Capacity(format!("request {}: more than {MOST_BLOCKS} blocks", id.0)));
        }
        request.hashes.extend(hashes)
    }

    fn get_num_new_matched_tokens(
        &mut self,
        id: RequestId,
        num_computed_tokens: u32,
    ) -> Result<Matched, ConnectorError> {
        self.ensure_open()?;
        self.match_request(id, num_computed_tokens)
    }

    fn update_state_after_alloc(
        &mut self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        external_tokens: u32,
    ) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        self.take_allocation(id, blocks, external_tokens)
    }

    fn build_connector_meta(&mut self, plan: &StepPlan) -> Result<ConnectorMeta, ConnectorError> {
        self.ensure_open()?;
        self.check_plan(plan)?;
        Ok(self.apply_plan(plan))
    }

    fn update_connector_output(&mut self, output: WorkerOutput) -> Result<ConnectorOutput, ConnectorError> {
        self.ensure_open()?;
        self.take_output(output)
    }

    fn request_finished(&mut self, id: RequestId) -> Result<bool, ConnectorError> {
        self.ensure_open()?;
        self.finish(id)
    }

    fn take_events(&mut self, out: &mut Vec<Event>) {
        self.manager.take_events(out);
    }

    fn has_pending_work(&self) -> bool {
        !self.jobs.is_empty() || !self.outcome.is_empty() || self.manager.has_pending_work()
    }

    fn reset(&mut self) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        if !self.jobs.is_empty() {
            return Err(ConnectorError::Retry(format!("{} transfers are in flight", self.jobs.len())));
        }
        self.manager.reset()?;
        for request in self.requests.values_mut() {
            request.matching = Matching::default();
        }
        Ok(())
    }

    fn shutdown(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.abandon_jobs();
            self.manager.shutdown();
        }
    }
}
