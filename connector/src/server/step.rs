//! The end of an engine's step: one message, in a fixed order.

use std::collections::BTreeSet;

use terrace_primary::Key;
use terrace_tiering::Lookup;

use super::counts::Limit;
use super::dispatch::Call;
use super::engine::{Job, JobKind, Reporters};
use super::leases::Lease;
use super::pool::Pool;
use super::refusal::Refusal;
use super::session::{Role, SessionId};
use crate::protocol::{
    EndStep, EndStepReply, JobOutcome, LeaseEnd, Refusal as Refused, WANT_EVENTS, WANT_STATS, numbers_from_bytes,
    numbers_to_bytes,
};

/// What becomes of a lease, with its indices read.
struct Ending {
    lease: u64,
    job: u64,
    load: Vec<u32>,
    wait: Vec<u32>,
}

impl Pool {
    /// [`EndStep`]: what was copied, what becomes of the leases, what was used, which requests ended; then the
    /// manager's step. A step that names what cannot be is refused whole, and nothing of it is done.
    pub fn end_step(&mut self, call: Call, message: &EndStep) -> Result<(), Refusal> {
        let touched = self.decode_keys(&message.touched)?;
        if message.want & !(WANT_EVENTS | WANT_STATS) != 0 {
            return Err(Refusal::invalid(format!("want {:#x}: only bits 1 and 2 are known here", message.want)));
        }
        let limits = self.limits;
        self.check_length("leases", message.leases.len(), limits.jobs, Limit::Jobs)?;
        self.check_length("ended jobs", message.completed.len(), limits.jobs, Limit::Jobs)?;
        self.check_length("ended requests", message.finished.len(), limits.requests, Limit::Requests)?;
        let endings = self.endings(call.id, &message.leases)?;
        for completed in &message.completed {
            self.completed(call.id, completed.job, completed.ok);
        }
        let mut reply = EndStepReply::default();
        self.end_leases(call.id, endings, &mut reply.refused)?;
        if !touched.is_empty() {
            self.manager.touch(&touched);
        }
        for request in &message.finished {
            if let Some(open) = self.session(call.id)?.requests.remove(request) {
                self.manager.finish_request(open.id);
            }
        }
        self.step_manager();
        self.fill(call.id, message.want, &mut reply)?;
        self.reply(call, &reply);
        Ok(())
    }

    /// Checks everything before anything is done.
    fn endings(&mut self, id: SessionId, ends: &[LeaseEnd]) -> Result<Vec<Ending>, Refusal> {
        let mut endings: Vec<Ending> = Vec::new();
        let (mut jobs, mut leases) = (BTreeSet::new(), BTreeSet::new());
        for end in ends {
            let mut ending = Ending { lease: end.lease, job: end.job, load: Vec::new(), wait: Vec::new() };
            self.check_keys((end.load.len() / 4).max(end.wait.len() / 4).saturating_mul(self.key_bytes))?;
            numbers_from_bytes(&end.load, &mut ending.load)?;
            numbers_from_bytes(&end.wait, &mut ending.wait)?;
            if end.load.is_empty() != (end.job == 0) {
                return Err(Refusal::invalid(format!(
                    "lease {}: a load has keys and a job that is not 0, or neither",
                    end.lease
                )));
            }
            if end.job != 0 {
                if self.session(id)?.role == Role::Tier {
                    return Err(Refusal::role("a session of role \"tier\" loads with LoadRows"));
                }
                self.check_job(id, end.job)?;
                if !jobs.insert(end.job) {
                    return Err(Refusal::invalid(format!("job {} is named twice", end.job)));
                }
            }
            if !leases.insert(end.lease) {
                return Err(Refusal::invalid(format!("lease {} is named twice: it ends once", end.lease)));
            }
            endings.push(ending);
        }
        let session = self.session(id)?;
        for ending in &endings {
            let Some(lease) = session.leases.get_mut(ending.lease) else { continue };
            lease.check_load(&ending.load)?;
        }
        Ok(endings)
    }

    /// A job of an engine whose scheduler copies by itself. Such a job of an earlier connection ends this way too.
    fn completed(&mut self, id: SessionId, name: u64, ok: bool) {
        let Some(session) = self.sessions.get(&id) else { return };
        let engine_name = session.engine.clone();
        let job = self.engines.get_mut(&engine_name).and_then(|engine| engine.jobs.get_mut(&name));
        match job {
            // A store that no worker was told of ends this way too: its reply came too late.
            Some(job) if job.left == Reporters::Scheduler || (job.kind == JobKind::Store && !ok) => {
                job.end(ok);
                self.finish_job(&engine_name, name);
            }
            _ => self.counts.completions_ignored += 1,
        }
    }

