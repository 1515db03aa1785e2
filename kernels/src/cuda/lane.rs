//! One direction: its stream, its copies in flight in order, its tables for the kernel.
#![expect(unsafe_code, reason = "driver calls with handles and addresses")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::driver::{Driver, DriverError, EventKind, KernelHandle};
use super::plan::{Path, Plan};
use super::ring::Ring;
use crate::engine::{CopyError, CopyId, Direction, EventHandle, StreamHandle, Token};

/// Runs in one batched call at most: bounds what the driver has to hold for it.
const BATCH_RUNS: usize = 8192;

/// A copy that is in the stream.
#[derive(Debug)]
pub(super) struct Job {
    pub id: CopyId,
    pub bytes: u64,
    /// Recorded behind its last byte.
    pub done: EventHandle,
    /// Of the engine's stream that it waits for.
    gate: Option<EventHandle>,
    /// An error of its submission: it is reported when what was submitted is done.
    pub result: Result<(), CopyError>,
    table_entries: usize,
    pub submitted: Instant,
}

/// What a lane submits.
pub(super) struct Work<'a> {
    pub id: CopyId,
    pub plan: &'a Plan,
    /// [`Path::Batch`] or [`Path::Runs`], for the plan's runs.
    pub dma: Path,
    pub kernel: Option<(KernelHandle, u32)>,
    /// Event of the copy that must be done before.
    pub after_copy: Option<EventHandle>,
    pub after: Option<Token>,
    pub before: Option<Token>,
}

/// How a submission ended.
pub(super) enum Submitted {
    /// It is in the stream, though parts may have failed.
    Taken,
    /// The table of tiles has no room: nothing was submitted.
    NoTable,
}

#[derive(Debug)]
pub(super) struct Lane {
    // Given back before the driver is let go.
    ring: Option<Ring>,
    driver: Arc<dyn Driver>,
    direction: Direction,
    stream: StreamHandle,
    jobs: VecDeque<Job>,
    /// Events that are free.
    events: Vec<EventHandle>,
    /// Whether completion could not be learned: the stream was drained, or the context is gone.
    lost: Option<CopyError>,
}

