//! The real NVMe tier, shared with the checker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_primary::Key;
use terrace_tiers::{
    JobId, LoadJob, NvmeTier, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup, TierStats,
};

/// A tier that the manager drives and the checker looks into between two calls.
#[derive(Clone)]
pub(crate) struct SharedTier {
    tier: Arc<Mutex<NvmeTier>>,
    descriptor: TierDescriptor,
}

impl SharedTier {
    pub(crate) fn new(tier: NvmeTier) -> Self {
        Self { descriptor: tier.descriptor().clone(), tier: Arc::new(Mutex::new(tier)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NvmeTier> {
        self.tier.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.lock().submit_store(job)
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.lock().submit_load(job)
    }

    fn abandon(&mut self, job: JobId) {
        self.lock().abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        self.lock().poll(out);
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
