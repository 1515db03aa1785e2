//! The object tier: segments in an S3-compatible store that a whole cluster shares.
//!
//! The blocks of cascade jobs become immutable **segments** ([`segment`]). Each node names its new ones in an **index log** ([`log`]), folds
//! what others wrote (`fold`) and answers lookups from its own table ([`blocks`]): a lookup costs no request. One node at a
//! time **collects** (`collector`): it compacts the log to snapshots and removes what is old, too much or nobody's.
//!
//! `tier` is the manager's side and waits for nothing; `engine` runs the rest, on a thread of its own or where a
//! [`Host`] puts it. All requests go
//! through `requests`: priorities, budgets, retries, hedges.
pub mod admin;
pub mod blocks;
mod budget;
mod collector;
mod counters;
mod credentials;
mod engine;
mod fold;
mod folder;
pub mod format;
mod given_up;
mod host;
mod id;
mod label;
mod lease;
mod limiter;
mod load_job;
pub mod log;
pub mod names;
mod open;
mod port;
mod probe;
mod publisher;
mod reader;
mod record;
mod requests;
mod run;
pub mod segment;
mod shared;
pub mod snapshot;
mod store_open;
mod sync;
mod tier;
mod wall;
mod writer;

pub use counters::ObjectStats;
pub use host::{Host, OtherHalf};
pub use id::{SegmentId, Stamp, WriterId};
pub(crate) use open::Extras;
pub use open::ObjectOptions;
pub use record::{SegmentRecord, Shape};
pub use requests::status_error;
pub use tier::ObjectTier;
pub use wall::{SystemWallClock, WallClock};
