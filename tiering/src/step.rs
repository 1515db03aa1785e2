//! Steps: results are collected once per step, and work is submitted at its end.

use terrace_tiers::{TierEvent, Time};

use crate::breaker::Verdict;
use crate::manager::TieringOffloadingManager;
use crate::pace::Speed;
use crate::tier_state::{LoadRun, StoreRun};

impl TieringOffloadingManager {
    /// Collects what the tiers have finished, unless this step has done so already. The first lookup of a step does it by itself.
    pub fn poll_once(&mut self) {
        if !self.polled && !self.closed {
            self.polled = true;
            self.poll_tiers();
        }
    }

    /// Ends the step: polls if no lookup did, ends what is past its deadline, submits one load per (tier, request) and then the
    /// cascades that have room. Waits for nothing.
    pub fn end_step(&mut self) {
        if self.closed {
            return;
        }
        let start = self.now();
        self.poll_once();
        let now = self.now();
        self.expire(now);
        for tier in 0..self.tiers.len() {
            self.submit_promotions(tier, now);
        }
        for tier in 0..self.tiers.len() {
            self.submit_cascades(tier, now);
        }
        self.scrub_step(now);
        self.polled = false;
        self.step += 1;
        self.times.step.record(self.now().since(start));
    }

    /// Whether tiers owe something that the engine should keep stepping for: promotions and cascades, queued or running, and a block that
    /// is being scrubbed. What was abandoned is not waited for.
    pub fn has_pending_work(&self) -> bool {
        !self.promoting.is_empty()
            || self.scrub.is_waited_for()
            || self.tiers.iter().any(|tier| !tier.weak.is_empty() || !tier.stores.is_empty())
    }

    /// Blocks whose cascades are queued or running, in all tiers.
    pub fn cascade_backlog(&self) -> usize {
        self.tiers.iter().map(|tier| tier.weak.len() + tier.cascade_readers as usize).sum()
    }

    pub(crate) fn poll_tiers(&mut self) {
        let now = self.now();
        let mut events = std::mem::take(&mut self.scratch.events);
        for tier in 0..self.tiers.len() {
            events.clear();
            self.call_tier(tier, |tier| tier.poll(&mut events));
            let state = &mut self.tiers[tier];
            let answered = events.iter().any(|event| matches!(event, TierEvent::LoadDone { .. }));
            let hangs = state.pace.polled(now, answered, !state.loads.is_empty());
            // After a panic too, what was reported before it is true; but its jobs are settled by then.
            for event in events.drain(..) {
                if !self.tiers[tier].panicked {
                    self.tier_event(tier, event, now);
                }
            }
            if hangs && !self.tiers[tier].panicked {
                self.hangs(tier, now);
            }
        }
        self.scratch.events = events;
    }

    fn tier_event(&mut self, tier: usize, event: TierEvent, now: Time) {
        match event {
            TierEvent::StoreDone { job, index, outcome } => self.store_done(tier, job.0, index, outcome, now),
            TierEvent::LoadDone { job, index, outcome } => self.load_done(tier, job.0, index, outcome, now),
            TierEvent::Removed { key } => self.events.removed_from(&self.tiers[tier].descriptor, key),
        }
    }

    /// Ends everything whose time is over.
    fn expire(&mut self, now: Time) {
        for tier in 0..self.tiers.len() {
            self.expire_promotions(tier, now);
            self.expire_cascades(tier, now);
        }
        self.expire_holds(now);
        self.expire_pins(now);
        self.suspects.expire(now);
    }

    /// Tells the breaker how a job ended; if that opens it, nothing more waits for the tier.
    pub(crate) fn job_ended(&mut self, tier: usize, job: u64, verdict: Verdict, now: Time) {
        let state = &mut self.tiers[tier];
        if state.breaker.ended(job, verdict, now) {
            tracing::warn!(tier = state.descriptor.name, "the tier failed repeatedly: it is switched off for a while");
            self.give_up_queues(tier);
        }
    }

