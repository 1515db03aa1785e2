//! Lookups in the daemon's block table, which it shares: what is all in the primary is answered here, without a round trip, and
//! leased when it is to be loaded.

use terrace_primary::SlotId;
use terrace_tiering::RequestId;

use super::lookups::{Answered, Known};
use super::machine::Machine;
use super::manager::RemoteManager;
use super::session::{Called, SessionState};
use crate::port::PortQuery;
use crate::protocol::{Answer, Kind, Lease, LeaseReply};

impl<M: Machine> RemoteManager<M> {
    /// Answers a lookup from the table. The `Err` are the queries as they were: the daemon is to be asked.
    pub(super) fn see(&mut self, id: RequestId, queries: Vec<PortQuery>) -> Result<Answered, Vec<PortQuery>> {
        let may = self.requests.get(&id).is_some_and(|request| !request.was_refused);
        let Some(table) = self.session.table().filter(|_| may && self.session.state() == SessionState::Ready) else {
            return Err(queries);
        };
        let all = queries.iter().map(|query| query.keys.len()).sum::<usize>();
        let most = self.session.hello().map_or(0, |hello| hello.limits.slots);
        if !self.room.fits(all, most) {
            return Err(queries);
        }
        // Mostly what is missing is at the end.
        let is_last_there = |query: &PortQuery| query.keys.last().is_none_or(|key| table.find_all(&[*key], |_, _| {}));
        if !queries.iter().all(is_last_there) {
            return Err(queries);
        }
        let (mut slots, mut answers) = (Vec::with_capacity(4 * all), Vec::with_capacity(all));
        // Before anything is looked at: no lease is given on what changes from here on.
        let seen = table.last_change();
        for query in &queries {
            let found = table.find_all(&query.keys, |slot, origin| {
                slots.extend_from_slice(&slot.to_le_bytes());
                answers.push(Answer::Hit { origin }.to_byte());
            });
            if !found {
                return Err(queries);
            }
        }
        self.session.counters.lookups_seen += 1;
        self.room.answered(all);
        Ok(Answered::found(queries, answers, slots, seen, self.session.now()))
    }

    /// Has the daemon lease `slots`, which were found in its table after change `seen`: the number of the lease. One round trip. `None`: it
    /// has changed since, or the daemon is late or away; the request is looked up there from now on.
    pub(super) fn lease(&mut self, id: RequestId, slots: &[SlotId], seen: u64) -> Option<u64> {
        let lease = if slots.len() <= self.keys_per_message() { self.call_lease(id, slots, seen) } else { None };
        if lease.is_none() {
            self.session.counters.leases_refused += 1;
            if let Some(request) = self.requests.get_mut(&id) {
                request.was_refused = true;
                request.known = Known::Nothing;
            }
        }
        lease
    }

    fn call_lease(&mut self, id: RequestId, slots: &[SlotId], seen: u64) -> Option<u64> {
        self.tell_before_call();
        let (request, tiers) = self.open_on_wire(id)?;
        let slots = slots.iter().flat_map(|slot| slot.0.to_le_bytes()).collect();
        let message = Lease { request, tiers: tiers.0, seen, slots };
        let called = self.session.call(Kind::Lease, Some(&message), 0);
        // Also if it is late: its lease ends with the next step.
        self.lease_out |= !matches!(called, Called::Away);
        let Called::Reply(body) = called else { return None };
        let LeaseReply { lease } = self.session.understand("LeaseReply", &body)?;
        (lease != 0 && self.session.epoch() == Some(self.epoch)).then_some(lease)
    }
}
