//! What [`given_up`](super::given_up) synchronises with. `tests/models` compiles that file over loom's in the place of these.

pub use std::sync::atomic::{AtomicBool, Ordering, fence};
