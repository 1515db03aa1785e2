//! The manager behind the socket, as the scheduler half sees it.
//!
//! A request's lookup is one round trip, or none where the daemon's block table answers it: the search is answered from it, and
//! what it decides goes out with the step's end. Nothing is asked twice within [`ASK_AGAIN`]. What was begun on a connection that is lost is forgotten, but for
//! jobs: the daemon keeps the slots of each until it is told of its end, on whatever connection. Requests open
//! themselves again on the next one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::{Key, Region, SlotId};
use terrace_tiering::{Event, Lookup, LookupMode, RequestContext, RequestId, StorePlan, TierFilter, TieringError};
use terrace_tiers::Time;

use super::counters::ClientCounters;
use super::error::ClientError;
use super::host::Host;
use super::lookups::{Answered, Known};
use super::machine::Machine;
use super::options::ClientOptions;
use super::room::Room;
use super::session::{Called, Session, SessionState};
use super::step::{PendingStep, SentStep, wire_job};
use crate::api::JobId;
use crate::error::ConnectorError;
use crate::port::{Arrival, ManagerPort, PortQuery};
use crate::protocol::{
    EndStep, FrameFlags, Kind, LookupOut, LookupReply, PrepareStore, PrepareStoreReply, Scan, keys_to_bytes,
    numbers_from_bytes,
};

/// A request that waits is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// Ends of steps that are not confirmed, at most: beyond, what is to be told is gathered.
const MOST_UNCONFIRMED: usize = 64;
/// Ends of jobs of lost connections that are told on the next one, at most: as many as a session may have by default.
const MOST_OUTLIVING: usize = 1 << 16;
/// Room in a message for all that is not keys.
const MESSAGE_REST: u32 = 1024;
/// How long the last words may take.
const FAREWELL: Duration = Duration::from_millis(50);

/// A manager in another process. Driven by one thread.
#[derive(Debug)]
pub struct RemoteManager<M = Host> {
    pub(super) session: Session<M>,
    /// The connection that all below belongs to; 0: none.
    pub(super) epoch: u64,
    pub(super) requests: HashMap<RequestId, RemoteRequest>,
    pub(super) jobs: HashMap<JobId, RemoteJob>,
    pub(super) pending: PendingStep,
    pub(super) unconfirmed: VecDeque<SentStep>,
    pub(super) events: Vec<Event>,
    /// Requests that were answered in this step.
    leasing: Vec<RequestId>,
    /// A lookup was sent since the last end of a step: its lease must end.
    pub(super) lease_out: bool,
    pub(super) room: Room,
    /// Regions of this connection and of earlier ones that jobs still touch.
    regions: HashMap<u64, Arc<Region>>,
    next_request: u64,
    closed: bool,
    scratch: Vec<u32>,
}

/// An open request.
#[derive(Debug)]
pub(super) struct RemoteRequest {
    tiers: TierFilter,
    /// Its number on the wire, and the connection on which it was opened.
    wire: u64,
    opened: u64,
    pub(super) known: Known,
    /// Keys that the daemon will not bring.
    pub(super) refused: HashSet<Key>,
    /// A lease on what the block table said was not given: the daemon itself is asked.
    pub(super) was_refused: bool,
}

/// A transfer.
#[derive(Debug)]
pub(super) struct RemoteJob {
    pub(super) epoch: u64,
    pub(super) stage: Stage,
    slots: usize,
}

/// How far the daemon knows of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A load that it has not been told of.
    Planned(RequestId),
    /// A load that it was told of.
    Told,
    /// It knows.
    Confirmed,
    /// The connection ended before it confirmed: whether it kept the slots for this load is not known.
    Doomed,
}

impl RemoteManager {
    /// A manager that is away and begins to connect.
    pub fn start(options: ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::over(Session::start(options)?))
    }
}

impl<M: Machine> RemoteManager<M> {
    /// The same on another machine than this process', which connects as it likes.
    pub fn on(machine: M, options: ClientOptions) -> Self {
        Self::over(Session::on(machine, options))
    }

