//! What the manager keeps of each tier: its jobs, its queues, its health. No call into a tier but through [`TierState::call`].

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use terrace_config::BreakerConfig;
use terrace_primary::{Key, SlotId};
use terrace_tiers::{Fault, Locality, Medium, SecondaryTier, TierDescriptor, TierLookup, Time};

use crate::breaker::{Breaker, Verdict};
use crate::id_map::IdMap;
use crate::metrics::TierTimes;
use crate::pace::Pace;
use crate::request::RequestId;
use crate::stats::{CascadeCounts, LookupCounts, PromotionCounts, ScrubCounts, TierReport};

/// Jobs that were abandoned and not acknowledged; beyond, the tier gets no more work until it lets go of some.
const MAX_ABANDONED_JOBS: usize = 64;

pub(crate) struct TierState {
    tier: Option<Box<dyn SecondaryTier>>,
    pub descriptor: TierDescriptor,
    pub backfill: bool,
    pub breaker: Breaker,
    /// Of its loads.
    pub pace: Pace,
    /// Times that it was switched off because it hung, and because it was slow.
    pub hung: u64,
    pub slow: u64,
    /// A call panicked: the tier is never called again.
    pub panicked: bool,
    /// The tier refused work as closed, or was shut down.
    pub closed: bool,
    /// Since when it has answered nothing but `Unknown`.
    pub unknown_since: Option<Time>,
    pub unknown_expired: u64,
    pub keys: LookupCounts,
    pub times: TierTimes,
    pub protocol_faults: u64,

    /// Promotions that wait to be submitted, one group a request, oldest first.
    pub queued: LoadQueue,
    pub loads: BTreeMap<u64, LoadRun>,
    /// Their slots are in limbo.
    pub abandoned_loads: BTreeMap<u64, LoadRun>,
    pub promotions: PromotionCounts,
    pub scrubs: ScrubCounts,

    /// Cascades that wait, oldest first; they hold no reader.
    pub weak: VecDeque<WeakBlock>,
    pub stores: BTreeMap<u64, StoreRun>,
    /// They hold no reader.
    pub abandoned_stores: BTreeMap<u64, StoreRun>,
    /// Readers that `stores` hold.
    pub cascade_readers: u32,
    pub cascades: CascadeCounts,

    next_job: u64,
}

/// A block that may be evicted before its turn: the slot holds it only while the generation is the same.
#[derive(Clone, Copy)]
pub(crate) struct WeakBlock {
    pub slot: SlotId,
    pub generation: u32,
}

/// A promotion under way.
pub(crate) struct LoadRun {
    /// For whom the blocks are held when they land.
    pub owner: RequestId,
    pub deadline: Time,
    pub since: Time,
    /// Blocks that were on their way from the tier when it began, its own included.
    pub on_their_way: u32,
    /// `None`: done.
    pub slots: Vec<Option<SlotId>>,
    pub tally: Tally,
}

/// A cascade under way.
pub(crate) struct StoreRun {
    pub deadline: Time,
    /// `None`: done.
    pub blocks: Vec<Option<(Key, SlotId)>>,
    pub tally: Tally,
}

/// How a job's blocks ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub left: u32,
    good: u32,
    sick: u32,
}

impl Tally {
    pub fn of(blocks: usize) -> Self {
        Self { left: blocks as u32, good: 0, sick: 0 }
    }

    pub fn count(&mut self, outcome: &Result<u32, Fault>) {
        self.left -= 1;
        match outcome {
            Ok(_) => self.good += 1,
            Err(fault) if fault.is_sickness() => self.sick += 1,
            Err(_) => {}
        }
    }

    /// A job failed when the device failed for more of its blocks than it served: single bad blocks in long jobs are no outage.
    pub fn verdict(&self) -> Verdict {
        match (self.sick, self.good) {
            (0, 0) => Verdict::Neutral,
            (sick, good) if sick > good => Verdict::Bad,
            _ => Verdict::Good,
        }
    }
}

impl LoadRun {
    pub fn undone(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.slots.iter().filter_map(|slot| *slot)
    }
}

impl StoreRun {
    pub fn undone(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.blocks.iter().filter_map(|block| block.map(|(_, slot)| slot))
    }
}

