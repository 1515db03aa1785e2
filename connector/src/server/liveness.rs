//! How sessions begin and end. Nothing is given back that may still be copied to.
//!
//! A session is over when it said `Bye`, when its process is gone, or when it closed its connection and owes no copy.
//! One that owes some keeps its place without a connection until its process is gone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_tiering::RequestId;
use terrace_tiers::Time;

use super::connection::Input;
use super::device::Attachment;
use super::engine::bit;
use super::foreign::Foreign;
use super::frames::push_message;
use super::leases::Leases;
use super::pool::{FRAMES_AT_ONCE, Pool, READ_BYTES};
use super::pools::NewSession;
use super::refusal::Refusal;
use super::session::{OpenRequest, Role, Session, SessionId};
use crate::protocol::{ErrorCode, FrameFlags, HelloReply, Kind, SHARED_TABLE, VERSION};

/// Where nobody tells that a process is gone, it counts as gone this long after it closed its connection.
const UNSEEN: Duration = Duration::from_secs(10);
/// Leases of a lost connection end this long after it, once the engine has another. The jobs of it do not: others would
/// be harmed.
const LEASES: Duration = Duration::from_secs(60);
/// Early reports of a job that never began are forgotten after this long.
const EARLY: Duration = Duration::from_secs(60);
/// Reads of a connection whose process is gone, at most: what it sent before is served.
const LAST_READS: usize = 64;

impl Pool {
    /// Opens a session, or refuses it.
    pub fn attach(&mut self, mut new: NewSession) {
        if let Err(refusal) = self.admit(&mut new) {
            self.open.remove();
            new.refuse(&refusal);
        }
    }

    fn admit(&mut self, new: &mut NewSession) -> Result<(), Refusal> {
        if self.closing.is_some() {
            return Err(Refusal::new(ErrorCode::Closing, "the daemon is closing"));
        }
        let hello = &new.greeting.hello;
        let (role, rank, name) = (new.greeting.role, hello.rank, hello.engine.clone());
        let foreign = match (hello.foreign, new.descriptor.take()) {
            (Some(shape), Some(file)) => {
                let Some(connection) = &new.connection else { return Ok(()) };
                Some(Arc::new(Foreign::new(file, shape, self.config.geometry.block_bytes, connection)?))
            }
            _ => None,
        };
        self.make_way(&name, role, rank)?;
        if role == Role::Tier && self.copies_rows(&name) {
            return Err(Refusal::new(
                ErrorCode::Retry,
                "rows of the engine's last session are being copied: try again",
            ));
        }
        if role == Role::Worker && self.copiers.holds(&name, rank) {
            return Err(Refusal::new(
                ErrorCode::Retry,
                "copies for the last session of this rank have not ended: try again",
            ));
        }
        let system = |errno| Refusal::new(ErrorCode::Internal, format!("epoll: {errno}"));
        // Only one of them may fail, and then neither was kept: a descriptor that is closed leaves epoll by itself.
        let Some(connection) = &mut new.connection else { return Ok(()) };
        self.poller.add(&*connection, new.id * 2).map_err(system)?;
        if let Some(pidfd) = &new.peer.pidfd {
            self.poller.add(pidfd, new.id * 2 + 1).map_err(system)?;
        }
        let mut features = self.copiers.features(&hello.features);
        let attachment = if features.is_empty() { Attachment::Unwanted } else { Attachment::Awaited };
        let mut descriptors = Vec::new();
        if role != Role::Tier {
            descriptors.extend(self.region.fd().map(|fd| fd.try_clone_to_owned()));
        }
        let wants_table = role == Role::Scheduler && hello.features.iter().any(|feature| feature == SHARED_TABLE);
        if let Some(table) = self.manager.table_fd().filter(|_| wants_table) {
            features.push(SHARED_TABLE.to_owned());
            descriptors.push(table.try_clone_to_owned());
        }
        let descriptors = descriptors.into_iter().collect::<Result<Vec<_>, _>>();
        let descriptors = descriptors.map_err(|error| {
            Refusal::new(ErrorCode::Retry, format!("no descriptor is left for the session (ulimit -n): {error}"))
        })?;
        let reply = HelloReply {
            version: VERSION,
            features,
            session: new.id,
            region: self.region_name,
            namespace: self.digest.to_vec(),
            slots: self.region.slots(),
            slot_stride: self.region.slot_stride(),
            region_bytes: self.region.parts().map_or(0, |(_, bytes)| bytes as u64),
            tiers: self.tiers.clone(),
            limits: self.limits,
        };
        let frame = (Kind::Hello, FrameFlags::REPLY, new.sequence);
        push_message(&mut connection.output, frame, &reply, descriptors.len() as u16, self.limits.message_bytes);
        connection.send_descriptors(descriptors);
        self.replace_worker(&name, role, rank);
        tracing::info!(
            session = new.id,
            role = role.name(),
            engine = name,
            rank,
            pid = new.peer.pid,
            client = hello.client,
            "a session opened"
        );
        let session = Session {
            role,
            rank,
            store_workers: hello.store_workers,
            load_workers: hello.load_workers,
            connection: new.connection.take(),
            process: new.peer.pidfd.is_some().then_some(new.peer.pid),
            pidfd: new.peer.pidfd.take(),
            closed_at: None,
            strikes: 0,
            queued: false,
            requests: Default::default(),
            leases: Leases::default(),
            jobs: 0,
            slots: 0,
            outcomes: Vec::new(),
            rows_done: Vec::new(),
            pins: VecDeque::new(),
            pinned_keys: 0,
            events_at: None,
            events_lost: 0,
            attachment,
            foreign,
            row_jobs: BTreeMap::new(),
            engine: name.clone(),
        };
        self.sessions.insert(new.id, session);
        let engine = self.engines.entry(name).or_default();
        engine.sessions += 1;
        if role == Role::Worker {
            engine.workers.insert(rank, new.id);
            engine.attached |= bit(rank);
        } else {
            engine.scheduler = Some(new.id);
        }
        self.counts.session(role, 1);
        self.count_engines();
        self.flush(new.id);
        // It may have sent more behind its Hello.
        self.serve(new.id, FRAMES_AT_ONCE);
        Ok(())
    }

