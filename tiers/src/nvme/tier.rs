//! The NVMe tier's logic: what is stored where, what goes when room is needed, and what became of each job.
//!
//! It runs on the manager's thread and takes no lock; a [`ShardPort`] per directory does the work. What is known stands in
//! memory, so lookups and bookkeeping wait for nothing.
//!
//! **Room.** Bytes are counted as the disks allocate them. A store that does not fit below the high watermark takes over
//! the file of the least recently used block of its directory: one victim a store, no unlink, no allocation. Only what
//! recycling cannot mend (a smaller capacity than in the last life, files of other sizes, a disk that is full before
//! the capacity is) is trimmed, a bounded number a poll, down to the low watermark.
//!
//! **Start.** The tier serves at once. Entries of the catalog, or files found by a scan, come in a bounded number a poll;
//! until all are known a key that is not found is `Unknown`. Stores are refused as busy until every file is counted, since their room is not
//! known before: after a kill that is when the files have been listed.

use std::sync::Arc;
use std::time::Duration;

use terrace_config::{Geometry, NvmeConfig};
use terrace_primary::{Key, Region};

use super::capacity::Capacity;
use super::fill::Fill;
use super::index::{Index, MAX_LANES, MAX_ROWS};
use super::lane::Lane;
use super::ops::{Jobs, Op, OpKind, Ops};
use super::persist::Persist;
use super::port::{BlockName, Command, PortEvent, ShardPort};
use crate::catalog::CatalogStore;
use crate::clock::{Clock, Time};
use crate::error::TierError;
use crate::metrics::OpTimes;
use crate::tier::{
    Fault, JobId, LoadJob, Locality, Medium, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup,
    TierStats,
};

/// What an NVMe tier is built from.
pub struct NvmeOptions<'a> {
    /// Capacity, watermarks, directories, queues.
    pub config: &'a NvmeConfig,
    /// Name in logs, statistics and events.
    pub name: String,
    /// Digest of the namespace of its blocks.
    pub namespace: [u8; 32],
    /// Shape of a block.
    pub geometry: Geometry,
    /// Where the blocks' bytes are and go.
    pub region: Arc<Region>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// Blocks as files on local disks. See the module.
pub struct NvmeTier {
    pub(super) descriptor: TierDescriptor,
    pub(super) namespace: [u8; 32],
    pub(super) block_bytes: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) index: Index,
    pub(super) capacity: Capacity,
    pub(super) lanes: Vec<Lane>,
    pub(super) ops: Ops,
    pub(super) jobs: Jobs,
    pub(super) catalog: Box<dyn CatalogStore>,
    pub(super) fill: Fill,
    pub(super) persist: Persist,
    pub(super) events: Vec<TierEvent>,
    pub(super) stats: TierStats,
    pub(super) times: OpTimes,
    /// Bytes of files that are being removed, or could not be.
    pub(super) leaving_bytes: u64,
    /// Files that are being removed.
    pub(super) leaving: usize,
    /// Operations that may be in flight before jobs are refused.
    most_ops: usize,
    pub(super) closed: bool,
    /// Something was left undone that the next start must look for.
    pub(super) unclean: bool,
    port_events: Vec<PortEvent>,
    touched: Vec<u32>,
    /// Where the scrubber's round is.
    scrub_row: u32,
}

/// Rows that are looked at for one block to scrub.
const SCRUB_ROWS: u32 = 1024;

impl NvmeTier {
    /// A tier over the given ports (one a directory, in the order of the configuration) and catalog. Starts no thread.
    /// Fails when capacity, number of directories or region do not fit the geometry.
    pub fn with_ports(
        options: NvmeOptions<'_>,
        ports: Vec<Box<dyn ShardPort>>,
        catalog: Box<dyn CatalogStore>,
    ) -> Result<Self, TierError> {
        let NvmeOptions { config, name, namespace, geometry, region, clock } = options;
        if ports.is_empty() || ports.len() > MAX_LANES {
            return Err(TierError::Paths { tier: name, paths: ports.len(), most: MAX_LANES });
        }
        if region.block_bytes() != geometry.block_bytes {
            return Err(TierError::Geometry {
                tier: name,
                region_bytes: region.block_bytes(),
                geometry_bytes: geometry.block_bytes,
            });
        }
        let file_bytes = geometry.file_bytes();
        let blocks = config.capacity_bytes / file_bytes;
        let rows = match u32::try_from(blocks) {
            Ok(rows) if (1..=MAX_ROWS).contains(&rows) => rows,
            _ => {
                return Err(TierError::Capacity {
                    tier: name,
                    capacity_bytes: config.capacity_bytes,
                    blocks,
                    block_bytes: file_bytes,
                    most: MAX_ROWS,
                });
            }
        };
        let now = clock.now();
        let lanes: Vec<Lane> = ports.into_iter().map(Lane::new).collect();
        Ok(Self {
            times: OpTimes::new(&name),
            descriptor: TierDescriptor { name, medium: Medium::Storage, locality: Locality::Local },
            namespace,
            block_bytes: u64::from(geometry.block_bytes),
            index: Index::new(rows, lanes.len(), usize::from(geometry.hash_bytes) + 4),
            capacity: Capacity::new(config.capacity_bytes, config.high_watermark, config.low_watermark, file_bytes),
            ops: Ops::default(),
            jobs: Jobs::default(),
            catalog,
            fill: Fill::new(now),
            persist: Persist::new(now),
            events: Vec::new(),
            stats: TierStats::default(),
            leaving_bytes: 0,
            leaving: 0,
            most_ops: (config.queue_entries as usize).saturating_mul(lanes.len()).max(1),
            closed: false,
            unclean: false,
            port_events: Vec::new(),
            touched: Vec::new(),
            scrub_row: 0,
            lanes,
            clock,
        })
    }

