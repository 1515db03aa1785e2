//! A tier whose calls are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrace_primary::Key;

use crate::tier::{JobId, LoadJob, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup, TierStats};

/// Calls since start, and what they carried. Readable while the tier is in use.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// `lookup` calls.
    pub lookups: AtomicU64,
    /// Keys looked up.
    pub keys: AtomicU64,
    /// Accepted store jobs.
    pub store_jobs: AtomicU64,
    /// Blocks of accepted store jobs.
    pub store_blocks: AtomicU64,
    /// Accepted load jobs.
    pub load_jobs: AtomicU64,
    /// Blocks of accepted load jobs.
    pub load_blocks: AtomicU64,
    /// `abandon` calls.
    pub abandons: AtomicU64,
    /// `poll` calls.
    pub polls: AtomicU64,
}

/// Counts every call and passes it on.
pub struct Counted<T> {
    inner: T,
    counts: Arc<CallCounts>,
}

impl<T: SecondaryTier> Counted<T> {
    /// `inner`, counted.
    pub fn new(inner: T) -> Self {
        Self { inner, counts: Arc::default() }
    }

    /// The counters, to keep while the tier is in use.
    pub fn counts(&self) -> Arc<CallCounts> {
        Arc::clone(&self.counts)
    }
}

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

impl<T: SecondaryTier> SecondaryTier for Counted<T> {
    fn descriptor(&self) -> &TierDescriptor {
        self.inner.descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        add(&self.counts.lookups, 1);
        add(&self.counts.keys, keys.len());
        self.inner.lookup(keys, out);
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        let blocks = job.blocks.len();
        self.inner.submit_store(job)?;
        add(&self.counts.store_jobs, 1);
        add(&self.counts.store_blocks, blocks);
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        let blocks = job.blocks.len();
        self.inner.submit_load(job)?;
        add(&self.counts.load_jobs, 1);
        add(&self.counts.load_blocks, blocks);
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        add(&self.counts.abandons, 1);
        self.inner.abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        add(&self.counts.polls, 1);
        self.inner.poll(out);
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        self.inner.next_to_scrub()
    }

    fn set_limit(&mut self, bytes: u64) {
        self.inner.set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        self.inner.touch(keys);
    }

    fn shutdown(&mut self, within: Duration) {
        self.inner.shutdown(within);
    }

    fn stats(&self) -> TierStats {
        self.inner.stats()
    }
}
