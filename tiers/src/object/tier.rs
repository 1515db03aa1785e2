//! The manager's side: what is known, what was accepted, what became of it. Waits for nothing and takes no lock.
//!
//! **Known.** [`Blocks`] answers lookups. It is filled by the first reading of the log, off this thread; until then a key is
//! `Unknown`, or absent where the store cannot be read. Later changes are taken a bounded number a poll.
//!
//! A store that is silent ([`Requests::is_silent`](super::requests::Requests::is_silent)) is not counted on: all keys are absent, and loads fail.
//!
//! **Room.** Bytes of all live segments, whoever wrote them, and of the stores under way stay below the capacity. A store
//! that finds no room waits a little for the collector, then ends as [`Fault::Full`]. Until the log has been read to its end
//! nobody knows how much room there is, and nothing is stored.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::Key;

use super::blocks::Blocks;
use super::engine::Engine;
use super::id::SegmentId;
use super::port::{Change, Command, GivenUp, LoadPlace, Report, StorePlace};
use super::requests::pulse::SILENCE;
use super::shared::Shared;
use crate::clock::Time;
use crate::metrics::OpTimes;
use crate::tier::{
    Fault, JobId, LoadJob, Locality, Medium, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup,
    TierStats,
};

/// Blocks of changes that one poll takes: some tenths of a millisecond.
const CHANGES_PER_POLL: usize = 4_096;
/// A segment's use is told to the others at most once in this time.
const USE_AGAIN: Duration = Duration::from_secs(10);
/// How often the folder is told that blocks are asked for.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a store waits for room.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// How far the log has been read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Not yet: keys are unknown, stores are refused as busy because their room is.
    NotYet,
    /// It could not be read, or that takes long: keys are absent, and stores find no room.
    Unreachable,
    /// To its end, some fractions of a second ago.
    Yes,
}

/// A job that is not done.
struct Job {
    load: bool,
    started: Time,
    /// A load that a silent store made pointless.
    abandoned: bool,
    left: u32,
    done: Box<[bool]>,
    /// Of a store.
    given_up: GivenUp,
}

/// A store that waits for room.
struct Waiting {
    job: JobId,
    place: StorePlace,
    deadline: Time,
    until: Time,
}

/// Segments in a store that a cluster shares. See the module.
pub struct ObjectTier {
    descriptor: TierDescriptor,
    shared: Arc<Shared>,
    engine: Engine,
    blocks: Blocks,
    known: Known,
    jobs: BTreeMap<JobId, Job>,
    /// Blocks accepted and not done.
    in_flight: usize,
    /// Of those, blocks being stored that hold room.
    storing: u64,
    waiting: VecDeque<Waiting>,
    asked: Option<Time>,
    /// Whether the store was silent at the last look.
    silent: bool,
    closed: bool,
    events: Vec<TierEvent>,
    stats: TierStats,
    times: OpTimes,
    used: Vec<SegmentId>,
    gone: Vec<Key>,
}

