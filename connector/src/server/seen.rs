//! Lookups that a client has done in the shared block table: confirmed, and leased.

use terrace_primary::SlotId;
use terrace_tiering::TierFilter;

use super::dispatch::Call;
use super::leases::{Lease, LeaseQuery};
use super::pool::{Pool, count};
use super::refusal::Refusal;
use crate::protocol::{ErrorCode, Lease as LeaseMessage, LeaseReply};

impl Pool {
    /// [`crate::protocol::Lease`].
    pub fn lease(&mut self, call: Call, message: &LeaseMessage) -> Result<(), Refusal> {
        let (slots, rest) = message.slots.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Refusal::malformed(format!("{} bytes are no whole slots of 4", message.slots.len())));
        }
        let bytes = slots.len().saturating_mul(self.key_bytes);
        self.check_keys(bytes)?;
        self.check_lease(call, bytes)?;
        let mut reply = LeaseReply::default();
        if !slots.is_empty() && self.is_served(call.id) && self.room(call.id) as usize >= slots.len() {
            let open = self.open_request(call.id, message.request, TierFilter(message.tiers))?;
            let given = self.manager.lease_seen(open.id, slots, message.seen);
            if given.map_err(|error| Refusal::new(ErrorCode::Retry, error.to_string()))? {
                let held = slots.iter().map(|slot| Some(SlotId(u32::from_le_bytes(*slot)))).collect();
                // Keys are those of the slots, as long as readers are held there.
                let query = LeaseQuery { first: 0, keys: Vec::new(), held };
                let session = self.session(call.id)?;
                session.slots += count(slots.len());
                session.leases.insert(call.sequence, Lease { id: open.id, queries: vec![query] });
                self.counts.leases_taken += 1;
                reply.lease = call.sequence;
            }
        }
        self.counts.leases_refused += u64::from(reply.lease == 0);
        self.reply(call, &reply);
        Ok(())
    }
}
