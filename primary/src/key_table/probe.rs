//! The reading half of a table: from a key to its row, also where another process writes.
//!
//! Probes of a batch are pipelined: while one key is compared, the rows of the next and the index lines of those
//! after them are on their way from memory.

use std::ops::ControlFlow;

use super::{BATCH, IN_USE, SHORT};
use crate::hash::Hasher;
use crate::key::{KeyBytes, MAX_KEY_BYTES};
use crate::memory::{LINE_CELLS, Memory};

/// Index and rows of a table, and how a hash leads through them.
pub(crate) struct Probe<M> {
    pub hasher: Hasher,
    /// Longest key.
    pub key_bytes: usize,
    /// Words of one row: the user's word, then the key.
    pub row_words: usize,
    pub rows: u32,
    pub lines: u32,
    /// A key's cell is in one of so many lines from its home on: 1 to `lines`.
    pub reach: u32,
    /// Bits of a cell that name a row; the tag is above them.
    pub row_bits: u32,
    pub index: M,
    pub table: M,
}

impl<M: Memory> Probe<M> {
    /// The row of `key`, with its word.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<(u32, u32)> {
        self.find_hashed(key, self.hasher.hash(key))
    }

    /// Calls `found` with the place of each key in `keys` and its row and word, in order, until it breaks.
    #[inline]
    pub fn find_batch<K: KeyBytes>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<(u32, u32)>) -> ControlFlow<()>,
    ) {
        let (batches, rest) = keys.as_chunks::<BATCH>();
        let mut hashes = [[0; BATCH]; 3];
        let mut rows = [[0; BATCH]; 2];
        // Step `i` hashes batch `i` and asks for its index lines, finds the rows that the keys of batch `i - 1` may be in and
        // asks for those, and compares batch `i - 2`.
        for step in 0..batches.len() + 2 {
            if let Some(batch) = batches.get(step) {
                self.hash_batch(batch, &mut hashes[step % 3]);
            }
            if step > 0 && step <= batches.len() {
                self.reach_batch(&hashes[(step - 1) % 3], &mut rows[(step - 1) % 2]);
            }
            if step > 1
                && let Some(batch) = batches.get(step - 2)
            {
                let (hashes, rows) = (&hashes[(step - 2) % 3], &rows[(step - 2) % 2]);
                for i in 0..BATCH {
                    let key = batch[i].key_bytes();
                    let row = match self.word_if_holds(rows[i], key) {
                        Some(word) => Some((rows[i], word)),
                        None => self.find_again(key, hashes[i]),
                    };
                    if found((step - 2) * BATCH + i, row).is_break() {
                        return;
                    }
                }
            }
        }
        for (i, key) in rest.iter().enumerate() {
            if found(batches.len() * BATCH + i, self.find(key.key_bytes())).is_break() {
                return;
            }
        }
    }

    /// Hashes a batch and asks for its index lines.
    #[inline(never)]
    fn hash_batch<K: KeyBytes>(&self, keys: &[K; BATCH], hashes: &mut [u64; BATCH]) {
        for (key, hash) in keys.iter().zip(hashes) {
            *hash = self.hasher.hash(key.key_bytes());
            self.index.prefetch(self.home(*hash) as usize * LINE_CELLS);
        }
    }

    /// For each hash, the row of the first cell in its home line that has its tag (any row where there is none); asks for these
    /// rows.
    #[inline(never)]
    fn reach_batch(&self, hashes: &[u64; BATCH], rows: &mut [u32; BATCH]) {
        let mask = self.tag_mask();
        for (hash, row) in hashes.iter().zip(rows) {
            let line = self.home(*hash);
            let bits = self.index.matches(line, self.tag(*hash), mask);
            *row = self.cell_row(self.cell(line, bits.trailing_zeros() as usize % LINE_CELLS));
            let at = self.row_at(*row);
            self.table.prefetch(at);
            self.table.prefetch(at.wrapping_add(self.row_words - 1));
        }
    }

    #[inline(always)]
    pub fn find_hashed(&self, key: &[u8], hash: u64) -> Option<(u32, u32)> {
        let tag = self.tag(hash);
        let mut line = self.home(hash);
        for _ in 0..self.reach {
            let mut bits = self.index.matches(line, tag, self.tag_mask());
            while bits != 0 {
                let row = self.cell_row(self.cell(line, bits.trailing_zeros() as usize % LINE_CELLS));
                if let Some(word) = self.word_if_holds(row, key) {
                    return Some((row, word));
                }
                bits &= bits - 1;
            }
            if self.cell(line, LINE_CELLS - 1) == 0 {
                return None;
            }
            line = self.line_after(line);
        }
        None
    }

    /// [`Probe::find_hashed`] for the keys of a batch that are not in the row their tag pointed to: absent ones, mostly.
    #[inline(never)]
    fn find_again(&self, key: &[u8], hash: u64) -> Option<(u32, u32)> {
        self.find_hashed(key, hash)
    }

    #[inline(always)]
    pub fn home(&self, hash: u64) -> u32 {
        ((u128::from(hash) * u128::from(self.lines)) >> 64) as u32
    }

    /// The tag of a hash, in its place above the row; never 0, so that an empty cell matches no key.
    #[inline(always)]
    pub fn tag(&self, hash: u64) -> u32 {
        let tag = hash as u32 & self.tag_mask();
        if tag == 0 { 1 << self.row_bits } else { tag }
    }

    #[inline(always)]
    const fn tag_mask(&self) -> u32 {
        u32::MAX << self.row_bits
    }

    #[inline(always)]
    fn cell(&self, line: u32, place: usize) -> u32 {
        self.index.word(line as usize * LINE_CELLS + place)
    }

    #[inline(always)]
    pub const fn cell_row(&self, cell: u32) -> u32 {
        (cell & !self.tag_mask()).wrapping_sub(1)
    }

    #[inline(always)]
    pub const fn line_after(&self, line: u32) -> u32 {
        if line + 1 == self.lines { 0 } else { line + 1 }
    }

    #[inline(always)]
    pub const fn row_at(&self, row: u32) -> usize {
        (row as usize).wrapping_mul(self.row_words)
    }

    /// The word of `row`; 0 where it is out of range.
    #[inline(always)]
    pub fn word(&self, row: u32) -> u32 {
        if row < self.rows { self.table.word(self.row_at(row)) } else { 0 }
    }

    /// The key in a row: its bytes and its length.
    pub fn row_key(&self, row: u32, word: u32) -> ([u8; MAX_KEY_BYTES], usize) {
        let at = self.row_at(row);
        let mut bytes = [0; MAX_KEY_BYTES];
        for (place, bytes) in bytes.as_chunks_mut::<4>().0.iter_mut().take(self.row_words - 1).enumerate() {
            *bytes = self.table.word(at + 1 + place).to_le_bytes();
        }
        let len = if word & SHORT == 0 { self.key_bytes } else { usize::from(bytes[self.key_bytes - 1]) };
        (bytes, len.min(self.key_bytes))
    }

    /// The word of `row`, if it holds `key`.
    #[inline(always)]
    fn word_if_holds(&self, row: u32, key: &[u8]) -> Option<u32> {
        // The common shape: nine words against 36 bytes, without a loop.
        if self.row_words == 10
            && let Ok(key) = <&[u8; 36]>::try_from(key)
            && let Some([word, place @ ..]) = self.table.ten(row)
        {
            let (eights, last) = key.as_chunks::<8>();
            let mut differ = u64::from(word & (SHORT | IN_USE) ^ IN_USE);
            for i in 0..4 {
                differ |= u64::from_le_bytes(eights[i]) ^ (u64::from(place[2 * i]) | u64::from(place[2 * i + 1]) << 32);
            }
            let last = <[u8; 4]>::try_from(last).map_or(0, u32::from_le_bytes);
            return (differ | u64::from(last ^ place[8]) == 0).then_some(word);
        }
        self.word_if_holds_any(row, key)
    }

    #[inline(never)]
    fn word_if_holds_any(&self, row: u32, key: &[u8]) -> Option<u32> {
        let word = self.word(row);
        if word & IN_USE == 0 {
            return None;
        }
        let (bytes, len) = self.row_key(row, word);
        (bytes[..len] == *key).then_some(word)
    }
}
