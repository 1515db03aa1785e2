pub mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub use std::sync::PoisonError;
}

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A shard reads a slot while its store is given up and the slot gets other bytes: what it believes to be unchanged is the old block.
pub fn a_slot_that_is_read_unchanged_holds_the_old_block() {
    let list = Arc::new(abandon::AbandonList::default());
    let slot = Arc::new(AtomicU64::new(1));
    let seen = list.take(&mut Vec::new());
    let manager = {
        let (list, slot) = (Arc::clone(&list), Arc::clone(&slot));
        loom::thread::spawn(move || {
            list.add(7);
            slot.store(2, Relaxed);
        })
    };
    let read = slot.load(Relaxed);
    if list.is_unchanged(seen) || !list.contains(7) {
        assert_eq!(read, 1, "another block's bytes are taken for this one's");
    }
    manager.join().unwrap();
}

/// Whoever takes the list never counts a ticket as seen that it has not got.
pub fn what_counts_as_seen_was_taken() {
    let list = Arc::new(abandon::AbandonList::default());
    let manager = {
        let list = Arc::clone(&list);
        loom::thread::spawn(move || {
            list.add(7);
            list.add(8);
        })
    };
    let mut taken = Vec::new();
    let seen = list.take(&mut taken);
    assert!(taken.len() as u64 >= seen, "a ticket is lost for ever");
    let again = list.take(&mut taken);
    assert!(taken.len() as u64 >= again);
    manager.join().unwrap();
    list.take(&mut taken);
    assert_eq!(taken, [7, 8]);
}
