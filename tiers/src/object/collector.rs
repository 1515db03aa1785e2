//! One node at a time compacts the log and removes what is old, too much or nobody's.
//!
//! Which one, the [`lease`](super::lease) says; all of it is harmless when two do it. A removal is told to all nodes first and carried
//! out a while later ([`garbage`]). Snapshots are made of what is folded here, each on the one before ([`compaction`], [`parts`]).
//! Ages of objects are taken by the store's own clock: against the newest time that it gave.
mod cleanup;
mod compaction;
mod eviction;
mod garbage;
mod parts;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::ObjectMeta;
use object_store::path::Path;
use terrace_config::Collector;
use tokio::sync::Notify;

use super::folder::{FolderHandle, SharedLogState};
use super::id::SegmentId;
use super::lease::Lease;
use super::lease::keeper::{Right, keep};
use super::publisher::PublisherHandle;
use super::requests::RequestError;
use super::shared::Shared;
use crate::clock::Time;

/// Segments or objects that are removed at a time: after each the right to do so is asked for again.
const BATCH: usize = 1_000;
/// Objects in a page of a listing. A store whose listings cannot begin behind a name gives all of them for every page.
const PAGE: usize = 20_000;
/// One request, its retries included.
const REQUEST: Duration = Duration::from_secs(30);
/// Shortest time between two rounds, and how often is looked whether there is anything to do.
const ROUND: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(5);

/// The way to the collector.
#[derive(Clone)]
pub(crate) struct CollectorHandle {
    full: Arc<Notify>,
}

impl CollectorHandle {
    /// A store found no room: if this node collects, it makes some.
    pub fn full(&self) {
        self.full.notify_one();
    }
}

/// The collector: a way to it, and the task, which never ends.
pub(crate) fn collector(
    shared: Arc<Shared>,
    state: SharedLogState,
    folder: FolderHandle,
    publisher: PublisherHandle,
) -> (CollectorHandle, impl Future<Output = ()> + Send + 'static) {
    let full = Arc::<Notify>::default();
    let handle = CollectorHandle { full: Arc::clone(&full) };
    let task = async move {
        let lease = Arc::new(Mutex::new(Lease::new(shared.config.lease)));
        let right = match shared.config.collector {
            Collector::Always => Right::Always,
            // Where names are not created conditionally nobody can take a lease. The probe has said so.
            Collector::Auto if shared.requests.abilities().conditional_create => Right::Lease(Arc::clone(&lease)),
            Collector::Auto | Collector::Never => return std::future::pending().await,
        };
        let with_lease = matches!(right, Right::Lease(_));
        shared.counters.is_collector.set(u64::from(!with_lease));
        let collecting = Collecting::new(Arc::clone(&shared), state.clone(), folder, publisher, right);
        let work = collecting.run(full);
        if with_lease {
            // On one task: a round that waits does not keep the lease from being renewed.
            tokio::join!(keep(&shared, &state, &lease), work);
        } else {
            work.await;
        }
    };
    (handle, task)
}

/// Why a round ended early. The next one begins anew.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// Another node collects now.
    #[error("the collector's lease has passed on")]
    NoRight,
    /// What is known here is not enough, or no longer true.
    #[error("the log is not known to its end, or another node was faster")]
    Stale,
    /// A removal could not be told to the others.
    #[error("a removal could not be published")]
    Unpublished,
    /// There are more segments than a snapshot takes.
    #[error("a snapshot would be larger than the format allows")]
    TooLarge,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] RequestError),
}

/// What was done, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Segments removed for room, and their bytes.
    pub evicted: u64,
    pub evicted_bytes: u64,
    /// Segments removed because of their age, and their bytes.
    pub aged: u64,
    pub aged_bytes: u64,
    /// Objects of segments that were removed a while ago.
    pub removed: u64,
    /// Segments that no log names, and their bytes.
    pub orphans: u64,
    pub orphan_bytes: u64,
    /// Live segments that were not there.
    pub lost: u64,
    pub deleted_logs: u64,
    pub deleted_parts: u64,
    /// Manifests and what probes left.
    pub deleted_others: u64,
    /// The snapshot that was written.
    pub snapshot: Option<u64>,
    /// Deletions that failed.
    pub failures: u64,
}

/// A collector at work.
pub(crate) struct Collecting {
    shared: Arc<Shared>,
    state: SharedLogState,
    folder: FolderHandle,
    publisher: PublisherHandle,
    right: Right,
    /// Whether this node has written a snapshot since it may collect.
    fenced: bool,
    swept: Option<Time>,
    cleaned: Option<Time>,
    /// Removed segments whose objects are known to be gone.
    deleted: HashSet<SegmentId>,
    /// Newest time that the store gave, in its milliseconds.
    store_ms: i64,
    /// Whether the last listing came to its end.
    last_page: bool,
    done: Collected,
}

/// When something was begun, by both clocks.
#[derive(Clone, Copy)]
struct Began(Time, u64);