    /// Whether all that the tier holds is in its index: no lookup answers `Unknown` any more.
    pub const fn is_known(&self) -> bool {
        self.fill.is_known()
    }

    /// Whether index, lists and counters agree; for tests. Touches all rows.
    pub fn check(&self) -> Result<(), String> {
        self.index.check()?;
        let held: u64 = (0..self.index.rows_seen())
            .filter(|row| self.index.is_ready(*row))
            .filter_map(|row| self.index.get(row))
            .map(|row| row.allocated_bytes())
            .sum();
        let strangers: u64 = self.lanes.iter().flat_map(|lane| &lane.strangers).map(|(_, bytes)| *bytes).sum();
        let charged = self.ops.bytes() + self.stuck_bytes();
        if held + strangers + charged != self.capacity.used_bytes() {
            return Err(format!(
                "{held} bytes in blocks, {strangers} in strangers, {charged} charged: used is {}",
                self.capacity.used_bytes()
            ));
        }
        Ok(())
    }

    fn stuck_bytes(&self) -> u64 {
        self.leaving_bytes - self.ops.removing_bytes()
    }

    fn accept(&mut self, id: JobId, blocks: usize) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        // A job of any length is taken when nothing else is in flight, or one that is longer than the queue never were.
        let in_flight = self.ops.len();
        if in_flight > 0 && in_flight + blocks > self.most_ops || self.jobs.contains(id) {
            self.stats.refused += 1;
            return Err(Refused::Busy);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) {
        for lane in &mut self.lanes {
            lane.port.flush();
        }
        self.catalog.flush();
    }

    pub(super) fn name_of(&self, key: &Key) -> BlockName {
        BlockName { namespace: self.namespace, key: *key }
    }

    /// Reports one block of a job.
    pub(super) fn report(&mut self, job: u32, index: u32, outcome: Result<u32, Fault>) {
        if let Some((job, load)) = self.jobs.done(job) {
            self.events.push(if load {
                TierEvent::LoadDone { job, index, outcome }
            } else {
                TierEvent::StoreDone { job, index, outcome }
            });
        }
    }

    /// Hands commands on that ports had no room for.
    fn push_waiting(&mut self, now: Time) {
        for lane in 0..self.lanes.len() {
            while let Some(command) = self.lanes.get_mut(lane).and_then(|lane| lane.waiting.pop_front()) {
                if self.is_given_up(&command, now) {
                    self.drop_waiting(command);
                    continue;
                }
                let Some(place) = self.lanes.get_mut(lane) else { return };
                match place.port.push(command) {
                    Ok(()) => {
                        if let Some(op) = self.ops.get_mut(command.ticket()) {
                            op.queued = false;
                        }
                    }
                    Err(back) => {
                        place.waiting.push_front(back);
                        break;
                    }
                }
            }
        }
    }

    fn is_given_up(&mut self, command: &Command, now: Time) -> bool {
        let expired = match command {
            Command::Store { deadline, .. } | Command::Load { deadline, .. } => *deadline <= now,
            Command::Remove { .. } => false,
        };
        expired || self.ops.get_mut(command.ticket()).is_none_or(|op| op.abandoned)
    }

    /// Ends a command that no port has seen.
    fn drop_waiting(&mut self, command: Command) {
        let fault = if self.closed { Fault::Closed } else { Fault::Expired };
        self.complete(command.ticket(), Err(fault));
    }

    fn poll_ports(&mut self) {
        let mut events = std::mem::take(&mut self.port_events);
        for lane in &mut self.lanes {
            lane.poll(&mut events);
        }
        for event in events.drain(..) {
            if let PortEvent::Done { ticket, result } = event {
                self.complete(ticket, result);
            }
        }
        self.port_events = events;
    }
}

