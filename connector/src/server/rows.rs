//! Role "tier": rows of an engine's region are copied to and from slots by threads of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::{BlockState, Key, Region, SlotId};
use terrace_tiering::{Located, Lookup, ReaderBudget, RequestContext, RequestId, Scan, TierFilter};
use terrace_tiers::Time;

use super::copier::{Copied, Copier, Direction, Piece};
use super::counts::Limit;
use super::dispatch::Call;
use super::foreign::Foreign;
use super::pool::{Pool, count};
use super::refusal::Refusal;
use super::session::SessionId;
use super::wake::Wake;
use crate::protocol::{ErrorCode, LoadRows, RowsDone, StoreRows, numbers_from_bytes};

/// Blocks that a thread takes at once.
const PIECE: usize = 32;
/// How often a load that waits for a tier is looked at.
const LOOK: Duration = Duration::from_micros(500);

/// One `StoreRows` or `LoadRows`.
struct RowJob {
    session: SessionId,
    engine: String,
    name: u64,
    direction: Direction,
    id: RequestId,
    file: Arc<Foreign>,
    keys: Vec<Key>,
    rows: Vec<u32>,
    /// Keys of a load that are not in a slot yet, by place.
    awaited: Vec<u32>,
    ok: Vec<u8>,
    /// Keys that a thread is copying.
    copying: u32,
    since: Time,
}

/// All row jobs of a pool, and the threads that copy for them.
pub(super) struct Rows {
    region: Arc<Region>,
    wake: Wake,
    jobs: BTreeMap<u64, RowJob>,
    next: u64,
    /// Loads that wait for a tier.
    waiting: usize,
    looked_at: Time,
    copier: Option<Copier>,
}

impl Rows {
    pub const fn new(region: Arc<Region>, wake: Wake) -> Self {
        Self { region, wake, jobs: BTreeMap::new(), next: 1, waiting: 0, looked_at: Time(0), copier: None }
    }

    /// Whether a load waits for a tier.
    pub const fn waits(&self) -> bool {
        self.waiting > 0
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Slots that threads copy to or from for a session.
    pub fn copying(&self, session: SessionId) -> u32 {
        self.jobs.values().filter(|job| job.session == session).fold(0, |sum, job| sum.saturating_add(job.copying))
    }

    fn send(&mut self, piece: Piece) -> std::io::Result<()> {
        let copier = match &mut self.copier {
            Some(copier) => copier,
            None => self.copier.insert(Copier::start(&self.region, &self.wake)?),
        };
        copier.send(piece)
    }

    /// Waits until all that was given to the threads is copied, and ends them.
    pub fn join(&mut self) {
        if let Some(copier) = &mut self.copier {
            copier.join();
        }
    }
}

impl Pool {
    /// [`StoreRows`]: what is not in the primary is copied into it, and on to all tiers.
    pub fn store_rows(&mut self, call: Call, message: &StoreRows) -> Result<(), Refusal> {
        let mut job =
            self.row_job(call.id, Direction::Store, (message.request, message.job), &message.keys, &message.rows)?;
        let room = self.room(call.id) as usize;
        if job.keys.len() > room {
            self.counts.refuse(Limit::Slots);
        }
        let mut plan = std::mem::take(&mut self.memory.plan);
        let offered = job.keys.get(..room.min(job.keys.len())).unwrap_or_default();
        let planned = self.closing.is_none() && self.manager.prepare_store(job.id, offered, true, &mut plan).is_ok();
        let mut blocks = Vec::new();
        if planned {
            let to_store = plan.store.iter().zip(&plan.slots);
            blocks.extend(to_store.filter_map(|(at, slot)| Some((*at, *slot, *job.rows.get(*at as usize)?))));
        }
        self.memory.plan = plan;
        let mut planned_keys = vec![false; job.keys.len()];
        blocks.iter().for_each(|(at, ..)| {
            if let Some(planned) = planned_keys.get_mut(*at as usize) {
                *planned = true;
            }
        });
        for ((key, ok), _) in job.keys.iter().zip(&mut job.ok).zip(&planned_keys).filter(|(_, planned)| !**planned) {
            // There already, or another is storing it.
            *ok = u8::from(self.manager.primary().find(key).is_some());
        }
        self.start_rows(call, job, blocks);
        Ok(())
    }

    /// [`LoadRows`]: what is in a tier is brought first.
    pub fn load_rows(&mut self, call: Call, message: &LoadRows) -> Result<(), Refusal> {
        let mut job =
            self.row_job(call.id, Direction::Load, (message.request, message.job), &message.keys, &message.rows)?;
        if self.closing.is_none() {
            job.awaited = (0..count(job.keys.len())).collect();
        }
        self.start_rows(call, job, Vec::new());
        self.rows_look();
        Ok(())
    }

