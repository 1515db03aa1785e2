//! The real NVMe tier, shared with the checker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_primary::Key;
use terrace_tiers::{
    Clock, JobId, LoadJob, ManualClock, NvmeTier, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent,
    TierLookup, TierStats,
};

use crate::held::Held;

/// A tier that the manager drives and the checker looks into between two calls.
#[derive(Clone)]
pub(crate) struct SharedTier {
    tier: Arc<Mutex<NvmeTier>>,
    held: Arc<Mutex<Held>>,
    clock: ManualClock,
    descriptor: TierDescriptor,
}

impl SharedTier {
    pub(crate) fn new(tier: NvmeTier, clock: ManualClock) -> Self {
        let descriptor = tier.descriptor().clone();
        Self { tier: Arc::new(Mutex::new(tier)), held: Arc::default(), clock, descriptor }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NvmeTier> {
        self.tier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds of the primary.
    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecondaryTier for SharedTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        self.lock().lookup(keys, out);
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        let (id, blocks) = (job.id, job.blocks.len());
        self.lock().submit_store(job)?;
        self.held().store(id, blocks, self.clock.now());
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        let (id, blocks) = (job.id, job.blocks.len());
        self.lock().submit_load(job)?;
        self.held().load(id, blocks, self.clock.now());
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        self.held().give_up(job);
        self.lock().abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        let before = out.len();
        self.lock().poll(out);
        out.iter().skip(before).for_each(|event| self.held().settle(event));
    }

    fn touch(&mut self, keys: &[Key]) {
        self.lock().touch(keys);
    }

    fn shutdown(&mut self, within: Duration) {
        self.lock().shutdown(within);
    }

    fn stats(&self) -> TierStats {
        self.lock().stats()
    }
}
