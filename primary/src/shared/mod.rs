//! A key table that other processes read: they find blocks in it without asking, and its owner says whether what they
//! found still holds.
//!
//! The owner counts **changes**: blocks that become readable. A reader takes the number of the last change, then looks keys
//! up; the owner, told that number and the slots, accepts them if each is readable now and none has changed since. So a
//! reader needs no lock and the owner never waits for one, and what a reader saw half written is refused, not used: each slot
//! that it could have been about has changed since.
//!
//! # Layout
//! A memfd, sealed against shrinking, growing and new writers; little-endian `u32` words; parts begin at multiples of 4096
//! bytes.
//!
//! | part | |
//! |---|---|
//! | header | `TRKT`, the layout's number (1), rows, longest key in bytes, lines, row bits; at byte 32 the seed of the hash, four `u64`; at byte 64 the number of the last change, `u64` |
//! | index | `lines` lines of 16 cells |
//! | rows | one for each slot: its word, and the key, padded to whole words |
//!
//! Cells, words and the way from a key to its row are those of [`KeyTable`](crate::KeyTable); of a word's bits for its user 0 to 7
//! say where the block came from, and bit 8 that it has left. It is a table of its own because in the owner's readers are counted
//! in each row, and every count would take the row's cache line from those who read it. A row is cleared when its slot or its key is needed again:
//! until then the bit is one store, and the index stays as it is.

mod changes;
mod map;
mod owner;
mod reader;
mod sync;

pub(crate) use owner::SharedTable;
pub use reader::TableReader;

use crate::memory::LINE_CELLS;

/// The first word.
const MAGIC: u32 = u32::from_le_bytes(*b"TRKT");
/// Of this layout.
const LAYOUT: u32 = 1;
/// To which parts are aligned.
const PAGE_BYTES: usize = 4096;
/// Words of the header before the seed.
const SEED_AT: usize = 8;
/// Bit of a row's word: its block has left.
const GONE: u32 = 1 << 8;
/// Lines that a key may be in. Whoever knows the seed can make keys that all belong in the same ones: what finds no place there is not in the table, and
/// costs nobody else anything. By chance that does not happen: a line has room for two thirds more than it is due.
const REACH: u32 = 8;
/// Word at which the number of the last change stands.
const CHANGES_AT: usize = 16;

/// Where the parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    index_words: usize,
    rows_at: u64,
    rows_words: usize,
    bytes: u64,
}

impl Parts {
    /// `None`: more than an address space holds.
    fn of(lines: u32, rows: u32, row_words: usize) -> Option<Self> {
        let index_words = (lines as usize).checked_mul(LINE_CELLS)?;
        let rows_words = (rows as usize).checked_mul(row_words)?;
        let whole = |words: usize| words.checked_mul(4)?.checked_next_multiple_of(PAGE_BYTES);
        let rows_at = whole(index_words)?.checked_add(PAGE_BYTES)?;
        let bytes = rows_at.checked_add(whole(rows_words.max(1))?)?;
        Some(Self { index_words, rows_at: rows_at as u64, rows_words, bytes: bytes as u64 })
    }
}
