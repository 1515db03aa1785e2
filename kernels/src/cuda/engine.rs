//! The copy engine of a GPU.
#![expect(unsafe_code, reason = "the trait's, and handing work to the lanes")]

use std::sync::Arc;

use super::calibrate;
use super::driver::Driver;
use super::kernel::{self, Kernel};
use super::lane::{Job, Lane, Submitted, Work};
use super::options::CudaOptions;
use super::pins::{PinMap, PinProgress, RegionPins};
use super::plan::{BytesBy, Chooser, Curves, DeviceRanges, Path, PathChoice, Plan, Planner, Tile};
use crate::engine::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, EventHandle, Order};
use crate::metrics::CopyTimes;

/// Counters of a CUDA engine beside [`CopyStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaStats {
    /// Bytes of host memory that was not registered.
    pub pageable_bytes: u64,
    /// Bytes by one-dimensional copies.
    pub run_bytes: u64,
    /// Bytes by two-dimensional copies.
    pub rect_bytes: u64,
    /// Bytes by the kernel.
    pub kernel_bytes: u64,
    /// Batches that went another way because the kernel's tables had no room.
    pub full_tables: u64,
    /// Copies that failed.
    pub failed: u64,
    /// How far the registration of host memory is, all of it together.
    pub pins: PinProgress,
}

impl CudaStats {
    /// Of two engines together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            pageable_bytes: self.pageable_bytes + other.pageable_bytes,
            run_bytes: self.run_bytes + other.run_bytes,
            rect_bytes: self.rect_bytes + other.rect_bytes,
            kernel_bytes: self.kernel_bytes + other.kernel_bytes,
            full_tables: self.full_tables + other.full_tables,
            failed: self.failed + other.failed,
            pins: self.pins.plus(other.pins),
        }
    }

    fn count(&mut self, by: BytesBy) {
        self.pageable_bytes += by.pageable;
        self.run_bytes += by.runs;
        self.rect_bytes += by.rects;
        self.kernel_bytes += by.kernel;
    }
}

/// Copies between device memory and host memory. Each direction has a stream of its own, of the lowest priority; copies of one
/// direction end in the order of their submission. No call waits for the device, but [`CopyEngine::wait`], dropping the engine, and
/// submitting copies of host memory that is not registered.
#[derive(Debug)]
pub struct CudaCopyEngine {
    // Lanes drain their streams when dropped: before the memory below is unregistered.
    lanes: [Lane; 2],
    pins: PinMap,
    kernel: Option<Kernel>,
    driver: Arc<dyn Driver>,
    ranges: DeviceRanges,
    chooser: Chooser,
    kernel_blocks: u32,
    queue_entries: usize,
    plan: Plan,
    next: u64,
    stats: CopyStats,
    cuda_stats: CudaStats,
    times: CopyTimes,
}

impl CudaCopyEngine {
    /// An engine on a device; `pins` are the host memory that it finds registered. `Invalid`: options out of their bounds.
    /// `Unsupported`: a path was asked for that this device does not have.
    pub fn new(driver: &Arc<dyn Driver>, pins: Vec<Arc<RegionPins>>, options: &CudaOptions) -> Result<Self, CopyError> {
        let table_entries = options.table_bytes / size_of::<Tile>();
        if options.queue_entries == 0
            || !(1..=1024).contains(&options.kernel_blocks)
            || table_entries > u32::MAX as usize / 2
        {
            return Err(CopyError::Invalid(format!(
                "a CUDA engine of {} queue entries (at least 1), {} thread blocks (1 to 1024), {} bytes of tables (below 48 GiB)",
                options.queue_entries, options.kernel_blocks, options.table_bytes
            )));
        }
        let facts = driver.facts();
        let kernel = if table_entries == 0 { None } else { kernel::load(driver, options) };
        let missing = match options.path {
            PathChoice::Only(Path::Kernel) => kernel.is_none(),
            PathChoice::Only(Path::Batch) => !facts.has_batch,
            _ => false,
        };
        if missing {
            let text = format!(
                "{} (driver API {}) has no way to copy by {:?}",
                facts.name, facts.driver_version, options.path
            );
            return Err(CopyError::Unsupported(text));
        }
        let entries = if kernel.is_some() { table_entries } else { 0 };
        let lanes = [
            Lane::new(driver, Direction::DeviceToHost, entries)?,
            Lane::new(driver, Direction::HostToDevice, entries)?,
        ];
        let (has_batch, has_kernel) = (facts.has_batch, kernel.is_some());
        let chooser = |curves| Chooser::new(options.path, has_batch, has_kernel, curves);
        let mut engine = Self {
            lanes,
            pins: PinMap::new(pins),
            kernel,
            driver: Arc::clone(driver),
            ranges: DeviceRanges::default(),
            chooser: chooser(Curves::default()),
            kernel_blocks: options.kernel_blocks,
            queue_entries: options.queue_entries,
            plan: Plan::default(),
            next: 0,
            stats: CopyStats::default(),
            cuda_stats: CudaStats::default(),
            times: CopyTimes::new(),
        };
        if options.calibrate_bytes > 0 && options.path == PathChoice::Auto {
            match calibrate::measure(driver, engine.kernel.as_ref(), options.kernel_blocks, options.calibrate_bytes) {
                Ok(curves) => engine.chooser = chooser(curves),
                Err(error) => tracing::warn!("copy paths are chosen without measuring them: {error}"),
            }
        }
        tracing::info!("copy engine: {}", engine.describe());
        Ok(engine)
    }

    /// Tells of device memory inside one allocation, such as a tensor. From then on runs must lie inside what is known, and
    /// neighbours in it are merged. Adding the same span again changes nothing.
    pub fn add_memory(&mut self, base: usize, len: usize) -> Result<(), CopyError> {
        self.ranges.add(base, len)
    }