    fn end_leases(&mut self, id: SessionId, endings: Vec<Ending>, refused: &mut Vec<Refused>) -> Result<(), Refusal> {
        let mut leases = self.session(id)?.leases.take_all();
        for ending in endings {
            let Some(lease) = leases.get_mut(&ending.lease) else {
                // It ended before: nothing of it may be loaded.
                if ending.job != 0 {
                    self.session(id)?.outcomes.push(JobOutcome { job: ending.job, ok: false });
                }
                if !ending.wait.is_empty() {
                    refused.push(Refused { lease: ending.lease, keys: numbers_to_bytes(ending.wait) });
                }
                continue;
            };
            if ending.job != 0 {
                self.begin_load(id, lease, &ending)?;
            }
            if !ending.wait.is_empty() {
                let keys = self.wait(lease, &ending.wait);
                if !keys.is_empty() {
                    refused.push(Refused { lease: ending.lease, keys: numbers_to_bytes(keys) });
                }
            }
        }
        for lease in leases.values() {
            self.end_lease(id, lease);
        }
        Ok(())
    }

    /// The readers of the named keys live on as a job.
    fn begin_load(&mut self, id: SessionId, lease: &mut Lease, ending: &Ending) -> Result<(), Refusal> {
        let mut keys = Vec::with_capacity(ending.load.len());
        let mut slots = Vec::with_capacity(ending.load.len());
        lease.take(&ending.load, self.key_bytes, self.manager.primary(), &mut keys, &mut slots);
        if let Err(error) = self.manager.begin_load(lease.id, &keys) {
            // The readers are there; only what is counted and ranked by them is lost.
            tracing::error!("a load begins that the manager does not know: {error}");
        }
        let session = self.session(id)?;
        session.jobs += 1;
        let (engine, left) = (session.engine.clone(), Reporters::new(session.load_workers));
        self.begin_job(
            &engine,
            ending.job,
            Job { kind: JobKind::Load, session: id, id: lease.id, keys, slots, left, copying: 0, ok: true },
        );
        Ok(())
    }

    /// Brings what a request waits for, and returns the indices of what will not come.
    fn wait(&mut self, lease: &Lease, wait: &[u32]) -> Vec<u32> {
        let mut refused = Vec::new();
        let mut asked = Vec::with_capacity(wait.len());
        let mut keys: Vec<Key> = Vec::with_capacity(wait.len());
        for index in wait {
            match lease.key(*index, self.key_bytes, self.manager.primary()) {
                Some(key) => {
                    asked.push(*index);
                    keys.push(key);
                }
                None => refused.push(*index),
            }
        }
        let mut answers = std::mem::take(&mut self.memory.answers);
        match self.manager.wait_for(lease.id, &keys, &mut answers) {
            Ok(()) => {
                let missed = asked.iter().zip(&answers).filter(|(_, answer)| **answer == Lookup::Miss);
                refused.extend(missed.map(|(index, _)| *index));
            }
            Err(_) => refused.extend(asked),
        }
        self.memory.answers = answers;
        refused
    }

    fn fill(&mut self, id: SessionId, want: u32, reply: &mut EndStepReply) -> Result<(), Refusal> {
        let most_events = (self.limits.message_bytes as usize / 2) / self.key_bytes.max(1);
        if want & WANT_STATS != 0 {
            reply.stats = self.stats_reply().values;
        }
        let Self { sessions, engines, events, counts, .. } = self;
        let Some(session) = sessions.get_mut(&id) else { return Ok(()) };
        reply.workers = engines.get(&session.engine).map_or(0, |engine| engine.attached_of(session.workers()));
        reply.rows = std::mem::take(&mut session.rows_done);
        reply.jobs = std::mem::take(&mut session.outcomes);
        if want & WANT_EVENTS != 0 {
            // Who never asks loses none.
            let at = session.events_at.get_or_insert(events.end());
            let (batches, lost) = events.read(at, most_events);
            reply.events = batches;
            session.events_lost += lost;
            counts.refuse_many(Limit::Events, lost);
        }
        reply.events_lost = session.events_lost;
        Ok(())
    }
}
