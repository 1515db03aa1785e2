//! Invariants, for tests: every reader and every slot in use is accounted for by somebody who will let go of it.

use terrace_primary::{BlockState, SlotId};

use crate::manager::TieringOffloadingManager;
use crate::tier_state::{LoadRun, StoreRun, TierState};

impl TieringOffloadingManager {
    /// Checks that each reader belongs to a load, a hold, a pin or a running cascade, each *writing* slot to a store or a promotion, each
    /// slot in limbo to an abandoned load or the scrubber; and that shares are kept. So with no request open and nothing in flight there is no reader, no
    /// *writing* slot, no job, and no limbo but that of tiers that panicked. Looks at every slot.
    pub fn check(&self) -> Result<(), String> {
        self.primary.check()?;
        let readers = self.expected_readers();
        for slot in (0..self.blocks).map(SlotId) {
            let expected = readers[slot.index()];
            match self.primary.state(slot) {
                BlockState::Ready { readers } if readers != expected => {
                    return Err(format!("{slot:?} has {readers} readers, {expected} are accounted for"));
                }
                BlockState::Ready { .. } => {}
                state if expected > 0 => return Err(format!("{slot:?} is {state:?} and has {expected} readers")),
                _ => {}
            }
        }
        self.check_writing()?;
        self.check_holds()?;
        self.check_shares()
    }

    fn expected_readers(&self) -> Vec<u32> {
        let mut readers = vec![0; self.blocks as usize];
        let loads = self.loading.iter().flat_map(|(slot, count)| std::iter::repeat_n(slot, count as usize));
        let holds = self.requests.values().flat_map(|request| request.holds.iter().copied());
        let cascades = self.tiers.iter().flat_map(|tier| tier.stores.values().flat_map(StoreRun::undone));
        for slot in loads.chain(holds).chain(cascades).chain(self.pins.slots()) {
            readers[slot.index()] += 1;
        }
        readers
    }

    fn check_writing(&self) -> Result<(), String> {
        let promoting = |tier: &TierState| {
            tier.queued.slots().chain(tier.loads.values().flat_map(LoadRun::undone)).collect::<Vec<_>>()
        };
        let mut promotions: Vec<SlotId> = self.tiers.iter().flat_map(promoting).collect();
        promotions.sort_unstable();
        let mut known: Vec<SlotId> = self.promoting.keys().copied().collect();
        known.sort_unstable();
        let queued: u64 = self.tiers.iter().map(|tier| tier.queued.blocks).sum();
        if queued != self.tiers.iter().flat_map(|tier| tier.queued.slots()).count() as u64 {
            return Err(format!("{queued} promotions counted in queues, others are there"));
        }
        if promotions != known {
            return Err(format!("slots being promoted: {promotions:?} in queues and jobs, {known:?} counted"));
        }
        if let Some(slot) = known.iter().find(|slot| self.primary.state(**slot) != BlockState::Writing) {
            return Err(format!("{slot:?} is being promoted and {:?}", self.primary.state(*slot)));
        }
        let writing = self.primary.writing();
        if writing as usize != self.storing as usize + known.len() {
            return Err(format!("{writing} slots writing: {} stored, {} promoted", self.storing, known.len()));
        }
        let owed = |tier: &TierState| tier.abandoned_loads.values().map(|run| run.tally.left).sum::<u32>();
        let limbo = self.tiers.iter().map(owed).sum::<u32>() + self.scrub.slots() + self.lost;
        if limbo != self.primary.limbo() {
            return Err(format!("{} slots in limbo, {limbo} accounted for", self.primary.limbo()));
        }
        Ok(())
    }

    fn check_holds(&self) -> Result<(), String> {
        let held: u64 = self.requests.values().map(|request| request.holds.len() as u64).sum();
        if held != self.holds.total() {
            return Err(format!("{held} holds in requests, {} counted", self.holds.total()));
        }
        for (id, request) in &self.requests {
            if request.holds.is_empty() != request.hold_entry.is_none() {
                return Err(format!("{id:?} has {} holds, deadline {:?}", request.holds.len(), request.hold_entry));
            }
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<(), String> {
        let promotion = self.promotion_use();
        if promotion > self.shares.promotion as usize {
            return Err(format!("promotions, holds and limbo take {promotion} slots of {}", self.shares.promotion));
        }
        if self.pins.len() > self.shares.pin as usize {
            return Err(format!("{} pins of {}", self.pins.len(), self.shares.pin));
        }
        for tier in &self.tiers {
            let undone = tier.stores.values().flat_map(StoreRun::undone).count();
            if undone != tier.cascade_readers as usize || tier.cascade_readers > self.shares.cascade {
                let counted = tier.cascade_readers;
                return Err(format!("{undone} blocks cascade, {counted} counted of {}", self.shares.cascade));
            }
            if tier.weak.len() > self.limits.queued_cascades as usize {
                return Err(format!("{} cascades queued of {}", tier.weak.len(), self.limits.queued_cascades));
            }
        }
        Ok(())
    }
}
