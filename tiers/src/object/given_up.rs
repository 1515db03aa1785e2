//! Whether a store job was given up, told from the manager's thread to the one that copies out of slots.

use std::sync::Arc;

use super::sync::{AtomicBool, Ordering, fence};

/// Whether a store job was given up: set by the manager's side before the job's slots may change. What was copied out of a slot
/// is used only if this is not set after the copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    /// From here on slots may change.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
        // A store alone lets later writes to the slot overtake it (ARM does): then bytes of another block would count.
        fence(Ordering::SeqCst);
    }

    /// Whether it was set. Bytes that were read before this call were read before, also to the processor.
    pub fn is_set(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}
