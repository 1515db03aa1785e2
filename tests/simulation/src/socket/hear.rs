//! What the scheduler hears, and what must hold of it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use terrace_connector::protocol::{
    Answer, EndStepReply, ErrorCode, ErrorReply, FrameHeader, HelloReply, Kind, LeaseReply, LookupReply,
    PrepareStoreReply, SHARED_TABLE, decode, numbers_from_bytes,
};
use terrace_connector::server::InlineServer;
use terrace_primary::{Key, SlotId, TableReader};
use terrace_tiers::{Clock, Time};

use super::common::Common;
use super::engine::{Answered, Asked, Engine, Open, State};
use crate::failure::Reason;

fn contract(text: impl Into<String>) -> Reason {
    Reason::Contract(text.into())
}

fn read<T: serde::de::DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, Reason> {
    decode(what, body).map_err(|error| contract(format!("{what} cannot be read: {error}")))
}

fn numbers(bytes: &[u8]) -> Result<Vec<u32>, Reason> {
    let mut numbers = Vec::new();
    numbers_from_bytes(bytes, &mut numbers).map_err(|error| contract(error.to_string()))?;
    Ok(numbers)
}

fn open_table(table: BorrowedFd<'_>, slots: u32, key_bytes: usize) -> Result<TableReader, Reason> {
    let table = table.try_clone_to_owned().unwrap_or_else(|error| panic!("no descriptor to simulate with: {error}"));
    TableReader::open(&table, slots, key_bytes).map_err(|error| contract(error.to_string()))
}

/// Whether hits that are leased are what was stored.
fn check_hits(open: &Open, namespace: u8, hits: &[(u32, SlotId, Key)], common: &mut Common) -> Result<(), Reason> {
    let mut found = vec![0; common.settings.disks.config.geometry.block_bytes as usize];
    for (_, slot, key) in hits {
        if !open.region.read_slot(*slot, &mut found) || found != common.model.content(namespace, key) {
            return Err(Reason::WrongBytes(format!("{key} is a hit in {slot:?}")));
        }
    }
    Ok(())
}

impl Engine {
    /// Takes what came to the scheduler.
    pub fn hear(&mut self, server: &InlineServer, common: &mut Common) -> Result<(), Reason> {
        while let Some(wire) = &mut self.wire {
            let Some((header, body)) = wire.next()? else { break };
            common.trace.add(format_args!("{} hears {header:?}", self.name));
            if header.flags.error {
                self.refused(&header, &body, common)?;
                continue;
            }
            match header.kind {
                Kind::Hello => self.opened(&read("HelloReply", &body)?, server)?,
                Kind::Goodbye => {}
                kind => {
                    let asked = self.asked.remove(&header.sequence);
                    match (kind, asked) {
                        (Kind::Lookup, Some(Asked::Lookup { request, lease, is_late })) => {
                            let reply: LookupReply = read("LookupReply", &body)?;
                            self.answered(request, (lease, is_late, header.sequence), &reply, common)?;
                        }
                        (Kind::Lease, Some(Asked::Lease { request, slots })) => {
                            let reply: LeaseReply = read("LeaseReply", &body)?;
                            self.leased(request, header.sequence, (&slots, reply.lease), common)?;
                        }
                        (Kind::PrepareStore, Some(Asked::Store { request, job, keys, epochs })) => {
                            let reply: PrepareStoreReply = read("PrepareStoreReply", &body)?;
                            self.prepared(request, job, (&keys, &epochs), &reply, common)?;
                        }
                        (Kind::EndStep, Some(Asked::End { waiting, sent, .. })) => {
                            let reply: EndStepReply = read("EndStepReply", &body)?;
                            self.stepped(&waiting, sent, &reply, common)?;
                        }
                        (Kind::Reset, Some(Asked::Reset)) | (_, Some(Asked::Other | Asked::Guess)) => {}
                        (kind, _) => return Err(contract(format!("a reply of kind {kind:?} that nobody asked for"))),
                    }
                }
            }
        }
        if self.wire.as_ref().is_some_and(|wire| !wire.is_open()) {
            self.lose();
        }
        Ok(())
    }

