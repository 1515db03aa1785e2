//! The client of the daemon for engines in Rust: [`RemoteManager`] is the manager of [`crate::RemoteConnector`], over
//! a [`Session`].
//!
//! A session is *away* (no connection: every lookup is a miss, every store is dropped, nothing waits), *ready*, or
//! *stalled* (a reply is overdue: until it is in no call waits). A thread of its own connects, so that no call of an
//! engine ever does.
//!
//! Time, waiting and connections come from a [`Machine`], so that a simulator drives all of it but the thread.
//!
//! [`DeviceWorker`] is a worker session for which the daemon copies between GPU memory and slots.

#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod connection;
mod counters;
mod device_worker;
mod dial;
mod error;
mod host;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod lookups;
mod machine;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod manager;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod opening;
mod options;
mod reconnect;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod replies;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod room;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod seen;
mod session;
#[cfg_attr(not(test), deny(clippy::disallowed_methods))]
mod step;

pub use counters::ClientCounters;
pub use device_worker::{DeviceMemory, DeviceWorker};
pub use error::ClientError;
pub use host::Host;
pub use machine::Machine;
pub use manager::RemoteManager;
pub use opening::{Opened, Opening};
pub use options::ClientOptions;
pub use session::{Session, SessionState};