    fn over(session: Session<M>) -> Self {
        Self {
            session,
            epoch: 0,
            requests: HashMap::new(),
            jobs: HashMap::new(),
            pending: PendingStep::default(),
            unconfirmed: VecDeque::new(),
            events: Vec::new(),
            leasing: Vec::new(),
            lease_out: false,
            room: Room::default(),
            regions: HashMap::new(),
            next_request: 1,
            closed: false,
            scratch: Vec::new(),
        }
    }

    /// The session, for its state and for what a connector does not do.
    pub fn session(&self) -> &Session<M> {
        &self.session
    }

    /// The session, to wait for a connection or to ask for statistics.
    pub fn session_mut(&mut self) -> &mut Session<M> {
        &mut self.session
    }

    /// What it has done.
    pub fn counters(&self) -> ClientCounters {
        self.session.counters()
    }

    /// Statistics of the pool, everything told before. `None`: away, or late.
    pub fn stats(&mut self) -> Option<Vec<(String, f64)>> {
        self.sync();
        self.tell_before_call();
        let stats = self.session.stats();
        self.sync();
        stats
    }

    /// The region that a transfer's slots belong to, by the number of its connection. `None`: the transfer is not
    /// known.
    pub fn region_of(&self, job: JobId) -> Option<(u64, Arc<Region>)> {
        let epoch = self.jobs.get(&job)?.epoch;
        Some((epoch, Arc::clone(self.regions.get(&epoch)?)))
    }

    /// Whether the bytes of this load are not to be trusted: to be asked when it is copied, after
    /// [`ManagerPort::poll_once`].
    pub fn is_doomed(&mut self, job: JobId) -> bool {
        let doomed = self.jobs.get(&job).is_some_and(|job| job.stage == Stage::Doomed);
        self.session.counters.doomed_loads += u64::from(doomed);
        doomed
    }

    /// Takes in what has come.
    pub(super) fn sync(&mut self) {
        self.session.pump();
        self.follow_connection();
        while let Some(arrived) = self.session.take_arrived() {
            self.take_reply(arrived);
            self.follow_connection();
        }
    }

    /// [`RemoteManager::sync`] before a call, which reads by itself: reads only if something is to come that the call
    /// should know of.
    fn sync_before_call(&mut self) {
        if self.session.epoch() != Some(self.epoch) || !self.session.is_quiet() || !self.unconfirmed.is_empty() {
            self.sync();
        }
    }

    /// Forgets what belonged to a connection that is no more.
    fn follow_connection(&mut self) {
        let epoch = self.session.epoch().unwrap_or(0);
        if epoch == self.epoch {
            return;
        }
        for job in self.jobs.values_mut().filter(|job| job.epoch == self.epoch) {
            if matches!(job.stage, Stage::Planned(_) | Stage::Told) {
                job.stage = Stage::Doomed;
            }
        }
        for request in self.requests.values_mut() {
            request.known = Known::Nothing;
            request.refused.clear();
        }
        for job in self.session.take_unanswered() {
            self.pending.complete(job, false);
        }
        let forgotten = self.pending.outlive(self.unconfirmed.drain(..), MOST_OUTLIVING);
        self.session.counters.forgotten_jobs += forgotten as u64;
        self.leasing.clear();
        self.lease_out = false;
        self.epoch = epoch;
        let jobs = &self.jobs;
        self.regions.retain(|epoch, _| jobs.values().any(|job| job.epoch == *epoch));
        if let Some(region) = self.session.region() {
            self.regions.insert(epoch, Arc::clone(region));
        }
    }

    fn ensure_open(&self) -> Result<(), TieringError> {
        if self.closed { Err(TieringError::Closed) } else { Ok(()) }
    }

