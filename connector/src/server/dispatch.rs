//! From a frame to its handler.

use serde::Serialize;

use super::counts::Limit;
use super::frames::{push_empty, push_message, push_refusal};
use super::pool::Pool;
use super::refusal::Refusal;
use super::session::{Role, Session, SessionId};
use crate::protocol::{ErrorCode, FrameFlags, FrameHeader, HEADER_BYTES, Kind, decode};

/// Faults in a session's life that it survives.
const STRIKES: u32 = 16;

/// A frame that is being served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub id: SessionId,
    pub kind: Kind,
    pub sequence: u64,
    /// No reply is wanted.
    pub one_way: bool,
}

impl Pool {
    /// Serves a frame. A refusal is told, also of a one-way frame, and counts; too many close the connection.
    pub fn dispatch(&mut self, id: SessionId, header: &FrameHeader, body: &[u8]) {
        self.counts.message(header.kind);
        self.counts.received_bytes += (HEADER_BYTES + body.len()) as u64;
        let call = Call { id, kind: header.kind, sequence: header.sequence, one_way: header.flags.one_way };
        let Err(refusal) = self.call(call, header, body) else { return };
        if refusal.closes() {
            self.counts.protocol_errors += 1;
            return self.close(id, call.kind, call.sequence, &refusal);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.strikes += u32::from(refusal.is_strike());
        let is_out = session.strikes >= STRIKES;
        if let Some(connection) = &mut session.connection {
            push_refusal(&mut connection.output, call.kind, call.sequence, &refusal);
        }
        if is_out {
            self.counts.closed_for_strikes += 1;
            self.flush(id);
            self.disconnected(id, "it broke rules again and again");
        }
    }

    fn call(&mut self, call: Call, header: &FrameHeader, body: &[u8]) -> Result<(), Refusal> {
        if header.flags.reply || header.flags.error || matches!(call.kind, Kind::Hello | Kind::Goodbye | Kind::Copied) {
            return Err(Refusal::malformed(
                "a reply, a second Hello, a Goodbye or a Copied does not come from a client",
            ));
        }
        if header.descriptors != 0 {
            return Err(Refusal::malformed("no descriptor belongs to this frame"));
        }
        let Some(role) = self.sessions.get(&call.id).map(|session| session.role) else { return Ok(()) };
        let decides = role != Role::Worker;
        match call.kind {
            Kind::Ping if body.is_empty() => self.reply_empty(call),
            Kind::Stats if body.is_empty() => {
                let reply = self.stats_reply();
                self.reply(call, &reply);
            }
            Kind::Bye if body.is_empty() => self.said_bye(call.id),
            Kind::Reset if body.is_empty() && decides => self.reset(call)?,
            Kind::Ping | Kind::Stats | Kind::Bye => return Err(Refusal::malformed("this kind of frame has no body")),
            Kind::Complete if role == Role::Worker => self.complete(call, &decode("Complete", body)?)?,
            Kind::Attach if role == Role::Worker => self.attach_memory(call, decode("Attach", body)?)?,
            Kind::Copy if role == Role::Worker => self.copy(call, &decode("Copy", body)?)?,
            Kind::Lookup if decides => self.lookup(call, &decode("Lookup", body)?)?,
            Kind::EndStep if decides => self.end_step(call, &decode("EndStep", body)?)?,
            Kind::Pin if decides => self.pin(call, &decode("Pin", body)?)?,
            Kind::Unpin if decides => self.unpin(call, &decode("Unpin", body)?)?,
            Kind::PrepareStore if role == Role::Scheduler => {
                self.prepare_store(call, &decode("PrepareStore", body)?)?
            }
            Kind::Lease if role == Role::Scheduler => self.lease(call, &decode("Lease", body)?)?,
            Kind::StoreRows if role == Role::Tier => self.store_rows(call, &decode("StoreRows", body)?)?,
            Kind::LoadRows if role == Role::Tier => self.load_rows(call, &decode("LoadRows", body)?)?,
            Kind::Reset if decides => return Err(Refusal::malformed("this kind of frame has no body")),
            kind => {
                return Err(Refusal::role(format!("{kind:?} is not for a session of role {:?}", role.name())));
            }
        }
        Ok(())
    }

    /// Sends the reply of a call that wants one.
    pub fn reply<T: Serialize>(&mut self, call: Call, message: &T) {
        let most = self.limits.message_bytes;
        if let Some(connection) = self.sessions.get_mut(&call.id).and_then(|session| session.connection.as_mut())
            && !call.one_way
        {
            let frame = (call.kind, FrameFlags::REPLY, call.sequence);
            push_message(&mut connection.output, frame, message, 0, most);
        }
    }

    pub fn reply_empty(&mut self, call: Call) {
        if let Some(connection) = self.sessions.get_mut(&call.id).and_then(|session| session.connection.as_mut())
            && !call.one_way
        {
            push_empty(&mut connection.output, call.kind, call.sequence);
        }
    }

    /// The session of a call. It was there when the frame came.
    pub fn session(&mut self, id: SessionId) -> Result<&mut Session, Refusal> {
        self.sessions.get_mut(&id).ok_or_else(|| Refusal::new(ErrorCode::Internal, "the session is over"))
    }

    /// Refuses more keys than one message may hold.
    pub fn check_keys(&mut self, bytes: usize) -> Result<(), Refusal> {
        let (got, most) = (bytes / self.key_bytes.max(1), self.limits.keys_per_message as usize);
        if got <= most {
            return Ok(());
        }
        self.counts.refuse(Limit::KeysPerMessage);
        Err(Refusal::limit(format!("{got} keys in one message, at most {most} are taken: split it")))
    }

    /// Refuses a list that is longer than what a session may have of these.
    pub fn check_length(&mut self, what: &str, got: usize, most: u32, limit: Limit) -> Result<(), Refusal> {
        if got <= most as usize {
            return Ok(());
        }
        self.counts.refuse(limit);
        Err(Refusal::limit(format!("{got} {what} in one message: a session has {most} at most, so split the list")))
    }

    /// Refuses another job or lease beyond the bound.
    pub fn check_load(&mut self, id: SessionId) -> Result<(), Refusal> {
        let most = self.limits.jobs;
        if self.session(id)?.load() < most as usize {
            return Ok(());
        }
        self.counts.refuse(Limit::Jobs);
        Err(Refusal::limit(format!(
            "{most} jobs and leases have not ended: end steps, or raise [server] jobs_per_session"
        )))
    }

    fn reset(&mut self, call: Call) -> Result<(), Refusal> {
        self.manager.reset().map_err(|error| Refusal::new(ErrorCode::Closing, error.to_string()))?;
        self.reply_empty(call);
        Ok(())
    }
}
