//! The end of a step's scheduling: the plan is checked as a whole, then applied.

use terrace_tiering::RequestId;

use super::request::Entry;
use super::{Scheduler, unknown};
use crate::api::{ConnectorMeta, GpuBlock, JobId, ScheduledRequest, StepPlan, TransferKind};
use crate::error::ConnectorError;
use crate::port::ManagerPort;

impl<M: ManagerPort> Scheduler<M> {
    /// Refuses a plan that contradicts itself or what is known. Changes nothing that matters.
    pub(super) fn check_plan(&mut self, plan: &StepPlan) -> Result<(), ConnectorError> {
        self.plans += 1;
        for id in &plan.preempted {
            self.mark_seen(*id)?;
        }
        for scheduled in &plan.scheduled {
            self.mark_seen(scheduled.id)?;
            self.check_blocks(scheduled.id, &scheduled.new_blocks)?;
            self.check_scheduled(scheduled)?;
        }
        if let Some(block) = plan.reused.iter().find(|block| block.0 >= self.options.gpu_blocks) {
            return Err(ConnectorError::Invalid(format!(
                "reused GPU block {}, there are {}",
                block.0, self.options.gpu_blocks
            )));
        }
        Ok(())
    }

    fn mark_seen(&mut self, id: RequestId) -> Result<(), ConnectorError> {
        let plan = self.plans;
        let request = self.running_mut(id)?;
        if std::mem::replace(&mut request.seen_in_plan, plan) == plan {
            return Err(ConnectorError::Invalid(format!("request {} stands twice in one plan", id.0)));
        }
        Ok(())
    }

    fn check_scheduled(&self, scheduled: &ScheduledRequest) -> Result<(), ConnectorError> {
        let request = self.requests.get(&scheduled.id).ok_or_else(|| unknown(scheduled.id))?;
        if request.load.is_some() {
            return Err(ConnectorError::Invalid(format!(
                "request {} is scheduled while its load is in flight",
                scheduled.id.0
            )));
        }
        let blocks = request.table_blocks() + scheduled.new_blocks.first().map_or(0, Vec::len);
        let room = blocks as u64 * u64::from(self.options.geometry.tokens_per_block);
        if u64::from(scheduled.computed_tokens) > room {
            return Err(ConnectorError::Invalid(format!(
                "request {} has computed {} tokens in {blocks} GPU blocks",
                scheduled.id.0, scheduled.computed_tokens
            )));
        }
        Ok(())
    }

    /// Applies a plan that was checked.
    pub(super) fn apply_plan(&mut self, plan: &StepPlan) -> ConnectorMeta {
        let mut meta = ConnectorMeta::default();
        for block in &plan.reused {
            self.jobs.block_handed_out(*block, self.step);
        }
        for id in &plan.preempted {
            self.preempt(*id, &mut meta.flush);
        }
        self.jobs.collect_flush(self.step, &mut meta.flush);
        meta.flush.sort_unstable();
        meta.flush.dedup();
        self.counters.flushes += meta.flush.len() as u64;
        meta.loads = std::mem::take(&mut self.planned_loads);
        for scheduled in &plan.scheduled {
            self.append_to_tables(scheduled.id, &scheduled.new_blocks, scheduled.computed_tokens);
            meta.stores.extend(self.plan_store(scheduled.id, scheduled.computed_tokens));
        }
        for transfer in meta.loads.iter().chain(&meta.stores) {
            self.jobs.hand_over(transfer.job);
        }
        self.manager.end_step();
        self.step = self.step.wrapping_add(1);
        meta
    }

    fn append_to_tables(&mut self, id: RequestId, new_blocks: &[Vec<GpuBlock>], computed_tokens: u32) {
        let step = self.step;
        if let Some(request) = self.requests.get_mut(&id) {
            for (table, list) in request.tables.iter_mut().zip(new_blocks) {
                table.extend(list.iter().map(|block| Entry { block: *block, step }));
            }
            request.most_computed_tokens = request.most_computed_tokens.max(computed_tokens);
        }
    }

    /// The request loses its GPU blocks: what touches them is flushed, what was only planned in this step is dropped.
    fn preempt(&mut self, id: RequestId, flush: &mut Vec<JobId>) {
        self.counters.preemptions += 1;
        self.cancel_planned_load(id);
        self.outcome.failed_loads.retain(|(request, _)| *request != id);
        // A reset may have ended its load since the engine was last told of any.
        self.outcome.loaded.retain(|request| *request != id);
        if let Some(request) = self.requests.get_mut(&id) {
            flush.extend_from_slice(&request.jobs);
            request.preempt();
        }
    }

    /// Takes back a load that the worker was not told of yet.
    pub(super) fn cancel_planned_load(&mut self, id: RequestId) {
        let Some(at) = self.planned_loads.iter().position(|transfer| transfer.request == id) else { return };
        let transfer = self.planned_loads.swap_remove(at);
        debug_assert_eq!(transfer.kind, TransferKind::Load);
        self.complete(transfer.job, false);
    }
}