    /// Keys that one message can carry.
    pub(super) fn keys_per_message(&self) -> usize {
        let key_bytes = self.session.options().key_bytes();
        self.session.hello().map_or(0, |hello| {
            let room = hello.limits.message_bytes.saturating_sub(MESSAGE_REST) as usize / key_bytes;
            room.min(hello.limits.keys_per_message as usize)
        })
    }

    /// The request's number on this connection, on which it counts as opened from now on.
    pub(super) fn open_on_wire(&mut self, id: RequestId) -> Option<(u64, TierFilter)> {
        let request = self.requests.get_mut(&id)?;
        request.opened = self.epoch;
        Some((request.wire, request.tiers))
    }

    /// Tells what ended since the last step, so that the call that follows sees it. Not while leases of this step are
    /// held.
    pub(super) fn tell_before_call(&mut self) {
        if self.leasing.is_empty() && !self.pending.is_empty() {
            self.tell();
        }
    }

    /// Sends what is to be told, if the daemon takes it.
    fn tell(&mut self) {
        let can = self.session.state() == SessionState::Ready
            && !self.session.is_backed_up()
            && self.unconfirmed.len() < MOST_UNCONFIRMED;
        let events = self.session.options().events;
        if !can || (self.pending.is_empty() && !self.lease_out && !events) {
            return;
        }
        let most_jobs = self.session.hello().map_or(0, |hello| hello.limits.jobs as usize);
        let (message, mut sent) = self.pending.take(events, most_jobs);
        let Some(sequence) = self.session.post::<EndStep>(Kind::EndStep, FrameFlags::REQUEST, Some(&message)) else {
            self.pending.tell_again(sent);
            self.follow_connection();
            return;
        };
        for job in &sent.loads {
            if let Some(job) = self.jobs.get_mut(job) {
                job.stage = Stage::Told;
            }
        }
        self.session.counters.end_steps += 1;
        sent.sequence = sequence;
        sent.tells |= std::mem::take(&mut self.lease_out);
        self.unconfirmed.push_back(sent);
    }

    /// Ends the leases of this step: what is loaded from them and what is waited for is kept.
    fn end_leases(&mut self) {
        self.room.step_ended();
        for id in std::mem::take(&mut self.leasing) {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            let Known::Answered(answered) = &mut request.known else { continue };
            if std::mem::take(&mut answered.open) {
                let wait = if answered.unresolved { answered.awaited() } else { Vec::new() };
                if answered.lease != 0 {
                    self.pending.end_lease(answered.lease, id, answered.load.take(), wait);
                }
            }
            if !answered.unresolved {
                request.known = Known::Nothing;
                request.refused.clear();
            }
        }
    }

    fn complete(&mut self, job: JobId, ok: bool) {
        let Some(RemoteJob { epoch, stage, slots }) = self.jobs.remove(&job) else { return };
        self.room.ended(slots);
        if epoch != self.epoch && !self.jobs.values().any(|job| job.epoch == epoch) {
            self.regions.remove(&epoch);
        }
        if let Stage::Planned(id) = stage {
            if let Some(RemoteRequest { known: Known::Answered(answered), .. }) = self.requests.get_mut(&id) {
                answered.load.take_if(|(load, _)| *load == job);
            }
            self.pending.cancel_load(job);
            return;
        }
        self.pending.complete(wire_job(job), ok);
    }

