//! The owner's side: the table of what is readable, and its changes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::changes::Changes;
use super::map::{Head, file, seal, words};
use super::{CHANGES_AT, GONE, LAYOUT, MAGIC, PAGE_BYTES, Parts, REACH, SEED_AT};
use crate::hash::Hasher;
use crate::key::Key;
use crate::key_table::{KeyTable, Probe};
use crate::memory::Words;
use crate::slot::SlotId;

/// The table, and what it is shared by.
pub(crate) struct SharedTable {
    fd: OwnedFd,
    head: Head,
    changes: Changes,
    table: KeyTable,
}

impl SharedTable {
    /// An empty table.
    pub fn new(slots: u32, key_bytes: usize) -> Result<Self, Errno> {
        Self::with_hasher(slots, key_bytes, Hasher::random())
    }

    fn with_hasher(slots: u32, key_bytes: usize, hasher: Hasher) -> Result<Self, Errno> {
        let (table, (fd, head)) = KeyTable::shared(slots, key_bytes, hasher, REACH, memory)?;
        Ok(Self { fd, head, changes: Changes::new(slots), table })
    }

    /// For readers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The block `key` has become readable in `slot`.
    pub fn came(&mut self, slot: SlotId, key: &Key) {
        self.table.remove(slot.0);
        if !self.table.insert(key, slot.0)
            && let Some(left) = self.table.find(key.as_bytes())
        {
            self.table.remove(left);
            self.table.insert(key, slot.0);
        }
        self.changes.came(slot.0, self.head.changes());
    }

    /// The block of `slot` has left it.
    pub fn left(&mut self, slot: SlotId) {
        self.changes.left(slot.0);
        self.table.set_word(slot.0, GONE);
    }

    /// Where the block in `slot` came from: no change that anybody is refused for.
    pub fn set_origin(&mut self, slot: SlotId, origin: u8) {
        if self.table.word(slot.0) != u32::from(origin) {
            self.table.set_word(slot.0, origin.into());
        }
    }

    /// See [`Changes::are_as_seen`].
    pub fn are_as_seen(&self, slots: &[[u8; 4]], seen: u64) -> bool {
        self.changes.are_as_seen(slots, seen)
    }

    /// Whether the table says what `block` does of each slot: the key and origin of a readable block. For tests. Touches all rows.
    pub fn check(&self, block: impl Fn(SlotId) -> Option<(Key, u8)>) -> Result<(), String> {
        self.table.check()?;
        for slot in (0..self.table.rows()).map(SlotId) {
            let (block, word) = (block(slot), self.table.word(slot.0));
            let is_given = self.changes.are_as_seen(&[slot.0.to_le_bytes()], self.changes.last());
            let is_in = match block {
                // One that found no place is in no row.
                Some((key, origin)) => self
                    .table
                    .find(key.as_bytes())
                    .map_or(!self.table.is_row_used(slot.0), |row| row == slot.0 && word == u32::from(origin)),
                None => word == GONE || !self.table.is_row_used(slot.0),
            };
            if !is_in || is_given != block.is_some() {
                return Err(format!(
                    "{slot:?} holds {block:?}; shared is the word {word:#x}, and it is given: {is_given}"
                ));
            }
        }
        Ok(())
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.changes.bytes() + self.table.bytes() + PAGE_BYTES
    }
}

/// The file for a table of this shape with its header written, and the memory of its index and rows, all zeros. Nobody else can
/// write to it.
fn memory(table: &Probe<Words>) -> Result<((OwnedFd, Head), Words, Words), Errno> {
    let parts = Parts::of(table.lines, table.rows, table.row_words).ok_or(Errno::NOMEM)?;
    let fd = file(parts.bytes)?;
    let mut head = words(fd.as_fd(), 0, CHANGES_AT + 2)?;
    let place = head.as_mut_slice();
    let shape = [MAGIC, LAYOUT, table.rows, table.key_bytes as u32, table.lines, table.row_bits];
    place[..shape.len()].copy_from_slice(&shape);
    for (place, seed) in place[SEED_AT..CHANGES_AT].as_chunks_mut::<2>().0.iter_mut().zip(table.hasher.seed()) {
        *place = [seed as u32, (seed >> 32) as u32];
    }
    let index = words(fd.as_fd(), PAGE_BYTES as u64, parts.index_words)?;
    let rows = words(fd.as_fd(), parts.rows_at, parts.rows_words)?;
    seal(fd.as_fd())?;
    let head = Head::new(head).ok_or(Errno::NOMEM)?;
    Ok(((fd, head), index, rows))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::LINE_CELLS;

    const ROWS: u32 = 400;

    fn key(n: u32) -> Key {
        Key::new(&n.to_le_bytes().repeat(8), 0).expect("a key")
    }

    /// Somebody makes keys that all belong in the same line.
    #[test]
    fn keys_that_are_crowded_together_are_left_out_and_cost_nothing() {
        let mut shared = SharedTable::with_hasher(ROWS, 36, Hasher::useless()).expect("memory");
        let places = REACH * LINE_CELLS as u32;
        for n in 0..ROWS {
            shared.came(SlotId(n), &key(n));
        }
        let found =
            |shared: &SharedTable| (0..ROWS).filter(|n| shared.table.find(key(*n).as_bytes()) == Some(*n)).count();
        assert_eq!((found(&shared), shared.changes.last()), (places as usize, u64::from(ROWS)));
        shared.check(|slot| Some((key(slot.0), 0))).expect("the others are in no row");
        // Where one leaves and its slot is used again there is a place.
        shared.left(SlotId(3));
        shared.came(SlotId(3), &key(ROWS));
        assert_eq!((shared.table.find(key(ROWS).as_bytes()), found(&shared)), (Some(3), places as usize - 1));
    }

    proptest! {
        #[test]
        fn a_crowded_table_says_what_is_and_leaves_out_the_rest(ops in prop::collection::vec((0..ROWS, 0..ROWS), 1..600)) {
            let mut shared = SharedTable::with_hasher(ROWS, 36, Hasher::useless()).expect("memory");
            let mut blocks = std::collections::BTreeMap::new();
            for (n, slot) in ops {
                // As the owner's table: a key is in one slot, and a slot is free before it is filled.
                if let Some(slot) = blocks.iter().find_map(|(slot, block)| (*block == n).then_some(*slot)) {
                    shared.left(SlotId(slot));
                    blocks.remove(&slot);
                }
                if blocks.remove(&slot).is_some() {
                    shared.left(SlotId(slot));
                }
                shared.came(SlotId(slot), &key(n));
                blocks.insert(slot, n);
            }
            prop_assert_eq!(shared.check(|slot| blocks.get(&slot.0).map(|n| (key(*n), 0))), Ok(()));
        }
    }
}
