//! Secondary tiers: what lies below the primary, behind one trait.
//!
//! [`tier`] is the contract, [`conformance`] checks it, [`nvme`] keeps blocks as files, [`object`] in a store that a cluster
//! shares, [`memory`] in process memory, and [`wrappers`] make any tier slow, faulty, hanging or counted. [`open_tier`] builds
//! what the configuration names.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod catalog;
pub mod clock;
pub mod conformance;
pub mod error;
pub mod memory;
pub mod metrics;
pub mod nvme;
pub mod object;
pub mod open;
pub mod tenant;
pub mod tier;
pub mod wrappers;

pub use clock::{Clock, ManualClock, SystemClock, Time};
pub use error::TierError;
pub use memory::MemoryTier;
pub use nvme::NvmeTier;
pub use open::{null_nvme_tier, open_tier};
pub use tenant::TierNamespace;
pub use tier::*;
