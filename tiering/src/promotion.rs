//! Promotions: secondary to primary. Reserved by lookups, submitted once per step, landing block by block.
//!
//! One promotion per key however many requests wait: the key is in the block table (*writing*) from its reservation on.

use terrace_primary::{Key, SlotId};
use terrace_tiers::{Fault, JobId, LoadBlock, LoadJob, Refused, Time};

use crate::breaker::Verdict;
use crate::classify::Class;
use crate::lookup::Lookup;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;
use crate::tier_state::{LoadGroup, LoadRun, Tally};

impl TieringOffloadingManager {
    /// Makes room for `wanted` promotions, evicting all that has to go at once, and returns how many fit. What the request has
    /// found already (`run`) is not evicted for them.
    pub(crate) fn room_for_promotions(&mut self, wanted: usize, all_or_none: bool, run: &[Class]) -> usize {
        let share = self.promotion_room();
        let affordable = wanted.min(share);
        if affordable == 0 || (all_or_none && affordable < wanted) {
            return 0;
        }
        let free = self.primary.free() as usize;
        if affordable <= free {
            return affordable;
        }
        let mut protected = std::mem::take(&mut self.scratch.slots);
        protected.clear();
        for class in run {
            if let Class::Ready(slot) = class
                && self.primary.acquire(*slot)
            {
                protected.push(*slot);
            }
        }
        let mut room = affordable.min(free + self.primary.evictable() as usize);
        if all_or_none && room < wanted || !self.make_room(room) {
            room = 0;
        }
        for slot in protected.drain(..) {
            self.primary.release(slot);
        }
        self.scratch.slots = protected;
        room
    }

    /// Evicts what is missing to have `slots` free ones, all or nothing, and tells observers.
    pub(crate) fn make_room(&mut self, slots: usize) -> bool {
        let mut evicted = std::mem::take(&mut self.scratch.evicted);
        evicted.clear();
        let made = self.primary.make_room(slots as u32, &mut evicted);
        self.counts.evicted += evicted.len() as u64;
        for key in &evicted {
            self.events.removed_from_primary(*key);
        }
        self.scratch.evicted = evicted;
        made
    }

    /// Takes a slot for a block that lies in `tier`. There is room.
    pub(crate) fn reserve_promotion(&mut self, id: RequestId, key: &Key, tier: usize, now: Time) -> Lookup {
        let Some(slot) = self.primary.insert_writing(key) else {
            // The same key twice in one call; or one that no slot can hold.
            return if self.primary.find(key).is_some() { Lookup::Pending } else { Lookup::Miss };
        };
        self.promoting.insert(slot, ());
        let state = &mut self.tiers[tier];
        state.promotions.reserved += 1;
        state.queued.add(id, slot, now.plus(self.deadlines.promotion));
        if let Some(request) = self.requests.get_mut(&id) {
            request.summary.promotions = request.summary.promotions.saturating_add(1);
        }
        Lookup::Pending
    }

    /// Submits one load per request that waits for `tier`. If a few alone may go to find out how the tier is, nobody else waits for the results.
    pub(crate) fn submit_promotions(&mut self, tier: usize, now: Time) {
        while self.tiers[tier].queued.front().is_some() {
            if !self.tiers[tier].accepts(now) {
                if self.tiers[tier].breaker.is_probing() {
                    self.cancel_queued_promotions(tier);
                }
                return;
            }
            let Some(group) = self.tiers[tier].queued.pop_front() else { return };
            if !group.slots.is_empty() && !self.submit_group(tier, group, now) {
                return;
            }
        }
    }

    /// False: the tier takes no more for now.
    fn submit_group(&mut self, tier: usize, group: LoadGroup, now: Time) -> bool {
        let block = |slot: &SlotId| self.primary.key(*slot).map(|key| LoadBlock { key, slot: *slot });
        let blocks: Vec<LoadBlock> = group.slots.iter().filter_map(block).collect();
        let (owner, deadline, tally) = (group.owner, group.deadline, Tally::of(blocks.len()));
        let slots = blocks.iter().map(|block| Some(block.slot)).collect();
        let state = &mut self.tiers[tier];
        let id = state.next_job();
        let on_their_way = state.loads.values().map(|run| run.tally.left).sum::<u32>() + tally.left;
        // Before the call: if it panics, the tier may have begun to fill these slots.
        state.loads.insert(id, LoadRun { owner, deadline, since: now, on_their_way, slots, tally });
        match self.call_tier(tier, |tier| tier.submit_load(LoadJob { id: JobId(id), blocks, deadline })) {
            Some(Ok(())) => {
                let state = &mut self.tiers[tier];
                state.breaker.submitted(id);
                state.promotions.jobs += 1;
                true
            }
            Some(Err(refused)) => {
                let state = &mut self.tiers[tier];
                state.loads.remove(&id);
                state.promotions.jobs_refused += 1;
                state.queued.push_front(group);
                if refused == Refused::Closed {
                    state.closed = true;
                    self.give_up_queues(tier);
                }
                false
            }
            None => false,
        }
    }

