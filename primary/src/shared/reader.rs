//! A reader's side.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;

use super::changes::last_change;
use super::map::View;
use super::{CHANGES_AT, GONE, LAYOUT, MAGIC, PAGE_BYTES, Parts, REACH, SEED_AT};
use crate::error::PrimaryError;
use crate::hash::Hasher;
use crate::key::{KeyBytes, MAX_KEY_BYTES};
use crate::key_table::Probe;
use crate::memory::Memory;

/// The table of another process' primary.
pub struct TableReader {
    head: View,
    probe: Probe<View>,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader").field("rows", &self.probe.rows).finish_non_exhaustive()
    }
}

impl TableReader {
    /// Maps the table in `fd`, of `slots` slots and keys of at most `key_bytes` bytes. Refused unless the file is one, is sealed
    /// against shrinking, and holds all that its header says.
    pub fn open(fd: &OwnedFd, slots: u32, key_bytes: usize) -> Result<Self, PrimaryError> {
        let system = |step: &'static str| move |errno: Errno| PrimaryError::System { step, source: errno.into() };
        let seals = fcntl_get_seals(fd).map_err(system("asking for the seals of a table"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(PrimaryError::Unsealed);
        }
        let stat = fstat(fd).map_err(system("asking for the length of a table"))?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if file_bytes < PAGE_BYTES as u64 {
            return Err(PrimaryError::ShortFile { need_bytes: PAGE_BYTES as u64, file_bytes });
        }
        let view = |offset, words| {
            // SAFETY: every part is checked to lie within the file, which cannot shrink.
            #[expect(unsafe_code, reason = "shared memory of another process")]
            unsafe { View::of(fd, offset, words) }.map_err(system("mapping a table"))
        };
        let head = view(0, CHANGES_AT + 2)?;
        let [magic, layout, rows, longest, lines, row_bits] = std::array::from_fn(|at| head.word(at));
        let row_words = 1 + key_bytes.div_ceil(4);
        let parts = Parts::of(lines, rows, row_words);
        let parts = parts.filter(|_| {
            [magic, layout, rows, longest] == [MAGIC, LAYOUT, slots, key_bytes as u32]
                && key_bytes <= MAX_KEY_BYTES
                && lines > 0
                && row_bits == u32::BITS - rows.leading_zeros()
                && row_bits < u32::BITS
        });
        let Some(parts) = parts else {
            return Err(PrimaryError::Table { header: [magic, layout, rows, longest, lines, row_bits] });
        };
        if file_bytes < parts.bytes {
            return Err(PrimaryError::ShortFile { need_bytes: parts.bytes, file_bytes });
        }
        let word = |at: usize| u64::from(head.word(at));
        let seed = std::array::from_fn(|at| word(SEED_AT + 2 * at) | word(SEED_AT + 2 * at + 1) << 32);
        let index = view(PAGE_BYTES as u64, parts.index_words)?;
        let table = view(parts.rows_at, parts.rows_words)?;
        let hasher = Hasher::of(seed);
        let reach = REACH.min(lines);
        Ok(Self { head, probe: Probe { hasher, key_bytes, row_words, rows, lines, reach, row_bits, index, table } })
    }

    /// The number of the last change: what is found after this holds as long as its slots have not changed since, which
    /// the owner knows.
    pub fn last_change(&self) -> u64 {
        last_change(self.head.changes())
    }

    /// Calls `found` with the slot of each of `keys` and where its block came from (`0` an engine, `t + 1` tier `t`), in order.
    /// False: one is not there, or was not seen; those before it were named.
    pub fn find_all<K: KeyBytes>(&self, keys: &[K], mut found: impl FnMut(u32, u8)) -> bool {
        let mut all = true;
        self.probe.find_batch(keys, |_, row| match row {
            Some((row, word)) if word & GONE == 0 => {
                found(row, word as u8);
                ControlFlow::Continue(())
            }
            _ => {
                all = false;
                ControlFlow::Break(())
            }
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::io::pwrite;

    use super::*;
    use crate::Key;

    const ROWS: u32 = 12;

    proptest! {
        /// Whatever the other process writes behind the header: no panic, and no slot that there is not.
        #[test]
        fn rubbish_names_no_slot_that_is_none(
            lines in 1..4_u32,
            rubbish in prop::collection::vec(any::<u32>(), 64 + 10 * ROWS as usize),
            longest in prop::sample::select(vec![36_usize, 20]),
        ) {
            let fd = memfd_create("t", MemfdFlags::ALLOW_SEALING).expect("a file");
            let row_words = 1 + longest.div_ceil(4);
            let parts = Parts::of(lines, ROWS, row_words).expect("small");
            ftruncate(&fd, parts.bytes).expect("its length");
            let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            let mut header = vec![MAGIC, LAYOUT, ROWS, longest as u32, lines, 4, 0, 0];
            header.extend(&rubbish[..10]);
            // Tags of any kind, rows of which many are there, and words of rows in use.
            let cells: Vec<u32> = rubbish.iter().map(|word| (word % 24) | (word & 0xf000_0000)).collect();
            let index = &cells[..parts.index_words.min(cells.len())];
            for (at, words) in [(0, &header[..]), (PAGE_BYTES as u64, index), (parts.rows_at, &rubbish[64..64 + ROWS as usize * row_words])] {
                prop_assert!(pwrite(&fd, &bytes(words), at).is_ok());
            }
            fcntl_add_seals(&fd, SealFlags::SHRINK).expect("a seal");
            let reader = TableReader::open(&fd, ROWS, longest).expect("a table");
            reader.last_change();
            let keys: Vec<Key> = (0..40_u64).map(|n| Key::new(&n.to_le_bytes().repeat(longest / 8)[..longest - 4], 0).expect("a key")).collect();
            for keys in [&keys[..], &keys[..3]] {
                reader.find_all(keys, |slot, _| assert!(slot < ROWS));
            }
        }
    }
}
