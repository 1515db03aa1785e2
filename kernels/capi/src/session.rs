//! One engine with its regions, layouts, events and jobs.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use terrace_kernels::cuda::{CudaCopyEngine, DeviceEvent, Driver, EventKind, MemoryHandle, PinOptions, RegionPins};
use terrace_kernels::layout::{JobPages, PageTensor, PagedLayout, SlotTable};
use terrace_kernels::{
    CopyDone, CopyEngine, CopyError, CopyRun, Direction, HostCopyEngine, Order, StreamHandle, Token,
};

use crate::abi::{self, Ended, Points, RegionState, code};
use crate::handle;
use crate::jobs::Jobs;
use crate::refusal::Refusal;

/// Handles of a kind that one engine has at most.
const MOST_HANDLES: usize = 65_536;

/// What copies.
#[derive(Debug)]
pub(crate) enum Copier {
    Host(Box<HostCopyEngine>),
    Cuda(Box<CudaCopyEngine>),
    /// Copies were not asked for.
    None,
}

/// A layout with what `submit` has to know of it.
#[derive(Debug)]
struct Layout {
    pages: PagedLayout,
    /// Where the part of a slot ends.
    part_end: u64,
    null_block: Option<u32>,
}

#[derive(Debug)]
struct Region {
    base: usize,
    len: usize,
    /// `None`: nothing has to be pinned.
    pins: Option<Arc<RegionPins>>,
}

/// What a layout is made of.
pub(crate) struct LayoutParts {
    pub groups: Vec<Vec<PageTensor>>,
    pub blocks_per_chunk: u32,
    pub part_offset: u64,
    pub part_bytes: u64,
    pub null_block: i64,
}

/// What the jobs of one call have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub layout: u64,
    pub table: SlotTable,
    pub direction: Direction,
    pub order: Order,
}

/// The lists of one job.
pub(crate) struct Lists<'a> {
    pub id: u64,
    pub block_ids: &'a [u32],
    pub group_sizes: &'a [u32],
    pub block_indices: &'a [u32],
    pub slots: &'a [u32],
}

/// An engine that was opened. Dropping it waits for its copies.
#[derive(Debug)]
pub(crate) struct Session {
    // Dropped first: it waits for its copies, which use what stands below.
    copier: Copier,
    regions: HashMap<u64, Region>,
    events: HashMap<u64, DeviceEvent>,
    driver: Option<Arc<dyn Driver>>,
    layouts: HashMap<u64, Layout>,
    jobs: Jobs,
    queue_entries: usize,
    pin_options: PinOptions,
    runs: Vec<CopyRun>,
    done: Vec<CopyDone>,
}

fn address(value: u64, what: &str) -> Result<usize, Refusal> {
    usize::try_from(value).map_err(|_| Refusal::invalid(format!("{what} {value:#x} is beyond the address space")))
}

fn room<T>(table: &HashMap<u64, T>, what: &str) -> Result<(), Refusal> {
    if table.len() < MOST_HANDLES {
        return Ok(());
    }
    Err(Refusal::new(code::FULL, format!("{MOST_HANDLES} {what} are there already")))
}

impl Session {
    pub fn new(copier: Copier, driver: Option<Arc<dyn Driver>>, queue_entries: usize, pin_options: PinOptions) -> Self {
        Self {
            copier,
            regions: HashMap::new(),
            events: HashMap::new(),
            driver,
            layouts: HashMap::new(),
            jobs: Jobs::default(),
            queue_entries,
            pin_options,
            runs: Vec::new(),
            done: Vec::new(),
        }
    }

    pub const fn kind(&self) -> u32 {
        if self.driver.is_some() { abi::CUDA } else { abi::HOST }
    }

    pub fn driver(&self) -> Result<&Arc<dyn Driver>, Refusal> {
        self.driver.as_ref().ok_or_else(|| Refusal::unsupported("the host engine has no device"))
    }

