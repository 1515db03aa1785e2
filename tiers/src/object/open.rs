//! Opening the tier: from the configuration, or over a given store.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use terrace_config::{Geometry, ObjectConfig};
use terrace_primary::Region;

use super::counters::Counters;
use super::engine::Engine;
use super::host::{Host, OtherHalf, Thread};
use super::id::WriterId;
use super::names::Names;
use super::record::Shape;
use super::requests::Requests;
use super::shared::Shared;
use super::store_open::open_store;
use super::tier::ObjectTier;
use super::wall::WallClock;
use crate::clock::Clock;
use crate::error::TierError;

/// What an object tier is built from.
pub struct ObjectOptions<'a> {
    /// Where, how much, how fast.
    pub config: &'a ObjectConfig,
    /// Name in logs, statistics and events.
    pub name: String,
    /// Digest of the namespace of its blocks.
    pub namespace: [u8; 32],
    /// Shape of a block.
    pub geometry: Geometry,
    /// Where the blocks' bytes are and go.
    pub region: Arc<Region>,
    /// Deadlines.
    pub clock: Arc<dyn Clock>,
    /// Stamps.
    pub wall: Arc<dyn WallClock>,
}

/// What a tier has beyond its options.
#[derive(Default)]
pub(crate) struct Extras {
    /// The namespace in words.
    pub label: Option<Arc<str>>,
    /// See [`Shared::one_thread`].
    pub one_thread: bool,
}

impl ObjectTier {
    /// A tier in the store that the configuration names. Reads files of the configuration and starts a thread; the store is asked by
    /// that thread, and may come later: until it does, lookups are misses. Fails where the tier could not work at all.
    pub fn open(options: ObjectOptions<'_>) -> Result<Self, TierError> {
        Self::open_with(options, Extras::default())
    }

    /// The same, with what only some namespaces have.
    #[allow(clippy::disallowed_methods, reason = "where chance comes from; `with_store` is given it")]
    pub(crate) fn open_with(options: ObjectOptions<'_>, extras: Extras) -> Result<Self, TierError> {
        let (store, prefix) = open_store(&options.name, options.config)?;
        // A name for this life of the tier: random, so that no two are alike.
        let state = RandomState::new();
        let (writer, seed) = (WriterId(state.hash_one("writer")), state.hash_one("jitter"));
        Self::over(options, extras, store, &prefix, writer, seed, Thread::start)
    }

    /// A tier in `store`, below `prefix`. `writer` is new in the whole cluster; `seed` spreads pauses.
    pub fn with_store(
        options: ObjectOptions<'_>,
        store: Arc<dyn ObjectStore>,
        prefix: &Path,
        writer: WriterId,
        seed: u64,
    ) -> Result<Self, TierError> {
        Self::over(options, Extras::default(), store, prefix, writer, seed, Thread::start)
    }

    /// The same without a thread: `host` is given the half that talks to the store, and runs it. All of that half is on the host's
    /// thread, so that equal seeds, clocks and answers of the store lead to equal requests.
    ///
    /// # Errors
    /// As of [`Self::with_store`].
    pub fn with_host(
        options: ObjectOptions<'_>,
        store: Arc<dyn ObjectStore>,
        prefix: &Path,
        writer: WriterId,
        seed: u64,
        host: impl FnOnce(OtherHalf) -> Box<dyn Host>,
    ) -> Result<Self, TierError> {
        let extras = Extras { one_thread: true, ..Extras::default() };
        Self::over(options, extras, store, prefix, writer, seed, |half| Ok(host(half)))
    }

    fn over(
        options: ObjectOptions<'_>,
        extras: Extras,
        store: Arc<dyn ObjectStore>,
        prefix: &Path,
        writer: WriterId,
        seed: u64,
        host: impl FnOnce(OtherHalf) -> Result<Box<dyn Host>, TierError>,
    ) -> Result<Self, TierError> {
        let ObjectOptions { config, name, namespace, geometry, region, clock, wall } = options;
        if region.block_bytes() != geometry.block_bytes {
            return Err(TierError::Geometry {
                tier: name,
                region_bytes: region.block_bytes(),
                geometry_bytes: geometry.block_bytes,
            });
        }
        let counters = Arc::new(Counters::default());
        let requests = Requests::new(store, config, Arc::clone(&clock), Arc::clone(&wall), Arc::clone(&counters), seed);
        let shared = Arc::new(Shared {
            config: config.clone(),
            tier: name,
            node: config.node.clone().unwrap_or_else(host_name),
            shape: Shape { namespace, block_bytes: geometry.block_bytes, key_bytes: geometry.hash_bytes + 4 },
            names: Names::new(prefix.as_ref(), &namespace),
            label: extras.label,
            one_thread: extras.one_thread,
            region,
            clock,
            wall,
            requests,
            counters,
        });
        let engine = Engine::start(Arc::clone(&shared), writer, host)?;
        Ok(Self::new(shared, engine))
    }
}

/// The host's name, for people.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
