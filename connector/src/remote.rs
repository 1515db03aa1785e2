//! Both halves in one process, the manager behind the daemon's socket.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use terrace_kernels::cuda::PinProgress;
use terrace_kernels::{CopyEngine, CopyStats};
use terrace_primary::Region;
use terrace_tiering::{Event, RequestId};

use crate::api::{
    Connector, ConnectorMeta, ConnectorOutput, GpuBlock, JobId, Matched, NewRequest, SchedulerHalf, StepPlan, Transfer,
    WorkerHalf, WorkerOutput,
};
use crate::client::{ClientCounters, ClientError, ClientOptions, RemoteManager};
use crate::counters::Counters;
use crate::error::ConnectorError;
use crate::groups::ConnectorOptions;
use crate::hashes::HashList;
use crate::pages::{KvCaches, Layout};
use crate::port::ManagerPort;
use crate::scheduler::Scheduler;
use crate::worker::Worker;

/// Makes a copy engine: one for each region.
pub type CopyEngines = Box<dyn Fn() -> Result<Box<dyn CopyEngine>, ConnectorError> + Send>;

/// The connector of an engine whose blocks a daemon keeps. No call waits for the daemon longer than
/// [`ClientOptions::call_budget`], and none fails because of it: without a daemon all is a miss.
///
/// Each connection has its region and its worker. Transfers of a lost connection go on in their old region, which this
/// process keeps mapped until they are done.
pub struct RemoteConnector {
    scheduler: Scheduler<RemoteManager>,
    workers: HashMap<u64, RegionWorker>,
    options: ConnectorOptions,
    engines: CopyEngines,
    caches: Option<KvCaches>,
    /// Transfers that no worker could take.
    failed: Vec<JobId>,
    /// Copies by workers that are gone.
    past_copies: CopyStats,
    closed: bool,
}

/// The worker of a connection.
struct RegionWorker {
    worker: Worker,
    jobs: HashSet<JobId>,
}

impl RemoteConnector {
    /// A connector without requests, which begins to connect. `Invalid`: options that do not fit each other, or not
    /// those of the client.
    pub fn start(
        options: ConnectorOptions,
        client: ClientOptions,
        engines: CopyEngines,
    ) -> Result<Self, ConnectorError> {
        options.validate()?;
        if client.geometry != options.geometry {
            return Err(ConnectorError::invalid("the client's geometry is not the connector's"));
        }
        let manager = RemoteManager::start(client).map_err(|error| match error {
            ClientError::Thread(_) => ConnectorError::Retry(error.to_string()),
            other => ConnectorError::Invalid(other.to_string()),
        })?;
        Ok(Self {
            scheduler: Scheduler::new(options.clone(), manager)?,
            workers: HashMap::new(),
            options,
            engines,
            caches: None,
            failed: Vec::new(),
            past_copies: CopyStats::default(),
            closed: false,
        })
    }

    /// Waits for a connection. `Err`: why there was none within the time. An engine need not call this: until there is
    /// one, all is a miss.
    pub fn wait_ready(&mut self, within: Duration) -> Result<(), String> {
        self.scheduler.manager_mut().session_mut().wait_ready(within)
    }

    /// The manager, for the state of its session.
    pub fn manager(&self) -> &RemoteManager {
        self.scheduler.manager()
    }

    /// The manager, for statistics of the daemon.
    pub fn manager_mut(&mut self) -> &mut RemoteManager {
        self.scheduler.manager_mut()
    }

