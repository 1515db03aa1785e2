//! What the scheduler asks for, and what it decides.

use terrace_connector::protocol::{
    Complete, CompletedJob, EndStep, FrameFlags, Kind, Lease, LeaseEnd, Lookup, Pin, PrepareStore, Query, Scan, Unpin,
    keys_to_bytes, numbers_to_bytes,
};
use terrace_primary::{Key, SlotId};
use terrace_tiers::Clock;

use super::common::Common;
use super::engine::{Answered, Asked, Engine, Request, State};
use crate::rng::Rng;

fn bytes_of(keys: &[Key]) -> Vec<u8> {
    let mut bytes = Vec::new();
    keys_to_bytes(keys, &mut bytes);
    bytes
}

impl Engine {
    /// New requests, lookups, stores, and the end of the step.
    pub fn decide(&mut self, common: &mut Common) {
        if common.rng.chance(common.settings.stall_per_mille)
            && let Some(wire) = &mut self.wire
        {
            common.count("stalls");
            wire.stalls = true;
            for _ in 0..400 {
                let sequence = wire.send_empty(Kind::Stats, FrameFlags::REQUEST);
                self.asked.insert(sequence, Asked::Other);
            }
            return;
        }
        let most = common.settings.disks.requests.min(6);
        if self.requests.len() + self.finished.len() < most && common.rng.chance(400) {
            self.arrive(common);
        }
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            if common.rng.chance(common.settings.abort_per_mille) {
                common.count("requests given up");
                self.requests.remove(&id);
                self.finished.push(id);
                continue;
            }
            let Some(mut request) = self.requests.remove(&id) else { continue };
            match request.state {
                State::Idle if common.rng.chance(700) => self.look_up(id, &mut request, common),
                State::Seen(..) if common.rng.chance(600) => self.lease(id, &mut request, common),
                State::Computed(from) if common.rng.chance(700) => self.store(id, from, &mut request),
                _ => {}
            }
            if matches!(request.state, State::Done) {
                self.finished.push(id);
            } else {
                self.requests.insert(id, request);
            }
        }
        self.pin_or_reset(common);
        // Its lookups' leases end with it, and so mostly it waits for them.
        let waits = self.asked.values().any(|asked| matches!(asked, Asked::Lookup { .. } | Asked::Lease { .. }))
            && common.rng.chance(800);
        if !waits && common.rng.chance(600) {
            self.misuse(common);
            self.end_step(common);
        }
    }

    fn arrive(&mut self, common: &mut Common) {
        let disks = &common.settings.disks;
        let (chain, shared) = (common.rng.below(disks.chains), disks.shared_blocks);
        let blocks = common.rng.between(1, disks.chain_blocks.min(u64::from(disks.config.primary.blocks)));
        let keys = (0..blocks).map(|depth| common.model.key(chain, depth, shared, 0)).collect();
        let request = Request { keys, prefix: common.rng.chance(700), state: State::Idle, since: None };
        self.requests.insert(self.next_request, request);
        self.next_request += 1;
    }

    fn ask(&mut self, kind: Kind, message: &impl serde::Serialize, asked: Asked) {
        if let Some(wire) = &mut self.wire {
            let sequence = wire.send(kind, FrameFlags::REQUEST, message);
            self.asked.insert(sequence, asked);
        }
    }

    fn look_up(&mut self, id: u64, request: &mut Request, common: &mut Common) {
        if common.rng.chance(700) && self.see(request) {
            return;
        }
        request.since = request.since.filter(|(said, _)| common.is_unreset_since(self.namespace, *said));
        let deadline = common.settings.disks.config.deadlines.lookup;
        let is_late = request.since.is_some_and(|(_, known)| common.clock.now() >= known.plus(deadline));
        let lease = !common.rng.chance(100);
        let scan = if request.prefix { Scan::Prefix } else { Scan::Each };
        let queries = vec![Query { scan: scan as u8, keys: bytes_of(&request.keys) }];
        let message = Lookup { request: id, tiers: u32::MAX, lease, queries };
        self.ask(Kind::Lookup, &message, Asked::Lookup { request: id, lease, is_late });
        request.state = State::Asking;
    }

    /// Looks in the daemon's table. False: there is none, or nothing of the request in it.
    fn see(&self, request: &mut Request) -> bool {
        let Some(table) = self.open.as_ref().and_then(|open| open.table.as_ref()) else { return false };
        let (seen, mut slots) = (table.last_change(), Vec::new());
        table.find_all(&request.keys, |slot, _| slots.push(SlotId(slot)));
        if slots.is_empty() {
            return false;
        }
        request.state = State::Seen(seen, slots);
        true
    }

    /// Asks for what was seen, some time ago, or for a leading part of it.
    fn lease(&mut self, id: u64, request: &mut Request, common: &mut Common) {
        let State::Seen(seen, mut slots) = std::mem::replace(&mut request.state, State::Asking) else { return };
        if common.rng.chance(200) {
            slots.truncate(1 + common.rng.index(slots.len()));
        }
        let bytes = numbers_to_bytes(slots.iter().map(|slot| slot.0));
        let message = Lease { request: id, tiers: u32::MAX, seen, slots: bytes };
        self.ask(Kind::Lease, &message, Asked::Lease { request: id, slots });
    }

    fn store(&mut self, id: u64, from: usize, request: &mut Request) {
        let keys = request.keys.get(from..).unwrap_or_default().to_vec();
        if keys.is_empty() {
            request.state = State::Done;
            return;
        }
        let job = self.job();
        let message = PrepareStore { request: id, job, allow_partial: true, keys: bytes_of(&keys) };
        let epochs = self.epochs();
        self.ask(Kind::PrepareStore, &message, Asked::Store { request: id, job, keys, epochs });
        request.state = State::Storing;
    }

    fn job(&mut self) -> u64 {
        self.next_job += 1;
        self.next_job - 1
    }

    fn pin_or_reset(&mut self, common: &mut Common) {
        let open = self
            .requests
            .iter()
            .find(|(_, request)| !matches!(request.state, State::Idle | State::Seen(..) | State::Asking));
        if let Some((id, request)) = open
            && common.rng.chance(20)
        {
            let (request, keys) = (*id, bytes_of(&request.keys));
            match common.rng.below(3) {
                0 => self.ask(Kind::Unpin, &Unpin { request, keys }, Asked::Other),
                _ => {
                    let ttl_ms = common.rng.below(4_000) as u32;
                    self.ask(Kind::Pin, &Pin { request, ttl_ms, keys }, Asked::Other);
                }
            }
        }
        if common.settings.disks.resets
            && common.rng.chance(3)
            && let Some(wire) = &mut self.wire
        {
            let sequence = wire.send_empty(Kind::Reset, FrameFlags::REQUEST);
            self.asked.insert(sequence, Asked::Reset);
            common.may_reset(self.namespace);
            common.counts.resets += 1;
        }
    }

    /// What is refused, and harms nobody else.
    fn misuse(&mut self, common: &mut Common) {
        if !common.rng.chance(common.settings.misuse_per_mille) {
            return;
        }
        common.count("broken rules");
        match common.rng.below(5) {
            0 => {
                // A slot that was not answered.
                let lease = self.requests.values().find_map(|request| match &request.state {
                    State::Answered(answered) if answered.lease > self.last_end => Some(answered.lease),
                    _ => None,
                });
                let Some(lease) = lease else { return };
                let job = self.job();
                let end = LeaseEnd { lease, job, load: numbers_to_bytes([9_999]), wait: Vec::new() };
                self.ask(Kind::EndStep, &EndStep { leases: vec![end], ..EndStep::default() }, Asked::Wrong);
            }
            1 => {
                let jobs = vec![CompletedJob { job: 1, ok: true }];
                self.ask(Kind::Complete, &Complete { jobs }, Asked::Wrong);
            }
            2 => {
                // What it has not seen: slots of any number, after any change. It is given them where that could be.
                let any = |rng: &mut Rng| if rng.chance(100) { rng.next() } else { rng.below(200) };
                let slots = (0..=common.rng.below(4)).map(|_| any(&mut common.rng) as u32).collect::<Vec<_>>();
                let mut slots = numbers_to_bytes(slots);
                if common.rng.chance(50) {
                    slots.push(0);
                }
                let message = Lease { request: 1, tiers: u32::MAX, seen: any(&mut common.rng), slots };
                self.ask(Kind::Lease, &message, Asked::Guess);
            }
            3 => {
                let message = PrepareStore { request: 1, job: 0, allow_partial: true, keys: Vec::new() };
                self.ask(Kind::PrepareStore, &message, Asked::Wrong);
            }
            _ if common.rng.chance(100) => {
                if let Some(wire) = &mut self.wire {
                    wire.send_noise(&mut common.rng);
                    self.asked.insert(0, Asked::Wrong);
                }
            }
            _ => {}
        }
    }

    fn end_step(&mut self, common: &mut Common) {
        // Events; now and then statistics, which are long.
        let kinds = if common.rng.chance(30) { 4 } else { 2 };
        let want = common.rng.below(kinds) as u32;
        let mut message = EndStep { want, ..EndStep::default() };
        let mut waiting = Vec::new();
        let Some(region) = self.open.as_ref().map(|open| std::sync::Arc::clone(&open.region)) else { return };
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            if !matches!(request.state, State::Answered(_)) {
                continue;
            }
            let State::Answered(answered) = std::mem::replace(&mut request.state, State::Idle) else { continue };
            // A step, or all of it, in between: it asks again.
            if answered.lease <= self.last_end && (answered.lease != 0 || !answered.hits.is_empty()) {
                request.since = None;
                continue;
            }
            if !answered.unresolved.is_empty() && answered.lease != 0 && common.rng.chance(850) {
                message.leases.push(wait(&answered));
                waiting.push((id, answered.lease));
                continue;
            }
            request.since = None;
            request.state = State::Computed(leading(&answered));
            let load: Vec<_> = answered.hits.into_iter().filter(|_| !common.rng.chance(100)).collect();
            if answered.lease != 0 && !load.is_empty() {
                let job = self.next_job;
                self.next_job += 1;
                let indices = numbers_to_bytes(load.iter().map(|(index, ..)| *index));
                message.leases.push(LeaseEnd { lease: answered.lease, job, load: indices, wait: Vec::new() });
                let blocks: Vec<(SlotId, Key)> = load.into_iter().map(|(_, slot, key)| (slot, key)).collect();
                self.begin(job, false, &region, &blocks);
            }
        }
        let completed: Vec<(u64, bool)> =
            self.own_done.drain(..).chain(self.given_up.drain(..).map(|job| (job, false))).collect();
        message.completed = completed.iter().map(|(job, ok)| CompletedJob { job: *job, ok: *ok }).collect();
        message.finished = std::mem::take(&mut self.finished);
        if let Some(request) = self.requests.values().next().filter(|_| common.rng.chance(200)) {
            message.touched = bytes_of(&request.keys);
        }
        if let Some(wire) = &mut self.wire {
            let sequence = wire.send(Kind::EndStep, FrameFlags::REQUEST, &message);
            self.asked.insert(sequence, Asked::End { waiting, sent: common.clock.now(), completed });
            self.last_end = sequence;
        }
    }
}

fn wait(answered: &Answered) -> LeaseEnd {
    let mut indices: Vec<u32> = answered.hits.iter().map(|(index, ..)| *index).collect();
    indices.extend(&answered.unresolved);
    indices.sort_unstable();
    LeaseEnd { lease: answered.lease, job: 0, load: Vec::new(), wait: numbers_to_bytes(indices) }
}

/// Hits from the first key on.
fn leading(answered: &Answered) -> usize {
    answered.hits.iter().zip(0..).take_while(|((index, ..), at)| index == at).count()
}
