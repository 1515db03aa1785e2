//! Requests: who asks.

use terrace_primary::SlotId;
use terrace_tiers::Time;

use crate::MAX_TIERS;
use crate::id_map::IdMap;

/// One generation request of the engine; the engine chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Which secondary tiers a request may use: one bit a tier, in config order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFilter(pub u32);

impl TierFilter {
    /// Every tier.
    pub const ALL: Self = Self(u32::MAX);
    /// The primary alone.
    pub const NONE: Self = Self(0);

    /// Whether the tier at `index` (config order) may be used.
    pub const fn allows(self, index: usize) -> bool {
        index < 32 && self.0 & (1 << index) != 0
    }
}

impl Default for TierFilter {
    fn default() -> Self {
        Self::ALL
    }
}

/// A request as it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// Its name, unique among the open ones.
    pub id: RequestId,
    /// Tiers that its lookups ask.
    pub tiers: TierFilter,
}

/// What a request did, known when it finishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSummary {
    /// Keys looked up, repeated lookups included.
    pub keys_looked_up: u64,
    /// Lookups that ended with a `Pending` or a `Retry`.
    pub unresolved_lookups: u32,
    /// Blocks loaded that were in the primary.
    pub hits_primary: u32,
    /// Blocks loaded that had been promoted from each tier and not been loaded since.
    pub hits_by_tier: [u32; MAX_TIERS],
    /// Blocks for which a promotion was reserved.
    pub promotions: u32,
    /// Blocks for which a store was prepared.
    pub stores: u32,
}

/// An open request.
pub(crate) struct Request {
    pub tiers: TierFilter,
    pub summary: RequestSummary,
    /// Step of the last lookup.
    pub lookup_step: u64,
    /// Whether a lookup in `lookup_step` ended with a `Pending` or a `Retry`.
    pub unresolved: bool,
    /// First such answer since the last step in which all its lookups were resolved.
    pub waiting_since: Option<Time>,
    /// Slots on which this request holds a reader, one for each time a slot stands here.
    pub holds: Vec<SlotId>,
    /// When the holds end.
    pub holds_until: Time,
    /// The request's entry in the queue of hold deadlines; no later than `holds_until`.
    pub hold_entry: Option<Time>,
}

impl Request {
    pub fn new(context: RequestContext) -> Self {
        Self {
            tiers: context.tiers,
            summary: RequestSummary::default(),
            lookup_step: 0,
            unresolved: false,
            waiting_since: None,
            holds: Vec::new(),
            holds_until: Time(0),
            hold_entry: None,
        }
    }
}

pub(crate) type Requests = IdMap<RequestId, Request>;
