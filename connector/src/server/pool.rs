//! A pool: one namespace, one region, one manager, and the thread that serves all its sessions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_config::Config;
use terrace_primary::{Key, Region, SlotId};
use terrace_tiering::{Event, Located, Lookup, RequestId, StorePlan, TieringOffloadingManager};
use terrace_tiers::{Clock, Time};

use super::connection::{Connection, Input};
use super::counts::{Limit, PoolCounts};
use super::device::{Copiers, DeviceShare, DeviceSource};
use super::engine::{Engine, Job, JobKind};
use super::events::{EventLog, locality_byte, medium_byte};
use super::frames::push_refusal;
use super::parts::{PoolParts, ReadySlots};
use super::poller::{Poller, Ready};
use super::refusal::Refusal;
use super::rows::Rows;
use super::session::{Session, SessionId};
use super::share::Behind;
use super::shares::Lent;
use super::stalled::Stalled;
use super::wake::Wake;
use crate::metrics::PoolPublisher;
use crate::protocol::{Inbox, JobOutcome, Kind, TierInfo, WireLimits};

/// How often the manager steps by itself while it has work and no engine steps.
const STEP: Duration = Duration::from_micros(250);
/// How often slots that have become ready are handed to the manager.
const GROW: Duration = Duration::from_millis(10);
/// How often what is past its time is looked for.
const KEEP: Duration = Duration::from_secs(1);
/// Frames of one session that are served before others have their turn.
pub(super) const FRAMES_AT_ONCE: usize = 32;
/// Bytes read at once, or more.
pub(super) const READ_BYTES: usize = 64 << 10;
/// The token of the wake-up.
const WAKE: u64 = u64::MAX;

pub(super) struct Pool {
    pub config: Config,
    pub digest: [u8; 32],
    pub key_bytes: usize,
    pub limits: WireLimits,
    pub region: Arc<Region>,
    /// Names the region to clients.
    pub region_name: u64,
    pub tiers: Vec<TierInfo>,
    pub manager: TieringOffloadingManager,
    pub clock: Arc<dyn Clock>,
    pub poller: Poller,
    pub sessions: BTreeMap<SessionId, Session>,
    pub engines: HashMap<String, Engine>,
    pub behind: Behind,
    pub events: EventLog,
    pub counts: PoolCounts,
    pub published: PoolPublisher,
    pub rows: Rows,
    pub copiers: Copiers,
    /// Sessions that are not over, for the acceptor.
    pub open: super::pools::OpenSessions,
    /// Lookups miss and stores are refused; the pool ends when nothing is owed, or at this time.
    pub closing: Option<Time>,
    /// Sessions with frames in memory.
    queue: VecDeque<SessionId>,
    stalled: Stalled,
    next_request: u64,
    stepped_at: Time,
    kept_at: Time,
    usable: u32,
    ready: ReadySlots,
    failure_told: bool,
    /// `None`: it has a part of its own of everything.
    pub lent: Option<Lent>,
    /// A tier holds more than it may.
    pub gives_back: bool,
    pub memory: Memory,
}

/// Memory that calls use and give back.
#[derive(Default)]
pub(super) struct Memory {
    pub keys: Vec<Key>,
    pub slots: Vec<SlotId>,
    pub located: Vec<Located>,
    pub plan: StorePlan,
    pub answers: Vec<Lookup>,
    pub events: Vec<Event>,
    pub ready: Vec<Ready>,
}