/// Blocks that one request wants from one tier.
pub(crate) struct LoadGroup {
    pub owner: RequestId,
    /// Counted from the first reservation.
    pub deadline: Time,
    pub slots: Vec<SlotId>,
}

/// Groups in the order of their first reservation, findable by request.
#[derive(Default)]
pub(crate) struct LoadQueue {
    groups: VecDeque<LoadGroup>,
    /// Number of the group at the front.
    first: u64,
    by_request: IdMap<RequestId, u64>,
    pub blocks: u64,
}

impl LoadQueue {
    pub fn add(&mut self, owner: RequestId, slot: SlotId, deadline: Time) {
        self.blocks += 1;
        let known = self.by_request.get(&owner).and_then(|number| self.groups.get_mut((number - self.first) as usize));
        match known {
            Some(group) => group.slots.push(slot),
            None => {
                self.by_request.insert(owner, self.first + self.groups.len() as u64);
                self.groups.push_back(LoadGroup { owner, deadline, slots: vec![slot] });
            }
        }
    }

    pub fn front(&self) -> Option<&LoadGroup> {
        self.groups.front()
    }

    pub fn pop_front(&mut self) -> Option<LoadGroup> {
        let group = self.groups.pop_front()?;
        // A cancelled group is no longer its request's.
        if self.by_request.get(&group.owner) == Some(&self.first) {
            self.by_request.remove(&group.owner);
        }
        self.first += 1;
        self.blocks -= group.slots.len() as u64;
        Some(group)
    }

    /// Puts back what was just popped.
    pub fn push_front(&mut self, group: LoadGroup) {
        self.first -= 1;
        self.blocks += group.slots.len() as u64;
        self.by_request.insert(group.owner, self.first);
        self.groups.push_front(group);
    }

    /// Takes a request's blocks out; its group stays behind empty and goes when its turn comes.
    pub fn cancel(&mut self, owner: RequestId) -> Vec<SlotId> {
        let number = self.by_request.remove(&owner);
        let group = number.and_then(|number| self.groups.get_mut((number - self.first) as usize));
        let slots = group.map(|group| std::mem::take(&mut group.slots)).unwrap_or_default();
        self.blocks -= slots.len() as u64;
        slots
    }

    pub fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.groups.iter().flat_map(|group| group.slots.iter().copied())
    }
}

impl TierState {
    pub fn new(tier: Box<dyn SecondaryTier>, backfill: bool, breaker: &BreakerConfig) -> Self {
        let described = catch_unwind(AssertUnwindSafe(|| tier.descriptor().clone()));
        let panicked = described.is_err();
        if panicked {
            tracing::error!("a tier panicked when it was asked for its name: it is closed for good");
        }
        let unnamed = |_| TierDescriptor { name: "?".into(), medium: Medium::Storage, locality: Locality::Local };
        let descriptor = described.unwrap_or_else(unnamed);
        let times = TierTimes::new(&descriptor.name);
        Self {
            tier: Some(tier),
            descriptor,
            backfill,
            breaker: Breaker::new(breaker),
            pace: Pace::new(breaker),
            hung: 0,
            slow: 0,
            panicked,
            closed: false,
            unknown_since: None,
            unknown_expired: 0,
            keys: LookupCounts::default(),
            times,
            protocol_faults: 0,
            queued: LoadQueue::default(),
            loads: BTreeMap::new(),
            abandoned_loads: BTreeMap::new(),
            promotions: PromotionCounts::default(),
            scrubs: ScrubCounts::default(),
            weak: VecDeque::new(),
            stores: BTreeMap::new(),
            abandoned_stores: BTreeMap::new(),
            cascade_readers: 0,
            cascades: CascadeCounts::default(),
            next_job: 1,
        }
    }

    /// Calls into the tier. `None`: it panicked, now or before; who sees that first has to bury it
    /// ([`crate::TieringOffloadingManager::bury`]).
    pub fn call<R>(&mut self, f: impl FnOnce(&mut dyn SecondaryTier) -> R) -> Option<R> {
        if self.panicked {
            return None;
        }
        let tier = self.tier.as_deref_mut()?;
        // Unwind safe: after a panic the tier is never looked at again.
        match catch_unwind(AssertUnwindSafe(|| f(tier))) {
            Ok(result) => Some(result),
            Err(_) => {
                tracing::error!(tier = self.descriptor.name, "a call into the tier panicked: it is closed for good");
                self.panicked = true;
                None
            }
        }
    }

