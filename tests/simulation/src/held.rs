//! What a tier holds of the primary: counted from the calls that pass, whatever the manager believes.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_config::Config;
use terrace_tiers::{JobId, TierEvent, Time};

use crate::failure::Reason;

/// Blocks of one job whose end the tier has not told.
#[derive(Clone, Copy, Debug)]
struct Job {
    blocks: u64,
    since: Time,
    is_store: bool,
    given_up: bool,
}

/// The jobs that a tier works on.
#[derive(Debug, Default)]
pub(crate) struct Held(BTreeMap<JobId, Job>);

impl Held {
    /// The tier took a store: each block has a reader until the tier is done with it or the store is given up.
    pub(crate) fn store(&mut self, id: JobId, blocks: usize, since: Time) {
        self.0.insert(id, Job { blocks: blocks as u64, since, is_store: true, given_up: false });
    }

    /// The tier took a load: each block has a slot until the tier is done with it.
    pub(crate) fn load(&mut self, id: JobId, blocks: usize, since: Time) {
        self.0.insert(id, Job { blocks: blocks as u64, since, is_store: false, given_up: false });
    }

    /// A store that was given up holds nothing. A load does, since the device may still write, but nobody waits for it.
    pub(crate) fn give_up(&mut self, id: JobId) {
        if let Some(job) = self.0.get_mut(&id) {
            job.given_up = true;
        }
    }

    /// The tier told something.
    pub(crate) fn settle(&mut self, event: &TierEvent) {
        let (TierEvent::StoreDone { job: id, .. } | TierEvent::LoadDone { job: id, .. }) = event else { return };
        if let Some(job) = self.0.get_mut(id) {
            job.blocks = job.blocks.saturating_sub(1);
            if job.blocks == 0 {
                self.0.remove(id);
            }
        }
    }

    /// What the tier holds is within the configured shares, and none of it past its deadline.
    pub(crate) fn check(&self, config: &Config, now: Time) -> Result<(), Reason> {
        let share = |share: f64| ((share * f64::from(config.primary.blocks)) as u64).max(1);
        let (stored, loaded) = (self.stored_slots(), self.loaded_slots());
        if stored > share(config.limits.cascade_share) || loaded > share(config.limits.promotion_share) {
            let blocks = config.primary.blocks;
            return Err(Reason::Pinned(format!("{stored} slots by stores, {loaded} by loads, of {blocks}")));
        }
        let late = self.overdue(now, config.deadlines.cascade, config.deadlines.promotion);
        late.map_or(Ok(()), |late| Err(Reason::Pinned(late)))
    }

    /// Slots that cannot be evicted because of its stores.
    fn stored_slots(&self) -> u64 {
        self.0.values().filter(|job| job.is_store && !job.given_up).map(|job| job.blocks).sum()
    }

    /// Slots that nobody can have because of its loads.
    fn loaded_slots(&self) -> u64 {
        self.0.values().filter(|job| !job.is_store).map(|job| job.blocks).sum()
    }

    /// A job that is as old as its deadline and was not given up.
    fn overdue(&self, now: Time, stores: Duration, loads: Duration) -> Option<String> {
        let is_late = |job: &Job| now.since(job.since) >= if job.is_store { stores } else { loads };
        let (id, job) = self.0.iter().find(|(_, job)| !job.given_up && is_late(job))?;
        let kind = if job.is_store { "store" } else { "load" };
        Some(format!("{kind} {} has {} blocks since {:?}", id.0, job.blocks, now.since(job.since)))
    }
}