impl Pool {
    /// A pool of these parts.
    pub fn open(
        config: Config,
        parts: PoolParts,
        digest: [u8; 32],
        region_name: u64,
        wake: &Wake,
        open: super::pools::OpenSessions,
        devices: Option<Arc<dyn DeviceSource>>,
    ) -> Result<Self, String> {
        let geometry = config.geometry;
        let PoolParts { region, ready, clock, tiers } = parts;
        let infos = tiers.iter().map(|tier| {
            let descriptor = tier.descriptor();
            TierInfo {
                name: descriptor.name.clone(),
                medium: medium_byte(descriptor.medium),
                locality: locality_byte(descriptor.locality),
            }
        });
        let infos = infos.collect();
        let limits = limits(&config);
        let config = with_room(config);
        let mut manager =
            TieringOffloadingManager::new(&config, tiers, Arc::clone(&clock)).map_err(|error| told(&error))?;
        if config.primary.check_on_load {
            manager.check_loads(Arc::clone(&region));
        } else if let Err(error) = manager.share_table() {
            tracing::warn!("clients cannot read the block table, and ask for each block: {}", told(&error));
        }
        let poller = Poller::new().map_err(|errno| format!("epoll: {errno}"))?;
        poller.add(wake, WAKE).map_err(|errno| format!("epoll: {errno}"))?;
        let now = clock.now();
        let share = devices.map(|source| {
            let region = Arc::clone(&region);
            Arc::new(DeviceShare::new(source, region, geometry.blocks_per_chunk, geometry.block_bytes, &config.copy))
        });
        let mut pool = Self {
            digest,
            key_bytes: usize::from(geometry.hash_bytes) + 4,
            limits,
            rows: Rows::new(Arc::clone(&region), wake.clone()),
            copiers: Copiers::new(share, wake.clone()),
            region,
            region_name,
            tiers: infos,
            manager,
            clock,
            poller,
            sessions: BTreeMap::new(),
            engines: HashMap::new(),
            behind: Behind::default(),
            events: EventLog::new(config.limits.events),
            counts: PoolCounts::default(),
            published: PoolPublisher::new(&digest),
            open,
            closing: None,
            queue: VecDeque::new(),
            stalled: Stalled::default(),
            next_request: 0,
            stepped_at: now,
            kept_at: now,
            usable: u32::MAX,
            ready,
            failure_told: false,
            lent: None,
            gives_back: false,
            memory: Memory::default(),
            config,
        };
        pool.grow();
        Ok(pool)
    }

    /// One pass: waits for something to happen, and serves it. True if the pool was woken: its inbox holds something.
    pub fn pass(&mut self, wake: &Wake) -> bool {
        self.pass_within(self.timeout(), wake)
    }