    /// Forgets the span at `base`, of which no copy is in flight. Afterwards it may not be touched.
    pub fn remove_memory(&mut self, base: usize) {
        self.ranges.remove(base);
    }

    /// Tells of host memory that is, or is becoming, registered. It overlaps no other.
    pub fn add_pins(&mut self, pins: Arc<RegionPins>) {
        self.pins.add(pins);
    }

    /// Forgets registered host memory, of which no copy is in flight: its copies go as pageable from now on.
    pub fn remove_pins(&mut self, pins: &Arc<RegionPins>) {
        self.pins.remove(pins);
    }

    /// Waits until no copy is in flight: afterwards the engine touches no memory. They are still to be polled.
    pub fn drain(&mut self) {
        for lane in &mut self.lanes {
            if let Some(last) = lane.last_event() {
                lane.wait(last);
            }
        }
    }

    /// Counters beside [`CopyEngine::stats`].
    pub fn cuda_stats(&self) -> CudaStats {
        CudaStats { pins: self.pins.progress(), ..self.cuda_stats }
    }

    /// Whether the device failed for good: no copy is taken any more.
    pub fn is_lost(&self) -> bool {
        self.lanes.iter().any(Lane::is_lost)
    }

    fn lane_mut(&mut self, direction: Direction) -> &mut Lane {
        let [to_host, to_device] = &mut self.lanes;
        match direction {
            Direction::DeviceToHost => to_host,
            Direction::HostToDevice => to_device,
        }
    }

    fn event_of(&self, id: CopyId) -> Option<EventHandle> {
        self.lanes.iter().find_map(|lane| lane.event_of(id))
    }

    /// Fills `self.plan`.
    fn make_plan(&mut self, direction: Direction, runs: &[CopyRun], with_kernel: bool) -> Result<(), CopyError> {
        let without;
        let chooser = if with_kernel {
            &self.chooser
        } else {
            without = self.chooser.without_kernel();
            &without
        };
        let planner = Planner {
            direction,
            ranges: &self.ranges,
            host: &self.pins,
            chooser,
            max_pitch: self.driver.facts().max_pitch,
        };
        self.plan.build(&planner, runs)
    }

    /// # Safety
    /// As [`CopyEngine::submit`].
    unsafe fn submit_plan(&mut self, direction: Direction, order: Order) -> Result<Submitted, CopyError> {
        let after_copy = order.after_copy.and_then(|id| self.event_of(id));
        let plan = std::mem::take(&mut self.plan);
        let mean = plan.bytes_by.runs.checked_div(plan.runs.len() as u64).unwrap_or(0);
        let work = Work {
            id: CopyId(self.next),
            plan: &plan,
            dma: self.chooser.dma(direction, mean as usize),
            kernel: self.kernel.as_ref().map(|kernel| (kernel.handle, self.kernel_blocks)),
            after_copy,
            after: order.after,
            before: order.before,
        };
        // SAFETY: passed on; the plan was made of the caller's runs.
        let submitted = unsafe { self.lane_mut(direction).submit(&work) };
        self.plan = plan;
        submitted
    }

    fn report(&mut self, direction: Direction, job: Job, out: &mut Vec<CopyDone>) {
        if job.result.is_err() {
            self.cuda_stats.failed += 1;
        }
        self.times.of(direction).record(job.submitted.elapsed());
        out.push(CopyDone { id: job.id, result: job.result, bytes: job.bytes });
    }
}

impl CopyEngine for CudaCopyEngine {
    unsafe fn submit(&mut self, direction: Direction, runs: &[CopyRun], order: Order) -> Result<CopyId, CopyError> {
        if self.in_flight() >= self.queue_entries {
            self.stats.refused += 1;
            return Err(CopyError::QueueFull { limit: self.queue_entries });
        }
        if order.after_copy.is_some_and(|earlier| earlier.0 >= self.next) {
            return Err(CopyError::Invalid("ordered after a copy that was never submitted".to_owned()));
        }
        self.make_plan(direction, runs, true)?;
        // SAFETY: passed on.
        let mut submitted = unsafe { self.submit_plan(direction, order)? };
        if matches!(submitted, Submitted::NoTable) {
            self.cuda_stats.full_tables += 1;
            self.make_plan(direction, runs, false)?;
            // SAFETY: passed on.
            submitted = unsafe { self.submit_plan(direction, order)? };
        }
        if matches!(submitted, Submitted::NoTable) {
            return Err(CopyError::Failed("a plan without the kernel asked for its table".to_owned()));
        }
        let id = CopyId(self.next);
        self.next += 1;
        self.stats.count(direction, runs.len(), self.plan.bytes);
        self.cuda_stats.count(self.plan.bytes_by);
        Ok(id)
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        for direction in [Direction::DeviceToHost, Direction::HostToDevice] {
            while let Some(job) = self.lane_mut(direction).poll() {
                self.report(direction, job, out);
            }
        }
    }

    fn wait(&mut self, ids: &[CopyId]) -> Result<(), CopyError> {
        for id in ids {
            for lane in &mut self.lanes {
                if let Some(event) = lane.event_of(*id) {
                    lane.wait(event);
                }
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }

    fn describe(&self) -> String {
        let facts = self.driver.facts();
        format!(
            "cuda ({}, {}, driver API {}; {})",
            facts.name,
            facts.bus_id,
            facts.driver_version,
            self.chooser.describe()
        )
    }

    fn moves_bytes(&self) -> bool {
        true
    }

    fn stats(&self) -> CopyStats {
        CopyStats { cuda: self.cuda_stats(), ..self.stats }
    }
}