    /// Asks the daemon for all that a request may want.
    fn ask(&mut self, id: RequestId, queries: Vec<PortQuery>) -> Known {
        if self.epoch == 0 {
            return Known::Nothing;
        }
        let mut queries = match self.see(id, queries) {
            Ok(answered) => return Known::Answered(Box::new(answered)),
            Err(queries) => queries,
        };
        let mut room = self.keys_per_message();
        for query in &mut queries {
            let left_out = query.keys.len().saturating_sub(room);
            self.session.counters.keys_left_out += left_out as u64;
            query.keys.truncate(room);
            room -= query.keys.len();
        }
        self.tell_before_call();
        let Some((request, tiers)) = self.open_on_wire(id) else { return Known::Nothing };
        let scan = |query: &PortQuery| if query.prefix_only { Scan::Prefix } else { Scan::Each };
        let asked: Vec<_> = queries.iter().map(|query| (scan(query), query.keys.as_slice())).collect();
        let key_bytes = self.session.options().key_bytes();
        let message = LookupOut { request, tiers: tiers.0, lease: true, queries: &asked, key_bytes };
        let called = self.session.call(Kind::Lookup, Some(&message), 0);
        // Also if it is late: its lease ends with the next step.
        self.lease_out |= !matches!(called, Called::Away);
        match called {
            Called::Reply(body) => match self.session.understand::<LookupReply>("LookupReply", &body) {
                Some(reply) => self.answered(queries, reply),
                None => Known::Nothing,
            },
            Called::Late
                if self.session.stalled_for().is_some_and(|time| time < self.session.options().stall_patience) =>
            {
                self.session.counters.stalled_lookups += 1;
                Known::NotYet(self.session.now())
            }
            Called::Late | Called::Refused(_) | Called::Away => Known::Nothing,
        }
    }

    fn answered(&mut self, queries: Vec<PortQuery>, reply: LookupReply) -> Known {
        let slots = self.session.hello().map_or(0, |hello| hello.slots);
        let hits = reply.slots.len() / size_of::<u32>();
        match Answered::new(queries, reply, slots, self.session.now()) {
            Ok(answered) => {
                self.session.counters.lookups += 1;
                self.room.answered(hits);
                Known::Answered(Box::new(answered))
            }
            Err(what) => {
                self.session.give_up(what);
                Known::Nothing
            }
        }
    }

    /// What the daemon wants stored where, if that is possible at all.
    fn understand_plan(&mut self, body: &[u8], keys: usize, plan: &mut StorePlan) -> bool {
        let Some(reply) = self.session.understand::<PrepareStoreReply>("PrepareStoreReply", body) else { return false };
        let mut slots = std::mem::take(&mut self.scratch);
        slots.clear();
        let readable = numbers_from_bytes(&reply.store, &mut plan.store).is_ok()
            && numbers_from_bytes(&reply.slots, &mut slots).is_ok();
        let most = self.session.hello().map_or(0, |hello| hello.slots);
        let sound = readable
            && plan.store.len() == slots.len()
            && plan.store.is_sorted_by(|a, b| a < b)
            && plan.store.last().is_none_or(|last| (*last as usize) < keys)
            && slots.iter().all(|slot| *slot < most);
        if sound {
            plan.slots.extend(slots.iter().map(|slot| SlotId(*slot)));
        } else {
            plan.store.clear();
            self.session.give_up("what to store does not fit what was offered");
        }
        self.scratch = slots;
        sound && reply.room
    }
}

impl<M: Machine> ManagerPort for RemoteManager<M> {
    const BATCHES_LOOKUPS: bool = true;

    fn begin_request(&mut self, context: RequestContext) -> Result<(), TieringError> {
        self.ensure_open()?;
        let RequestContext { id, tiers } = context;
        if self.requests.contains_key(&id) {
            return Err(TieringError::RequestOpen(id));
        }
        let wire = self.next_request;
        self.next_request += 1;
        let request = RemoteRequest {
            tiers,
            wire,
            opened: 0,
            known: Known::Nothing,
            refused: HashSet::new(),
            was_refused: false,
        };
        self.requests.insert(id, request);
        Ok(())
    }

    fn finish_request(&mut self, id: RequestId) -> bool {
        let Some(request) = self.requests.remove(&id) else { return false };
        if request.opened == self.epoch && self.epoch != 0 {
            self.pending.finish(request.wire);
        }
        true
    }