    /// The same, and waits for `timeout` at most: zero does not sleep.
    pub fn pass_within(&mut self, timeout: Duration, wake: &Wake) -> bool {
        let mut ready = std::mem::take(&mut self.memory.ready);
        self.poller.wait(Some(timeout), &mut ready);
        let mut woken = false;
        for event in &ready {
            if event.token == WAKE {
                wake.clear();
                woken = true;
                continue;
            }
            let id = event.token / 2;
            if event.token % 2 == 1 {
                self.process_gone(id);
                continue;
            }
            if event.writable {
                self.writable(id);
            }
            if event.readable {
                self.readable(id);
            }
        }
        self.memory.ready = ready;
        for _ in 0..self.queue.len() {
            if let Some(id) = self.queue.pop_front() {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.queued = false;
                }
                self.serve(id, FRAMES_AT_ONCE);
            }
        }
        self.advance();
        woken
    }

    fn timeout(&self) -> Duration {
        if !self.queue.is_empty() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        if self.manager.has_pending_work() || self.rows.waits() || self.gives_back || self.closing.is_some() {
            return self.stepped_at.plus(STEP).since(now);
        }
        if self.usable < self.region.slots() && !self.failure_told { GROW } else { KEEP }
    }

    /// What is done without being asked: steps, slots that have become ready, and what is past its time.
    fn advance(&mut self) {
        self.grow();
        let now = self.clock.now();
        self.rows_landed();
        self.copies_landed();
        if (self.manager.has_pending_work() || self.rows.waits() || self.gives_back)
            && now >= self.stepped_at.plus(STEP)
        {
            self.step_manager();
        }
        if now >= self.kept_at.plus(KEEP) {
            self.kept_at = now;
            self.keep(now);
        }
    }

    fn grow(&mut self) {
        if self.usable == self.region.slots() {
            return;
        }
        let ready = (self.ready)();
        if ready != self.usable {
            self.usable = ready;
            self.manager.set_usable_slots(ready);
        }
        if !self.failure_told
            && let Some(why) = self.region.backing_failure()
        {
            self.failure_told = true;
            tracing::warn!(ready, slots = self.region.slots(), "the primary stays smaller than configured: {why}");
        }
    }

    /// Once a second.
    fn keep(&mut self, now: Time) {
        self.keep_sessions(now);
        self.keep_to_share();
        // Before the step: it may begin to scrub a block, whose slot would show for a second after it is free again.
        self.publish();
        if !self.manager.has_pending_work() {
            // Holds and pins end in a step.
            self.step_manager();
        }
        self.close_stalled(now);
    }

    /// Closes connections whose other side takes nothing of the much that waits for it.
    fn close_stalled(&mut self, now: Time) {
        let connections = self.sessions.iter().filter_map(|(id, session)| Some((*id, session.connection.as_ref()?)));
        let paused = connections.filter(|(_, connection)| connection.is_paused());
        let taken = paused.map(|(id, connection)| (id, connection.sent_bytes()));
        for id in self.stalled.look(now, taken) {
            self.counts.refuse(Limit::OutBuffer);
            self.disconnected(id, "it does not read its replies");
        }
    }

    /// Ends a step of the manager and takes what came of it.
    pub fn step_manager(&mut self) {
        self.manager.end_step();
        self.stepped();
        let mut events = std::mem::take(&mut self.memory.events);
        self.manager.take_events(&mut events);
        self.events.append(events.drain(..));
        self.memory.events = events;
        self.rows_step();
    }

    /// The manager has stepped: the next step by itself is a while away.
    pub fn stepped(&mut self) {
        self.stepped_at = self.clock.now();
    }

    pub fn next_request(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    /// Reads what a session sent, once, and serves it.
    pub fn readable(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id).filter(|session| !session.queued) else { return };
        let Some(connection) = &mut session.connection else { return };
        if connection.is_paused() {
            // Told although it is not waited for: the other side hung up, and will never read.
            return self.writable(id);
        }
        match connection.read(READ_BYTES) {
            Input::Nothing => {}
            Input::Some => self.serve(id, FRAMES_AT_ONCE),
            Input::End => {
                self.serve(id, usize::MAX);
                self.disconnected(id, "it closed the connection");
            }
            Input::Refused(refusal) => {
                self.counts.protocol_errors += 1;
                self.close(id, Kind::Hello, 0, &refusal);
            }
        }
    }

    fn writable(&mut self, id: SessionId) {
        self.flush(id);
        if !self.sessions.get(&id).is_some_and(|session| session.queued) {
            self.serve(id, FRAMES_AT_ONCE);
        }
    }

    /// Serves whole frames that are in memory, `most` at most; the rest has its turn later.
    pub fn serve(&mut self, id: SessionId, most: usize) {
        // Handlers look at the pool, and at bodies where they came: what came is lent for as long as that.
        let Some(input) = self.input(id) else { return };
        let mut input = std::mem::take(input);
        for served in 0.. {
            let Some(session) = self.sessions.get_mut(&id) else { break };
            if session.connection.as_ref().is_none_or(Connection::is_paused) {
                break;
            }
            match input.frame(self.limits.message_bytes) {
                Ok(None) => break,
                Ok(Some(_)) if served == most => {
                    session.queued = true;
                    self.queue.push_back(id);
                    break;
                }
                Ok(Some((header, body))) => {
                    self.dispatch(id, &header, body);
                    input.take(&header);
                }
                Err(error) => {
                    self.counts.protocol_errors += 1;
                    self.close(id, Kind::Hello, 0, &error.into());
                    break;
                }
            }
        }
        if let Some(place) = self.input(id) {
            *place = input;
        }
        self.flush(id);
    }

    fn input(&mut self, id: SessionId) -> Option<&mut Inbox> {
        Some(&mut self.sessions.get_mut(&id)?.connection.as_mut()?.input)
    }

    /// Writes what waits, and sets what is waited for.
    pub fn flush(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(connection) = &mut session.connection else { return };
        let before = connection.waiting_bytes();
        if connection.flush().is_err() {
            return self.disconnected(id, "its connection broke");
        }
        self.counts.sent_bytes += before.saturating_sub(connection.waiting_bytes()) as u64;
        if connection.waiting_bytes() > 2 * self.limits.message_bytes as usize {
            self.counts.refuse(Limit::OutBuffer);
            return self.disconnected(id, "it does not read its replies");
        }
        let wanted = (!connection.is_paused(), connection.waiting_bytes() > 0);
        if wanted != connection.interest {
            connection.interest = wanted;
            let _ = self.poller.interest(&*connection, id * 2, wanted.0, wanted.1);
        }
    }

    /// Refuses a frame and closes the connection.
    pub fn close(&mut self, id: SessionId, kind: Kind, sequence: u64, refusal: &Refusal) {
        if let Some(connection) = self.sessions.get_mut(&id).and_then(|session| session.connection.as_mut()) {
            push_refusal(&mut connection.output, kind, sequence, refusal);
            let _ = connection.flush();
        }
        self.disconnected(id, &refusal.message);
    }

    /// Ends a job if it is over, that is, reported by all and copied for by none: its stores are published or freed, its readers let go.
    /// Called whenever a report or a copy has ended.
    pub fn finish_job(&mut self, engine_name: &str, name: u64) {
        let Some(engine) = self.engines.get_mut(engine_name) else { return };
        if !engine.jobs.get(&name).is_some_and(Job::is_over) {
            return;
        }
        let Some(job) = engine.jobs.remove(&name) else { return };
        if engine.sessions == 0 && engine.jobs.is_empty() {
            self.engines.remove(engine_name);
        }
        let ended = match job.kind {
            JobKind::Store => self.manager.complete_store(job.id, &job.keys, job.ok),
            JobKind::Load => self.manager.complete_load(job.id, &job.keys),
        };
        if let Err(error) = ended {
            tracing::error!(engine = engine_name, job = name, "a job ended that the manager does not know: {error}");
        }
        let counter = if job.ok { &mut self.counts.jobs_ok } else { &mut self.counts.jobs_failed };
        *counter += 1;
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.jobs = session.jobs.saturating_sub(1);
            session.slots = session.slots.saturating_sub(count(job.keys.len()));
            session.outcomes.push(JobOutcome { job: name, ok: job.ok });
        } else {
            self.behind.release(job.session, count(job.keys.len()));
        }
    }
}

/// A length that a bound keeps small.
pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// An error with its causes, in one line.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn limits(config: &Config) -> WireLimits {
    let server = &config.server;
    let slots = (f64::from(config.primary.blocks) * server.session_share) as u32;
    WireLimits {
        message_bytes: server.message_bytes,
        keys_per_message: server.keys_per_message,
        requests: config.limits.requests,
        jobs: server.jobs_per_session,
        slots: slots.clamp(1, config.primary.blocks.max(1)),
    }
}

/// The manager's bounds stand behind the sessions': one session's requests do not take away another's.
fn with_room(mut config: Config) -> Config {
    let sessions = config.server.sessions.saturating_add(1);
    // Row jobs have a request each.
    let each = config.limits.requests.saturating_add(config.server.jobs_per_session);
    config.limits.requests = each.saturating_mul(sessions);
    config.limits.keys_per_call = config.limits.keys_per_call.max(config.server.keys_per_message);
    config
}
