//! Stores, pins, and reports of those who copy.

use std::time::Duration;

use terrace_primary::Key;
use terrace_tiering::TierFilter;

use super::counts::Limit;
use super::dispatch::Call;
use super::engine::{Job, JobKind, Reported, Reporters};
use super::lookup::not_whole;
use super::pool::{Pool, count};
use super::refusal::Refusal;
use super::session::{PinnedKeys, SessionId};
use crate::protocol::{
    Complete, ErrorCode, Pin, PinReply, PrepareStore, PrepareStoreReply, Unpin, keys_from_bytes, numbers_to_bytes,
};

impl Pool {
    /// The keys in `bytes`, whole ones and not too many.
    pub fn decode_keys(&mut self, bytes: &[u8]) -> Result<Vec<Key>, Refusal> {
        self.check_keys(bytes.len())?;
        if !bytes.len().is_multiple_of(self.key_bytes) {
            return Err(not_whole(bytes.len(), self.key_bytes));
        }
        let mut keys = Vec::new();
        keys_from_bytes(bytes, self.key_bytes, &mut keys)?;
        Ok(keys)
    }

    /// Whether a new job may have this name.
    pub fn check_job(&mut self, id: SessionId, name: u64) -> Result<(), Refusal> {
        let session = self.session(id)?;
        let is_rows = session.row_jobs.contains_key(&name);
        let engine = session.engine.clone();
        let is_used = is_rows || self.engines.get(&engine).is_some_and(|engine| engine.jobs.contains_key(&name));
        if name == 0 || is_used {
            return Err(Refusal::invalid(format!("job {name}: give a name that is not 0 and not in use")));
        }
        Ok(())
    }

    /// [`PrepareStore`].
    pub fn prepare_store(&mut self, call: Call, message: &PrepareStore) -> Result<(), Refusal> {
        let mut keys = self.decode_keys(&message.keys)?;
        self.check_job(call.id, message.job)?;
        self.check_load(call.id)?;
        if !self.is_served(call.id) {
            self.reply(call, &PrepareStoreReply::default());
            return Ok(());
        }
        let open = self.open_request(call.id, message.request, TierFilter::ALL)?;
        let room = self.room(call.id) as usize;
        let session = self.session(call.id)?;
        let (engine, left) = (session.engine.clone(), Reporters::new(session.store_workers));
        if keys.len() > room {
            self.counts.refuse(Limit::Slots);
            if room == 0 || !message.allow_partial {
                self.reply(call, &PrepareStoreReply::default());
                return Ok(());
            }
            keys.truncate(room);
        }
        let mut plan = std::mem::take(&mut self.memory.plan);
        let planned = self.manager.prepare_store(open.id, &keys, message.allow_partial, &mut plan);
        let reply = planned.map(|room| PrepareStoreReply {
            room,
            store: numbers_to_bytes(plan.store.iter().copied()),
            slots: numbers_to_bytes(plan.slots.iter().map(|slot| slot.0)),
        });
        let keys: Vec<Key> = plan.store.iter().filter_map(|at| keys.get(*at as usize).copied()).collect();
        let slots = plan.slots.clone();
        self.memory.plan = plan;
        let reply = reply.map_err(|error| Refusal::new(ErrorCode::Retry, error.to_string()))?;
        if !keys.is_empty() {
            let session = self.session(call.id)?;
            session.jobs += 1;
            session.slots += count(keys.len());
            let (kind, session, id) = (JobKind::Store, call.id, open.id);
            let job = Job { kind, session, id, keys, slots, left, copying: 0, ok: true };
            self.begin_job(&engine, message.job, job);
        }
        self.reply(call, &reply);
        Ok(())
    }

    /// A job begins; it may have been reported already.
    pub fn begin_job(&mut self, engine_name: &str, name: u64, job: Job) {
        let Some(engine) = self.engines.get_mut(engine_name) else { return };
        engine.jobs.insert(name, job);
        if engine.take_early(name) {
            self.finish_job(engine_name, name);
        }
        self.start_awaited_copies(engine_name, name);
    }

    /// [`Complete`]: what a worker has copied, or failed to.
    pub fn complete(&mut self, call: Call, message: &Complete) -> Result<(), Refusal> {
        let (now, most) = (self.clock.now(), self.limits.jobs as usize);
        self.check_length("reports", message.jobs.len(), self.limits.jobs, Limit::Jobs)?;
        let session = self.session(call.id)?;
        let (engine_name, rank) = (session.engine.clone(), session.rank);
        for completed in &message.jobs {
            let Some(engine) = self.engines.get_mut(&engine_name) else { break };
            match engine.report(completed.job, rank, completed.ok, now, most) {
                Reported::Ended => self.finish_job(&engine_name, completed.job),
                Reported::Early => self.counts.reports_early += 1,
                Reported::Dropped => self.counts.refuse(Limit::EarlyReports),
                Reported::Ignored => self.counts.completions_ignored += 1,
                Reported::Counted => {}
            }
        }
        self.reply_empty(call);
        Ok(())
    }

    /// [`Pin`].
    pub fn pin(&mut self, call: Call, message: &Pin) -> Result<(), Refusal> {
        let keys = self.decode_keys(&message.keys)?;
        let (now, most) = (self.clock.now(), self.limits.slots as usize);
        let ttl = Duration::from_millis(message.ttl_ms.into()).min(self.config.deadlines.pin);
        let session = self.session(call.id)?;
        session.forget_pins(now);
        let Some(open) = session.requests.get(&message.request).copied() else {
            return Err(Refusal::unknown(format!("request {} is not open: look something up first", message.request)));
        };
        if session.pinned_keys + keys.len() > most {
            self.counts.refuse(Limit::Slots);
            return Err(Refusal::limit(format!(
                "more than {most} keys would be pinned: unpin some, or give less time"
            )));
        }
        let pinned =
            self.manager.pin(open.id, &keys, ttl).map_err(|error| Refusal::new(ErrorCode::Retry, error.to_string()))?;
        if pinned > 0 {
            let session = self.session(call.id)?;
            session.pinned_keys += keys.len();
            let until = now.plus(ttl);
            session.pins.push_back(PinnedKeys { request: message.request, id: open.id, keys, until });
        }
        self.reply(call, &PinReply { pinned });
        Ok(())
    }

    /// [`Unpin`]. The request need not be open any more.
    pub fn unpin(&mut self, call: Call, message: &Unpin) -> Result<(), Refusal> {
        let keys = self.decode_keys(&message.keys)?;
        let session = self.session(call.id)?;
        let mut requests: Vec<_> =
            session.pins.iter().filter(|pin| pin.request == message.request).map(|pin| pin.id).collect();
        requests.dedup();
        for pins in session.pins.iter_mut().filter(|pins| pins.request == message.request) {
            let before = pins.keys.len();
            pins.keys.retain(|key| !keys.contains(key));
            session.pinned_keys = session.pinned_keys.saturating_sub(before - pins.keys.len());
        }
        session.pins.retain(|pins| !pins.keys.is_empty());
        for id in requests {
            self.manager.unpin(id, &keys);
        }
        self.reply_empty(call);
        Ok(())
    }
}

impl super::session::Session {
    /// Forgets pins that have ended by themselves.
    pub fn forget_pins(&mut self, now: terrace_tiers::Time) {
        let ended = |pins: &PinnedKeys| pins.until <= now;
        let keys: usize = self.pins.iter().filter(|pins| ended(pins)).map(|pins| pins.keys.len()).sum();
        self.pinned_keys = self.pinned_keys.saturating_sub(keys);
        self.pins.retain(|pins| !ended(pins));
    }
}
