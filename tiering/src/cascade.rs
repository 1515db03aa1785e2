//! Cascades: primary to every secondary.
//!
//! What waits for a tier holds its block weakly, as slot and generation. Only what a tier works on holds a reader, up to
//! `limits.cascade_share` of the primary per tier: a slow or hung tier cannot pin the primary.

use terrace_primary::{Key, SlotId};
use terrace_tiers::{Fault, JobId, Refused, StoreBlock, StoreJob, TierLookup, Time};

use crate::breaker::Verdict;
use crate::manager::TieringOffloadingManager;
use crate::tier_state::{StoreRun, Tally, WeakBlock};

/// Blocks in one store job, at most.
const BLOCKS_PER_JOB: usize = 256;

impl TieringOffloadingManager {
    /// Offers blocks that just became readable to every tier that does not hold them. `keys` and `slots` go together.
    pub(crate) fn cascade(&mut self, keys: &[Key], slots: &[SlotId], now: Time) {
        let mut answers = std::mem::take(&mut self.scratch.answers);
        for tier in 0..self.tiers.len() {
            answers.clear();
            if !self.tiers[tier].is_off() && !self.tiers[tier].breaker.is_open(now) {
                self.call_tier(tier, |tier| tier.lookup(keys, &mut answers));
            }
            self.tiers[tier].cascades.offered += slots.len() as u64;
            for (at, slot) in slots.iter().enumerate() {
                // A copy that failed to load is not a copy.
                if answers.get(at) == Some(&TierLookup::Found) && !self.suspects.contains(&keys[at], tier) {
                    self.tiers[tier].cascades.present += 1;
                } else {
                    self.queue_cascade(tier, *slot, now);
                }
            }
        }
        self.scratch.answers = answers;
    }

    /// Offers a block promoted from `from` to the faster tiers that it passed.
    pub(crate) fn backfill(&mut self, from: usize, slot: SlotId, now: Time) {
        for tier in 0..from {
            if self.tiers[tier].backfill {
                self.tiers[tier].cascades.offered += 1;
                self.queue_cascade(tier, slot, now);
            }
        }
    }

    fn queue_cascade(&mut self, tier: usize, slot: SlotId, now: Time) {
        let limit = self.limits.queued_cascades as usize;
        let generation = self.primary.generation(slot);
        let state = &mut self.tiers[tier];
        if state.is_off() || state.breaker.is_open(now) {
            state.cascades.dropped_off += 1;
            return;
        }
        if state.weak.len() >= limit {
            state.cascades.dropped_full += 1;
            if state.weak.pop_front().is_none() {
                return; // a limit of zero queues nothing
            }
        }
        state.weak.push_back(WeakBlock { slot, generation });
    }

    /// Submits what waits for `tier`, as far as its share goes.
    pub(crate) fn submit_cascades(&mut self, tier: usize, now: Time) {
        loop {
            let state = &mut self.tiers[tier];
            let room = self.shares.cascade.saturating_sub(state.cascade_readers) as usize;
            if state.weak.is_empty() || room == 0 || !state.accepts(now) {
                return;
            }
            let taken = self.take_cascades(tier, room.min(BLOCKS_PER_JOB));
            if !taken.is_empty() && !self.submit_store_job(tier, taken, now) {
                return;
            }
        }
    }

    /// Takes readers on the oldest waiting blocks that are still there.
    fn take_cascades(&mut self, tier: usize, limit: usize) -> Vec<StoreBlock> {
        let mut blocks = Vec::with_capacity(limit.min(self.tiers[tier].weak.len()));
        while blocks.len() < limit {
            let Some(WeakBlock { slot, generation }) = self.tiers[tier].weak.pop_front() else { break };
            match self.primary.key(slot) {
                Some(key) if self.primary.generation(slot) == generation && self.primary.acquire(slot) => {
                    blocks.push(StoreBlock { key, slot, crc32: self.primary.crc32(slot) });
                }
                _ => self.tiers[tier].cascades.dropped_evicted += 1,
            }
        }
        self.tiers[tier].cascade_readers += blocks.len() as u32;
        blocks
    }

