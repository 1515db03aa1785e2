//! What the worker reports, and what the engine is told of it.

use std::collections::HashSet;

use terrace_tiering::RequestId;

use super::Scheduler;
use super::jobs::Job;
use crate::api::{ConnectorOutput, GpuBlock, JobId, TransferKind, WorkerOutput};
use crate::error::ConnectorError;
use crate::port::ManagerPort;

impl<M: ManagerPort> Scheduler<M> {
    /// See [`crate::SchedulerHalf::update_connector_output`].
    pub(super) fn take_output(&mut self, output: WorkerOutput) -> Result<ConnectorOutput, ConnectorError> {
        self.absorb(output)?;
        Ok(std::mem::take(&mut self.outcome))
    }

    /// Takes in what the worker reported; the engine is told with the next output.
    pub(crate) fn absorb(&mut self, output: WorkerOutput) -> Result<(), ConnectorError> {
        let WorkerOutput { finished, failed_blocks } = output;
        self.check_finished(&finished)?;
        let failed_blocks: HashSet<GpuBlock> = failed_blocks.into_iter().collect();
        for (id, ok) in finished {
            let Some((job, awaited)) = self.complete(id, ok) else { continue };
            let copies = job.copies.len() as u64;
            match (job.kind, ok) {
                (TransferKind::Load, true) => self.counters.loaded_blocks += copies,
                (TransferKind::Store, true) => self.counters.stored_blocks += copies,
                (TransferKind::Load, false) => self.counters.failed_loads += 1,
                (TransferKind::Store, false) => self.counters.failed_stores += 1,
            }
            self.tell(&job, ok, awaited, &failed_blocks);
        }
        Ok(())
    }

    /// Each job is one that the worker was told of, and stands there once.
    fn check_finished(&self, finished: &[(JobId, bool)]) -> Result<(), ConnectorError> {
        let mut seen = HashSet::with_capacity(finished.len());
        for (id, _) in finished {
            if !self.jobs.get(*id).is_some_and(|job| job.handed_over) {
                return Err(ConnectorError::Invalid(format!("job {} is not in flight", id.0)));
            }
            if !seen.insert(*id) {
                return Err(ConnectorError::Invalid(format!("job {} is reported twice", id.0)));
            }
        }
        Ok(())
    }

    /// Ends a transfer in the manager and in all tables. Does not tell the engine; answers also whether it waits to be told.
    pub(super) fn complete(&mut self, id: JobId, ok: bool) -> Option<(Job, bool)> {
        let job = self.jobs.remove(id)?;
        let mut keys = std::mem::take(&mut self.scratch.keys);
        self.fill_keys(job.request, &job.chunks, &mut keys);
        let completed = match job.kind {
            TransferKind::Load => {
                self.forget_loading(id, &keys);
                self.manager.complete_load(job.request, id, &keys, ok)
            }
            TransferKind::Store => self.manager.complete_store(job.request, id, &keys, ok),
        };
        self.scratch.keys = keys;
        if let Err(error) = completed {
            self.note_inconsistency("a transfer ended that the manager did not expect", &error);
        }
        let awaited = self.requests.get_mut(&job.request).is_some_and(|request| request.remove_job(id));
        Some((job, awaited))
    }

    fn tell(&mut self, job: &Job, ok: bool, awaited: bool, failed_blocks: &HashSet<GpuBlock>) {
        let Some(request) = self.requests.get_mut(&job.request) else { return };
        if request.finished {
            self.release_if_done(job.request);
            return;
        }
        if !awaited {
            return;
        }
        if ok {
            request.most_computed_tokens = request.most_computed_tokens.max(request.tokens_after_load);
            self.outcome.loaded.push(job.request);
            return;
        }
        // What is computed instead is offered again: the primary may have lost it.
        request.loaded = 0..0;
        let blocks = job.copies.iter().map(|copy| copy.block);
        let named: Vec<GpuBlock> = blocks.clone().filter(|block| failed_blocks.contains(block)).collect();
        let failed = if named.is_empty() { blocks.collect() } else { named };
        self.outcome.failed_loads.push((job.request, failed));
    }

    /// A finished request whose last transfer is done lets go of its GPU blocks.
    fn release_if_done(&mut self, id: RequestId) {
        if self.requests.get(&id).is_some_and(|request| request.jobs.is_empty()) {
            self.requests.remove(&id);
            self.outcome.released.push(id);
        }
    }
}
