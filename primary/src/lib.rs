//! The primary tier: a region of block-sized slots in host memory, the table that says which block is in
//! which slot, reference counts, eviction and admission.
//!
//! Nothing here allocates per operation after start: lists are `u32` links over the slot array.
pub mod key;
pub mod slot;

pub use key::{Key, KeyError, MAX_HASH_BYTES, MAX_KEY_BYTES};
pub use slot::SlotId;