    fn prepare_lookup(&mut self, id: RequestId, queries: Vec<PortQuery>) -> Result<(), TieringError> {
        self.ensure_open()?;
        self.sync_before_call();
        let session = &self.session;
        let recently = |since: Time| session.now().since(since) < ASK_AGAIN;
        let request = self.requests.get_mut(&id).ok_or(TieringError::UnknownRequest(id))?;
        match &request.known {
            Known::Answered(answered)
                if answered.answers(&queries) && (answered.open || (answered.unresolved && recently(answered.at))) =>
            {
                return Ok(());
            }
            Known::NotYet(since) if recently(*since) => return Ok(()),
            // Of two leases in one step only one can be loaded from; the other one ends with the step.
            _ => request.known = Known::Nothing,
        }
        if queries.iter().all(|query| query.keys.is_empty()) {
            return Ok(());
        }
        let known = self.ask(id, queries);
        // What came along with the answer, or in its place.
        self.follow_connection();
        if matches!(known, Known::Answered(_)) && self.epoch == 0 {
            return Ok(());
        }
        if matches!(&known, Known::Answered(_)) && !self.leasing.contains(&id) {
            self.leasing.push(id);
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.known = known;
        }
        Ok(())
    }

    fn lookup(
        &mut self,
        id: RequestId,
        group: usize,
        keys: &[Key],
        mode: LookupMode,
        out: &mut Vec<Lookup>,
    ) -> Result<(), TieringError> {
        self.ensure_open()?;
        let request = self.requests.get_mut(&id).ok_or(TieringError::UnknownRequest(id))?;
        match &mut request.known {
            Known::Answered(answered) => answered.lookup(group, keys.len(), mode, &request.refused, out),
            known => {
                let answer = if matches!(known, Known::NotYet(_)) { Lookup::Retry } else { Lookup::Miss };
                out.clear();
                out.resize(keys.len(), answer);
            }
        }
        Ok(())
    }

    fn poll_once(&mut self) {
        self.sync();
    }

    fn arrival(&self, id: RequestId, _key: &Key) -> Arrival {
        let since = self.requests.get(&id).and_then(|request| match &request.known {
            Known::Nothing => None,
            Known::NotYet(since) => Some(*since),
            Known::Answered(answered) => Some(answered.at),
        });
        if since.is_some_and(|since| self.session.now().since(since) < ASK_AGAIN) {
            Arrival::Writing
        } else {
            Arrival::Unknown
        }
    }

    fn prepare_load(
        &mut self,
        id: RequestId,
        job: JobId,
        keys: &[Key],
        slots: &mut Vec<SlotId>,
    ) -> Result<(), TieringError> {
        self.ensure_open()?;
        let request = self.requests.get_mut(&id).ok_or(TieringError::UnknownRequest(id))?;
        let Some(key) = keys.first() else { return Ok(()) };
        let gone = TieringError::NotResident { key: *key };
        let Known::Answered(answered) = &mut request.known else { return Err(gone) };
        let most = self.session.hello().map_or(0, |hello| hello.limits.jobs as usize);
        if !answered.open || answered.load.is_some() || self.jobs.len() >= most {
            return Err(gone);
        }
        let Some((mut places, found, below)) = answered.hits(keys) else { return Err(gone) };
        if let Some(seen) = answered.seen {
            let Some(lease) = self.lease(id, &found, seen) else {
                self.follow_connection();
                return Err(gone);
            };
            // Of what is loaded and nothing else.
            places = (0..).take(found.len()).collect();
            let request = self.requests.get_mut(&id).ok_or(TieringError::UnknownRequest(id))?;
            let Known::Answered(answered) = &mut request.known else { return Err(gone) };
            (answered.lease, answered.seen, answered.load) = (lease, None, Some((job, places)));
        } else {
            answered.load = Some((job, places));
        }
        self.room.load(found.len());
        self.jobs.insert(job, RemoteJob { epoch: self.epoch, stage: Stage::Planned(id), slots: found.len() });
        slots.extend(found);
        self.session.counters.loaded_below += below;
        self.session.counters.loaded_primary += keys.len() as u64 - below;
        Ok(())
    }

