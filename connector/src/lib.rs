//! What an LLM engine drives: the traits of the two halves and [`OffloadingConnector`], which implements both.
//!
//! The **scheduler half** ([`SchedulerHalf`]) decides for each request which blocks are loaded and stored; the **worker
//! half** ([`WorkerHalf`]) turns that into copies between KV memory and slots. `api.rs` tells the order of calls in a step,
//! `pages.rs` how a block lies in a slot.

mod api;
pub mod client;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod connector;
mod counters;
pub mod device;
mod error;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod groups;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod hashes;
pub mod metrics;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod pages;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod port;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
pub mod protocol;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod remote;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod scheduler;
pub mod server;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod worker;

pub use api::{
    BlockCopy, Connector, ConnectorMeta, ConnectorOutput, GpuBlock, JobId, Matched, NewRequest, ScheduledRequest,
    SchedulerHalf, StepPlan, Transfer, TransferKind, WorkerHalf, WorkerOutput,
};
pub use connector::OffloadingConnector;
pub use counters::Counters;
pub use error::ConnectorError;
pub use groups::{ConnectorOptions, GroupKind};
pub use hashes::HashList;
pub use pages::{KvCaches, KvTensor};
pub use port::{Arrival, ManagerPort, PortQuery};
pub use remote::{CopyEngines, RemoteConnector};
pub use terrace_tiering::{RequestId, TierFilter};
