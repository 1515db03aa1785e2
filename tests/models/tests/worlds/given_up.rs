pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A writer copies out of a slot while the job is given up and the slot gets other bytes: what it uses is the old block.
pub fn a_copy_that_counts_is_of_the_old_block() {
    let given_up = given_up::GivenUp::default();
    let slot = Arc::new(AtomicU64::new(1));
    let manager = {
        let (given_up, slot) = (given_up.clone(), Arc::clone(&slot));
        loom::thread::spawn(move || {
            given_up.set();
            slot.store(2, Relaxed);
        })
    };
    let copied = slot.load(Relaxed);
    if !given_up.is_set() {
        assert_eq!(copied, 1, "another block's bytes are taken for this one's");
    }
    manager.join().unwrap();
}