    /// What the connector has done.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters()
    }

    /// What the client has done.
    pub fn client_counters(&self) -> ClientCounters {
        self.scheduler.manager().counters()
    }

    /// What the copy engines have done.
    pub fn copy_stats(&self) -> CopyStats {
        self.workers.values().fold(self.past_copies, |sum, worker| sum.plus(worker.worker.copy_stats()))
    }

    /// Transfers planned or running.
    pub fn transfers_in_flight(&self) -> usize {
        self.scheduler.jobs_in_flight()
    }

    /// Requests that have not ended, or are held by a transfer.
    pub fn requests_open(&self) -> usize {
        self.scheduler.requests_open()
    }

    /// Gives each transfer to the worker of its region.
    fn share_out(&mut self, transfers: Vec<Transfer>) -> HashMap<u64, Vec<Transfer>> {
        let mut shares: HashMap<u64, Vec<Transfer>> = HashMap::new();
        for transfer in transfers {
            let job = transfer.job;
            let region = self.scheduler.manager().region_of(job);
            match region.and_then(|(epoch, region)| self.worker(epoch, region)) {
                Some((epoch, worker)) => {
                    worker.jobs.insert(job);
                    shares.entry(epoch).or_default().push(transfer);
                }
                None => self.failed.push(job),
            }
        }
        shares
    }

    /// The worker of a connection, made if it is not there.
    fn worker(&mut self, epoch: u64, region: Arc<Region>) -> Option<(u64, &mut RegionWorker)> {
        if !self.workers.contains_key(&epoch) {
            let made = (self.engines)().and_then(|engine| {
                let mut worker = Worker::new(self.options.clone(), region, engine)?;
                if let Some(caches) = self.caches.clone() {
                    worker.register_kv_caches(caches)?;
                }
                Ok(worker)
            });
            match made {
                Ok(worker) => {
                    self.workers.insert(epoch, RegionWorker { worker, jobs: HashSet::new() });
                }
                Err(error) => {
                    tracing::error!("nothing is copied to or from the daemon's region: {error}");
                    return None;
                }
            }
        }
        Some((epoch, self.workers.get_mut(&epoch)?))
    }

    /// Takes the reports of one worker over into `out`.
    fn take_report(&mut self, epoch: u64, report: WorkerOutput, out: &mut WorkerOutput) {
        for (job, ok) in report.finished {
            if let Some(worker) = self.workers.get_mut(&epoch) {
                worker.jobs.remove(&job);
            }
            let trusted = ok && !self.scheduler.manager_mut().is_doomed(job);
            out.finished.push((job, trusted));
        }
        out.failed_blocks.extend(report.failed_blocks);
    }

    /// Lets go of the workers of lost connections that have nothing left to do.
    fn drop_idle(&mut self) {
        let current = self.scheduler.manager().session().epoch();
        let past = &mut self.past_copies;
        self.workers.retain(|epoch, worker| {
            let keep = Some(*epoch) == current || !worker.jobs.is_empty();
            if !keep {
                *past = past.plus(worker.worker.copy_stats());
                // Its region is gone.
                past.cuda.pins = PinProgress::default();
            }
            keep
        });
    }

    /// Finishes every transfer that a worker knows.
    fn settle(&mut self) -> Result<(), ConnectorError> {
        let mut output = WorkerOutput::default();
        output.finished.extend(self.failed.drain(..).map(|job| (job, false)));
        let mut result = Ok(());
        for epoch in self.workers.keys().copied().collect::<Vec<_>>() {
            let Some(worker) = self.workers.get_mut(&epoch) else { continue };
            let mut report = WorkerOutput::default();
            let finished = worker.worker.finish_all(&mut report);
            result = result.and(finished);
            self.take_report(epoch, report, &mut output);
        }
        self.scheduler.absorb(output)?;
        result
    }
}

impl SchedulerHalf for RemoteConnector {
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
        for worker in self.workers.values_mut() {
            worker.worker.close();
        }
        self.scheduler.shutdown();
    }
}

impl WorkerHalf for RemoteConnector {
    fn register_kv_caches(&mut self, caches: KvCaches) -> Result<(), ConnectorError> {
        if self.closed {
            return Err(ConnectorError::Closed);
        }
        if self.caches.is_some() {
            return Err(ConnectorError::invalid("KV caches are registered already"));
        }
        Layout::new(caches.clone(), &self.options, true)?;
        self.caches = Some(caches);
        Ok(())
    }

    fn handle_preemptions(&mut self, meta: &ConnectorMeta) -> Result<(), ConnectorError> {
        self.workers.values_mut().try_for_each(|worker| worker.worker.handle_preemptions(meta))
    }

    fn start_load_kv(&mut self, meta: ConnectorMeta) -> Result<(), ConnectorError> {
        if self.closed {
            return Err(ConnectorError::Closed);
        }
        let ConnectorMeta { loads, stores, flush } = meta;
        let mut loads = self.share_out(loads);
        let mut stores = self.share_out(stores);
        // Each worker hears of the step, also without work: it submits what it kept.
        for (epoch, worker) in &mut self.workers {
            worker.worker.start_load_kv(ConnectorMeta {
                loads: loads.remove(epoch).unwrap_or_default(),
                stores: stores.remove(epoch).unwrap_or_default(),
                flush: flush.clone(),
            })?;
        }
        Ok(())
    }

    fn wait_for_save(&mut self) -> Result<(), ConnectorError> {
        if self.closed { Err(ConnectorError::Closed) } else { Ok(()) }
    }

    fn get_finished(&mut self, out: &mut WorkerOutput) -> Result<(), ConnectorError> {
        if self.closed {
            return Err(ConnectorError::Closed);
        }
        self.scheduler.manager_mut().poll_once();
        out.finished.extend(self.failed.drain(..).map(|job| (job, false)));
        for epoch in self.workers.keys().copied().collect::<Vec<_>>() {
            let Some(worker) = self.workers.get_mut(&epoch) else { continue };
            let mut report = WorkerOutput::default();
            worker.worker.get_finished(&mut report)?;
            self.take_report(epoch, report, out);
        }
        self.drop_idle();
        Ok(())
    }
}

impl Connector for RemoteConnector {}

impl Drop for RemoteConnector {
    fn drop(&mut self) {
        self.shutdown();
    }
}