    /// The session that stands where another wants to: refused while it is connected.
    fn make_way(&mut self, name: &str, role: Role, rank: u32) -> Result<(), Refusal> {
        let Some(engine) = self.engines.get(name) else { return Ok(()) };
        let before = match role {
            Role::Worker => engine.workers.get(&rank).copied(),
            Role::Scheduler | Role::Tier => engine.scheduler,
        };
        let Some(before) = before else { return Ok(()) };
        // Its end may be here and not seen yet.
        for _ in 0..LAST_READS {
            if !self.read_more(before) {
                break;
            }
        }
        if self.sessions.get(&before).is_some_and(|session| session.connection.is_some()) {
            return Err(Refusal::new(
                ErrorCode::NotAdmitted,
                format!(
                    "engine {name:?} has a session as {} {rank} already: end it, or give each engine its own name",
                    role.name()
                ),
            ));
        }
        Ok(())
    }

    /// A worker that attaches again promises to copy nothing from before.
    fn replace_worker(&mut self, name: &str, role: Role, rank: u32) {
        if role != Role::Worker {
            return;
        }
        let Some(engine) = self.engines.get_mut(name) else { return };
        let before = engine.workers.get(&rank).copied();
        for job in engine.fail_rank(rank) {
            self.finish_job(name, job);
        }
        if let Some(before) = before {
            self.end_session(before);
        }
    }

    /// The process of a session is gone: what it sent before is served, then all that it holds ends.
    pub fn process_gone(&mut self, id: SessionId) {
        for _ in 0..LAST_READS {
            if !self.read_more(id) {
                break;
            }
        }
        if let Some(session) = self.sessions.get(&id) {
            tracing::info!(session = id, engine = session.engine, role = session.role.name(), "its process is gone");
            if session.role != Role::Worker {
                self.counts.engines_died += 1;
            }
        }
        self.end_session(id);
    }

    /// Reads and serves once more. False: there is nothing, or no connection.
    fn read_more(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let Some(connection) = session.connection.as_mut().filter(|connection| !connection.is_paused()) else {
            return false;
        };
        match connection.read(READ_BYTES) {
            Input::Some => {
                self.serve(id, usize::MAX);
                true
            }
            Input::Nothing => {
                self.serve(id, usize::MAX);
                false
            }
            Input::End => {
                self.serve(id, usize::MAX);
                self.disconnected(id, "it closed the connection");
                false
            }
            Input::Refused(refusal) => {
                self.close(id, Kind::Hello, 0, &refusal);
                false
            }
        }
    }

    /// The connection of a session is over. What it holds stays if it may still be copied to.
    pub fn disconnected(&mut self, id: SessionId, why: &str) {
        let now = self.clock.now();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(connection) = session.connection.take() else { return };
        self.poller.remove(&connection);
        drop(connection);
        session.closed_at = Some(now);
        let is_tier = session.role == Role::Tier;
        let rank = (session.role == Role::Worker).then_some(session.rank);
        tracing::debug!(session = id, engine = session.engine, role = session.role.name(), "a connection ended: {why}");
        if let Some(engine) = self.engines.get_mut(&session.engine) {
            match rank {
                Some(rank) if engine.workers.get(&rank) == Some(&id) => engine.attached &= !bit(rank),
                None if engine.scheduler == Some(id) => engine.scheduler = None,
                _ => {}
            }
        }
        if is_tier {
            self.close_rows(id);
        }
        self.close_copies(id);
        self.forget_wishes(id);
        if self.may_copy(id) {
            self.behind.lose(id);
        } else {
            self.end_session(id);
        }
    }

