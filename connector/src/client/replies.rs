//! Replies that nobody waited for: confirmed steps, and what came too late and is undone.

use terrace_tiering::Event;
use terrace_tiers::{Locality, Medium};

use super::lookups::Known;
use super::machine::Machine;
use super::manager::{RemoteManager, Stage};
use super::session::Arrived;
use crate::api::JobId;
use crate::protocol::{
    EndStepReply, EventBatch, JobOutcome, Kind, PrepareStoreReply, Refusal, keys_from_bytes, numbers_from_bytes,
};

/// Events kept for the engine; beyond, new ones are dropped and counted.
const MOST_EVENTS: usize = 1 << 16;

impl<M: Machine> RemoteManager<M> {
    pub(super) fn take_reply(&mut self, arrived: Arrived) {
        let Arrived { sequence, kind, tag, outcome } = arrived;
        match kind {
            Kind::EndStep => self.step_confirmed(sequence, outcome.map_err(|refusal| refusal.message)),
            // The engine was told that there is no room: what was reserved is given back.
            Kind::PrepareStore => {
                let Ok(body) = outcome else { return };
                let reply = self.session.understand::<PrepareStoreReply>("PrepareStoreReply", &body);
                // Also of one that cannot be read.
                if reply.is_none_or(|reply| !reply.slots.is_empty()) {
                    self.pending.complete(tag, false);
                }
            }
            // A late lookup's lease ends with the next step; the others leave nothing behind.
            _ => {}
        }
    }

    fn step_confirmed(&mut self, sequence: u64, outcome: Result<Vec<u8>, String>) {
        let Some(at) = self.unconfirmed.iter().position(|sent| sent.sequence == sequence) else { return };
        let Some(sent) = self.unconfirmed.remove(at) else { return };
        let stage = if outcome.is_ok() { Stage::Confirmed } else { Stage::Doomed };
        for job in &sent.loads {
            if let Some(job) = self.jobs.get_mut(job).filter(|job| job.epoch == self.epoch) {
                job.stage = stage;
            }
        }
        let body = match outcome {
            Ok(body) => body,
            Err(message) => {
                tracing::warn!("the daemon refused the end of a step: {message}");
                self.session.counters.refused += 1;
                self.pending.tell_again(sent);
                return;
            }
        };
        let Some(reply) = self.session.understand::<EndStepReply>("EndStepReply", &body) else { return };
        for Refusal { lease, keys } in reply.refused {
            let Some(wait) = sent.waits.iter().find(|wait| wait.lease == lease) else { continue };
            let mut places = Vec::new();
            if numbers_from_bytes(&keys, &mut places).is_err() {
                return self.session.give_up("refused keys that are no numbers");
            }
            places.sort_unstable();
            let Some(request) = self.requests.get_mut(&wait.request) else { continue };
            let refused = wait.keys.iter().filter(|(place, _)| places.binary_search(place).is_ok());
            request.refused.extend(refused.map(|(_, key)| *key));
            // The answers before are no longer what is waited for.
            if matches!(&request.known, Known::Answered(answered) if !answered.open) {
                request.known = Known::Nothing;
            }
        }
        for JobOutcome { job, .. } in reply.jobs.iter().filter(|outcome| !outcome.ok) {
            // A load that did not begin: its lease was over.
            let load = job.checked_sub(1).and_then(|job| self.jobs.get_mut(&JobId(job)));
            if let Some(load) = load.filter(|job| job.epoch == self.epoch) {
                load.stage = Stage::Doomed;
            }
        }
        let lost = reply.events_lost;
        self.session.counters.events_lost = self.session.counters.events_lost.max(lost);
        self.take_event_batches(&reply.events);
    }

    fn take_event_batches(&mut self, batches: &[EventBatch]) {
        let key_bytes = self.session.options().key_bytes();
        let mut keys = Vec::new();
        for EventBatch { what, medium, locality, keys: bytes } in batches {
            let medium = if *medium == 0 { Medium::Cpu } else { Medium::Storage };
            let locality = if *locality == 0 { Locality::Local } else { Locality::Remote };
            keys.clear();
            if keys_from_bytes(bytes, key_bytes, &mut keys).is_err() || *what > 2 {
                return self.session.give_up("events that are none");
            }
            if self.events.len() + keys.len().max(1) > MOST_EVENTS {
                self.session.counters.events_lost += keys.len().max(1) as u64;
                continue;
            }
            match what {
                0 => self.events.extend(keys.iter().map(|key| Event::BlockStored { key: *key, medium, locality })),
                1 => self.events.extend(keys.iter().map(|key| Event::BlockRemoved { key: *key, medium, locality })),
                _ => self.events.push(Event::AllBlocksCleared),
            }
        }
    }
}
