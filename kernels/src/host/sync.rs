//! What [`queue`](super::queue) synchronises with. `tests/models` compiles that file over loom's in the place of these.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
