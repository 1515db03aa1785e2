//! What can go wrong in a call. A miss is not an error, and no fault of a tier comes out here.

use terrace_primary::Key;

use crate::request::RequestId;

/// Why a call was refused. Unless said otherwise, nothing of the call was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TieringError {
    /// More tiers than a manager can drive.
    #[error("{got} tiers are configured, at most {limit} are possible: remove some")]
    TooManyTiers {
        /// Tiers given.
        got: usize,
        /// The bound.
        limit: usize,
    },
    /// The manager was shut down.
    #[error("the manager is shut down: start a new one")]
    Closed,
    /// The request was never begun, or is finished.
    #[error("request {} is not open: begin it first", .0.0)]
    UnknownRequest(RequestId),
    /// The request was begun already.
    #[error("request {} is open already: finish it first", .0.0)]
    RequestOpen(RequestId),
    /// Too many requests are open.
    #[error("{limit} requests are open: finish some, or raise limits.requests")]
    TooManyRequests {
        /// `limits.requests`.
        limit: u32,
    },
    /// Too many keys in one call.
    #[error("{got} keys in one call, at most {limit} are taken: split it, or raise limits.keys_per_call")]
    TooManyKeys {
        /// Keys given.
        got: usize,
        /// `limits.keys_per_call`.
        limit: u32,
    },
    /// The block hash is longer than the geometry says.
    #[error("block {key} has a longer hash than geometry.hash_bytes = {hash_bytes}")]
    KeyTooLong {
        /// The block.
        key: Key,
        /// `geometry.hash_bytes`.
        hash_bytes: u8,
    },
    /// A block to be loaded is not readable in the primary (any more): look it up again.
    #[error("block {key} is not resident: look it up again")]
    NotResident {
        /// The first such block.
        key: Key,
    },
    /// A block to be loaded has as many readers as can be counted: retry when some are done.
    #[error("block {key} has too many readers: retry when loads are complete")]
    TooManyReaders {
        /// The block.
        key: Key,
    },
    /// A load was completed that is not running. All others of the call were completed.
    #[error("block {key} is not being loaded")]
    NotLoading {
        /// The first such block.
        key: Key,
    },
    /// A store was completed that is not running. All others of the call were completed.
    #[error("block {key} is not being stored")]
    NotStoring {
        /// The first such block.
        key: Key,
    },
}