impl ObjectTier {
    /// A tier whose other half is `engine`.
    pub(super) fn new(shared: Arc<Shared>, engine: Engine) -> Self {
        let name = shared.tier.clone();
        Self {
            times: OpTimes::new(&name),
            descriptor: TierDescriptor { name, medium: Medium::Storage, locality: Locality::Remote },
            shared,
            engine,
            blocks: Blocks::new(),
            known: Known::NotYet,
            jobs: BTreeMap::new(),
            in_flight: 0,
            storing: 0,
            waiting: VecDeque::new(),
            asked: None,
            silent: false,
            closed: false,
            events: Vec::new(),
            stats: TierStats::default(),
            used: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Whether the log has been read to its end.
    pub fn is_known(&self) -> bool {
        self.known == Known::Yes
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    fn accept(&mut self, id: JobId, blocks: usize) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        // A job of any length is taken when nothing else is in flight, or one that is longer than the queue never were.
        let most = self.shared.config.queue_entries as usize;
        if self.in_flight > 0 && self.in_flight + blocks > most || self.jobs.contains_key(&id) {
            self.stats.refused += 1;
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn begin(&mut self, id: JobId, load: bool, blocks: usize) -> GivenUp {
        let given_up = GivenUp::default();
        if blocks > 0 {
            let done = vec![false; blocks].into_boxed_slice();
            let job = Job {
                load,
                started: self.now(),
                abandoned: false,
                left: blocks as u32,
                done,
                given_up: given_up.clone(),
            };
            self.jobs.insert(id, job);
            self.in_flight += blocks;
        }
        given_up
    }

    /// Reports one block of a job, once.
    fn finish(&mut self, id: JobId, index: u32, outcome: Result<u32, Fault>) {
        let now = self.now();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(done) = job.done.get_mut(index as usize).filter(|done| !**done) else { return };
        *done = true;
        job.left -= 1;
        self.in_flight -= 1;
        let (load, took) = (job.load, now.since(job.started));
        if job.left == 0 {
            self.jobs.remove(&id);
        }
        let bytes = u64::from(self.shared.shape.block_bytes);
        match (load, &outcome) {
            (true, Ok(_)) => {
                self.stats.loaded += 1;
                self.stats.loaded_bytes += bytes;
                self.times.load.record(took.as_secs_f64());
            }
            (false, Ok(_)) => {
                self.stats.stored += 1;
                self.stats.stored_bytes += bytes;
                self.times.store.record(took.as_secs_f64());
            }
            (_, Err(Fault::Absent)) => self.stats.vanished += 1,
            (_, Err(Fault::Corrupt)) => self.stats.corrupt += 1,
            (_, Err(Fault::Io)) => self.stats.io_errors += 1,
            (_, Err(Fault::Full)) => self.stats.full += 1,
            (_, Err(Fault::Expired)) => self.stats.expired += 1,
            (_, Err(Fault::Closed)) => {}
        }
        self.events.push(match load {
            true => TierEvent::LoadDone { job: id, index, outcome },
            false => TierEvent::StoreDone { job: id, index, outcome },
        });
    }

    /// Whether `blocks` more fit beside what is there and under way, each in a segment of its own.
    fn fits(&self, blocks: u64) -> bool {
        let each = self.shared.shape.object_bytes(1);
        let under_way = (self.storing + blocks).saturating_mul(each);
        self.blocks.bytes().saturating_add(under_way) <= self.shared.config.capacity_bytes
    }

    /// Looks whether the store still says anything. Loads that have waited as long as it is silent are waited for no more.
    fn listen(&mut self) {
        let silent = self.shared.requests.is_silent();
        if silent && !self.silent {
            self.shared.counters.silences.bump();
            tracing::warn!(tier = %self.descriptor.name, "the store does not answer; what it holds is not counted on until it does");
        }
        self.silent = silent;
        if !silent {
            return;
        }
        let now = self.now();
        let pointless = |job: &Job| job.load && !job.abandoned && now.since(job.started) >= SILENCE;
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| pointless(job)) {
            job.abandoned = true;
            self.engine.send(Command::Abandon { job: *id });
        }
    }

    fn take_reports(&mut self) {
        loop {
            match self.engine.report() {
                Ok(Some(report)) => self.take_report(report),
                Ok(None) => return,
                Err(_) => return self.bury(),
            }
        }
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Stored { job, index, outcome } => {
                self.storing = self.storing.saturating_sub(1);
                self.finish(job, index, outcome);
            }
            Report::Loaded { job, index, outcome } => self.finish(job, index, outcome),
            Report::Published(segment) => self.blocks.add(segment, true),
            Report::Lost { segment, position, key } => {
                if self.blocks.remove_block(segment, position) == Some(true) {
                    self.events.push(TierEvent::Removed { key });
                }
            }
            Report::Unreachable => {
                if self.known == Known::NotYet {
                    self.known = Known::Unreachable;
                }
            }
        }
    }

    fn take_changes(&mut self) {
        let mut taken = 0;
        while taken < CHANGES_PER_POLL
            && let Some(change) = self.engine.change()
        {
            taken += change.blocks();
            match change {
                Change::Catalog(blocks) => {
                    let old = std::mem::replace(&mut self.blocks, *blocks);
                    self.known = Known::Yes;
                    self.engine.send(Command::Discard(Box::new(old)));
                }
                Change::Added { segment, own } => self.blocks.add(segment, own),
                Change::Removed(id) => self.remove(id),
            }
        }
    }

    fn remove(&mut self, id: SegmentId) {
        let before = self.blocks.len();
        let mut gone = std::mem::take(&mut self.gone);
        gone.clear();
        self.blocks.remove(id, &mut gone);
        self.stats.evicted += (before - self.blocks.len()) as u64;
        self.events.extend(gone.iter().map(|key| TierEvent::Removed { key: *key }));
        self.gone = gone;
    }

    /// Sends stores on that have found room, and ends those that waited long enough.
    fn push_waiting(&mut self) {
        let now = self.now();
        while let Some(first) = self.waiting.front() {
            let (late, given_up) = (first.deadline <= now, first.until <= now);
            if !late && !given_up && !self.fits(1) {
                return;
            }
            let Some(Waiting { job, place, deadline, .. }) = self.waiting.pop_front() else { return };
            if late || given_up {
                let fault = if late { Fault::Expired } else { Fault::Full };
                self.finish(job, place.index, Err(fault));
            } else {
                let Some(given_up) = self.jobs.get(&job).map(|job| job.given_up.clone()) else { continue };
                self.storing += 1;
                self.engine.send(Command::Store { job, blocks: vec![place], deadline, given_up });
            }
        }
    }

    /// The engine is gone: nothing touches a slot any more, and nothing else will be reported.
    fn bury(&mut self) {
        let fault = Fault::Closed;
        if !self.closed {
            tracing::error!(tier = %self.descriptor.name, "the tier's thread has ended; the tier is closed");
        }
        self.closed = true;
        self.waiting.clear();
        let mut open: Vec<(JobId, u32)> = Vec::with_capacity(self.in_flight);
        for (id, job) in &self.jobs {
            let left = job.done.iter().enumerate().filter(|(_, done)| !**done);
            open.extend(left.map(|(index, _)| (*id, index as u32)));
        }
        for (id, index) in open {
            self.finish(id, index, Err(fault));
        }
    }
}

impl SecondaryTier for ObjectTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        out.clear();
        let unless = if self.known == Known::NotYet { TierLookup::Unknown } else { TierLookup::Absent };
        if self.silent || !self.shared.requests.read_budget_left() {
            // What cannot be read now is as good as absent.
            out.resize(keys.len(), TierLookup::Absent);
            return;
        }
        self.blocks.lookup(keys, out, unless);
        let now = self.now();
        if self.asked.is_none_or(|asked| now.since(asked) >= ASK_AGAIN) {
            self.asked = Some(now);
            self.engine.send(Command::Asked);
        }
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        if self.known == Known::NotYet {
            self.stats.refused += 1;
            return Err(Refused::Busy);
        }
        let given_up = self.begin(job.id, false, job.blocks.len());
        let mut fresh = Vec::with_capacity(job.blocks.len());
        let until = self.now().plus(ROOM_WAIT);
        let mut full = false;
        // More than a day's budget; or more than the capacity, for all that is known.
        let refused = !self.shared.requests.write_budget_left() || self.known != Known::Yes;
        for (index, block) in job.blocks.into_iter().enumerate() {
            let index = index as u32;
            let present = self.blocks.find(&block.key).and_then(|(segment, position)| segment.crc32(position));
            if let Some(crc32) = present {
                self.finish(job.id, index, Ok(crc32));
                continue;
            }
            if refused {
                self.finish(job.id, index, Err(Fault::Full));
                continue;
            }
            let place = StorePlace { index, block };
            if self.waiting.is_empty() && self.fits(1) {
                self.storing += 1;
                fresh.push(place);
            } else {
                full = true;
                self.waiting.push_back(Waiting { job: job.id, place, deadline: job.deadline, until });
            }
        }
        if full {
            self.engine.send(Command::Full);
        }
        if !fresh.is_empty() {
            self.engine.send(Command::Store { job: job.id, blocks: fresh, deadline: job.deadline, given_up });
        }
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.accept(job.id, job.blocks.len())?;
        self.begin(job.id, true, job.blocks.len());
        let mut places = Vec::with_capacity(job.blocks.len());
        for (index, block) in job.blocks.iter().enumerate() {
            let index = index as u32;
            match self.blocks.find(&block.key) {
                Some(_) if self.silent => self.finish(job.id, index, Err(Fault::Io)),
                Some((segment, position)) => {
                    places.push(LoadPlace { index, key: block.key, slot: block.slot, segment, position });
                }
                None => self.finish(job.id, index, Err(Fault::Absent)),
            }
        }
        let keys: Vec<Key> = places.iter().map(|place| place.key).collect();
        self.touch(&keys);
        if !places.is_empty() {
            self.engine.send(Command::Load { job: job.id, blocks: places, deadline: job.deadline });
        }
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        let mut given_up = Vec::new();
        self.waiting.retain(|waiting| {
            let other = waiting.job != job;
            if !other {
                given_up.push(waiting.place.index);
            }
            other
        });
        for index in given_up {
            self.finish(job, index, Err(Fault::Expired));
        }
        let Some(open) = self.jobs.get(&job) else { return };
        open.given_up.set();
        self.engine.send(Command::Abandon { job });
        if open.load {
            return;
        }
        // What was copied is right and needs its slot no more, though its segment may hang on its way for long; the rest is not used.
        let left: Vec<u32> = (0..).zip(&open.done).filter(|(_, done)| !**done).map(|(index, _)| index).collect();
        for index in left {
            self.finish(job, index, Err(Fault::Expired));
        }
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        if !self.closed {
            self.listen();
            self.take_reports();
            self.take_changes();
            self.push_waiting();
        }
        out.append(&mut self.events);
    }

