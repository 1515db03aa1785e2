//! Copies by the daemon between a worker's GPU memory and slots: the feature `device-copies`.
//!
//! ```text
//!  worker's socket -- Attach, Copy --> pool's thread: checks (copies.rs)      a copy thread per attached worker (thread.rs)
//!                                        job table: who reports, who copies  ----- Work, bounded by count ---->  engine, streams
//!                  <- Copied -------     a job ends when both are there      <---- News, with a wake-up -------  opened memory, events
//! ```
//!
//! The pool's thread calls no driver. A copy thread owns everything of the driver that belongs to its worker and gives it back
//! when it ends, which is when the worker's connection is over and nothing is copied for it any more.

mod attach;
mod copies;
mod shared;
mod source;
mod thread;

pub(super) use copies::{Attachment, Copiers};
pub(super) use shared::DeviceShare;
pub use source::DeviceSource;
pub(super) use source::source;
