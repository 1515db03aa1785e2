//! The manager: its parts, and requests from begin to finish.

use std::sync::Arc;

use terrace_config::{Config, Deadlines, Limits};
use terrace_primary::{Admission, Key, Primary, SlotId};
use terrace_tiers::{Clock, SecondaryTier, TierEvent, TierLookup, Time};

use crate::MAX_TIERS;
use crate::classify::Class;
use crate::dram_check::DramCheck;
use crate::error::TieringError;
use crate::events::{Event, EventQueue};
use crate::hold::Holds;
use crate::id_map::IdMap;
use crate::loading::Loading;
use crate::metrics::CallTimes;
use crate::pin::Pins;
use crate::request::{Request, RequestContext, RequestId, RequestSummary, Requests};
use crate::scrub::Scrub;
use crate::stats::Stats;
use crate::suspect::Suspects;
use crate::tier_state::TierState;

/// Decides what is stored, promoted and evicted, for one namespace.
///
/// Driven by one thread. No call but [`Self::shutdown`] waits. Completions (`complete_load`, `complete_store`) act on the real
/// state of their blocks: they may come after `finish_request`, and a completion of what is not running is an error
/// value that changes nothing.
///
/// Blocks are kept in the order in which `touch` names them: a caller that passes the groups of one chunk next to each other,
/// chunks in prefix order, has them evicted next to each other, tail first.
pub struct TieringOffloadingManager {
    pub(crate) primary: Primary,
    pub(crate) admission: Admission,
    pub(crate) tiers: Vec<TierState>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) deadlines: Deadlines,
    pub(crate) shares: Shares,
    pub(crate) hash_bytes: u8,
    /// Slots.
    pub(crate) blocks: u32,

    pub(crate) requests: Requests,
    /// Slots that promotions fill (*writing*), queued or running.
    pub(crate) promoting: IdMap<SlotId, ()>,
    /// Readers that running engine loads hold, by slot.
    pub(crate) loading: Loading,
    /// Slots that the engine fills (*writing*).
    pub(crate) storing: u32,
    pub(crate) holds: Holds,
    pub(crate) pins: Pins,
    pub(crate) suspects: Suspects,
    pub(crate) scrub: Scrub,
    pub(crate) dram: Option<DramCheck>,
    pub(crate) events: EventQueue,
    pub(crate) counts: Stats,
    pub(crate) times: CallTimes,

    /// Steps ended so far.
    pub(crate) step: u64,
    /// Whether this step has polled the tiers.
    pub(crate) polled: bool,
    /// A reset waits for engine transfers: nothing is found and nothing new comes in.
    pub(crate) resetting: bool,
    pub(crate) closed: bool,
    /// When more slots became usable, the last time.
    pub(crate) grown_at: Option<Time>,
    /// Limbo slots that never come back: their tier panicked or was shut down.
    pub(crate) lost: u32,
    pub(crate) scratch: Scratch,
}

/// Shares of the primary, in slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub promotion: u32,
    pub cascade: u32,
    pub pin: u32,
}

/// Memory that calls use and give back.
#[derive(Default)]
pub(crate) struct Scratch {
    pub classes: Vec<Class>,
    pub keys: Vec<Key>,
    pub located: Vec<Key>,
    pub indices: Vec<u32>,
    pub answers: Vec<TierLookup>,
    pub slots: Vec<SlotId>,
    pub displaced: Vec<SlotId>,
    pub evicted: Vec<Key>,
    pub order: Vec<(u64, u32)>,
    pub events: Vec<TierEvent>,
}

