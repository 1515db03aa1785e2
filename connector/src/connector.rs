//! Both halves in one process.

use std::sync::Arc;

use terrace_kernels::{CopyEngine, CopyStats};
use terrace_primary::Region;
use terrace_tiering::{Event, RequestId, TieringOffloadingManager};

use crate::api::{
    Connector, ConnectorMeta, ConnectorOutput, GpuBlock, Matched, NewRequest, SchedulerHalf, StepPlan, WorkerHalf,
    WorkerOutput,
};
use crate::counters::Counters;
use crate::error::ConnectorError;
use crate::groups::ConnectorOptions;
use crate::hashes::HashList;
use crate::pages::KvCaches;
use crate::scheduler::Scheduler;
use crate::worker::Worker;

/// The connector of an engine that holds manager, region and copy engine itself.
pub struct OffloadingConnector {
    scheduler: Scheduler<TieringOffloadingManager>,
    worker: Worker,
    closed: bool,
}

impl OffloadingConnector {
    /// A connector without requests. `region` is the one that the manager's tiers were built with.
    ///
    /// `Invalid`: options and region do not fit each other. `Unsupported`: a copy engine that moves bytes over a region
    /// that has none, or the reverse.
    pub fn new(
        options: ConnectorOptions,
        manager: TieringOffloadingManager,
        region: Arc<Region>,
        engine: Box<dyn CopyEngine>,
    ) -> Result<Self, ConnectorError> {
        options.validate()?;
        let worker = Worker::new(options.clone(), region, engine)?;
        Ok(Self { scheduler: Scheduler::new(options, manager)?, worker, closed: false })
    }

    /// The manager, for statistics and checks.
    pub fn manager(&self) -> &TieringOffloadingManager {
        self.scheduler.manager()
    }

    /// The manager, for what a connector does not do: pins, tests. Whoever ends requests or completes transfers through it breaks
    /// the connector.
    pub fn manager_mut(&mut self) -> &mut TieringOffloadingManager {
        self.scheduler.manager_mut()
    }

    /// What the connector has done.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters()
    }

    /// What the copy engine has done.
    pub fn copy_stats(&self) -> CopyStats {
        self.worker.copy_stats()
    }

    /// Transfers planned or running.
    pub fn transfers_in_flight(&self) -> usize {
        self.scheduler.jobs_in_flight()
    }

    /// Requests that have not ended, or are held by a transfer.
    pub fn requests_open(&self) -> usize {
        self.scheduler.requests_open()
    }

    /// Finishes every transfer that the worker knows. What the engine must know of it follows with its next output.
    fn settle(&mut self) -> Result<(), ConnectorError> {
        let mut output = WorkerOutput::default();
        let finished = self.worker.finish_all(&mut output);
        self.scheduler.absorb(output)?;
        finished
    }
}

impl SchedulerHalf for OffloadingConnector {
    fn new_request(&mut self, request: NewRequest) -> Result<(), ConnectorError> {
        self.scheduler.new_request(request)
    }

    fn append_blocks(&mut self, id: RequestId, hashes: &HashList) -> Result<(), ConnectorError> {
        self.scheduler.append_blocks(id, hashes)
    }

    fn get_num_new_matched_tokens(
        &mut self,
        id: RequestId,
        num_computed_tokens: u32,
    ) -> Result<Matched, ConnectorError> {
        self.scheduler.get_num_new_matched_tokens(id, num_computed_tokens)
    }

    fn update_state_after_alloc(
        &mut self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        external_tokens: u32,
    ) -> Result<(), ConnectorError> {
        self.scheduler.update_state_after_alloc(id, blocks, external_tokens)
    }

    fn build_connector_meta(&mut self, plan: &StepPlan) -> Result<ConnectorMeta, ConnectorError> {
        self.scheduler.build_connector_meta(plan)
    }

    fn update_connector_output(&mut self, output: WorkerOutput) -> Result<ConnectorOutput, ConnectorError> {
        self.scheduler.update_connector_output(output)
    }

    fn request_finished(&mut self, id: RequestId) -> Result<bool, ConnectorError> {
        self.scheduler.request_finished(id)
    }

    fn take_events(&mut self, out: &mut Vec<Event>) {
        self.scheduler.take_events(out);
    }

    fn has_pending_work(&self) -> bool {
        self.scheduler.has_pending_work()
    }

    fn reset(&mut self) -> Result<(), ConnectorError> {
        if self.scheduler.is_planning() {
            return Err(ConnectorError::Retry("loads of this step are planned and not built".to_owned()));
        }
        self.settle()?;
        self.scheduler.reset()
    }

    fn shutdown(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if let Err(error) = self.settle() {
            tracing::warn!("transfers were given up at shutdown: {error}");
        }
        self.worker.close();
        self.scheduler.shutdown();
    }
}

impl WorkerHalf for OffloadingConnector {
    fn register_kv_caches(&mut self, caches: KvCaches) -> Result<(), ConnectorError> {
        self.worker.register_kv_caches(caches)
    }

    fn handle_preemptions(&mut self, meta: &ConnectorMeta) -> Result<(), ConnectorError> {
        self.worker.handle_preemptions(meta)
    }

    fn start_load_kv(&mut self, meta: ConnectorMeta) -> Result<(), ConnectorError> {
        self.worker.start_load_kv(meta)
    }

    fn wait_for_save(&mut self) -> Result<(), ConnectorError> {
        self.worker.wait_for_save()
    }

    fn get_finished(&mut self, out: &mut WorkerOutput) -> Result<(), ConnectorError> {
        self.worker.get_finished(out)
    }
}

impl Connector for OffloadingConnector {}

impl Drop for OffloadingConnector {
    fn drop(&mut self) {
        self.shutdown();
    }
}
