//! All requests to the store: who may send when, and what happens when an answer does not come, or is wrong.
//!
//! Nothing else talks to the store. Every attempt ([`attempt`]) takes a slot of the budget of its direction and a place in the
//! [`Limiter`](super::limiter::Limiter), counts, ends by the deadline of its request, and is repeated when that may help: at most
//! [`attempt::RETRIES`] times, after a jittered pause. Reads ([`read`], [`body`]) ask a second time when the first answer is late
//! ([`hedge`]). Writes are [`write`] and [`upload`], listing and deleting [`list`].
mod attempt;
mod body;
mod error;
mod hedge;
mod list;
pub(crate) mod pulse;
mod read;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod upload;
mod watch;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use object_store::ObjectStore;
use terrace_config::ObjectConfig;
use tokio::time::Instant;

pub(crate) use self::body::Body;
pub use self::error::RequestError;
pub(crate) use self::watch::WatchedConnector;
pub use self::watch::status_error;
use super::budget::Budget;
use super::counters::Counters;
pub use super::limiter::Class;
use super::limiter::Limiter;
pub use super::probe::Abilities;
use super::probe::SharedAbilities;
use super::wall::WallClock;
use crate::clock::{Clock, Time};

/// Longest time that is handed to a timer: farther deadlines are as good as none.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// All requests of one tier to its store. Clones share everything. Must be used within a tokio runtime with timers.
#[derive(Clone)]
pub(crate) struct Requests {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// Whether listings come in order of names. A bucket's do, a directory's do not.
    ordered: bool,
    clock: Arc<dyn Clock>,
    wall: Arc<dyn WallClock>,
    counters: Arc<Counters>,
    limiter: Arc<Limiter>,
    reads: Budget,
    writes: Budget,
    hedge: hedge::Hedge,
    pulse: pulse::Pulse,
    abilities: SharedAbilities,
    random: AtomicU64,
    /// Uploads that are being given up in the background.
    aborting: Arc<AtomicUsize>,
}

/// Whose budget a request takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Requests {
    /// Requests to this store. All abilities are taken for granted until [`Self::set_abilities`].
    pub fn new(
        store: Arc<dyn ObjectStore>,
        config: &ObjectConfig,
        clock: Arc<dyn Clock>,
        wall: Arc<dyn WallClock>,
        counters: Arc<Counters>,
        seed: u64,
    ) -> Self {
        let limiter = Arc::new(Limiter::new(config.connections, Arc::clone(&clock), Arc::clone(&counters)));
        let inner = Inner {
            store,
            ordered: !config.url.starts_with("file:"),
            clock,
            wall,
            counters,
            limiter,
            reads: Budget::new(config.read_requests_per_second, config.read_bytes_per_day),
            writes: Budget::new(config.write_requests_per_second, config.write_bytes_per_day),
            hedge: hedge::Hedge::new(config.hedge_share),
            pulse: pulse::Pulse::default(),
            abilities: SharedAbilities::default(),
            random: AtomicU64::new(seed),
            aborting: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What the store can do.
    pub fn abilities(&self) -> Abilities {
        self.inner.abilities.get()
    }

    /// Sets what the store can do: what [`Self::probe`] found.
    pub fn set_abilities(&self, abilities: Abilities) {
        self.inner.abilities.set(abilities);
    }

    /// Whether requests are sent and nothing comes back, for so long that nobody should wait for it.
    pub fn is_silent(&self) -> bool {
        self.inner.pulse.is_silent(self.inner.clock.now())
    }

    /// Whether bytes may be read today: a lookup need not promise what cannot be loaded.
    pub fn read_budget_left(&self) -> bool {
        self.inner.reads.has_bytes(self.inner.wall.now_ms())
    }

    /// Whether bytes may be written today.
    pub fn write_budget_left(&self) -> bool {
        self.inner.writes.has_bytes(self.inner.wall.now_ms())
    }

    fn budget(&self, direction: Direction) -> &Budget {
        match direction {
            Direction::Read => &self.inner.reads,
            Direction::Write => &self.inner.writes,
        }
    }

    /// Takes bytes out of today's budget.
    fn take_bytes(&self, direction: Direction, bytes: u64) -> Result<(), RequestError> {
        if self.budget(direction).take(bytes, self.inner.wall.now_ms()) {
            return Ok(());
        }
        self.inner.counters.over_budget.bump();
        Err(RequestError::OverBudget)
    }

    /// Until when a timer may run.
    fn instant(&self, deadline: Time) -> Instant {
        Instant::now() + deadline.since(self.inner.clock.now()).min(FAR)
    }

    /// A number that is different each time: splitmix64 (Steele, Lea and Flood, 2014).
    pub(super) fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.inner.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Counts how a request ended.
    fn ended<T>(&self, outcome: Result<T, RequestError>) -> Result<T, RequestError> {
        if outcome.as_ref().is_err_and(|error| !error.is_answer() && *error != RequestError::OverBudget) {
            self.inner.counters.request_failures.bump();
        }
        outcome
    }
}
