//! What [`changes`](super::changes) synchronises with. `tests/models` compiles that file over loom's in the place of these.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
