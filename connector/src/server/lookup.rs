//! One message answers a request's whole lookup.

use terrace_primary::{Key, SlotId};
use terrace_tiering::{Located, ReaderBudget, RequestContext, RequestId, Scan as ManagerScan, TierFilter};

use super::counts::Limit;
use super::dispatch::Call;
use super::leases::{Lease, LeaseQuery};
use super::pool::{Pool, count};
use super::refusal::Refusal;
use super::session::{OpenRequest, Role, SessionId};
use crate::protocol::{Answer, COMMON_KEY_BYTES, LookupIn, LookupReply, QueryIn, Scan, keys_from_bytes};

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

    /// [`crate::protocol::Lookup`]. The reply is on its way before its lease remembers keys.
    pub fn lookup(&mut self, call: Call, message: &LookupIn<'_>) -> Result<(), Refusal> {
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
        for query in &message.queries {
            keys.clear();
            match self.locate(open.id, query, first, &mut keys, message.lease.then_some(&mut budget), &mut reply) {
                Ok(part) => lease.queries.push(part),
                Err(refusal) => {
                    failed = Some(refusal);
                    break;
                }
            }
            first += count(query.keys.len() / self.key_bytes);
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
        if reply.lease != 0 {
            self.flush(call.id);
            self.remember(call, message);
        }
        Ok(())
    }

    /// Gives a new lease the keys that were answered. Nobody can name it before: this is the thread that would hear of
    /// it.
    fn remember(&mut self, call: Call, message: &LookupIn<'_>) {
        // Without a connection a lease has readers only.
        let session = self.sessions.get_mut(&call.id).filter(|session| session.connection.is_some());
        let Some(lease) = session.and_then(|session| session.leases.get_mut(call.sequence)) else { return };
        for (part, query) in lease.queries.iter_mut().zip(&message.queries) {
            let answered = part.held.len() * self.key_bytes;
            part.keys.extend_from_slice(query.keys.get(..answered).unwrap_or_default());
        }
    }

    /// Whether a lease of so many bytes of keys may be taken, by this call's sequence.
    pub fn check_lease(&mut self, call: Call, bytes: usize) -> Result<(), Refusal> {
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

    /// Appends the answers to `query` to `reply`. What the lease holds of it has its keys still to be filled in.
    fn locate(
        &mut self,
        id: RequestId,
        query: &QueryIn<'_>,
        first: u32,
        keys: &mut Vec<Key>,
        budget: Option<&mut ReaderBudget>,
        reply: &mut LookupReply,
    ) -> Result<LeaseQuery, Refusal> {
        let scan = if query.scan == Scan::Prefix as u8 { ManagerScan::Prefix } else { ManagerScan::Each };
        let is_leased = budget.is_some();
        let mut found = std::mem::take(&mut self.memory.located);
        found.clear();
        let located = if self.key_bytes == COMMON_KEY_BYTES {
            // Where they came: they are compared with the table's as they are.
            let (keys, _) = query.keys.as_chunks::<COMMON_KEY_BYTES>();
            self.manager.locate(id, keys, scan, budget, &mut found)
        } else {
            keys_from_bytes(&query.keys, self.key_bytes, keys)?;
            self.manager.locate(id, keys.as_slice(), scan, budget, &mut found)
        };
        let part =
            LeaseQuery { first, keys: Vec::new(), held: found.iter().map(|answer| held(answer, is_leased)).collect() };
        put_answers(&found, reply);
        self.memory.located = found;
        // `Err`: nothing was taken for this query.
        located.map_err(|error| Refusal::new(crate::protocol::ErrorCode::Retry, error.to_string()))?;
        Ok(part)
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

fn held(answer: &Located, is_leased: bool) -> Option<SlotId> {
    match answer {
        Located::Hit { slot, .. } if is_leased => Some(*slot),
        _ => None,
    }
}

/// Appends the answers, and the slots of the hits among them.
fn put_answers(found: &[Located], reply: &mut LookupReply) {
    let answer = |located: &Located| match *located {
        Located::Hit { origin, .. } => Answer::Hit { origin },
        Located::Pending => Answer::Pending,
        Located::Found { tier } => Answer::Found { tier },
        Located::Retry => Answer::Retry,
        Located::Miss => Answer::Miss,
    };
    reply.answers.extend(found.iter().map(|located| answer(located).to_byte()));
    let start = reply.slots.len();
    // Room for as many as there can be, cut off below: without a check for each.
    reply.slots.resize(start + 4 * found.len(), 0);
    let mut hits = 0;
    let mut places = reply.slots.get_mut(start..).unwrap_or_default().as_chunks_mut::<4>().0.iter_mut();
    for located in found {
        if let Located::Hit { slot, .. } = located
            && let Some(place) = places.next()
        {
            *place = slot.0.to_le_bytes();
            hits += 1;
        }
    }
    reply.slots.truncate(start + 4 * hits);
}

pub(super) fn not_whole(bytes: usize, key_bytes: usize) -> Refusal {
    Refusal::malformed(format!("{bytes} bytes are no whole keys of {key_bytes}"))
}
