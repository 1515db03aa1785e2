//! One message answers a request's whole lookup.

use terrace_primary::Key;
use terrace_tiering::{Located, ReaderBudget, RequestContext, RequestId, Scan as ManagerScan, TierFilter};

use super::counts::Limit;
use super::dispatch::Call;
use super::leases::{Lease, LeaseQuery};
use super::pool::{Pool, count};
use super::refusal::Refusal;
use super::session::{OpenRequest, Role, SessionId};
use crate::protocol::{Answer, Lookup, LookupReply, Query, Scan, keys_from_bytes};

/// Keys that the leases of a session may keep, in messages full of keys.
const LEASED_MESSAGES: usize = 4;

impl Pool {
    /// The manager's number of a request, which is opened if it is not open.
    pub fn open_request(&mut self, id: SessionId, request: u64, tiers: TierFilter) -> Result<OpenRequest, Refusal> {
        let most = self.limits.requests;
        let next = self.next_request();
        let session = self.session(id)?;
        if let Some(open) = session.requests.get(&request) {
            return Ok(*open);
        }
        let opened = session.requests.len();
        if opened >= most as usize {
            self.counts.refuse(Limit::Requests);
            return Err(Refusal::limit(format!("{most} requests are open: finish some, or raise [limits] requests")));
        }
        let open = OpenRequest { id: next, tiers };
        self.manager
            .begin_request(RequestContext { id: next, tiers })
            .map_err(|error| Refusal::new(crate::protocol::ErrorCode::Retry, error.to_string()))?;
        self.session(id)?.requests.insert(request, open);
        Ok(open)
    }

    /// Whether the engine's lookups and stores are answered: all workers are there, and the pool is not closing.
    pub fn is_served(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        let announced = session.workers();
        let attached = || self.engines.get(&session.engine).map_or(0, |engine| engine.attached_of(announced));
        self.closing.is_none() && (session.role == Role::Tier || attached() == announced)
    }

    /// [`Lookup`].
    pub fn lookup(&mut self, call: Call, message: Lookup) -> Result<(), Refusal> {
        let bytes = message.queries.iter().map(|query| query.keys.len()).sum();
        self.check_keys(bytes)?;
        for query in &message.queries {
            if Scan::from_number(query.scan).is_none() {
                return Err(Refusal::malformed(format!("scan {} is not known here", query.scan)));
            }
            if !query.keys.len().is_multiple_of(self.key_bytes) {
                return Err(not_whole(query.keys.len(), self.key_bytes));
            }
        }
        if message.lease {
            self.check_lease(call, bytes)?;
        }
        let mut reply = LookupReply::default();
        if !self.is_served(call.id) {
            for query in &message.queries {
                let keys = query.keys.len() / self.key_bytes;
                let answered = if query.scan == Scan::Prefix as u8 { keys.min(1) } else { keys };
                reply.answers.resize(reply.answers.len() + answered, Answer::Miss.to_byte());
            }
            self.reply(call, &reply);
            return Ok(());
        }
        let open = self.open_request(call.id, message.request, TierFilter(message.tiers))?;
        let room = self.room(call.id);
        let used = self.session(call.id)?.slots;
        // What the session holds now ends with its steps and loads.
        let mut budget = ReaderBudget { left: room, frees_soon: used > 0 };
        let mut lease = Lease { id: open.id, queries: Vec::with_capacity(message.queries.len()) };
        let mut keys = std::mem::take(&mut self.memory.keys);
        let mut failed = None;
        let mut first = 0;
        for query in message.queries {
            keys.clear();
            let total = count(query.keys.len() / self.key_bytes);
            match self.locate(open.id, query, first, &mut keys, message.lease.then_some(&mut budget), &mut reply) {
                Ok(part) => lease.queries.push(part),
                Err(refusal) => {
                    failed = Some(refusal);
                    break;
                }
            }
            first += total;
        }
        keys.clear();
        self.memory.keys = keys;
        if message.lease {
            self.session(call.id)?.slots = used + (room - budget.left);
            // A lease is for what may be loaded or waited for.
            if failed.is_some() {
                self.end_lease(call.id, &lease);
            } else if reply.answers.iter().any(|answer| *answer != Answer::Miss.to_byte()) {
                self.counts.leases_taken += 1;
                reply.lease = call.sequence;
                self.session(call.id)?.leases.insert(call.sequence, lease);
            }
        }
        if let Some(refusal) = failed {
            return Err(refusal);
        }
        self.reply(call, &reply);
        Ok(())
    }

    fn check_lease(&mut self, call: Call, bytes: usize) -> Result<(), Refusal> {
        self.check_load(call.id)?;
        let most = (self.limits.keys_per_message as usize).saturating_mul(LEASED_MESSAGES);
        let keys = bytes / self.key_bytes.max(1);
        let session = self.session(call.id)?;
        if call.sequence == 0 || session.leases.contains(call.sequence) {
            return Err(Refusal::invalid(format!(
                "sequence {} cannot name a lease: give each lookup its own, not 0",
                call.sequence
            )));
        }
        if session.leases.keys() + keys > most {
            self.counts.refuse(Limit::Jobs);
            return Err(Refusal::limit(format!("the leases would keep more than {most} keys: end the step first")));
        }
        Ok(())
    }

    fn locate(
        &mut self,
        id: RequestId,
        query: Query,
        first: u32,
        keys: &mut Vec<Key>,
        budget: Option<&mut ReaderBudget>,
        reply: &mut LookupReply,
    ) -> Result<LeaseQuery, Refusal> {
        keys_from_bytes(&query.keys, self.key_bytes, keys)?;
        let scan = if query.scan == Scan::Prefix as u8 { ManagerScan::Prefix } else { ManagerScan::Each };
        let is_leased = budget.is_some();
        let mut found = std::mem::take(&mut self.memory.located);
        found.clear();
        let located = self.manager.locate(id, keys, scan, budget, &mut found);
        let mut part = LeaseQuery { first, keys: query.keys, held: Vec::new() };
        part.keys.truncate(found.len() * self.key_bytes);
        for answer in &found {
            let (byte, slot) = match answer {
                Located::Hit { slot, origin } => (Answer::Hit { origin: *origin }, Some(slot)),
                Located::Pending => (Answer::Pending, None),
                Located::Found { tier } => (Answer::Found { tier: *tier }, None),
                Located::Retry => (Answer::Retry, None),
                Located::Miss => (Answer::Miss, None),
            };
            reply.answers.push(byte.to_byte());
            if let Some(slot) = slot {
                reply.slots.extend_from_slice(&slot.0.to_le_bytes());
            }
            part.held.push(slot.copied().filter(|_| is_leased));
        }
        self.memory.located = found;
        match located {
            Ok(()) => Ok(part),
            Err(error) => {
                // Nothing was taken for this query.
                Err(Refusal::new(crate::protocol::ErrorCode::Retry, error.to_string()))
            }
        }
    }

    /// Lets go of what a lease still holds.
    pub fn end_lease(&mut self, id: SessionId, lease: &Lease) {
        let mut slots = std::mem::take(&mut self.memory.slots);
        slots.clear();
        lease.rest(&mut slots);
        self.manager.end_leases(&slots);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.slots = session.slots.saturating_sub(count(slots.len()));
        }
        self.memory.slots = slots;
    }
}

pub(super) fn not_whole(bytes: usize, key_bytes: usize) -> Refusal {
    Refusal::malformed(format!("{bytes} bytes are no whole keys of {key_bytes}"))
}
