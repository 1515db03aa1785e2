//! The primary tier: a region of block-sized slots in host memory, the table that says which block is in
//! which slot, reference counts, eviction and admission.
//!
//! Nothing here allocates per operation after start: lists are `u32` links over the slot array.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod admission;
pub mod error;
pub mod hash;
pub mod key;
pub mod key_table;
pub mod links;
mod memory;
pub mod metrics;
pub mod policy;
pub mod primary;
pub mod region;
pub mod shared;
pub mod slot;
pub mod state;

pub use admission::{Admission, AdmissionStats};
pub use error::PrimaryError;
pub use key::{Key, KeyBytes, KeyError, MAX_HASH_BYTES, MAX_KEY_BYTES};
pub use key_table::{KeyTable, MAX_ROWS};
pub use links::Links;
pub use policy::{ArcPolicy, EvictionPolicy, LruPolicy};
pub use primary::{Primary, PrimaryStats};
pub use region::{PageKind, Progress, Region, RegionOptions};
pub use shared::TableReader;
pub use slot::SlotId;
pub use state::{BlockState, MAX_READERS};
