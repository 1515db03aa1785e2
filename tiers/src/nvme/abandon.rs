//! Tickets that were given up, handed from the manager's thread to the shard's.

use super::sync::{AtomicU64, Mutex, Ordering, PoisonError, fence};

/// Tickets that were given up and that the shard has not dealt with yet.
///
/// [`AbandonList::add`] happens before the slot's content changes. A shard that has read a slot's bytes and finds
/// [`AbandonList::is_unchanged`] afterwards therefore knows that it read the bytes of the block it was told to store: the
/// same argument as a sequence lock's reader. Without it, a store given up between two looks could publish another block's
/// bytes under a matching CRC32.
#[derive(Debug, Default)]
pub struct AbandonList {
    added: AtomicU64,
    tickets: Mutex<Vec<u64>>,
}

impl AbandonList {
    /// Gives a ticket up.
    pub fn add(&self, ticket: u64) {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        self.added.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// How many tickets were ever added. Cheap: one load.
    pub fn seen(&self) -> u64 {
        self.added.load(Ordering::SeqCst)
    }

    /// Whether nothing was added since `seen`, ordered after every read the caller made before.
    pub fn is_unchanged(&self, seen: u64) -> bool {
        fence(Ordering::SeqCst);
        self.added.load(Ordering::SeqCst) == seen
    }

    /// Whether `ticket` was added and not taken yet.
    pub fn contains(&self, ticket: u64) -> bool {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).contains(&ticket)
    }

    /// Takes what was added, and the count that goes with it.
    pub fn take(&self, out: &mut Vec<u64>) -> u64 {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: a ticket pushed but not yet counted is taken now and merely counted again later.
        let seen = self.seen();
        out.append(&mut tickets);
        seen
    }
}
