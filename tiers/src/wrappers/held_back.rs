//! A tier whose jobs are held back before they reach it.

use std::time::Duration;

use terrace_primary::Key;

use super::backlog::{Backlog, Job};
use crate::clock::Time;
use crate::tier::{JobId, LoadJob, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup, TierStats};

/// Says when a job may be passed on.
pub trait Gate: Send {
    /// The time from which a job that arrives now may pass.
    fn opens_at(&self) -> Time;
    /// Now; `None`: nothing passes at the moment.
    fn now(&self) -> Option<Time>;
}

/// Passes jobs on to the inner tier when its gate lets them. Jobs that it keeps can be abandoned.
pub struct HeldBack<T, G> {
    inner: T,
    gate: G,
    backlog: Backlog,
}

impl<T: SecondaryTier, G: Gate> HeldBack<T, G> {
    /// `inner`, behind `gate`.
    pub(super) fn behind(gate: G, inner: T) -> Self {
        Self { inner, gate, backlog: Backlog::default() }
    }
}

impl<T: SecondaryTier, G: Gate> SecondaryTier for HeldBack<T, G> {
    fn descriptor(&self) -> &TierDescriptor {
        self.inner.descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        self.inner.lookup(keys, out);
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        self.backlog.accept(self.gate.opens_at(), Job::Store(job))
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        self.backlog.accept(self.gate.opens_at(), Job::Load(job))
    }

    fn abandon(&mut self, job: JobId) {
        if !self.backlog.abandon(job) {
            self.inner.abandon(job);
        }
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        if let Some(now) = self.gate.now() {
            self.backlog.pass_on(now, &mut self.inner);
        }
        self.backlog.poll(out);
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
        self.backlog.close();
        self.inner.shutdown(within);
    }

    fn stats(&self) -> TierStats {
        let inner = self.inner.stats();
        TierStats {
            in_flight: inner.in_flight + self.backlog.blocks(),
            refused: inner.refused + self.backlog.refused,
            expired: inner.expired + self.backlog.expired,
            ..inner
        }
    }
}