    fn complete_load(&mut self, _id: RequestId, job: JobId, _keys: &[Key], ok: bool) -> Result<(), TieringError> {
        self.complete(job, ok);
        Ok(())
    }

    fn prepare_store(
        &mut self,
        id: RequestId,
        job: JobId,
        keys: &[Key],
        plan: &mut StorePlan,
    ) -> Result<bool, TieringError> {
        self.ensure_open()?;
        plan.store.clear();
        plan.slots.clear();
        plan.evicted.clear();
        self.sync_before_call();
        let most = self.session.hello().map_or(0, |hello| hello.limits.jobs as usize);
        if self.epoch == 0 || self.jobs.len() >= most {
            self.session.counters.dropped_stores += 1;
            return Ok(false);
        }
        let keys = keys.get(..self.keys_per_message()).map_or(keys, |first| {
            self.session.counters.keys_left_out += (keys.len() - first.len()) as u64;
            first
        });
        self.tell_before_call();
        let Some((request, _)) = self.open_on_wire(id) else { return Err(TieringError::UnknownRequest(id)) };
        let mut message = PrepareStore { request, job: wire_job(job), allow_partial: true, keys: Vec::new() };
        keys_to_bytes(keys, &mut message.keys);
        let called = self.session.call(Kind::PrepareStore, Some(&message), wire_job(job));
        let room = match called {
            Called::Reply(body) => {
                self.session.counters.stores += 1;
                self.understand_plan(&body, keys.len(), plan)
            }
            Called::Refused(_) => false,
            Called::Late | Called::Away => {
                self.session.counters.dropped_stores += 1;
                false
            }
        };
        if self.session.epoch() != Some(self.epoch) {
            // Lost over it, and perhaps the slots are reserved.
            self.pending.complete(wire_job(job), false);
        }
        self.follow_connection();
        if room && self.epoch != 0 && !plan.slots.is_empty() {
            self.room.store(plan.slots.len());
            self.jobs.insert(job, RemoteJob { epoch: self.epoch, stage: Stage::Confirmed, slots: plan.slots.len() });
        }
        Ok(room)
    }

    fn complete_store(&mut self, _id: RequestId, job: JobId, _keys: &[Key], ok: bool) -> Result<(), TieringError> {
        self.complete(job, ok);
        Ok(())
    }

    fn touch(&mut self, keys: &[Key]) {
        if self.epoch != 0 {
            let most = self.keys_per_message() / 2;
            self.pending.touch(keys, most);
        }
    }

    fn end_step(&mut self) {
        if self.closed {
            return;
        }
        self.sync();
        self.end_leases();
        self.tell();
    }

    fn take_events(&mut self, out: &mut Vec<Event>) {
        out.append(&mut self.events);
    }

    fn has_pending_work(&self) -> bool {
        // Who wants events asks for them in every step: that is no work, or an engine that has nothing to do would never rest.
        self.session.state() == SessionState::Ready
            && (!self.pending.is_empty() || self.unconfirmed.iter().any(|sent| sent.tells))
    }

    fn reset(&mut self) -> Result<(), ConnectorError> {
        self.ensure_open()?;
        self.sync();
        self.end_leases();
        self.tell();
        for request in self.requests.values_mut() {
            request.known = Known::Nothing;
        }
        match self.session.call::<()>(Kind::Reset, None, 0) {
            Called::Reply(_) | Called::Away => Ok(()),
            Called::Late => Err(ConnectorError::Retry("the daemon is late".to_owned())),
            Called::Refused(refusal) => Err(ConnectorError::Retry(refusal.message)),
        }
    }

    fn shutdown(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.sync();
        self.end_leases();
        self.tell();
        self.session.post::<()>(Kind::Bye, FrameFlags::ONE_WAY, None);
        self.session.send_all(FAREWELL);
        self.requests.clear();
        self.jobs.clear();
        self.room = Room::default();
        self.regions.clear();
    }
}
