pub mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}

use std::sync::Arc;

use loom::sync::atomic::AtomicU32;
use loom::thread::JoinHandle;
use sync::{AtomicU64, Ordering};

const IN_USE: u32 = 1;

/// A table of one row, as a reader sees it: any of its words may be of another time.
struct Table {
    told: AtomicU64,
    word: AtomicU32,
    key: [AtomicU32; 2],
}

/// The change that a reader took for the last, and the key that it found.
type Found = Option<(u64, [u32; 2])>;

impl Table {
    /// An empty one, and somebody who reads it.
    fn new() -> (Arc<Self>, JoinHandle<Found>) {
        let word = |value| AtomicU32::new(value);
        let table = Arc::new(Self { told: AtomicU64::new(0), word: word(0), key: [word(0), word(0)] });
        let read = Arc::clone(&table);
        (table, loom::thread::spawn(move || read.read()))
    }

    fn read(&self) -> Found {
        let seen = changes::last_change(&self.told);
        if self.word.load(Ordering::Relaxed) != IN_USE {
            return None;
        }
        Some((seen, [0, 1].map(|at| self.key[at].load(Ordering::Relaxed))))
    }

    /// `block` becomes readable where another one may have been.
    fn put(&self, block: u32, changes: &mut changes::Changes) {
        self.word.store(0, Ordering::Relaxed);
        for key in &self.key {
            key.store(block, Ordering::Relaxed);
        }
        self.word.store(IN_USE, Ordering::Relaxed);
        changes.came(0, &self.told);
    }
}

/// Two blocks follow each other in a slot; then the owner hears what a reader found, at whatever time: what it accepts is what is there.
pub fn what_is_accepted_is_what_was_seen() {
    let (table, reader) = Table::new();
    let mut changes = changes::Changes::new(1);
    table.put(1, &mut changes);
    changes.left(0);
    table.put(2, &mut changes);
    if let Some((seen, key)) = reader.join().unwrap()
        && changes.are_as_seen(&[[0; 4]], seen)
    {
        assert_eq!(key, [2, 2], "a block was accepted that is not there");
    }
}

/// A block stays in the table when it has left.
pub fn nobody_is_given_what_has_left() {
    let (table, reader) = Table::new();
    let mut changes = changes::Changes::new(1);
    table.put(1, &mut changes);
    changes.left(0);
    if let Some((seen, _)) = reader.join().unwrap() {
        assert!(!changes.are_as_seen(&[[0; 4]], seen), "it was given");
    }
}
