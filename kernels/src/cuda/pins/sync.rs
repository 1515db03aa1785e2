//! What [`pieces`](super::pieces) synchronises with. `tests/models` compiles that file over loom's in the place of these.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