impl TieringOffloadingManager {
    /// A manager over an empty primary and `tiers`, asked in this order. `config.tiers[i].backfill` belongs to `tiers[i]`; tiers
    /// beyond the config's get no backfill.
    pub fn new(
        config: &Config,
        tiers: Vec<Box<dyn SecondaryTier>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TieringError> {
        if tiers.len() > MAX_TIERS {
            return Err(TieringError::TooManyTiers { got: tiers.len(), limit: MAX_TIERS });
        }
        let backfill = |index: usize| config.tiers.get(index).is_some_and(|tier| tier.backfill);
        let primary = Primary::new(config.primary.blocks, config.geometry.hash_bytes, config.primary.policy);
        let blocks = primary.blocks();
        let scrub = Scrub::new(config, tiers.len(), clock.now());
        let shares = Shares::of(&config.limits, primary.usable());
        Ok(Self {
            primary,
            admission: Admission::new(&config.admission),
            tiers: tiers
                .into_iter()
                .enumerate()
                .map(|(index, tier)| TierState::new(tier, backfill(index), &config.breaker))
                .collect(),
            clock,
            limits: config.limits,
            deadlines: config.deadlines,
            shares,
            hash_bytes: config.geometry.hash_bytes,
            blocks,
            requests: Requests::default(),
            promoting: IdMap::default(),
            loading: Loading::new(blocks),
            storing: 0,
            holds: Holds::default(),
            pins: Pins::default(),
            suspects: Suspects::new(config.deadlines.lookup),
            scrub,
            dram: None,
            events: EventQueue::new(config.limits.events),
            counts: Stats::default(),
            times: CallTimes::new(),
            step: 1,
            polled: false,
            resetting: false,
            closed: false,
            grown_at: None,
            lost: 0,
            scratch: Scratch::default(),
        })
    }

    /// Opens a request. Refused if it is open, or `limits.requests` are.
    pub fn begin_request(&mut self, context: RequestContext) -> Result<(), TieringError> {
        self.check_open()?;
        if self.requests.contains_key(&context.id) {
            return Err(TieringError::RequestOpen(context.id));
        }
        if self.requests.len() >= self.limits.requests as usize {
            self.counts.requests_refused += 1;
            return Err(TieringError::TooManyRequests { limit: self.limits.requests });
        }
        self.requests.insert(context.id, Request::new(context));
        Ok(())
    }

    /// Closes a request: its holds end and its promotions that are not submitted yet are cancelled. Its loads and stores go
    /// on, and their completions may follow. `None` if it is not open.
    pub fn finish_request(&mut self, id: RequestId) -> Option<RequestSummary> {
        self.release_holds(id);
        self.cancel_promotions(id);
        self.requests.remove(&id).map(|request| request.summary)
    }

    /// Moves the events since the last call to the end of `out`, oldest first.
    pub fn take_events(&mut self, out: &mut Vec<Event>) {
        self.events.take(out);
    }

    /// The block table.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Counters now. Asks each tier for its own; allocates.
    pub fn stats(&self) -> Stats {
        Stats {
            holds: self.holds.slots() as u64,
            pins: self.pins.len() as u64,
            events_queued: self.events.len() as u64,
            events_dropped: self.events.dropped,
            requests: self.requests.len() as u64,
            limbo: u64::from(self.primary.limbo()),
            lost_slots: u64::from(self.lost),
            resident: u64::from(self.primary.resident() - self.primary.writing()),
            free: u64::from(self.primary.free()),
            writing: u64::from(self.primary.writing()),
            readers: self.primary.readers(),
            tiers: self.tiers.iter().zip(self.counts.loaded_by_tier).map(|(tier, hits)| tier.report(hits)).collect(),
            ..self.counts.clone()
        }
    }

    /// Has a tier keep within `bytes` from now on; see [`SecondaryTier::set_limit`]. What is above goes in later steps.
    pub fn set_tier_limit(&mut self, tier: usize, bytes: u64) {
        if tier < self.tiers.len() {
            self.call_tier(tier, |tier| tier.set_limit(bytes));
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), TieringError> {
        if self.closed { Err(TieringError::Closed) } else { Ok(()) }
    }

    /// What every call with keys checks first.
    pub(crate) fn check_call(&self, id: RequestId, keys: usize) -> Result<(), TieringError> {
        self.check_open()?;
        if keys > self.limits.keys_per_call as usize {
            return Err(TieringError::TooManyKeys { got: keys, limit: self.limits.keys_per_call });
        }
        if self.requests.contains_key(&id) { Ok(()) } else { Err(TieringError::UnknownRequest(id)) }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Calls into a tier, and settles what it leaves behind if it panics.
    pub(crate) fn call_tier<R>(&mut self, tier: usize, f: impl FnOnce(&mut dyn SecondaryTier) -> R) -> Option<R> {
        let state = &mut self.tiers[tier];
        if state.panicked {
            return None;
        }
        let result = state.call(f);
        if result.is_none() {
            self.bury(tier);
        }
        result
    }
}