    fn row_job(
        &mut self,
        id: SessionId,
        direction: Direction,
        (request, name): (u64, u64),
        keys: &[u8],
        rows: &[u8],
    ) -> Result<RowJob, Refusal> {
        let keys = self.decode_keys(keys)?;
        let mut numbers = Vec::new();
        numbers_from_bytes(rows, &mut numbers)?;
        self.check_job(id, name)?;
        self.check_load(id)?;
        let since = self.clock.now();
        let session = self.session(id)?;
        let engine = session.engine.clone();
        let tiers = session.requests.get(&request).map_or(TierFilter::ALL, |open| open.tiers);
        let Some(file) = session.foreign.clone() else {
            return Err(Refusal::role("this session has no region of its own"));
        };
        if numbers.len() != keys.len() {
            return Err(Refusal::invalid(format!(
                "{} keys and {} rows: give one row for each key",
                keys.len(),
                numbers.len()
            )));
        }
        if let Some(row) = numbers.iter().find(|row| **row >= file.rows()) {
            return Err(Refusal::invalid(format!("row {row}: the region has {} rows", file.rows())));
        }
        // Its own request: it outlives the engine's, whose end would cancel what it waits for.
        let id_of_job = self.next_request();
        self.manager
            .begin_request(RequestContext { id: id_of_job, tiers })
            .map_err(|error| Refusal::new(ErrorCode::Retry, error.to_string()))?;
        let ok = vec![0; keys.len()];
        Ok(RowJob {
            session: id,
            engine,
            name,
            direction,
            id: id_of_job,
            file,
            keys,
            rows: numbers,
            awaited: Vec::new(),
            ok,
            copying: 0,
            since,
        })
    }

    fn start_rows(&mut self, call: Call, job: RowJob, blocks: Vec<(u32, SlotId, u32)>) {
        let number = self.rows.next;
        self.rows.next += 1;
        if let Some(session) = self.sessions.get_mut(&call.id) {
            session.jobs += 1;
            session.row_jobs.insert(job.name, number);
        }
        self.rows.waiting += usize::from(!job.awaited.is_empty());
        self.rows.jobs.insert(number, job);
        self.copy_rows(number, blocks);
        self.end_rows(number);
        self.reply_empty(call);
    }

    /// Hands blocks to the threads.
    fn copy_rows(&mut self, number: u64, blocks: Vec<(u32, SlotId, u32)>) {
        let Some(job) = self.rows.jobs.get_mut(&number) else { return };
        let (direction, file) = (job.direction, Arc::clone(&job.file));
        job.copying += count(blocks.len());
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.slots += count(blocks.len());
        }
        for blocks in blocks.chunks(PIECE) {
            let piece = Piece { job: number, direction, file: Arc::clone(&file), blocks: blocks.to_vec() };
            if let Err(error) = self.rows.send(piece) {
                tracing::error!("rows cannot be copied: {error}");
                let blocks = blocks.iter().map(|(at, ..)| (*at, false)).collect();
                self.copied(Copied { job: number, blocks });
            }
        }
    }

    /// Takes what the threads have copied.
    pub fn rows_landed(&mut self) {
        while let Some(copied) = self.rows.copier.as_ref().and_then(Copier::next) {
            let number = copied.job;
            self.copied(copied);
            self.end_rows(number);
        }
        if self.rows.waits() && self.clock.now() >= self.rows.looked_at.plus(LOOK) {
            self.rows_look();
        }
    }