impl SecondaryTier for NvmeTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        out.clear();
        let unless = if self.fill.is_known() { TierLookup::Absent } else { TierLookup::Unknown };
        self.index.lookup(keys, unless, out);
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        if !self.fill.is_room_known() {
            self.stats.refused += 1;
            return Err(Refused::Busy);
        }
        let place = self.jobs.open(job.id, false, job.blocks.len() as u32);
        for (index, block) in job.blocks.iter().enumerate() {
            self.start_store(place, index as u32, block, job.deadline);
        }
        if job.blocks.is_empty() {
            self.jobs.close(place);
        }
        self.flush();
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        let place = self.jobs.open(job.id, true, job.blocks.len() as u32);
        for (index, block) in job.blocks.iter().enumerate() {
            self.start_load(place, index as u32, block, job.deadline);
        }
        if job.blocks.is_empty() {
            self.jobs.close(place);
        }
        self.flush();
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        let Some(place) = self.jobs.find(job) else { return };
        let tickets = self.jobs.get_mut(place).map(|job| std::mem::take(&mut job.tickets)).unwrap_or_default();
        for ticket in tickets {
            let Some(op) = self.ops.get_mut(ticket) else { continue };
            if op.job != place {
                // The job's block follows another job's store: it never had the slot.
                let (mut left, mut gone) = (Vec::new(), Vec::new());
                for follower in op.followers.drain(..) {
                    if follower.0 == place { gone.push(follower.1) } else { left.push(follower) }
                }
                op.followers = left;
                for index in gone {
                    self.stats.expired += 1;
                    self.report(place, index, Err(Fault::Expired));
                }
                continue;
            }
            op.abandoned = true;
            if op.queued {
                // No port has seen the command: the slot is free at once, the rest of the operation ends with its turn.
                let index = op.index;
                op.job = super::ops::NONE;
                self.stats.expired += 1;
                self.report(place, index, Err(Fault::Expired));
            } else {
                let lane = usize::from(op.lane);
                if let Some(lane) = self.lanes.get_mut(lane) {
                    lane.port.abandon(ticket);
                }
            }
        }
        self.flush();
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        if !self.closed {
            let now = self.clock.now();
            self.poll_ports();
            self.push_waiting(now);
            self.fill_step(now);
            self.trim(now);
            self.persist_step(now);
            self.flush();
        }
        out.append(&mut self.events);
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        let rows = self.index.rows_seen();
        for _ in 0..rows.min(SCRUB_ROWS) {
            let row = if self.scrub_row < rows { self.scrub_row } else { 0 };
            self.scrub_row = row + 1;
            if self.index.is_ready(row) {
                return self.index.key(row);
            }
        }
        None
    }

    fn set_limit(&mut self, bytes: u64) {
        self.capacity.set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        let mut touched = std::mem::take(&mut self.touched);
        self.index.touch(keys, &mut touched);
        self.touched = touched;
    }

    fn shutdown(&mut self, within: Duration) {
        if self.closed {
            return;
        }
        self.poll_ports();
        self.closed = true;
        let start = self.clock.now();
        let left = |clock: &dyn Clock| within.saturating_sub(clock.now().since(start));
        // What waits here touched nothing; a Remove that is dropped leaves its file to the next start.
        for lane in 0..self.lanes.len() {
            while let Some(command) = self.lanes.get_mut(lane).and_then(|lane| lane.waiting.pop_front()) {
                self.unclean |= !matches!(command, Command::Load { .. });
                self.complete(command.ticket(), Err(Fault::Closed));
            }
        }
        for lane in 0..self.lanes.len() {
            let share = left(&*self.clock) / (self.lanes.len() - lane) as u32;
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.port.shutdown(share);
            }
            self.poll_ports();
        }
        if self.ops.len() > 0 {
            tracing::warn!(
                tier = %self.descriptor.name,
                operations = self.ops.len(),
                "closed while the device still held operations; their slots are not given back"
            );
            self.unclean = true;
        }
        let written = self.persist_all(start.plus(within));
        let clean = written && !self.unclean && self.fill.is_over();
        self.catalog.shutdown(clean, left(&*self.clock).max(Duration::from_millis(100)));
    }

    fn stats(&self) -> TierStats {
        let ports = self.lanes.iter().map(|lane| lane.port.counters().recycled).sum();
        TierStats {
            blocks: u64::from(self.index.ready()),
            allocated_bytes: self.capacity.used_bytes(),
            capacity_bytes: self.capacity.capacity_bytes(),
            counting: !self.fill.is_room_known(),
            in_flight: self.jobs.remaining(),
            recycled: ports,
            catalog_lost: self.catalog.lost(),
            ..self.stats
        }
    }
}

impl NvmeTier {
    /// Starts an operation: charges nothing, hands the command over.
    pub(super) fn start(&mut self, op: Op, command: impl FnOnce(u64) -> Command) -> u64 {
        let (lane, kind, job) = (usize::from(op.lane), op.kind, op.job);
        let ticket = self.ops.insert(Op { started: self.clock.now(), ..op });
        if kind != OpKind::Remove
            && let Some(job) = self.jobs.get_mut(job)
        {
            job.tickets.push(ticket);
        }
        let taken = self.lanes.get_mut(lane).is_some_and(|lane| lane.push(command(ticket)));
        if !taken && let Some(op) = self.ops.get_mut(ticket) {
            op.queued = true;
        }
        ticket
    }
}