    fn engine(&mut self) -> Result<&mut dyn CopyEngine, Refusal> {
        match &mut self.copier {
            Copier::Host(engine) => Ok(&mut **engine),
            Copier::Cuda(engine) => Ok(&mut **engine),
            Copier::None => Err(Refusal::unsupported("the engine was opened with TERRACE_COPY_NO_COPIES")),
        }
    }

    /// Takes in what the engine has finished.
    pub fn collect(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        if let Ok(engine) = self.engine() {
            engine.poll(&mut done);
        }
        done.iter().for_each(|copy| self.jobs.end(copy));
        self.done = done;
    }

    /// Waits for all copies in flight.
    fn drain(&mut self) -> Result<(), Refusal> {
        let running = self.jobs.running();
        if let Ok(engine) = self.engine() {
            engine.wait(&running)?;
        }
        self.collect();
        Ok(())
    }

    pub fn register_region(&mut self, base: u64, len: u64) -> Result<u64, Refusal> {
        self.engine()?;
        room(&self.regions, "regions")?;
        let (base, len) = (address(base, "base")?, address(len, "length")?);
        let end = base.checked_add(len).filter(|_| base > 0 && len > 0);
        let Some(end) = end else {
            return Err(Refusal::invalid(format!("a region of {len} bytes at {base:#x} is no memory")));
        };
        if self.regions.values().any(|other| base < other.base + other.len && other.base < end) {
            return Err(Refusal::invalid(format!("{len} bytes at {base:#x} overlap a region that is registered")));
        }
        let mut pins = None;
        if let (Copier::Cuda(engine), Some(driver)) = (&mut self.copier, &self.driver) {
            // SAFETY: the header asks the caller to keep the memory until it is unregistered, which waits for the copies
            // and drops the pins. Nothing is kept in their place.
            #[expect(unsafe_code, reason = "memory of the caller")]
            let made = unsafe { RegionPins::start(driver, base, len, Arc::new(()), self.pin_options)? };
            let made = Arc::new(made);
            engine.add_pins(Arc::clone(&made));
            pins = Some(made);
        }
        let region = handle::next();
        self.regions.insert(region, Region { base, len, pins });
        Ok(region)
    }

    pub fn region_state(&self, region: u64) -> Result<RegionState, Refusal> {
        let region = self.regions.get(&region).ok_or_else(|| Refusal::handle("region", region))?;
        Ok(region.state())
    }

    pub fn unregister_region(&mut self, region: u64) -> Result<(), Refusal> {
        if !self.regions.contains_key(&region) {
            return Err(Refusal::handle("region", region));
        }
        self.drain()?;
        if let Some(region) = self.regions.remove(&region)
            && let (Copier::Cuda(engine), Some(pins)) = (&mut self.copier, &region.pins)
        {
            engine.remove_pins(pins);
        }
        Ok(())
    }

    pub fn add_memory(&mut self, base: u64, len: u64) -> Result<(), Refusal> {
        self.engine()?;
        let (base, len) = (address(base, "base")?, address(len, "length")?);
        if base == 0 || len == 0 || base.checked_add(len).is_none() {
            return Err(Refusal::invalid(format!("{len} bytes at {base:#x} are no memory")));
        }
        match &mut self.copier {
            Copier::Cuda(engine) => Ok(engine.add_memory(base, len)?),
            _ => Ok(()),
        }
    }

    pub fn remove_memory(&mut self, base: u64) -> Result<(), Refusal> {
        let base = address(base, "base")?;
        self.engine()?;
        self.drain()?;
        if let Copier::Cuda(engine) = &mut self.copier {
            engine.remove_memory(base);
        }
        Ok(())
    }