    /// A tier is done with a block of a load.
    pub(crate) fn load_done(&mut self, tier: usize, job: u64, index: u32, outcome: Result<u32, Fault>, now: Time) {
        let state = &mut self.tiers[tier];
        if let Some(run) = state.loads.get_mut(&job) {
            let Some(slot) = run.slots.get_mut(index as usize).and_then(Option::take) else {
                state.protocol_faults += 1;
                return;
            };
            run.tally.count(&outcome);
            let (owner, deadline, tally) = (run.owner, run.deadline, run.tally);
            let began = (run.since, run.on_their_way);
            if tally.left == 0 {
                state.loads.remove(&job);
            }
            match outcome {
                Ok(crc32) => {
                    state.times.landed(deadline, self.deadlines.promotion, now);
                    self.land(tier, owner, slot, crc32, now);
                }
                Err(_) => self.promotion_failed(tier, slot, now),
            }
            if tally.left == 0 {
                self.load_ended(tier, job, began, tally.verdict(), now);
            }
        } else if let Some(run) = state.abandoned_loads.get_mut(&job) {
            let Some(slot) = run.slots.get_mut(index as usize).and_then(Option::take) else {
                state.protocol_faults += 1;
                return;
            };
            run.tally.count(&outcome);
            if run.tally.left == 0 {
                state.abandoned_loads.remove(&job);
            }
            // Whatever the outcome: the key is gone, and only now is the slot nobody's.
            self.primary.release_limbo(slot);
        } else if !self.scrub_done(tier, job, index, outcome) {
            self.tiers[tier].protocol_faults += 1;
        }
    }

    /// The bytes are there and verified.
    fn land(&mut self, tier: usize, owner: RequestId, slot: SlotId, crc32: u32, now: Time) {
        self.promoting.remove(&slot);
        self.primary.publish(slot);
        self.primary.set_crc32(slot, crc32);
        self.was_compared(slot, now);
        self.primary.set_origin(slot, tier as u8 + 1);
        self.tiers[tier].promotions.landed += 1;
        if let Some(key) = self.primary.key(slot) {
            self.events.stored_in_primary(key);
        }
        if self.requests.get(&owner).is_some_and(|request| request.unresolved) {
            self.hold(owner, slot, now);
        }
        self.backfill(tier, slot, now);
    }

    fn promotion_failed(&mut self, tier: usize, slot: SlotId, now: Time) {
        if let Some(key) = self.primary.key(slot) {
            self.suspects.add(key, tier, now);
        }
        self.tiers[tier].promotions.failed += 1;
        self.abort_promotion(slot);
    }

    fn abort_promotion(&mut self, slot: SlotId) {
        self.promoting.remove(&slot);
        self.primary.abort(slot);
    }

    /// A request is gone: what it reserved and nobody submitted is freed. Others that saw it pending find it anew.
    pub(crate) fn cancel_promotions(&mut self, id: RequestId) {
        for tier in 0..self.tiers.len() {
            for slot in self.tiers[tier].queued.cancel(id) {
                self.tiers[tier].promotions.cancelled += 1;
                self.abort_promotion(slot);
            }
        }
    }

    /// Frees everything that waits for `tier`.
    pub(crate) fn cancel_queued_promotions(&mut self, tier: usize) {
        while let Some(group) = self.tiers[tier].queued.pop_front() {
            self.tiers[tier].promotions.cancelled += group.slots.len() as u64;
            group.slots.into_iter().for_each(|slot| self.abort_promotion(slot));
        }
    }

    /// Ends the promotions from `tier` whose deadline has passed.
    pub(crate) fn expire_promotions(&mut self, tier: usize, now: Time) {
        while self.tiers[tier].queued.front().is_some_and(|group| group.deadline <= now) {
            let Some(group) = self.tiers[tier].queued.pop_front() else { break };
            self.tiers[tier].promotions.expired += group.slots.len() as u64;
            group.slots.into_iter().for_each(|slot| self.abort_promotion(slot));
        }
        // Jobs are numbered in the order of their deadlines.
        while let Some((job, run)) = self.tiers[tier].loads.first_key_value()
            && run.deadline <= now
        {
            let job = *job;
            self.tiers[tier].promotions.expired += self.abandon_load(tier, job, Some(now));
            self.job_ended(tier, job, Verdict::Bad, now);
        }
    }

    /// Gives a running load up: its keys are gone, its slots in limbo until the tier lets go of them. Returns how many blocks. `suspect`:
    /// the tier is to blame, and is not asked for these blocks again for a while.
    pub(crate) fn abandon_load(&mut self, tier: usize, job: u64, suspect: Option<Time>) -> u64 {
        let Some(run) = self.tiers[tier].loads.remove(&job) else { return 0 };
        for slot in run.undone() {
            if let (Some(now), Some(key)) = (suspect, self.primary.key(slot)) {
                self.suspects.add(key, tier, now);
            }
            self.promoting.remove(&slot);
            self.primary.detach(slot);
        }
        let blocks = u64::from(run.tally.left);
        self.tiers[tier].abandoned_loads.insert(job, run);
        self.call_tier(tier, |tier| tier.abandon(JobId(job)));
        blocks
    }
}
