//! A block table that other processes read.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::Primary;
use crate::error::PrimaryError;
use crate::shared::SharedTable;

impl Primary {
    /// Keeps, from before the first block on, a table of what is readable that other processes can read with
    /// [`TableReader`](crate::TableReader). 55 bytes a slot more with keys of 36 bytes. Fails, and changes nothing, where the machine
    /// has no such memory.
    pub fn share(&mut self) -> Result<(), PrimaryError> {
        if !self.table.is_empty() || self.shared.is_some() {
            self.stats.misuse += 1;
            return Ok(());
        }
        let failed = |errno: Errno| PrimaryError::System { step: "sharing the block table", source: errno.into() };
        self.shared = Some(SharedTable::new(self.blocks, self.key_bytes).map_err(failed)?);
        Ok(())
    }

    /// What a reader opens. `None`: the table is not shared.
    pub fn table_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(SharedTable::fd)
    }

    /// Whether a reader that took `seen` for the last change, and then found blocks in these slots (little-endian numbers), may
    /// use what it found: each is ready and the one that it saw.
    pub fn holds_as_seen(&self, slots: &[[u8; 4]], seen: u64) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.are_as_seen(slots, seen))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;
    use terrace_config::Policy;

    use super::*;
    use crate::{BlockState, Key, SlotId, TableReader};

    const BLOCKS: u32 = 24;

    fn key(n: u32) -> Key {
        // Of two lengths: both ways to compare them.
        Key::new(&n.to_le_bytes().repeat(if n.is_multiple_of(3) { 8 } else { 2 }), 0).expect("a key")
    }

    fn shared() -> (Primary, TableReader) {
        let mut primary = Primary::new(BLOCKS, 32, Policy::Lru);
        primary.share().expect("memory");
        let reader = open(&primary, BLOCKS).expect("a table");
        (primary, reader)
    }

    fn open(primary: &Primary, slots: u32) -> Result<TableReader, PrimaryError> {
        let fd: OwnedFd = primary.table_fd().expect("it is shared").try_clone_to_owned().expect("a descriptor");
        TableReader::open(&fd, slots, 36)
    }

    fn find(reader: &TableReader, keys: &[Key]) -> Option<Vec<[u8; 4]>> {
        let mut slots = Vec::new();
        reader.find_all(keys, |slot, _| slots.push(slot.to_le_bytes())).then_some(slots)
    }

    fn store(primary: &mut Primary, keys: &[Key]) -> Vec<SlotId> {
        let slots = keys.iter().map(|key| {
            let slot = primary.insert_writing(key).expect("room");
            primary.publish(slot);
            slot
        });
        slots.collect()
    }

    #[test]
    fn what_is_ready_is_found_and_holds_until_it_changes() {
        let (mut primary, reader) = shared();
        let keys: Vec<Key> = (0..20).map(key).collect();
        let slots = store(&mut primary, &keys);
        primary.set_origin(slots[3], 2);
        let seen = reader.last_change();
        let found = find(&reader, &keys).expect("all are there");
        assert_eq!(found, slots.iter().map(|slot| slot.0.to_le_bytes()).collect::<Vec<_>>());
        let mut origins = Vec::new();
        assert!(reader.find_all(&keys[2..5], |_, origin| origins.push(origin)) && origins == [0, 2, 0]);
        assert!(primary.holds_as_seen(&found, seen));
        // Readers, uses and other blocks change nothing.
        primary.acquire(slots[0]);
        primary.touch(&slots);
        store(&mut primary, &[key(30)]);
        assert!(primary.holds_as_seen(&found, seen));
        let (stale, found_stale) = (reader.last_change(), found.clone());
        primary.remove(slots[7]);
        assert!(find(&reader, &keys).is_none() && find(&reader, &keys[..7]).is_some());
        assert!(!primary.holds_as_seen(&found, seen) && primary.holds_as_seen(&found[..7], seen));
        assert!(!primary.holds_as_seen(&found_stale, stale) && primary.holds_as_seen(&found_stale[8..], stale));
        // Another block in its slot.
        let again = store(&mut primary, &[key(31)]);
        assert_eq!((again[0], find(&reader, &keys)), (slots[7], None));
        // And the first one elsewhere.
        let moved = store(&mut primary, &keys[7..8]);
        let found = find(&reader, &keys).expect("all are there");
        assert_eq!(found[7], moved[0].0.to_le_bytes());
        assert!(primary.holds_as_seen(&found, reader.last_change()) && !primary.holds_as_seen(&found, stale));
        assert!(!primary.holds_as_seen(&[[0xff; 4]], u64::MAX) && !primary.holds_as_seen(&found, u64::MAX));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (primary, _) = shared();
        assert!(matches!(open(&primary, BLOCKS + 1), Err(PrimaryError::Table { .. })));
        let fd: OwnedFd = primary.table_fd().expect("it is shared").try_clone_to_owned().expect("a descriptor");
        assert!(matches!(TableReader::open(&fd, BLOCKS, 20), Err(PrimaryError::Table { .. })));
        // Nobody else may write, and nobody may cut it off.
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(rustix::io::pwrite(&fd, &[1], 4096).is_err());
        let file = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::ftruncate(&file, 1 << 20).expect("its length");
        assert!(matches!(TableReader::open(&file, BLOCKS, 36), Err(PrimaryError::Unsealed)));
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).expect("a seal");
        assert!(matches!(TableReader::open(&file, BLOCKS, 36), Err(PrimaryError::Table { .. })));
        let mut late = Primary::new(BLOCKS, 32, Policy::Lru);
        store(&mut late, &[key(1)]);
        late.share().expect("nothing happens");
        assert!(late.table_fd().is_none() && late.stats().misuse == 1);
    }

    proptest! {
        /// At any time a reader finds exactly what is ready, and what it saw earlier holds exactly where nothing has changed.
        #[test]
        fn a_reader_sees_what_the_owner_says(ops in prop::collection::vec((0..6_u8, 0..40_u32), 1..200)) {
            let (mut primary, reader) = shared();
            let mut seen: Vec<(u64, u32, SlotId, u32)> = Vec::new();
            for (op, n) in ops {
                let slot = primary.find(&key(n));
                match (op, slot) {
                    (0 | 1, None) => { primary.insert_writing(&key(n)); }
                    (2, Some(slot)) => { primary.publish(slot); }
                    (3, Some(slot)) if primary.state(slot) == BlockState::Writing => { primary.abort(slot); }
                    (4, Some(slot)) => { primary.remove(slot); }
                    (5, _) => { primary.make_room(n % 4, &mut Vec::new()); }
                    _ => {}
                }
                for n in 0..40 {
                    let ready = |slot: &SlotId| matches!(primary.state(*slot), BlockState::Ready { .. });
                    let slot = primary.find(&key(n)).filter(ready);
                    let found = find(&reader, &[key(n)]).map(|slots| SlotId(u32::from_le_bytes(slots[0])));
                    prop_assert_eq!(slot, found);
                    if let Some(slot) = slot {
                        seen.push((reader.last_change(), n, slot, primary.generation(slot)));
                    }
                }
            }
            for (seen, n, slot, generation) in seen {
                let holds = primary.holds_as_seen(&[slot.0.to_le_bytes()], seen);
                let is_same = primary.generation(slot) == generation;
                prop_assert_eq!(holds, is_same);
                prop_assert!(!holds || primary.key(slot) == Some(key(n)));
            }
            primary.check().map_err(TestCaseError::fail)?;
        }
    }
}
