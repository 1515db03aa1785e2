//! The scrubber: reads what lies cold in a tier at a configured pace, so that a copy that went bad is found before it is needed.
//!
//! A scrub is a load whose bytes nobody wants: the tier checks them as it checks every load, and quarantines what does not check out. It
//! goes into a slot without a key, which is in limbo for as long, and never stands before a promotion. One block at a time over all tiers.

use terrace_config::{Config, TierKind};
use terrace_primary::SlotId;
use terrace_tiers::{Fault, JobId, LoadBlock, LoadJob, Time};

use crate::breaker::BreakerState;
use crate::manager::TieringOffloadingManager;

/// A primary of fewer usable slots lends none.
const FEWEST_SLOTS: u32 = 256;
/// Blocks of a tier that are passed over at once because the primary holds them too.
const MOST_SKIPPED: usize = 8;
/// What was not read in time is not made up for beyond this.
const ARREARS_NANOS: u64 = 1_000_000_000;

/// The scrubber's state.
pub(crate) struct Scrub {
    paces: Vec<Pace>,
    running: Option<Running>,
    /// The tier that is asked first.
    turn: usize,
}

/// How fast a tier is read.
#[derive(Clone, Copy)]
struct Pace {
    /// From one block to the next; 0: never.
    nanos: u64,
    due: Time,
}

struct Running {
    tier: usize,
    job: u64,
    slot: SlotId,
    deadline: Time,
    is_abandoned: bool,
}

impl Scrub {
    pub fn new(config: &Config, tiers: usize, now: Time) -> Self {
        let block = u128::from(config.geometry.block_bytes) * 1_000_000_000;
        let pace = |index: usize| match config.tiers.get(index).map(|tier| &tier.kind) {
            Some(TierKind::Nvme(nvme)) if nvme.scrub_bytes_per_second > 0 => {
                let nanos = block / u128::from(nvme.scrub_bytes_per_second);
                Pace { nanos: u64::try_from(nanos).unwrap_or(u64::MAX).max(1), due: now }
            }
            _ => Pace { nanos: 0, due: now },
        };
        Self { paces: (0..tiers).map(pace).collect(), running: None, turn: 0 }
    }

    /// Slots in limbo for it.
    pub fn slots(&self) -> u32 {
        u32::from(self.running.is_some())
    }

    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether steps bring its end nearer.
    pub fn is_waited_for(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.is_abandoned)
    }

    /// The job that runs in this tier.
    pub fn job_in(&self, tier: usize) -> Option<u64> {
        self.running.as_ref().filter(|running| running.tier == tier).map(|running| running.job)
    }

    /// The running job, if it is this one.
    fn take(&mut self, tier: usize, job: u64) -> Option<Running> {
        self.running.take_if(|running| running.tier == tier && running.job == job)
    }
}

impl TieringOffloadingManager {
    /// Gives up what runs too long, and starts the next block that is due.
    pub(crate) fn scrub_step(&mut self, now: Time) {
        if let Some(running) = &mut self.scrub.running {
            if now >= running.deadline && !running.is_abandoned {
                running.is_abandoned = true;
                let (tier, job) = (running.tier, running.job);
                self.call_tier(tier, |tier| tier.abandon(JobId(job)));
            }
            return;
        }
        if self.resetting || self.primary.usable() < FEWEST_SLOTS {
            return;
        }
        let (tiers, turn) = (self.tiers.len(), self.scrub.turn);
        for tier in (0..tiers).map(|step| (turn + step) % tiers) {
            if self.is_scrub_due(tier, now) && self.scrub_next(tier, now) {
                self.scrub.turn = (tier + 1) % tiers;
                return;
            }
        }
    }

    /// Whether the pace asks for a block, and nobody else wants anything of the tier.
    fn is_scrub_due(&mut self, tier: usize, now: Time) -> bool {
        let (Some(pace), state) = (self.scrub.paces.get(tier), &mut self.tiers[tier]) else { return false };
        pace.nanos > 0
            && now >= pace.due
            && state.loads.is_empty()
            && state.queued.blocks == 0
            && state.breaker.state() == BreakerState::Closed
            && state.accepts(now)
    }

    /// Starts one block. False: this tier has none, or there is no slot for it.
    fn scrub_next(&mut self, tier: usize, now: Time) -> bool {
        if let Some(pace) = self.scrub.paces.get_mut(tier) {
            let earliest = Time(now.0.saturating_sub(ARREARS_NANOS));
            pace.due = Time(pace.due.max(earliest).0.saturating_add(pace.nanos));
        }
        for _ in 0..MOST_SKIPPED {
            let Some(key) = self.call_tier(tier, |tier| tier.next_to_scrub()).flatten() else { return false };
            if self.primary.find(&key).is_some() {
                continue;
            }
            let slot = if self.make_room(1) { self.primary.insert_writing(&key) } else { None };
            let Some(slot) = slot else { return false };
            // Without a key: who looks the block up meanwhile gets a promotion of its own.
            self.primary.detach(slot);
            let job = self.tiers[tier].next_job();
            let deadline = now.plus(self.deadlines.promotion);
            let blocks = vec![LoadBlock { key, slot }];
            self.scrub.running = Some(Running { tier, job, slot, deadline, is_abandoned: false });
            let answer = self.call_tier(tier, |tier| tier.submit_load(LoadJob { id: JobId(job), blocks, deadline }));
            if let Some(Err(_)) = answer
                && let Some(refused) = self.scrub.take(tier, job)
            {
                self.primary.release_limbo(refused.slot);
            }
            // After a panic `bury` has settled it.
            return self.scrub.is_running();
        }
        false
    }

    /// A load ended that is nobody's. False: it is not the scrubber's either.
    pub(crate) fn scrub_done(&mut self, tier: usize, job: u64, index: u32, outcome: Result<u32, Fault>) -> bool {
        if index != 0 {
            return false;
        }
        let Some(running) = self.scrub.take(tier, job) else { return false };
        self.primary.release_limbo(running.slot);
        let state = &mut self.tiers[tier];
        match outcome {
            Ok(_) => state.scrubs.sound += 1,
            Err(Fault::Corrupt) => {
                state.scrubs.corrupt += 1;
                tracing::warn!(
                    tier = state.descriptor.name,
                    "the scrubber found a copy that went bad: it is quarantined"
                );
            }
            // Evicted meanwhile, or the device is ill: promotions tell the breaker of that.
            Err(_) => state.scrubs.unread += 1,
        }
        true
    }

    /// The tier will never answer: slots that are lost.
    pub(crate) fn bury_scrub(&mut self, tier: usize) -> u32 {
        u32::from(self.scrub.running.take_if(|running| running.tier == tier).is_some())
    }
}
