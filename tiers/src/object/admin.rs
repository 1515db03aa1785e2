//! What operators do with a bucket: look into it, check it, clean it up. For `terrace object`, and for tests.
//!
//! Works on the bucket alone, beside running nodes or without any. Whoever reads a bucket that others change sees a mixture of
//! moments; `fsck` asks a second time before it calls anything lost. All calls block, and none has state that outlives it but
//! the budgets of the configuration.
mod collect;
mod deep;
mod erase;
mod fsck;
mod listing;
mod problems;
mod rebuild;
mod stat;
#[cfg(test)]
mod tests;
mod view;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use terrace_config::ObjectConfig;
use terrace_primary::Region;
use tokio::runtime::Runtime;

pub use self::collect::Collected;
pub use self::erase::Contents;
pub use self::fsck::Checked;
pub use self::problems::{MAX_PROBLEMS, Problem};
pub use self::rebuild::Rebuilt;
pub use self::stat::{NamespaceStat, SegmentLine};
use super::counters::Counters;
use super::id::WriterId;
use super::names::Names;
use super::record::Shape;
use super::requests::{RequestError, Requests};
use super::shared::Shared;
use super::store_open::open_store;
use super::wall::{SystemWallClock, WallClock};
use crate::clock::{Clock, SystemClock};
use crate::error::TierError;

/// One request, its retries included: an operator waits longer than an engine.
const REQUEST: Duration = Duration::from_secs(60);