    pub fn add_layout(&mut self, parts: LayoutParts) -> Result<u64, Refusal> {
        room(&self.layouts, "layouts")?;
        let null_block =
            match parts.null_block {
                -1 => None,
                block => Some(u32::try_from(block).map_err(|_| {
                    Refusal::invalid(format!("null_block {block}: -1, or a block from 0 to {}", u32::MAX))
                })?),
            };
        let part_end = parts.part_offset.checked_add(parts.part_bytes);
        let part_end = part_end.ok_or_else(|| Refusal::invalid("the part of a slot wraps around"))?;
        let (offset, bytes) = (address(parts.part_offset, "part_offset")?, address(parts.part_bytes, "part_bytes")?);
        let pages = PagedLayout::new(parts.groups, parts.blocks_per_chunk, offset, bytes)?;
        let layout = handle::next();
        self.layouts.insert(layout, Layout { pages, part_end, null_block });
        Ok(layout)
    }

    pub fn remove_layout(&mut self, layout: u64) -> Result<(), Refusal> {
        self.layouts.remove(&layout).map(|_| ()).ok_or_else(|| Refusal::handle("layout", layout))
    }

    /// The order that points of the device make.
    pub fn order(&self, points: &Points) -> Result<Order, Refusal> {
        let point = |kind: u32, value: u64| match kind {
            abi::NO_POINT => Ok(None),
            _ if self.driver.is_none() => Err(Refusal::unsupported("the host engine has no streams and no events")),
            abi::STREAM => Ok(Some(Token::Stream(StreamHandle(value)))),
            abi::EVENT => self.event(value).map(|event| Some(event.token())),
            other => Err(Refusal::invalid(format!("point {other}: 0, 1 (stream) or 2 (event)"))),
        };
        let after = point(points.after_kind, points.after)?;
        Ok(Order { after_copy: None, after, before: point(points.before_kind, points.before)? })
    }

    /// Whether jobs can be submitted in this way at all.
    pub fn check(&mut self, step: &Step) -> Result<(), Refusal> {
        self.engine()?;
        let layout = self.layouts.get(&step.layout).ok_or_else(|| Refusal::handle("layout", step.layout))?;
        let table = &step.table;
        let bytes = table.stride.checked_mul(table.slots as usize);
        let inside = |region: &Region| {
            let offset = table.base.checked_sub(region.base);
            offset.zip(bytes).and_then(|(offset, bytes)| offset.checked_add(bytes)).is_some_and(|end| end <= region.len)
        };
        if !self.regions.values().any(inside) {
            return Err(Refusal::invalid(format!("{table:?} does not lie inside one registered region")));
        }
        if layout.part_end > table.stride as u64 {
            return Err(Refusal::invalid(format!(
                "slots of {} bytes do not hold a part that ends at {}",
                table.stride, layout.part_end
            )));
        }
        Ok(())
    }

    /// Submits a job of a step that was checked.
    pub fn submit(&mut self, step: &Step, lists: &Lists<'_>) -> Result<(), Refusal> {
        if self.jobs.is_running(lists.id) {
            return Err(Refusal::invalid(format!("job {} is in flight already", lists.id)));
        }
        if self.jobs.len() >= self.queue_entries {
            return Err(CopyError::QueueFull { limit: self.queue_entries }.into());
        }
        let layout = self.layouts.get(&step.layout).ok_or_else(|| Refusal::handle("layout", step.layout))?;
        let job = JobPages {
            block_ids: lists.block_ids,
            group_sizes: lists.group_sizes,
            block_indices: lists.block_indices,
            slots: lists.slots,
            null_block: layout.null_block,
        };
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        let submitted = match layout.pages.job_runs(&job, &step.table, step.direction, &mut runs) {
            Err(error) => Err(error.into()),
            // SAFETY: the header asks the caller for memory that stays valid until the job has ended, for an order, and for streams
            // that are alive. Slots lie in a registered region and pages in their tensors: both are checked above.
            #[expect(unsafe_code, reason = "addresses of the caller")]
            Ok(_) => self.engine().and_then(|engine| Ok(unsafe { engine.submit(step.direction, &runs, step.order)? })),
        };
        self.runs = runs;
        self.jobs.begin(submitted?, lists.id);
        Ok(())
    }