    /// What nobody copies to or from ends with the connection: requests, pins, and leases without readers.
    fn forget_wishes(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.leases.keep_readers();
        session.pinned_keys = 0;
        for pins in std::mem::take(&mut session.pins) {
            self.manager.unpin(pins.id, &pins.keys);
        }
        let requests = std::mem::take(&mut session.requests);
        self.finish_requests(&requests);
    }

    /// Whether a session without a connection may still copy to or from slots.
    fn may_copy(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        let rank = (session.role == Role::Worker).then_some(session.rank);
        // What a lease named, its engine may have begun to load: the message that says so is lost.
        (session.role == Role::Scheduler && !session.leases.is_empty())
            || self.engines.get(&session.engine).is_some_and(|engine| match session.role {
                Role::Tier => false,
                Role::Worker | Role::Scheduler => engine.may_copy(id, rank),
            })
    }

    /// It copies nothing any more.
    pub fn said_bye(&mut self, id: SessionId) {
        if let Some(connection) = self.sessions.get_mut(&id).and_then(|session| session.connection.as_mut()) {
            let _ = connection.flush();
        }
        self.end_session(id);
    }

    /// A session is over: all that it holds ends.
    pub fn end_session(&mut self, id: SessionId) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        if let Some(connection) = session.connection.take() {
            self.poller.remove(&connection);
        }
        if let Some(pidfd) = session.pidfd.take() {
            self.poller.remove(&pidfd);
        }
        self.close_rows(id);
        self.close_copies(id);
        for lease in session.leases.take_all().values() {
            self.end_lease(id, lease);
        }
        for pins in &session.pins {
            self.manager.unpin(pins.id, &pins.keys);
        }
        self.finish_requests(&session.requests);
        let name = &session.engine;
        let mut ended = Vec::new();
        if let Some(engine) = self.engines.get_mut(name) {
            if session.role == Role::Worker {
                if engine.workers.get(&session.rank) == Some(&id) {
                    engine.workers.remove(&session.rank);
                    engine.attached &= !bit(session.rank);
                    ended = engine.fail_rank(session.rank);
                }
            } else {
                if engine.scheduler == Some(id) {
                    engine.scheduler = None;
                }
                ended = engine.own_jobs(id);
                for job in &ended {
                    if let Some(job) = engine.jobs.get_mut(job) {
                        job.end(false);
                    }
                }
            }
            engine.sessions = engine.sessions.saturating_sub(1);
            if engine.sessions == 0 {
                // Whoever had to report them is over.
                ended = engine.jobs.keys().copied().collect();
                ended.sort_unstable();
                for job in engine.jobs.values_mut() {
                    job.end(false);
                }
            }
        }
        for job in ended {
            self.finish_job(name, job);
        }
        if self.engines.get(name).is_some_and(|engine| engine.sessions == 0 && engine.jobs.is_empty()) {
            self.engines.remove(name);
        }
        self.leave_behind(id, &session);
        self.counts.session(session.role, -1);
        self.count_engines();
        self.open.remove();
    }

    /// In the order in which they were opened: what they used is ranked in it, the same way each time.
    fn finish_requests(&mut self, requests: &HashMap<u64, OpenRequest>) {
        let mut ids: Vec<RequestId> = requests.values().map(|open| open.id).collect();
        ids.sort_unstable();
        for id in ids {
            self.manager.finish_request(id);
        }
    }

    /// Those with a session. One without may have jobs that are still copied.
    fn count_engines(&mut self) {
        self.counts.engines = self.engines.values().filter(|engine| engine.sessions > 0).count() as u64;
    }

    /// Once a second: sessions whose time is over, pins and early reports that nobody asks for any more.
    pub fn keep_sessions(&mut self, now: Time) {
        let past = |session: &Session, wait| session.closed_at.is_some_and(|at| at.plus(wait) <= now);
        // It came back, so it knows that the connection was lost: what its leases named is loaded by now.
        let came_back = |session: &Session| self.engines.get(&session.engine).is_some_and(|e| e.scheduler.is_some());
        let idle = self.sessions.iter().filter(|(_, session)| past(session, LEASES) && came_back(session));
        let idle: Vec<SessionId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            let leases = self.sessions.get_mut(&id).map(|session| session.leases.take_all()).unwrap_or_default();
            leases.values().for_each(|lease| self.end_lease(id, lease));
        }
        let over = self.sessions.iter().filter(|(id, session)| {
            session.closed_at.is_some() && (!self.may_copy(**id) || (session.pidfd.is_none() && past(session, UNSEEN)))
        });
        let over: Vec<SessionId> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.end_session(id);
        }
        for session in self.sessions.values_mut() {
            session.forget_pins(now);
        }
        let since = Time(now.0.saturating_sub(u64::try_from(EARLY.as_nanos()).unwrap_or(u64::MAX)));
        for engine in self.engines.values_mut() {
            engine.forget_early(since);
        }
        self.forget_awaited_copies(since);
    }
}

#[cfg(test)]
mod tests;