/// Why a command could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The configuration does not make a store.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// No runtime, no threads.
    #[error("no runtime can be started")]
    Runtime(#[source] io::Error),
    /// The store does not answer, or refuses.
    #[error("the store failed: {0}")]
    Request(#[from] RequestError),
    /// What is in the bucket has no head that tells the size of blocks and keys.
    #[error("nothing in the namespace tells the size of its blocks: none of its objects is sound")]
    Shapeless,
    /// A round of the collector ended early; what it did until then is done.
    #[error("the round ended early: {0}")]
    Unfinished(String),
    /// Records were not written to the log in time.
    #[error("the log could not be written: {0} records were, the rest was not")]
    NotPublished(u64),
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, for people.
    pub step: &'static str,
    /// How many of it are done.
    pub done: u64,
    /// How many there are, if that is known.
    pub total: Option<u64>,
}

/// Is told how far a call is, on the thread that called.
pub type Tell<'a> = &'a mut dyn FnMut(Progress);

/// The bucket of one tier of a configuration.
pub struct Admin {
    tier: String,
    config: ObjectConfig,
    prefix: Path,
    clock: Arc<dyn Clock>,
    wall: Arc<dyn WallClock>,
    counters: Arc<Counters>,
    requests: Requests,
    runtime: Runtime,
}

impl Admin {
    /// The bucket that the configuration of the tier `tier` names. Reads files of the configuration; sends no request.
    ///
    /// # Errors
    /// [`AdminError::Tier`], [`AdminError::Runtime`].
    pub fn open(tier: &str, config: &ObjectConfig) -> Result<Self, AdminError> {
        let (store, prefix) = open_store(tier, config)?;
        Self::over(tier, config, store, prefix)
    }

    fn over(tier: &str, config: &ObjectConfig, store: Arc<dyn ObjectStore>, prefix: Path) -> Result<Self, AdminError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Runtime)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let wall: Arc<dyn WallClock> = Arc::new(SystemWallClock);
        let counters = Arc::<Counters>::default();
        let (own, day) = (Arc::clone(&clock), Arc::clone(&wall));
        let requests = Requests::new(store, config, own, day, Arc::clone(&counters), random("jitter"));
        Ok(Self { tier: tier.to_owned(), config: config.clone(), prefix, clock, wall, counters, requests, runtime })
    }

    /// Digests of the namespaces that have anything in the bucket, in order.
    ///
    /// # Errors
    /// [`AdminError::Request`].
    pub fn namespaces(&self) -> Result<Vec<[u8; 32]>, AdminError> {
        let deadline = self.clock.now().plus(REQUEST);
        let found = self.runtime.block_on(self.requests.list_dirs(&self.prefix, deadline))?;
        Ok(found.iter().filter_map(|path| Names::parse_namespace(path.parts().next_back()?.as_ref())).collect())
    }

    /// The live segments, in the order in which they were written.
    ///
    /// # Errors
    /// [`AdminError::Request`], [`AdminError::Shapeless`].
    pub fn list(&self, namespace: [u8; 32], tell: Tell<'_>) -> Result<Vec<SegmentLine>, AdminError> {
        self.of(namespace, async |shared| stat::list(&shared, tell).await)
    }

    /// How much there is.
    ///
    /// # Errors
    /// [`AdminError::Request`], [`AdminError::Shapeless`].
    pub fn stat(&self, namespace: [u8; 32], tell: Tell<'_>) -> Result<NamespaceStat, AdminError> {
        self.of(namespace, async |shared| stat::stat(&shared, tell).await)
    }

    /// One round of the collector, whoever holds its lease: evicts what is more than the capacity and older than `max_age`, deletes
    /// orphans and what nobody reads any more, writes a snapshot. What it evicts is taken out of the log first; the objects go
    /// with a later round. `apply`: do it; else only say what would be done, and write nothing.
    ///
    /// # Errors
    /// [`AdminError::Request`], [`AdminError::Shapeless`], [`AdminError::Unfinished`].
    pub fn collect(&self, namespace: [u8; 32], apply: bool, tell: Tell<'_>) -> Result<Collected, AdminError> {
        self.of(namespace, async |shared| collect::collect(shared, random_writer(), apply, tell).await)
    }

    /// Whether everything fits together: every object decodes, every live segment is there with the index that the log has of it.
    /// `deep`: every block is read and its bytes are checked too. Writes nothing.
    ///
    /// # Errors
    /// [`AdminError::Request`], [`AdminError::Shapeless`].
    pub fn fsck(&self, namespace: [u8; 32], deep: bool, tell: Tell<'_>) -> Result<Checked, AdminError> {
        self.of(namespace, async |shared| fsck::fsck(&shared, deep, tell).await)
    }

    /// Names again in the log the segments that no log names, and that nobody removed: after a log was lost. Reads the index at the end of
    /// each. `apply`: do it; else only say what would be done, and write nothing.
    ///
    /// # Errors
    /// [`AdminError::Request`], [`AdminError::Shapeless`], [`AdminError::NotPublished`].
    pub fn rebuild_index(&self, namespace: [u8; 32], apply: bool, tell: Tell<'_>) -> Result<Rebuilt, AdminError> {
        self.of(namespace, async |shared| rebuild::rebuild(shared, random_writer(), apply, tell).await)
    }

    /// Runs `work` on a namespace. The answer of one in which there is nothing is the default.
    fn of<T: Default, F: Future<Output = Result<T, AdminError>>>(
        &self,
        namespace: [u8; 32],
        work: impl FnOnce(Arc<Shared>) -> F,
    ) -> Result<T, AdminError> {
        self.runtime.block_on(async {
            let names = Names::new(self.prefix.as_ref(), &namespace);
            let deadline = self.clock.now().plus(REQUEST);
            match listing::find_shape(&self.requests, &names, &namespace, deadline).await? {
                listing::FoundShape::Empty => Ok(T::default()),
                listing::FoundShape::Unknown => Err(AdminError::Shapeless),
                listing::FoundShape::Is(shape) => work(Arc::new(self.shared(names, shape))).await,
            }
        })
    }

    fn shared(&self, names: Names, shape: Shape) -> Shared {
        Shared {
            config: self.config.clone(),
            tier: self.tier.clone(),
            node: "terrace object".to_owned(),
            shape,
            names,
            label: None,
            one_thread: false,
            // No block goes to a slot here.
            region: Region::null(1, shape.block_bytes, shape.block_bytes),
            clock: Arc::clone(&self.clock),
            wall: Arc::clone(&self.wall),
            requests: self.requests.clone(),
            counters: Arc::clone(&self.counters),
        }
    }
}

/// A name for what this call writes: no other has it.
fn random_writer() -> WriterId {
    WriterId(random("writer"))
}

#[allow(clippy::disallowed_methods, reason = "a name that no process has; nothing is simulated here")]
fn random(of: &str) -> u64 {
    RandomState::new().hash_one(of)
}
