//! The client of the daemon for engines in Rust: [`RemoteManager`] is the manager of [`crate::RemoteConnector`], over
//! a [`Session`].
//!
//! A session is *away* (no connection: every lookup is a miss, every store is dropped, nothing waits), *ready*, or
//! *stalled* (a reply is overdue: until it is in no call waits). A thread of its own connects, so that no call of an
//! engine ever does.
//!
//! [`DeviceWorker`] is a worker session for which the daemon copies between GPU memory and slots.

mod connection;
mod counters;
mod device_worker;
mod error;
mod lookups;
mod manager;
mod opening;
mod options;
mod reconnect;
mod replies;
mod session;
mod step;

pub use counters::ClientCounters;
pub use device_worker::{DeviceMemory, DeviceWorker};
pub use error::ClientError;
pub use manager::RemoteManager;
pub use options::ClientOptions;
pub use session::{Session, SessionState};
