//! Reset, drain and shutdown.

use terrace_primary::{BlockState, SlotId};
use terrace_tiers::JobId;

use crate::breaker::Verdict;
use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;

impl TieringOffloadingManager {
    /// Empties the primary; secondaries keep their data. Promotions and cascades are given up, holds and pins end, and every block
    /// that no engine transfer uses is gone when this returns. The others go as their transfers complete (a store that completes is not
    /// published); until then everything is a miss and nothing is stored. Waits for nothing.
    pub fn reset(&mut self) -> Result<(), TieringError> {
        self.check_open()?;
        let now = self.now();
        for tier in 0..self.tiers.len() {
            self.cancel_queued_promotions(tier);
            let dropped = self.drop_queued_cascades(tier);
            self.tiers[tier].cascades.dropped_reset += dropped;
            while let Some(job) = self.tiers[tier].loads.first_key_value().map(|(job, _)| *job) {
                let blocks = self.abandon_load(tier, job, None);
                self.tiers[tier].promotions.cancelled += blocks;
                self.job_ended(tier, job, Verdict::Withdrawn, now);
            }
            while let Some(job) = self.tiers[tier].stores.first_key_value().map(|(job, _)| *job) {
                let blocks = self.abandon_store(tier, job);
                self.tiers[tier].cascades.dropped_reset += blocks;
                self.job_ended(tier, job, Verdict::Withdrawn, now);
            }
        }
        let open: Vec<_> = self.requests.keys().copied().collect();
        for id in open {
            self.release_holds(id);
            if let Some(request) = self.requests.get_mut(&id) {
                request.waiting_since = None;
                request.unresolved = false;
            }
        }
        self.drop_pins();
        self.events.cleared();
        for slot in (0..self.blocks).map(SlotId) {
            if self.primary.state(slot) == (BlockState::Ready { readers: 0 }) {
                self.primary.remove(slot);
            }
        }
        self.resetting = true;
        self.continue_reset();
        Ok(())
    }

    /// The reset is over when the last transfer has let go of the last block.
    pub(crate) fn continue_reset(&mut self) {
        self.resetting &= self.primary.resident() > 0;
    }

    /// Goes on with what is in flight without waiting: true when tiers owe nothing any more, queued cascades included. Slots that an
    /// abandoned load may still write to count as in flight, unless their tier panicked: with a tier that hangs for ever it is never true,
    /// so give up after `deadlines.drain`. Ends a step each time.
    pub fn drain(&mut self) -> bool {
        self.polled = false;
        self.end_step();
        !self.has_pending_work()
            && !self.scrub.is_running()
            && self.tiers.iter().all(|tier| tier.abandoned_loads.is_empty() && tier.abandoned_stores.is_empty())
    }

    /// Stops: what is queued is dropped, the tiers finish or fail what is in flight within `deadlines.drain` together. The one call that
    /// waits. To keep queued cascades, `drain` first. Engine transfers may still be completed; every other call is refused.
    pub fn shutdown(&mut self) {
        if self.closed {
            return;
        }
        self.poll_tiers();
        let until = self.now().plus(self.deadlines.drain);
        for tier in 0..self.tiers.len() {
            self.cancel_queued_promotions(tier);
            let dropped = self.drop_queued_cascades(tier);
            self.tiers[tier].cascades.dropped_reset += dropped;
            // Nobody will load what is on its way; the time is for what is being stored.
            let scrub = self.scrub.job_in(tier);
            let loads: Vec<u64> = self.tiers[tier].loads.keys().copied().chain(scrub).collect();
            for job in loads {
                self.call_tier(tier, |tier| tier.abandon(JobId(job)));
            }
            let within = until.since(self.now());
            self.call_tier(tier, |tier| tier.shutdown(within));
        }
        self.poll_tiers();
        for tier in 0..self.tiers.len() {
            // What a tier still owes now will never come.
            self.tiers[tier].closed = true;
            self.bury(tier);
        }
        let open: Vec<_> = self.requests.keys().copied().collect();
        open.into_iter().for_each(|id| {
            self.finish_request(id);
        });
        self.drop_pins();
        self.closed = true;
    }
}