    /// False: the tier takes no more for now.
    fn submit_store_job(&mut self, tier: usize, blocks: Vec<StoreBlock>, now: Time) -> bool {
        let deadline = now.plus(self.deadlines.cascade);
        let state = &mut self.tiers[tier];
        let id = state.next_job();
        let run_blocks = blocks.iter().map(|block| Some((block.key, block.slot))).collect();
        // Before the call, so that a panic in it is settled like one in any other.
        state.stores.insert(id, StoreRun { deadline, blocks: run_blocks, tally: Tally::of(blocks.len()) });
        match self.call_tier(tier, |tier| tier.submit_store(StoreJob { id: JobId(id), blocks, deadline })) {
            Some(Ok(())) => {
                let state = &mut self.tiers[tier];
                state.breaker.submitted(id);
                state.cascades.jobs += 1;
                true
            }
            Some(Err(refused)) => {
                self.tiers[tier].cascades.jobs_refused += 1;
                self.requeue(tier, id);
                if refused == Refused::Closed {
                    self.tiers[tier].closed = true;
                    self.give_up_queues(tier);
                }
                false
            }
            None => false,
        }
    }

    /// Puts the blocks of a refused job back where they were.
    fn requeue(&mut self, tier: usize, job: u64) {
        let Some(run) = self.tiers[tier].stores.remove(&job) else { return };
        for slot in run.blocks.iter().rev().filter_map(|block| block.map(|(_, slot)| slot)) {
            let generation = self.primary.generation(slot);
            self.tiers[tier].weak.push_front(WeakBlock { slot, generation });
            self.release_cascade(tier, slot);
        }
    }

    /// A tier is done with a block of a store.
    pub(crate) fn store_done(&mut self, tier: usize, job: u64, index: u32, outcome: Result<u32, Fault>, now: Time) {
        let state = &mut self.tiers[tier];
        let (run, is_running) = match state.stores.get_mut(&job) {
            Some(run) => (Some(run), true),
            None => (state.abandoned_stores.get_mut(&job), false),
        };
        let Some(run) = run else {
            state.protocol_faults += 1;
            return;
        };
        let Some((key, slot)) = run.blocks.get_mut(index as usize).and_then(Option::take) else {
            state.protocol_faults += 1;
            return;
        };
        run.tally.count(&outcome);
        let (deadline, tally) = (run.deadline, run.tally);
        if tally.left == 0 {
            if is_running {
                state.stores.remove(&job)
            } else {
                state.abandoned_stores.remove(&job)
            };
        }
        match outcome {
            // Also for a job that was given up: the block was stored before the tier heard of it.
            Ok(crc32) => {
                state.cascades.stored += 1;
                self.events.stored_in(&state.descriptor, key);
                self.suspects.clear(&key, tier);
                if is_running {
                    state.times.stored(deadline, self.deadlines.cascade, now);
                    self.primary.set_crc32(slot, crc32);
                }
            }
            Err(_) if is_running => state.cascades.failed += 1,
            Err(_) => {}
        }
        if is_running {
            self.release_cascade(tier, slot);
            if tally.left == 0 {
                self.job_ended(tier, job, tally.verdict(), now);
            }
        }
    }

    fn release_cascade(&mut self, tier: usize, slot: SlotId) {
        self.tiers[tier].cascade_readers -= 1;
        self.primary.release(slot);
    }

    /// Ends the cascades to `tier` whose deadline has passed.
    pub(crate) fn expire_cascades(&mut self, tier: usize, now: Time) {
        while let Some((job, run)) = self.tiers[tier].stores.first_key_value()
            && run.deadline <= now
        {
            let job = *job;
            self.tiers[tier].cascades.expired += self.abandon_store(tier, job);
            self.job_ended(tier, job, Verdict::Bad, now);
        }
    }

    /// Gives a running store up and lets go of its blocks at once. Returns how many.
    pub(crate) fn abandon_store(&mut self, tier: usize, job: u64) -> u64 {
        // First the promise of the tier that the block will not become readable, then the slots may change.
        self.call_tier(tier, |tier| tier.abandon(JobId(job)));
        let Some(run) = self.tiers[tier].stores.remove(&job) else { return 0 };
        for slot in run.undone() {
            self.release_cascade(tier, slot);
        }
        let blocks = u64::from(run.tally.left);
        self.tiers[tier].abandoned_stores.insert(job, run);
        blocks
    }

    /// Drops everything that waits for `tier`.
    pub(crate) fn drop_queued_cascades(&mut self, tier: usize) -> u64 {
        let dropped = self.tiers[tier].weak.len() as u64;
        self.tiers[tier].weak.clear();
        dropped
    }
}