    /// A load that the device served has ended. One that took far too long is as good as a failure if it was to find out how the tier is.
    pub(crate) fn load_ended(&mut self, tier: usize, job: u64, run: (Time, u32), verdict: Verdict, now: Time) {
        let state = &mut self.tiers[tier];
        let (since, on_their_way) = run;
        let speed = if verdict == Verdict::Good { state.pace.ended(since, on_their_way, now) } else { Speed::Usual };
        if speed == Speed::SlowForLong || speed == Speed::Slow && state.breaker.is_probe(job) {
            if state.breaker.trip(now) {
                state.slow += 1;
                tracing::warn!(
                    tier = state.descriptor.name,
                    "loads take {} times as long as they used to, the last one of {on_their_way} blocks on their way {:?}: the tier is switched off for a while",
                    state.pace.slow_factor(),
                    now.since(since),
                );
            }
            self.give_up_jobs(tier, now);
        } else {
            self.job_ended(tier, job, verdict, now);
        }
    }

    /// A tier that answers nothing while it loads.
    fn hangs(&mut self, tier: usize, now: Time) {
        let state = &mut self.tiers[tier];
        if state.breaker.trip(now) {
            state.hung += 1;
            let oldest = state.loads.first_key_value();
            let (job, run) = oldest.map_or((0, None), |(job, run)| (*job, Some(run)));
            tracing::warn!(
                tier = state.descriptor.name,
                "the tier has answered nothing for {:?}, while {} loads and {} stores run. The oldest load, job {job} for request {}, waits for {} blocks since {:?}. \
                 The tier is switched off for a while",
                state.pace.silent_for(),
                state.loads.len(),
                state.stores.len(),
                run.map_or(0, |run| run.owner.0),
                run.map_or(0, |run| run.tally.left),
                run.map_or_else(Default::default, |run| now.since(run.since)),
            );
        }
        self.give_up_jobs(tier, now);
    }

    /// Gives up what a tier that was switched off works on: requests stop waiting for it, and the primary gets its readers back.
    fn give_up_jobs(&mut self, tier: usize, now: Time) {
        self.tiers[tier].pace.forget_trouble();
        while let Some(job) = self.tiers[tier].loads.first_key_value().map(|(job, _)| *job) {
            self.tiers[tier].promotions.expired += self.abandon_load(tier, job, None);
            self.job_ended(tier, job, Verdict::Withdrawn, now);
        }
        while let Some(job) = self.tiers[tier].stores.first_key_value().map(|(job, _)| *job) {
            self.tiers[tier].cascades.expired += self.abandon_store(tier, job);
            self.job_ended(tier, job, Verdict::Withdrawn, now);
        }
        self.give_up_queues(tier);
    }

    /// Frees and drops what waits for a tier that takes no more.
    pub(crate) fn give_up_queues(&mut self, tier: usize) {
        self.cancel_queued_promotions(tier);
        let dropped = self.drop_queued_cascades(tier);
        self.tiers[tier].cascades.dropped_off += dropped;
    }

    /// Settles what a tier leaves behind that will never be called again: readers are released, queues dropped, and slots that it may
    /// still be filling are lost.
    pub(crate) fn bury(&mut self, tier: usize) {
        self.give_up_queues(tier);
        let state = &mut self.tiers[tier];
        let loads = std::mem::take(&mut state.loads);
        let abandoned_loads = std::mem::take(&mut state.abandoned_loads);
        let stores = std::mem::take(&mut state.stores);
        state.abandoned_stores.clear();
        state.cascade_readers = 0;
        let undone: u64 = loads.values().map(|run| u64::from(run.tally.left)).sum();
        state.promotions.cancelled += undone;
        let undone: u64 = stores.values().map(|run| u64::from(run.tally.left)).sum();
        state.cascades.failed += undone;
        for slot in stores.values().flat_map(StoreRun::undone) {
            self.primary.release(slot);
        }
        for slot in loads.values().flat_map(LoadRun::undone) {
            self.promoting.remove(&slot);
            self.primary.detach(slot);
            self.lost += 1;
        }
        self.lost += abandoned_loads.values().map(|run| run.tally.left).sum::<u32>();
        self.lost += self.bury_scrub(tier);
    }
}