impl Lane {
    pub fn new(driver: &Arc<dyn Driver>, direction: Direction, table_entries: usize) -> Result<Self, CopyError> {
        // Without tables there is no kernel path, everything else works.
        let ring = match table_entries {
            0 => None,
            _ => Some(Ring::new(driver, table_entries)?),
        };
        let stream = driver.create_stream()?;
        Ok(Self {
            ring,
            driver: Arc::clone(driver),
            direction,
            stream,
            jobs: VecDeque::new(),
            events: Vec::new(),
            lost: None,
        })
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The event of a copy that is in flight here.
    pub fn event_of(&self, id: CopyId) -> Option<EventHandle> {
        self.jobs.binary_search_by_key(&id, |job| job.id).ok().and_then(|at| self.jobs.get(at)).map(|job| job.done)
    }

    /// The event of the copy that ends last: when it is done, all are.
    pub fn last_event(&self) -> Option<EventHandle> {
        self.jobs.back().map(|job| job.done)
    }

    fn event(&mut self) -> Result<EventHandle, DriverError> {
        self.events.pop().map_or_else(|| self.driver.create_event(EventKind::Private), Ok)
    }

    /// Submits a plan. On `Err` nothing that touches memory is in the stream. [`Work::before`] waits for it, if it can.
    ///
    /// # Safety
    /// As [`crate::CopyEngine::submit`]; the plan is of runs that it was given, the kernel of this device.
    pub unsafe fn submit(&mut self, work: &Work<'_>) -> Result<Submitted, CopyError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let mut table = None;
        if !work.plan.tiles.is_empty() {
            table = self.ring.as_mut().and_then(|ring| ring.put(&work.plan.tiles));
            if table.is_none() {
                return Ok(Submitted::NoTable);
            }
        }
        let table_entries = table.map_or(0, |table| table.entries);
        // SAFETY: passed on.
        let (done, gate) = match unsafe { self.open(work) } {
            Ok(events) => events,
            Err(error) => {
                // The last table taken is the newest: giving it back by count would free the oldest's room while its kernel reads it.
                // It is given back with the next copy that ends.
                self.give_back_later(table_entries);
                return Err(error.into());
            }
        };
        // SAFETY: passed on.
        let copied = unsafe { self.copy(work, table.map(|table| table.device)) };
        // SAFETY: the event is this lane's; it is in use for no other copy.
        let recorded = unsafe { self.driver.record(done, self.stream) };
        let ordered = match work.before {
            // SAFETY: alive and of this device by the caller's promise.
            Some(Token::Stream(stream)) if recorded.is_ok() => unsafe { self.driver.stream_wait(stream, done) },
            // SAFETY: as above.
            Some(Token::Event(event)) if recorded.is_ok() => unsafe { self.driver.record(event, self.stream) },
            _ => Ok(()),
        };
        let lost = recorded.is_err();
        let result = copied.and(recorded).and(ordered).map_err(CopyError::from);
        let job =
            Job { id: work.id, bytes: work.plan.bytes, done, gate, result, table_entries, submitted: Instant::now() };
        self.jobs.push_back(job);
        if lost {
            // Its end cannot be learned from an event. Unusual enough to wait for it here, once: the lane takes nothing more.
            self.give_up("an event could not be recorded".to_owned());
        }
        Ok(Submitted::Taken)
    }

    /// Puts what must come before into the stream. The events of the job.
    ///
    /// # Safety
    /// As [`Lane::submit`].
    unsafe fn open(&mut self, work: &Work<'_>) -> Result<(EventHandle, Option<EventHandle>), DriverError> {
        let done = self.event()?;
        let mut gate = None;
        // SAFETY: passed on.
        let waited = unsafe { self.wait_for(work, &mut gate) };
        if let Err(error) = waited {
            self.events.push(done);
            self.events.extend(gate);
            return Err(error);
        }
        Ok((done, gate))
    }

    /// # Safety
    /// As [`Lane::submit`].
    unsafe fn wait_for(&mut self, work: &Work<'_>, gate: &mut Option<EventHandle>) -> Result<(), DriverError> {
        if let Some(earlier) = work.after_copy {
            // SAFETY: the event of a copy in flight, which keeps it.
            unsafe { self.driver.stream_wait(self.stream, earlier)? };
        }
        match work.after {
            None => {}
            Some(Token::Event(event)) => {
                // SAFETY: alive and of this device by the caller's promise.
                unsafe { self.driver.stream_wait(self.stream, event)? };
            }
            Some(Token::Stream(stream)) => {
                let event = self.event()?;
                *gate = Some(event);
                // SAFETY: the stream as above; the event is this lane's and free.
                unsafe {
                    self.driver.record(event, stream)?;
                    self.driver.stream_wait(self.stream, event)?;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Lane::submit`].
    unsafe fn copy(&self, work: &Work<'_>, table: Option<u64>) -> Result<(), DriverError> {
        let (driver, stream, plan) = (&*self.driver, self.stream, work.plan);
        // SAFETY: memory by the caller's promise; what the plan calls pinned is registered as long as the engine holds its
        // `RegionPins`, and no run crosses from one registration or tensor into the next.
        unsafe {
            if let (Some(table), Some((kernel, blocks))) = (table, work.kernel) {
                driver.launch(kernel, stream, table, plan.tiles.len() as u32, blocks)?;
            }
            for rect in &plan.rects {
                driver.copy_rect(stream, self.direction, rect)?;
            }
            if work.dma == Path::Batch && plan.runs.len() > 1 {
                for runs in plan.runs.chunks(BATCH_RUNS) {
                    driver.copy_batch(stream, runs)?;
                }
            } else {
                driver.copy(stream, self.direction, &plan.runs)?;
            }
            // Last: these may wait for all that is before them.
            driver.copy(stream, self.direction, &plan.pageable)
        }
    }

    /// Table entries of a copy that was refused after they were taken.
    fn give_back_later(&mut self, entries: usize) {
        if let Some(last) = self.jobs.back_mut() {
            last.table_entries += entries;
        } else if let Some(ring) = &mut self.ring {
            ring.give_back(entries);
        }
    }

    /// Takes the next copy that is done, in order. Does not wait.
    pub fn poll(&mut self) -> Option<Job> {
        let head = self.jobs.front()?;
        if self.lost.is_none() {
            // SAFETY: the job's own event.
            match unsafe { self.driver.is_done(head.done) } {
                Ok(false) => return None,
                Ok(true) => {}
                Err(error) => self.give_up(CopyError::from(error).to_string()),
            }
        }
        let mut job = self.jobs.pop_front()?;
        self.events.push(job.done);
        self.events.extend(job.gate.take());
        if let Some(ring) = &mut self.ring {
            ring.give_back(job.table_entries);
        }
        if let Some(lost) = &self.lost
            && job.result.is_ok()
        {
            job.result = Err(lost.clone());
        }
        Some(job)
    }

    /// Waits for a copy in flight. Afterwards `poll` has it.
    pub fn wait(&mut self, event: EventHandle) {
        if self.lost.is_some() {
            return;
        }
        // SAFETY: the event of a job that is in flight here.
        if let Err(error) = unsafe { self.driver.wait(event) } {
            self.give_up(CopyError::from(error).to_string());
        }
    }

    /// Takes no more copies; those in flight have failed, and touch no memory any more when this returns: either the stream
    /// is drained, or the context is gone and the device does nothing for it.
    pub fn give_up(&mut self, why: String) {
        if self.lost.is_none() {
            // SAFETY: this lane's stream.
            let drained = unsafe { self.driver.drain(self.stream) };
            tracing::error!(direction = ?self.direction, drained = drained.is_ok(), "copies end: {why}");
            self.lost = Some(CopyError::DeviceLost(why));
        }
    }

    pub const fn is_lost(&self) -> bool {
        self.lost.is_some()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.lost.is_none() {
            // An error means that the context is gone: then nothing is copied any more either.
            // SAFETY: this lane's stream.
            if let Err(error) = unsafe { self.driver.drain(self.stream) } {
                tracing::warn!("a copy engine ends with a device that failed: {}", CopyError::from(error));
            }
        }
        for job in self.jobs.drain(..) {
            self.events.push(job.done);
            self.events.extend(job.gate);
        }
        for event in self.events.drain(..) {
            // SAFETY: this lane's, used by no copy in flight.
            unsafe { self.driver.destroy_event(event) };
        }
        // SAFETY: this lane's, with no work in it.
        unsafe { self.driver.destroy_stream(self.stream) };
    }
}
