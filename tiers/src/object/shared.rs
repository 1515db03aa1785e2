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
    pub region: Arc<Region>,
    pub clock: Arc<dyn Clock>,
    pub wall: Arc<dyn WallClock>,
    pub requests: Requests,
    pub counters: Arc<Counters>,
}