    pub fn take_ended(&mut self) -> Option<Ended> {
        self.jobs.take()
    }

    /// Whether one of these jobs is in flight.
    pub fn any_running(&mut self, ids: &[u64]) -> bool {
        self.collect();
        ids.iter().any(|id| self.jobs.is_running(*id))
    }

    pub fn stats(&mut self) -> String {
        self.collect();
        let regions: Vec<_> = self.regions.values().map(Region::state).collect();
        let sum = |part: fn(&RegionState) -> u64| regions.iter().map(part).sum::<u64>();
        let mut stats = json!({
            "kind": if self.driver.is_some() { "cuda" } else { "host" },
            "device": self.driver.as_ref().map(|driver| driver.facts().uuid_text()),
            "in_flight": self.jobs.in_flight(),
            "not_polled": self.jobs.len() - self.jobs.in_flight(),
            "regions": regions.len(),
            "pinned_bytes": sum(|region| region.bytes),
            "pieces": sum(|region| region.pieces.into()),
            "pieces_pinned": sum(|region| region.registered.into()),
            "pieces_refused": sum(|region| region.refused.into()),
        });
        if let Ok(engine) = self.engine() {
            let copies = engine.stats();
            stats["engine"] = json!(engine.describe());
            stats["copies"] = json!(copies.copies);
            stats["runs"] = json!(copies.runs);
            stats["bytes_to_host"] = json!(copies.bytes_to_host);
            stats["bytes_to_device"] = json!(copies.bytes_to_device);
        }
        if let Copier::Cuda(engine) = &self.copier {
            let cuda = engine.cuda_stats();
            stats["pageable_bytes"] = json!(cuda.pageable_bytes);
            stats["run_bytes"] = json!(cuda.run_bytes);
            stats["rect_bytes"] = json!(cuda.rect_bytes);
            stats["kernel_bytes"] = json!(cuda.kernel_bytes);
            stats["full_tables"] = json!(cuda.full_tables);
            stats["failed"] = json!(cuda.failed);
            stats["is_lost"] = json!(engine.is_lost());
        }
        stats.to_string()
    }

    pub fn export_memory(&self, address_here: u64) -> Result<MemoryHandle, Refusal> {
        let driver = self.driver()?;
        Ok(terrace_kernels::cuda::export_memory(&**driver, address(address_here, "address")?)?)
    }

    pub fn create_event(&mut self) -> Result<u64, Refusal> {
        let event = DeviceEvent::new(self.driver()?, EventKind::Shared)?;
        self.keep_event(event)
    }

    pub fn open_event(&mut self, exported: &[u8; 64]) -> Result<u64, Refusal> {
        let event = DeviceEvent::open(self.driver()?, exported)?;
        self.keep_event(event)
    }

    fn keep_event(&mut self, event: DeviceEvent) -> Result<u64, Refusal> {
        room(&self.events, "events")?;
        let handle = handle::next();
        self.events.insert(handle, event);
        Ok(handle)
    }

    pub fn event(&self, event: u64) -> Result<&DeviceEvent, Refusal> {
        self.driver()?;
        self.events.get(&event).ok_or_else(|| Refusal::handle("event", event))
    }

    pub fn destroy_event(&mut self, event: u64) -> Result<(), Refusal> {
        self.event(event)?;
        self.events.remove(&event);
        Ok(())
    }
}

impl Region {
    fn state(&self) -> RegionState {
        let Some(pins) = &self.pins else { return RegionState { is_over: 1, ..RegionState::default() } };
        let progress = pins.progress();
        let number = |pieces: usize| u32::try_from(pieces).unwrap_or(u32::MAX);
        RegionState {
            bytes: progress.bytes,
            pieces: number(progress.pieces),
            registered: number(progress.registered),
            refused: number(progress.refused),
            is_over: progress.is_over().into(),
        }
    }
}
