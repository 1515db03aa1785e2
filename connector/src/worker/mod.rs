//! The worker half: transfers become copy runs, in the right order.
//!
//! Only unsafe here: handing runs to the copy engine. What keeps it sound is said at the site.

mod runs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use terrace_kernels::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, NullCopyEngine, Order};
use terrace_primary::Region;

use crate::api::{ConnectorMeta, JobId, Transfer, TransferKind, WorkerHalf, WorkerOutput};
use crate::error::ConnectorError;
use crate::groups::ConnectorOptions;
use crate::pages::{KvCaches, Layout};

/// The worker half over a region and a copy engine.
pub(crate) struct Worker {
    // Dropped first: dropping an engine finishes its copies, which touch the memory below.
    engine: Box<dyn CopyEngine>,
    region: Arc<Region>,
    layout: Option<Layout>,
    options: ConnectorOptions,
    /// Stores of this step, to be submitted at the start of the next.
    kept: Vec<Transfer>,
    /// Transfers for which the engine had no room, loads first.
    queued: VecDeque<Transfer>,
    /// Transfers in the engine.
    running: HashMap<CopyId, Transfer>,
    /// Transfers that are done and not reported.
    done: Vec<(Transfer, bool)>,
    scratch_runs: Vec<CopyRun>,
    scratch_done: Vec<CopyDone>,
    closed: bool,
}

impl Worker {
    /// A worker half without KV memory.
    pub(crate) fn new(
        options: ConnectorOptions,
        region: Arc<Region>,
        engine: Box<dyn CopyEngine>,
    ) -> Result<Self, ConnectorError> {
        if region.moves_bytes() != engine.moves_bytes() {
            return Err(ConnectorError::Unsupported(format!(
                "a region {} bytes with the copy engine {}",
                if region.moves_bytes() { "with" } else { "without" },
                engine.describe()
            )));
        }
        if region.block_bytes() < options.geometry.block_bytes {
            return Err(ConnectorError::Invalid(format!(
                "blocks of {} bytes in a region of {}-byte blocks",
                options.geometry.block_bytes,
                region.block_bytes()
            )));
        }
        Ok(Self {
            engine,
            region,
            layout: None,
            options,
            kept: Vec::new(),
            queued: VecDeque::new(),
            running: HashMap::new(),
            done: Vec::new(),
            scratch_runs: Vec::new(),
            scratch_done: Vec::new(),
            closed: false,
        })
    }

    pub(crate) fn copy_stats(&self) -> CopyStats {
        self.engine.stats()
    }

    /// Submits what is kept and waits for everything. On an error what is left is reported by no one.
    pub(crate) fn finish_all(&mut self, out: &mut WorkerOutput) -> Result<(), ConnectorError> {
        let kept = std::mem::take(&mut self.kept);
        self.queued.extend(kept);
        let mut result = Ok(());
        loop {
            self.submit_queued();
            if self.running.is_empty() {
                break;
            }
            let ids: Vec<CopyId> = self.running.keys().copied().collect();
            result = self.engine.wait(&ids).map_err(ConnectorError::from);
            if result.is_err() {
                break;
            }
            self.collect();
        }
        self.report(out);
        result
    }