impl Collecting {
    /// With a folder and a publisher that run.
    pub fn new(
        shared: Arc<Shared>,
        state: SharedLogState,
        folder: FolderHandle,
        publisher: PublisherHandle,
        right: Right,
    ) -> Self {
        let (deleted, done) = (HashSet::new(), Collected::default());
        let (fenced, swept, cleaned) = (false, None, None);
        let (store_ms, last_page) = (0, true);
        Self { shared, state, folder, publisher, right, fenced, swept, cleaned, deleted, store_ms, last_page, done }
    }

    /// One round of everything, for an operator: the right to it is not asked for. `apply` false: nothing is written or deleted.
    pub async fn once(&mut self, apply: bool) -> Result<Collected, Trouble> {
        self.done = Collected::default();
        if !self.folder.read_anew().await {
            return Err(Trouble::Stale);
        }
        self.evict(false, apply).await?;
        self.delete_removed(apply).await?;
        self.sweep(apply).await?;
        if apply {
            self.done.snapshot = self.compact(false).await?;
        }
        self.clean(apply).await?;
        Ok(self.done)
    }

    async fn run(mut self, full: Arc<Notify>) {
        loop {
            tokio::time::sleep(ROUND).await;
            if !self.right.holds(&self.shared) || self.state.lock().complete.is_none() {
                self.fenced = false;
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if let Err(trouble) = self.hold(&full).await {
                tracing::debug!(tier = %self.shared.tier, %trouble, "collecting stopped; it begins anew");
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Collects until something goes wrong, or the right ends.
    async fn hold(&mut self, full: &Notify) -> Result<(), Trouble> {
        // The first snapshot of a new holder, even of nothing new, keeps one that was stopped in the middle of its own from finishing it
        // under that number.
        self.compact(!self.fenced).await?;
        self.fenced = true;
        let config = self.shared.config.clone();
        let sweep_every = config.orphan_age / 4;
        let clean_every = (config.log_retention / 6).max(config.compaction_interval);
        let mut compacted = self.now();
        let mut pressed = false;
        loop {
            self.check_right()?;
            self.evict(pressed, true).await?;
            self.delete_removed(true).await?;
            if self.now().since(compacted) >= config.compaction_interval {
                compacted = self.now();
                self.compact(false).await?;
                if self.is_due(self.swept, sweep_every) {
                    match self.sweep(true).await {
                        Ok(()) => self.swept = Some(self.now()),
                        // Something of the log is missing still: the rest goes on meanwhile.
                        Err(Trouble::Stale) => {}
                        Err(trouble) => return Err(trouble),
                    }
                }
                if self.is_due(self.cleaned, clean_every) {
                    self.clean(true).await?;
                    self.cleaned = Some(self.now());
                }
            }
            pressed = tokio::time::timeout(LOOK, full.notified()).await.is_ok();
            tokio::time::sleep(ROUND).await;
        }
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Whether something that was last done then is to be done again. At once if never: a node that never collects for long must come to
    /// it too.
    fn is_due(&self, last: Option<Time>, every: Duration) -> bool {
        last.is_none_or(|last| self.now().since(last) >= every)
    }

    fn deadline(&self) -> Time {
        self.now().plus(REQUEST)
    }

    fn began(&self) -> Began {
        Began(self.now(), self.shared.wall.now_ms())
    }

    /// Whether what was begun then may be finished: others may have taken what was stopped for long for given up.
    fn is_fresh(&self, Began(time, wall_ms): Began) -> bool {
        let took = self.now().since(time).max(Duration::from_millis(self.shared.wall.now_ms().saturating_sub(wall_ms)));
        took < self.shared.config.orphan_age / 4
    }

    fn check_right(&self) -> Result<(), Trouble> {
        if self.right.holds(&self.shared) { Ok(()) } else { Err(Trouble::NoRight) }
    }

    /// The next objects below a prefix; notes their times, and whether they are the last.
    async fn page(&mut self, prefix: &Path, after: Option<&Path>) -> Result<Vec<ObjectMeta>, Trouble> {
        let page = self.shared.requests.list(prefix, after, PAGE, self.deadline()).await?;
        let newest = page.iter().map(|object| object.last_modified.timestamp_millis()).max();
        self.store_ms = self.store_ms.max(newest.unwrap_or(0));
        self.last_page = page.len() < PAGE;
        Ok(page)
    }

    /// Lists what was written last: terms of the lease.
    async fn look_at_the_clock(&mut self) -> Result<(), Trouble> {
        let prefix = self.shared.names.leases().clone();
        self.page(&prefix, None).await?;
        let prefix = self.shared.names.snapshots().clone();
        self.page(&prefix, None).await.map(drop)
    }

    /// Whether an object is older than that, by the store's clock, as far as it was seen.
    fn is_older(&self, object: &ObjectMeta, age: Duration) -> bool {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        object.last_modified.timestamp_millis().saturating_add(age) < self.store_ms
    }

    /// Deletes objects, [`BATCH`] at most. Answers how many are gone.
    async fn delete(&mut self, paths: Vec<Path>) -> u64 {
        if paths.is_empty() {
            return 0;
        }
        let outcomes = self.shared.requests.delete(paths, self.deadline()).await;
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        self.done.failures += failed as u64;
        (outcomes.len() - failed) as u64
    }
}
