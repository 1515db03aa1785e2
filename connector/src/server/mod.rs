//! The daemon: one manager per pool behind a Unix socket, for several engines of a host.
//!
//! An acceptor thread binds the socket, checks who connects and reads `Hello`; then a session belongs to the thread of
//! its pool, which owns region, manager and tiers and serves its sessions with epoll: read a frame, call the manager,
//! write the reply. No lock is taken on that path. Bytes of blocks never pass through the socket.
//!
//! [`InlineServer`] is the same pools without a thread, for a simulator.
//!
//! What a session may make the daemon do is bounded in every place ([`crate::protocol::WireLimits`]), and what breaks a
//! rule ends with its own connection.

mod acceptor;
mod connection;
mod copier;
pub(crate) mod counts;
mod device;
mod dispatch;
mod drain;
mod engine;
mod error;
mod events;
mod foreign;
mod frames;
mod handle;
mod hello;
mod inline;
mod leases;
mod listener;
mod liveness;
mod locks;
mod lookup;
mod options;
mod parts;
mod peer;
mod poller;
mod pool;
mod pools;
mod refusal;
mod rows;
mod seen;
mod session;
mod share;
mod shares;
mod stalled;
mod stats;
mod step;
mod store;
#[cfg(test)]
mod testing;
mod wake;

pub use device::DeviceSource;
pub use error::ServerError;
pub use handle::{Server, ServerHandle};
pub use inline::{InlineServer, PoolView, SessionView};
pub use options::ServerOptions;
pub use parts::{PoolParts, ReadySlots};