    fn opened(&mut self, reply: &HelloReply, server: &InlineServer) -> Result<(), Reason> {
        let pool = server.pools().find(|pool| pool.digest().as_slice() == reply.namespace);
        let pool = pool.ok_or_else(|| contract("a session of a namespace that has no pool"))?;
        let is_shared = reply.features.iter().any(|feature| feature == SHARED_TABLE);
        let table = match pool.manager().table_fd().filter(|_| is_shared) {
            Some(table) => Some(open_table(table, reply.slots, pool.key_bytes())?),
            None if is_shared => return Err(contract("a table was promised that is not there")),
            None => None,
        };
        self.open = Some(Open { region: Arc::clone(pool.region()), table });
        Ok(())
    }

    fn refused(&mut self, header: &FrameHeader, body: &[u8], common: &mut Common) -> Result<(), Reason> {
        let error: ErrorReply = read("ErrorReply", body)?;
        let (code, asked) = (ErrorCode::from_number(error.code), self.asked.remove(&header.sequence));
        common.count("refusals");
        let is_wrong = matches!(asked, Some(Asked::Wrong | Asked::Guess));
        let is_usual = matches!(code, ErrorCode::Limit | ErrorCode::Retry | ErrorCode::Closing);
        let is_greeting = header.kind == Kind::Hello && (code == ErrorCode::NotAdmitted || header.sequence == 0);
        let is_pin = matches!(header.kind, Kind::Pin | Kind::Unpin) && code == ErrorCode::Unknown;
        if !(is_wrong || is_usual || is_greeting || is_pin) {
            return Err(contract(format!("{:?} is refused: {code:?} {}", header.kind, error.message)));
        }
        match asked {
            Some(Asked::Lookup { request, .. } | Asked::Lease { request, .. }) => self.again(request, State::Idle),
            Some(Asked::Store { request, .. }) => self.again(request, State::Done),
            Some(Asked::End { completed, .. }) => self.own_done.extend(completed),
            _ => {}
        }
        Ok(())
    }

    fn again(&mut self, request: u64, state: State) {
        if let Some(request) = self.requests.get_mut(&request) {
            (request.state, request.since) = (state, None);
        }
    }

    /// The leading blocks of a request were found in `slots`, and leased.
    fn leased(
        &mut self,
        id: u64,
        sequence: u64,
        (slots, lease): (&[SlotId], u64),
        common: &mut Common,
    ) -> Result<(), Reason> {
        if lease == 0 {
            common.count("leases refused");
            self.again(id, State::Idle);
            return Ok(());
        }
        if lease != sequence {
            return Err(contract(format!("lease {lease} for call {sequence}")));
        }
        let is_live = lease > self.last_end && !self.is_hung_up();
        let (Some(open), Some(request)) = (&self.open, self.requests.get_mut(&id)) else { return Ok(()) };
        common.count("leases on what was seen");
        let hits: Vec<_> =
            (0..).zip(slots.iter().copied()).zip(&request.keys).map(|((n, slot), key)| (n, slot, *key)).collect();
        if is_live {
            check_hits(open, self.namespace, &hits, common)?;
        }
        request.since = None;
        request.state = State::Answered(Answered { lease, hits, unresolved: Vec::new() });
        Ok(())
    }