    fn copied(&mut self, copied: Copied) {
        let Some(job) = self.rows.jobs.get_mut(&copied.job) else { return };
        // What was read from a row after its engine had closed the connection may be anything.
        let may_publish = job.direction == Direction::Load || job.file.is_open();
        for (at, ok) in &copied.blocks {
            let ok = &(*ok && may_publish);
            let Some(key) = job.keys.get(*at as usize).copied() else { continue };
            let ended = match job.direction {
                Direction::Store => self.manager.complete_store(job.id, &[key], *ok),
                Direction::Load => self.manager.complete_load(job.id, &[key]),
            };
            if let Err(error) = ended {
                tracing::error!("a row was copied that the manager does not know: {error}");
            }
            if let Some(done) = job.ok.get_mut(*at as usize) {
                *done = u8::from(*ok);
            }
            let counter = match job.direction {
                Direction::Store => &mut self.counts.rows_stored,
                Direction::Load => &mut self.counts.rows_loaded,
            };
            *counter += u64::from(*ok);
        }
        let blocks = count(copied.blocks.len());
        job.copying = job.copying.saturating_sub(blocks);
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.slots = session.slots.saturating_sub(blocks);
        } else {
            self.behind.release(job.session, blocks);
        }
    }

    /// A session of role "tier" has no connection any more: its engine may use the rows for other things.
    pub fn close_rows(&mut self, id: SessionId) {
        let jobs = self.rows.jobs.iter_mut().filter(|(_, job)| job.session == id);
        let mut ended = Vec::new();
        for (number, job) in jobs {
            job.file.close();
            if !job.awaited.is_empty() {
                job.awaited.clear();
                self.rows.waiting = self.rows.waiting.saturating_sub(1);
            }
            ended.push(*number);
        }
        for number in ended {
            self.end_rows(number);
        }
    }

    /// Whether a thread copies to or from the rows of an engine.
    pub fn copies_rows(&self, engine: &str) -> bool {
        self.rows.jobs.values().any(|job| job.engine == engine && job.copying > 0)
    }

    /// The manager has ended a step: what has landed can be copied.
    pub fn rows_step(&mut self) {
        if self.rows.waits() {
            self.rows_look();
        }
    }

    /// Looks what of the waiting loads is there now.
    fn rows_look(&mut self) {
        self.rows.looked_at = self.clock.now();
        let waiting = self.rows.jobs.iter().filter(|(_, job)| !job.awaited.is_empty());
        let waiting: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        for number in waiting {
            self.rows_look_at(number);
            self.end_rows(number);
        }
    }

    fn rows_look_at(&mut self, number: u64) {
        let Some(job) = self.rows.jobs.get(&number) else { return };
        let (id, session, awaited) = (job.id, job.session, job.awaited.clone());
        let place = |at: &u32| job.keys.get(*at as usize).copied();
        let keys: Vec<Key> = awaited.iter().filter_map(place).collect();
        let room = self.room(session);
        if room == 0 {
            // Nothing of it can be held now; others' blocks go on.
            return;
        }
        let mut budget = ReaderBudget { left: room, frees_soon: false };
        let mut found = std::mem::take(&mut self.memory.located);
        found.clear();
        let located = self.manager.locate(id, &keys, Scan::Each, Some(&mut budget), &mut found);
        let mut blocks = Vec::new();
        let mut hits = Vec::new();
        let mut still = Vec::new();
        let mut wanted = Vec::new();
        for ((at, key), answer) in awaited.iter().zip(&keys).zip(&found) {
            match answer {
                Located::Hit { slot, .. } => {
                    hits.push(*key);
                    if let Some(row) = self.rows.jobs.get(&number).and_then(|job| job.rows.get(*at as usize)) {
                        blocks.push((*at, *slot, *row));
                    }
                }
                Located::Found { .. } => wanted.push((*at, *key)),
                Located::Pending | Located::Retry => still.push(*at),
                // Out of readers for now; it is there.
                Located::Miss if budget.left == 0 && self.is_ready(key) => still.push(*at),
                Located::Miss => {}
            }
        }
        self.memory.located = found;
        if located.is_ok() && !wanted.is_empty() {
            let keys: Vec<Key> = wanted.iter().map(|(_, key)| *key).collect();
            let mut answers = std::mem::take(&mut self.memory.answers);
            if self.manager.wait_for(id, &keys, &mut answers).is_ok() {
                // No room for more just now: the rest comes when what moves has moved. If nothing moves it does not
                // come.
                let moves = self.rows.jobs.get(&number).is_some_and(|job| job.copying > 0)
                    || !(still.is_empty() && hits.is_empty())
                    || answers.iter().any(|answer| *answer != Lookup::Miss);
                let coming = wanted.iter().zip(&answers).filter(|(_, answer)| moves || **answer != Lookup::Miss);
                still.extend(coming.map(|((at, _), _)| *at));
            }
            self.memory.answers = answers;
        }
        if !hits.is_empty()
            && let Err(error) = self.manager.begin_load(id, &hits)
        {
            tracing::error!("rows are loaded that the manager does not know: {error}");
        }
        if let Some(job) = self.rows.jobs.get_mut(&number) {
            job.awaited = still;
            self.rows.waiting = self.rows.waiting.saturating_sub(usize::from(job.awaited.is_empty()));
        }
        self.copy_rows(number, blocks);
    }

    fn is_ready(&self, key: &Key) -> bool {
        let primary = self.manager.primary();
        primary.find(key).is_some_and(|slot| matches!(primary.state(slot), BlockState::Ready { .. }))
    }

    /// Ends a row job that has nothing left to do.
    fn end_rows(&mut self, number: u64) {
        let is_done = |job: &RowJob| job.copying == 0 && job.awaited.is_empty();
        if !self.rows.jobs.get(&number).is_some_and(is_done) {
            return;
        }
        let Some(job) = self.rows.jobs.remove(&number) else { return };
        self.manager.finish_request(job.id);
        let micros = u64::try_from(self.clock.now().since(job.since).as_micros()).unwrap_or(u64::MAX);
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.jobs = session.jobs.saturating_sub(1);
            session.row_jobs.remove(&job.name);
            session.rows_done.push(RowsDone { job: job.name, ok: job.ok, micros });
        }
    }
}

#[cfg(test)]
mod tests;