    /// Takes no more work. Waits for copies in flight.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.engine = Box::new(NullCopyEngine::new());
        self.kept.clear();
        self.queued.clear();
        self.running.clear();
    }

    fn ensure_open(&self) -> Result<(), ConnectorError> {
        if self.closed { Err(ConnectorError::Closed) } else { Ok(()) }
    }

    /// Refuses transfers that reach outside of KV memory or region, or whose job is known.
    fn check(&self, meta: &ConnectorMeta) -> Result<(), ConnectorError> {
        if meta.loads.is_empty() && meta.stores.is_empty() {
            return Ok(());
        }
        let Some(layout) = &self.layout else {
            return Err(ConnectorError::invalid("transfers before register_kv_caches"));
        };
        let mut jobs: HashSet<JobId> = self.jobs().collect();
        let kinds = [(&meta.loads, TransferKind::Load), (&meta.stores, TransferKind::Store)];
        for (transfer, kind) in kinds.into_iter().flat_map(|(list, kind)| list.iter().map(move |item| (item, kind))) {
            if transfer.kind != kind || !jobs.insert(transfer.job) {
                return Err(ConnectorError::Invalid(format!("job {} is known or in the wrong list", transfer.job.0)));
            }
            let outside = transfer.copies.iter().find(|copy| {
                usize::from(copy.group) >= layout.paged.groups()
                    || u32::from(copy.place) >= self.options.geometry.blocks_per_chunk
                    || copy.block.0 >= self.options.gpu_blocks
                    || copy.slot.0 >= self.region.slots()
            });
            if let Some(copy) = outside {
                return Err(ConnectorError::Invalid(format!("job {} reaches outside: {copy:?}", transfer.job.0)));
            }
        }
        Ok(())
    }

    /// Jobs that are not reported yet.
    fn jobs(&self) -> impl Iterator<Item = JobId> {
        let held = self.kept.iter().chain(&self.queued).chain(self.running.values());
        held.chain(self.done.iter().map(|(transfer, _)| transfer)).map(|transfer| transfer.job)
    }

    /// Submits queued transfers while the engine has room.
    fn submit_queued(&mut self) {
        while let Some(transfer) = self.queued.pop_front() {
            match self.submit(&transfer) {
                Ok(id) => {
                    self.running.insert(id, transfer);
                }
                Err(CopyError::QueueFull { .. }) if !self.running.is_empty() => {
                    self.queued.push_front(transfer);
                    return;
                }
                Err(error) => {
                    tracing::warn!("transfer {} was not started: {error}", transfer.job.0);
                    self.done.push((transfer, false));
                }
            }
        }
    }

    #[expect(unsafe_code, reason = "the copy engine takes addresses")]
    fn submit(&mut self, transfer: &Transfer) -> Result<CopyId, CopyError> {
        let Some(layout) = &self.layout else {
            return Err(CopyError::Invalid("no KV caches are registered".to_owned()));
        };
        let mut runs = std::mem::take(&mut self.scratch_runs);
        runs.clear();
        let direction = match transfer.kind {
            TransferKind::Store => Direction::DeviceToHost,
            TransferKind::Load => Direction::HostToDevice,
        };
        let submitted = runs::build(layout, &self.region, &transfer.copies, direction, &mut runs).and_then(|()| {
            // SAFETY: slots are in the region, which `self` keeps mapped until the engine is dropped; pages are in tensors
            // that are valid as long by `KvTensor::from_raw`'s contract or because `layout` keeps their arena. A slot that is
            // loaded from has a reader and a slot that is stored to is *writing*, so nobody writes the one or touches the
            // other; GPU blocks under a transfer are not handed out before it is done: `flush` and `released` see to it.
            unsafe { self.engine.submit(direction, &runs, Order::default()) }
        });
        self.scratch_runs = runs;
        submitted
    }

    /// Takes in what the engine has finished.
    fn collect(&mut self) {
        let mut finished = std::mem::take(&mut self.scratch_done);
        finished.clear();
        self.engine.poll(&mut finished);
        for copy in finished.drain(..) {
            let Some(transfer) = self.running.remove(&copy.id) else { continue };
            if let Err(error) = &copy.result {
                tracing::warn!("transfer {} failed: {error}", transfer.job.0);
            }
            self.done.push((transfer, copy.result.is_ok()));
        }
        self.scratch_done = finished;
    }

    /// Appends what is done to the report.
    fn report(&mut self, out: &mut WorkerOutput) {
        for (transfer, ok) in self.done.drain(..) {
            if !ok && transfer.kind == TransferKind::Load {
                out.failed_blocks.extend(transfer.copies.iter().map(|copy| copy.block));
            }
            out.finished.push((transfer.job, ok));
        }
    }

    /// Waits until none of these jobs touches memory.
    fn flush(&mut self, jobs: &[JobId]) -> Result<(), ConnectorError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let wanted: HashSet<JobId> = jobs.iter().copied().collect();
        // What these stores read is complete since the step that planned them: now is the last moment to copy it.
        for transfer in self.kept.extract_if(.., |transfer| wanted.contains(&transfer.job)) {
            self.queued.push_back(transfer);
        }
        loop {
            self.submit_queued();
            let mut ids: Vec<CopyId> = Vec::new();
            ids.extend(self.running.iter().filter(|(_, job)| wanted.contains(&job.job)).map(|(id, _)| *id));
            let queued = self.queued.iter().any(|transfer| wanted.contains(&transfer.job));
            if ids.is_empty() && !queued {
                return Ok(());
            }
            if queued {
                ids = self.running.keys().copied().collect();
            }
            self.engine.wait(&ids)?;
            self.collect();
        }
    }
}

impl WorkerHalf for Worker {
    fn register_kv_caches(&mut self, caches: KvCaches) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        if self.layout.is_some() {
            return Err(ConnectorError::invalid("KV caches are registered already"));
        }
        self.layout = Some(Layout::new(caches, &self.options, self.region.moves_bytes())?);
        Ok(())
    }

    fn handle_preemptions(&mut self, meta: &ConnectorMeta) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        self.flush(&meta.flush)
    }

    fn start_load_kv(&mut self, meta: ConnectorMeta) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        self.check(&meta)?;
        self.flush(&meta.flush)?;
        // Loads first: requests wait for them.
        for transfer in meta.loads.into_iter().rev() {
            self.queued.push_front(transfer);
        }
        self.queued.extend(std::mem::replace(&mut self.kept, meta.stores));
        self.submit_queued();
        Ok(())
    }

    fn wait_for_save(&mut self) -> Result<(), ConnectorError> {
        self.ensure_open()
    }

    fn get_finished(&mut self, out: &mut WorkerOutput) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        self.collect();
        self.submit_queued();
        self.report(out);
        Ok(())
    }
}
