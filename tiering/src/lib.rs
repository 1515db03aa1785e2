//! The manager that decides which block is where: lookups, stores, staged promotions, cascades, deadlines and back-pressure.
//!
//! A state machine for one thread and one namespace. It does no I/O, starts no thread and reads no clock but the one it is
//! given; tiers are driven through [`terrace_tiers::SecondaryTier`], so a simulator can drive the real manager with
//! virtual time and faulty tiers. No call but [`TieringOffloadingManager::shutdown`] waits for a tier.
//!
//! A block here is one offloaded block (`blocks_per_chunk` GPU blocks of one group).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod breaker;
mod cascade;
mod check;
mod classify;
mod dram_check;
mod error;
mod events;
mod hold;
mod id_map;
mod load;
mod loading;
mod locate;
mod lookup;
mod manager;
pub mod metrics;
mod pace;
mod pin;
mod promotion;
mod request;
mod reset;
mod scrub;
mod seen;
mod stats;
mod step;
mod store;
mod suspect;
mod tier_state;
mod usable;

pub use breaker::BreakerState;
pub use error::TieringError;
pub use events::Event;
pub use locate::{Located, ReaderBudget, Scan};
pub use lookup::{Lookup, LookupMode};
pub use manager::TieringOffloadingManager;
pub use request::{RequestContext, RequestId, RequestSummary, TierFilter};
pub use stats::{CascadeCounts, LookupCounts, PromotionCounts, ScrubCounts, Stats, TierReport};
pub use store::StorePlan;

/// Secondary tiers of one manager, at most.
pub const MAX_TIERS: usize = 8;
