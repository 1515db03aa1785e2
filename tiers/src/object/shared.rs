//! What the parts of one open tier share.

use std::sync::Arc;

use terrace_config::ObjectConfig;
use terrace_primary::Region;

use super::counters::Counters;
use super::names::Names;
use super::record::Shape;
use super::requests::Requests;
use super::wall::WallClock;
use crate::clock::Clock;

/// One tier: settings, tools, counters.
pub(crate) struct Shared {
    pub config: ObjectConfig,
    /// Name of the tier in logs and statistics.
    pub tier: String,
    /// Name of the node in the log, for people.
    pub node: String,
    pub shape: Shape,
    pub names: Names,
    /// What is to stand beside the blocks, for people.
    pub label: Option<Arc<str>>,
    /// Whether long computations stay on the thread that asks for them: then their end takes its turn at the same place in every run.
    pub one_thread: bool,
    pub region: Arc<Region>,
    pub clock: Arc<dyn Clock>,
    pub wall: Arc<dyn WallClock>,
    pub requests: Requests,
    pub counters: Arc<Counters>,
}

impl Shared {
    /// The result of a long computation, made on a thread of its own. `None`: it panicked.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.one_thread { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
    }
}
