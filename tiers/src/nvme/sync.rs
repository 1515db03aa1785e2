//! What [`mailbox`](super::mailbox) and [`abandon`](super::abandon) synchronise with. `tests/models` compiles those files over loom's in the place
//! of these.

pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
pub use std::sync::{Mutex, MutexGuard, PoisonError};
