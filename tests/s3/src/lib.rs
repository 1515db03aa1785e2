//! A real S3 server and a faulty way to it, for tests.
//!
//! [`SeaweedFs`] starts a server in a directory; [`Proxy`] stands between it and its clients, counts what passes by
//! operation and by key, and makes faults on demand. Everything here blocks, needs no async runtime and may be called
//! from one. Where the server cannot be had, an [`Error`] says why: nothing is skipped.

mod client;
mod error;
mod proxy;
mod server;

pub use client::{ACCESS_KEY, REGION, SECRET_KEY, client};
pub use error::{Error, Result};
pub use proxy::{Count, Counts, Fault, Operation, Proxy, Rule, RuleId};
pub use server::{SeaweedFs, Server};