    /// Whether jobs and lookups may go to it now.
    pub fn accepts(&mut self, now: Time) -> bool {
        !self.is_off()
            && self.abandoned_loads.len() + self.abandoned_stores.len() < MAX_ABANDONED_JOBS
            && self.breaker.allows(now)
    }

    /// A tier may take its time to know what it holds, but not for ever: once it has answered nothing but `Unknown` for longer than
    /// `patience`, that counts as absent, so that slower tiers win and requests do not each wait it out.
    pub fn is_unknown_allowed(&mut self, answers: &[TierLookup], now: Time, patience: Duration) -> bool {
        if answers.iter().any(|answer| *answer != TierLookup::Unknown) {
            self.unknown_since = None;
            return true;
        }
        let since = *self.unknown_since.get_or_insert(now);
        let allowed = now < since.plus(patience);
        self.unknown_expired += u64::from(!allowed);
        allowed
    }

    /// Whether it is off for good.
    pub fn is_off(&self) -> bool {
        self.panicked || self.closed
    }

    pub fn next_job(&mut self) -> u64 {
        let job = self.next_job;
        self.next_job += 1;
        job
    }

    /// With `hits`, which the manager counts.
    pub fn report(&self, hits: u64) -> TierReport {
        let tier = self.tier.as_deref().filter(|_| !self.panicked);
        let stats = tier.and_then(|tier| catch_unwind(AssertUnwindSafe(|| tier.stats())).ok());
        let running = |runs: &BTreeMap<u64, LoadRun>| runs.values().map(|run| u64::from(run.tally.left)).sum();
        let abandoned = self.abandoned_stores.values().map(|run| u64::from(run.tally.left)).sum();
        TierReport {
            breaker_opened: self.breaker.opened,
            hung: self.hung,
            slow: self.slow,
            panicked: self.panicked,
            protocol_faults: self.protocol_faults,
            unknown_expired: self.unknown_expired,
            hits,
            keys: self.keys,
            promotions: PromotionCounts {
                queued: self.queued.blocks,
                running: running(&self.loads),
                abandoned: running(&self.abandoned_loads),
                ..self.promotions
            },
            cascades: CascadeCounts {
                queued: self.weak.len() as u64,
                running: u64::from(self.cascade_readers),
                abandoned,
                ..self.cascades
            },
            scrubs: self.scrubs,
            ..TierReport::new(&self.descriptor, stats.unwrap_or_default(), self.breaker.state())
        }
    }
}

impl Drop for TierState {
    fn drop(&mut self) {
        let tier = self.tier.take();
        if catch_unwind(AssertUnwindSafe(|| drop(tier))).is_err() {
            tracing::error!(tier = self.descriptor.name, "the tier panicked while it was dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut LoadQueue) -> Vec<(u64, Vec<u32>)> {
        std::iter::from_fn(|| queue.pop_front())
            .map(|group| (group.owner.0, group.slots.iter().map(|slot| slot.0).collect()))
            .collect()
    }

    #[test]
    fn one_group_a_request_whatever_the_order() {
        let mut queue = LoadQueue::default();
        for (owner, slot) in [(1, 0), (2, 1), (1, 2), (3, 3), (2, 4)] {
            queue.add(RequestId(owner), SlotId(slot), Time(0));
        }
        let first = queue.pop_front().expect("a group");
        queue.push_front(first);
        queue.add(RequestId(1), SlotId(5), Time(0));
        assert_eq!(queue.cancel(RequestId(2)), [SlotId(1), SlotId(4)]);
        queue.add(RequestId(2), SlotId(6), Time(0));
        assert_eq!(queue.blocks, 5);
        assert_eq!(drain(&mut queue), [(1, vec![0, 2, 5]), (2, vec![]), (3, vec![3]), (2, vec![6])]);
        assert_eq!((queue.blocks, queue.by_request.len()), (0, 0));
    }
}