    fn touch(&mut self, keys: &[Key]) {
        let mut used = std::mem::take(&mut self.used);
        used.clear();
        self.blocks.use_segments(keys, self.shared.clock.now(), USE_AGAIN, &mut used);
        if !used.is_empty() {
            self.engine.send(Command::Used(used.clone()));
        }
        self.used = used;
    }

    fn shutdown(&mut self, within: Duration) {
        if self.closed {
            return;
        }
        while let Some(Waiting { job, place, .. }) = self.waiting.pop_front() {
            self.finish(job, place.index, Err(Fault::Closed));
        }
        self.take_reports();
        if self.closed {
            return;
        }
        self.closed = true;
        if self.engine.shutdown(within) {
            // What it reported before it ended, then the end of the channel: all the rest.
            self.take_reports();
        } else {
            tracing::warn!(
                tier = %self.descriptor.name,
                blocks = self.in_flight,
                "the tier's thread has not ended in time; slots that it may touch are not given back"
            );
        }
    }

    fn stats(&self) -> TierStats {
        TierStats {
            blocks: self.blocks.len() as u64,
            allocated_bytes: self.blocks.bytes(),
            capacity_bytes: self.shared.config.capacity_bytes,
            in_flight: self.in_flight as u64,
            object: self.shared.counters.stats(),
            ..self.stats
        }
    }
}