    fn answered(
        &mut self,
        id: u64,
        (lease, is_late, sequence): (bool, bool, u64),
        reply: &LookupReply,
        common: &mut Common,
    ) -> Result<(), Reason> {
        let Some(open) = &self.open else { return Ok(()) };
        let slots = numbers(&reply.slots)?;
        if reply.lease != 0 && (!lease || reply.lease != sequence) {
            return Err(contract(format!("lease {} for lookup {sequence}, wanted: {lease}", reply.lease)));
        }
        // Leases end with the session: by the time that this is read the daemon may have closed it.
        let is_live = reply.lease > self.last_end && !self.is_hung_up();
        let Some(request) = self.requests.get_mut(&id) else { return Ok(()) };
        if reply.answers.len() > request.keys.len() || (!request.prefix && reply.answers.len() < request.keys.len()) {
            return Err(contract(format!("{} answers to {} keys", reply.answers.len(), request.keys.len())));
        }
        let mut answered = Answered { lease: reply.lease, hits: Vec::new(), unresolved: Vec::new() };
        let mut slots = slots.into_iter();
        for ((index, byte), key) in (0..).zip(&reply.answers).zip(&request.keys) {
            match Answer::from_byte(*byte).ok_or_else(|| contract(format!("an answer {byte}")))? {
                Answer::Hit { .. } => {
                    let slot = SlotId(slots.next().ok_or_else(|| contract("a hit without a slot"))?);
                    answered.hits.push((index, slot, *key));
                }
                Answer::Miss => {}
                Answer::Pending | Answer::Found { .. } | Answer::Retry => answered.unresolved.push(index),
            }
        }
        let since = request.since.filter(|(said, _)| common.is_unreset_since(self.namespace, *said));
        if let Some((_, known)) = since.filter(|_| is_late && !answered.unresolved.is_empty()) {
            let since = common.clock.now().since(known);
            return Err(Reason::Unresolved(format!("request {id} of {} after {since:?}", self.name)));
        }
        common.counts.hits += answered.hits.len() as u64;
        common.counts.misses += u64::from(answered.hits.is_empty());
        common.counts.unresolved += u64::from(!answered.unresolved.is_empty());
        if is_live {
            check_hits(open, self.namespace, &answered.hits, common)?;
        }
        request.state = State::Answered(answered);
        Ok(())
    }

    fn prepared(
        &mut self,
        id: u64,
        job: u64,
        (keys, epochs): (&[Key], &[u64]),
        reply: &PrepareStoreReply,
        common: &mut Common,
    ) -> Result<(), Reason> {
        let Some(region) = self.open.as_ref().map(|open| Arc::clone(&open.region)) else { return Ok(()) };
        let (store, slots) = (numbers(&reply.store)?, numbers(&reply.slots)?);
        if store.len() != slots.len() || (!reply.room && !slots.is_empty()) {
            return Err(contract(format!("{} keys to store in {} slots", store.len(), slots.len())));
        }
        let mut blocks = Vec::with_capacity(slots.len());
        for (at, slot) in store.into_iter().zip(slots) {
            let key = keys.get(at as usize).ok_or_else(|| contract("a key to store that was not named"))?;
            blocks.push((SlotId(slot), *key));
        }
        self.again(id, State::Done);
        if blocks.is_empty() {
            return Ok(());
        }
        // A worker that came back since owes nothing for this job any more, so it must not copy for it. Nor may anyone for a session that the
        // daemon closed while this reply was not read: its slots are kept for ten seconds where the process is not seen.
        let is_due = self.requests.contains_key(&id) && !self.is_hung_up();
        if !is_due || self.epochs() != epochs || epochs.contains(&0) {
            common.count("stores given up");
            self.given_up.push(job);
            return Ok(());
        }
        common.count("stores");
        for (_, key) in &blocks {
            common.model.store(self.namespace, *key);
        }
        self.begin(job, true, &region, &blocks);
        Ok(())
    }

    fn stepped(
        &mut self,
        waiting: &[(u64, u64)],
        sent: Time,
        reply: &EndStepReply,
        common: &mut Common,
    ) -> Result<(), Reason> {
        let now = common.clock.now();
        for (id, lease) in waiting {
            // What is refused was told to be a miss: nobody waits for it.
            let is_refused = reply.refused.iter().any(|refused| refused.lease == *lease);
            if let Some(request) = self.requests.get_mut(id).filter(|_| !is_refused) {
                request.since.get_or_insert((sent, now));
            }
        }
        for outcome in &reply.jobs {
            let Some(job) = self.jobs.remove(&outcome.job) else { continue };
            let copiers = self.ranks.len().max(1);
            if outcome.ok && job.copied.len() < copiers {
                return Err(contract(format!(
                    "job {} of {} ended well, and {} of {copiers} have copied it",
                    outcome.job,
                    self.name,
                    job.copied.len()
                )));
            }
            common.count(if outcome.ok { "jobs that ended well" } else { "jobs that failed" });
        }
        Ok(())
    }
}
