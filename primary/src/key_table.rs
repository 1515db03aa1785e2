//! Keys to rows: a fixed table, made for probing many keys at once.
//!
//! A row holds a key and a word of the table's user side by side, so that one or two cache lines answer a probe. The index
//! is an array of lines of 16 cells (one cache line each); a cell is 0 or `tag | row + 1`. A key's hash gives its home
//! line and its tag; when that line is full its cell is in the first later line that is not. Cells of a line stand
//! without gaps, so a line with an empty last cell ends every search, and there are no tombstones: `remove` pulls
//! cells of later lines back.
//!
//! Probes of a batch are pipelined: while one key is compared, the rows of the next and the index lines of those
//! after them are on their way from memory.

use std::fmt;
use std::ops::ControlFlow;

use crate::hash::Hasher;
use crate::key::{Key, KeyBytes, MAX_KEY_BYTES};
use crate::memory::{LINE_CELLS, Words, matches, prefetch};

/// Most rows of one table.
pub const MAX_ROWS: u32 = (1 << 31) - 2;

/// Rows for each line of the index: a load of 0.6 when every row is in use.
const ROWS_PER_LINE: f64 = 9.6;

/// Bits of a row's word that belong to the table's user.
const USER_BITS: u32 = (1 << 30) - 1;
/// The row holds a key.
const IN_USE: u32 = 1 << 30;
/// The key is shorter than the table's keys: its length stands in the last byte of the key's place.
const SHORT: u32 = 1 << 31;

/// Keys whose index lines are awaited at a time, and as many whose rows are.
const BATCH: usize = 16;

/// A fixed number of rows, each with a key and 30 bits of the user's. Nothing is allocated after [`KeyTable::new`].
///
/// Takes `key_bytes` rounded up to 4, plus 4, plus 6.67 bytes a row.
pub struct KeyTable {
    hasher: Hasher,
    /// Longest key.
    key_bytes: usize,
    /// Words of one row: the user's word, then the key.
    row_words: usize,
    rows: u32,
    len: u32,
    lines: u32,
    /// Bits of a cell that name a row; the tag is above them.
    row_bits: u32,
    index: Words,
    table: Words,
}

impl fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable").field("rows", &self.rows).field("len", &self.len).finish_non_exhaustive()
    }
}

impl KeyTable {
    /// A table of `rows` rows (cut to [`MAX_ROWS`]) for keys of at most `key_bytes` bytes (1 to 68; cut to that).
    pub fn new(rows: u32, key_bytes: usize) -> Self {
        Self::with_hasher(rows, key_bytes, Hasher::random())
    }

    fn with_hasher(rows: u32, key_bytes: usize, hasher: Hasher) -> Self {
        let rows = rows.min(MAX_ROWS);
        let key_bytes = key_bytes.clamp(1, MAX_KEY_BYTES);
        let row_words = 1 + key_bytes.div_ceil(4);
        let lines = (f64::from(rows) / ROWS_PER_LINE).ceil().max(1.0) as u32;
        Self {
            hasher,
            key_bytes,
            row_words,
            rows,
            len: 0,
            lines,
            row_bits: u32::BITS - rows.leading_zeros(),
            index: Words::zeroed(lines as usize * LINE_CELLS),
            table: Words::zeroed(rows as usize * row_words),
        }
    }

    /// Rows, in use or not.
    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows in use.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no row is in use.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the table takes, index included.
    pub const fn bytes(&self) -> usize {
        self.index.mapped_bytes() + self.table.mapped_bytes()
    }

    /// A 64-bit fingerprint of `key`, good in this table only and in this process only.
    #[inline]
    pub fn fingerprint(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Puts `key` into `row`, with a user's word of 0. False, and nothing changes, if the key is in the table already, does
    /// not fit, or the row is out of range or in use.
    pub fn insert(&mut self, key: &Key, row: u32) -> bool {
        self.insert_bytes(key.as_bytes(), row)
    }

    /// [`KeyTable::insert`] for a key of any bytes.
    pub fn insert_bytes(&mut self, key: &[u8], row: u32) -> bool {
        if row >= self.rows || key.is_empty() || key.len() > self.key_bytes || self.is_used(row) {
            return false;
        }
        let hash = self.hasher.hash(key);
        if self.find_hashed(key, hash).is_some() {
            return false;
        }
        let at = self.row_at(row);
        let short = key.len() < self.key_bytes;
        let place = &mut self.table.as_mut_slice()[at..at + self.row_words];
        place[0] = IN_USE | if short { SHORT } else { 0 };
        let mut padded = [0; MAX_KEY_BYTES];
        padded[..key.len()].copy_from_slice(key);
        if short {
            padded[self.key_bytes - 1] = key.len() as u8;
        }
        for (word, bytes) in place[1..].iter_mut().zip(padded.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let cell = self.tag(hash) | (row + 1);
        let mut line = self.home(hash);
        loop {
            let cells = self.line_mut(line);
            if let Some(empty) = cells.iter_mut().find(|cell| **cell == 0) {
                *empty = cell;
                break;
            }
            line = self.line_after(line);
        }
        self.len += 1;
        true
    }

    /// Takes the key out of `row`. False if the row is out of range or not in use.
    pub fn remove(&mut self, row: u32) -> bool {
        if row >= self.rows || !self.is_used(row) {
            return false;
        }
        let hash = self.row_hash(row);
        let cell = self.tag(hash) | (row + 1);
        let mut line = self.home(hash);
        let mut place = self.line(line).iter().position(|other| *other == cell);
        // Every line from home to the cell's is full, and the cell exists: the row is in use.
        while place.is_none() {
            line = self.line_after(line);
            place = self.line(line).iter().position(|other| *other == cell);
        }
        if let Some(place) = place {
            self.take_out(line, place);
        }
        let at = self.row_at(row);
        self.table.as_mut_slice()[at] = 0;
        self.len -= 1;
        true
    }

    /// Whether `key` is short enough for the table and not in it.
    pub(crate) fn could_insert(&self, key: &Key) -> bool {
        key.as_bytes().len() <= self.key_bytes && self.find(key.as_bytes()).is_none()
    }

    /// The row of `key`.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.find_hashed(key, self.hasher.hash(key))
    }

    /// Calls `found` with the place of each key in `keys` and its row, in order, until it breaks.
    #[inline]
    pub fn find_batch<K: KeyBytes>(&self, keys: &[K], mut found: impl FnMut(usize, Option<u32>) -> ControlFlow<()>) {
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
                    let row = if self.holds(rows[i], key) { Some(rows[i]) } else { self.find_again(key, hashes[i]) };
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
        let index = self.index.as_slice();
        for (key, hash) in keys.iter().zip(hashes) {
            *hash = self.hasher.hash(key.key_bytes());
            prefetch(index, self.home(*hash) as usize * LINE_CELLS);
        }
    }

    /// For each hash, the row of the first cell in its home line that has its tag (any row where there is none); asks for these
    /// rows.
    #[inline(never)]
    fn reach_batch(&self, hashes: &[u64; BATCH], rows: &mut [u32; BATCH]) {
        let lines = self.index.as_slice().as_chunks::<LINE_CELLS>().0;
        let table = self.table.as_slice();
        let mask = self.tag_mask();
        for (hash, row) in hashes.iter().zip(rows) {
            let cells = &lines[self.home(*hash) as usize];
            let bits = matches(cells, self.tag(*hash), mask);
            *row = self.cell_row(cells[bits.trailing_zeros() as usize % LINE_CELLS]);
            let at = self.row_at(*row);
            prefetch(table, at);
            prefetch(table, at.wrapping_add(self.row_words - 1));
        }
    }

    /// Whether `row` holds a key.
    #[inline]
    pub fn is_row_used(&self, row: u32) -> bool {
        row < self.rows && self.is_used(row)
    }

    /// The key in `row`; `None` where the row is not in use, or the key is none of [`Key`]'s form (under 5 bytes).
    pub fn key(&self, row: u32) -> Option<Key> {
        if row >= self.rows || !self.is_used(row) {
            return None;
        }
        let (bytes, len) = self.row_key(row);
        Key::from_bytes(&bytes[..len]).ok()
    }

    /// The user's 30 bits of `row`, which is 0 where the row is out of range or not in use.
    #[inline]
    pub fn word(&self, row: u32) -> u32 {
        self.table.as_slice().get(self.row_at(row)).map_or(0, |word| word & USER_BITS)
    }

    /// Sets the user's bits of `row` to the lower 30 of `word`. False if the row is out of range or not in use.
    #[inline]
    pub fn set_word(&mut self, row: u32, word: u32) -> bool {
        let at = self.row_at(row);
        match self.table.as_mut_slice().get_mut(at) {
            Some(place) if *place & IN_USE != 0 => {
                *place = *place & !USER_BITS | word & USER_BITS;
                true
            }
            _ => false,
        }
    }

    /// Brings what [`KeyTable::remove`] of these rows will look at close to the processor, all of it at once.
    pub(crate) fn warm(&self, rows: impl Iterator<Item = u32> + Clone) {
        for row in rows.clone() {
            let at = self.row_at(row);
            prefetch(self.table.as_slice(), at);
            prefetch(self.table.as_slice(), at + self.row_words - 1);
        }
        for row in rows.filter(|row| self.is_row_used(*row)) {
            prefetch(self.index.as_slice(), self.home(self.row_hash(row)) as usize * LINE_CELLS);
        }
    }

    /// Takes every key out. Touches all rows.
    pub fn clear(&mut self) {
        self.index.as_mut_slice().fill(0);
        self.table.as_mut_slice().fill(0);
        self.len = 0;
    }

    /// Whether index and rows say the same; for tests. Touches all rows.
    pub fn check(&self) -> Result<(), String> {
        let mut cells = 0;
        for line in 0..self.lines {
            let line_cells = self.line(line);
            if line_cells.iter().skip_while(|cell| **cell != 0).any(|cell| *cell != 0) {
                return Err(format!("line {line} has a gap"));
            }
            cells += line_cells.iter().filter(|cell| **cell != 0).count();
        }
        let used: Vec<u32> = (0..self.rows).filter(|row| self.is_used(*row)).collect();
        if used.len() != self.len as usize || cells != self.len as usize {
            return Err(format!("{} rows in use, {cells} cells, length {}", used.len(), self.len));
        }
        for row in used {
            let (bytes, len) = self.row_key(row);
            if self.find(&bytes[..len]) != Some(row) {
                return Err(format!("row {row} is not found by its key"));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn find_hashed(&self, key: &[u8], hash: u64) -> Option<u32> {
        let tag = self.tag(hash);
        let mut line = self.home(hash);
        loop {
            let cells = self.line(line);
            let mut bits = matches(cells, tag, self.tag_mask());
            while bits != 0 {
                let row = self.cell_row(cells[bits.trailing_zeros() as usize & (LINE_CELLS - 1)]);
                if self.holds(row, key) {
                    return Some(row);
                }
                bits &= bits - 1;
            }
            if cells[LINE_CELLS - 1] == 0 {
                return None;
            }
            line = self.line_after(line);
        }
    }

    /// [`KeyTable::find_hashed`] for the keys of a batch that are not in the row their tag pointed to: absent ones, mostly.
    #[inline(never)]
    fn find_again(&self, key: &[u8], hash: u64) -> Option<u32> {
        self.find_hashed(key, hash)
    }

    /// Takes a cell out of its line and closes the gap that this opens for keys further on.
    fn take_out(&mut self, mut line: u32, mut place: usize) {
        loop {
            let cells = self.line_mut(line);
            let was_full = cells[LINE_CELLS - 1] != 0;
            let last = cells.iter().rposition(|cell| *cell != 0).unwrap_or(place);
            cells[place] = cells[last];
            cells[last] = 0;
            if !was_full {
                return;
            }
            // A full line may have sent keys on; the first that may live here moves in, and leaves a gap in turn.
            let Some((later, later_place)) = self.sent_on(line) else { return };
            let cell = self.line(later)[later_place];
            self.line_mut(line)[LINE_CELLS - 1] = cell;
            (line, place) = (later, later_place);
        }
    }

    /// The first cell after `line` whose home is `line` or before it.
    fn sent_on(&self, line: u32) -> Option<(u32, usize)> {
        let mut later = self.line_after(line);
        while later != line {
            let cells = self.line(later);
            for (place, cell) in cells.iter().enumerate().take_while(|(_, cell)| **cell != 0) {
                let home = self.home(self.row_hash(self.cell_row(*cell)));
                if self.distance(home, later) >= self.distance(line, later) {
                    return Some((later, place));
                }
            }
            if cells[LINE_CELLS - 1] == 0 {
                return None;
            }
            later = self.line_after(later);
        }
        None
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> u32 {
        ((u128::from(hash) * u128::from(self.lines)) >> 64) as u32
    }

    /// The tag of a hash, in its place above the row; never 0, so that an empty cell matches no key.
    #[inline(always)]
    fn tag(&self, hash: u64) -> u32 {
        let tag = hash as u32 & self.tag_mask();
        if tag == 0 { 1 << self.row_bits } else { tag }
    }

    #[inline(always)]
    const fn tag_mask(&self) -> u32 {
        u32::MAX << self.row_bits
    }

    #[inline(always)]
    const fn cell_row(&self, cell: u32) -> u32 {
        (cell & !self.tag_mask()).wrapping_sub(1)
    }

    #[inline(always)]
    const fn line_after(&self, line: u32) -> u32 {
        if line + 1 == self.lines { 0 } else { line + 1 }
    }

    const fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.lines - from + to }
    }

    #[inline(always)]
    fn line(&self, line: u32) -> &[u32; LINE_CELLS] {
        &self.index.as_slice().as_chunks().0[line as usize]
    }

    fn line_mut(&mut self, line: u32) -> &mut [u32; LINE_CELLS] {
        &mut self.index.as_mut_slice().as_chunks_mut().0[line as usize]
    }

    #[inline(always)]
    const fn row_at(&self, row: u32) -> usize {
        (row as usize).wrapping_mul(self.row_words)
    }

    #[inline(always)]
    fn is_used(&self, row: u32) -> bool {
        self.table.as_slice()[self.row_at(row)] & IN_USE != 0
    }

    fn row_hash(&self, row: u32) -> u64 {
        let (bytes, len) = self.row_key(row);
        self.hasher.hash(&bytes[..len])
    }

    /// The key in a row: its bytes and its length.
    fn row_key(&self, row: u32) -> ([u8; MAX_KEY_BYTES], usize) {
        let at = self.row_at(row);
        let place = &self.table.as_slice()[at..at + self.row_words];
        let mut bytes = [0; MAX_KEY_BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&place[1..]) {
            *bytes = word.to_le_bytes();
        }
        let len = if place[0] & SHORT == 0 { self.key_bytes } else { usize::from(bytes[self.key_bytes - 1]) };
        (bytes, len.min(self.key_bytes))
    }

    /// Whether `row` holds `key`.
    #[inline(always)]
    fn holds(&self, row: u32, key: &[u8]) -> bool {
        // The common shape: nine words against 36 bytes, without a loop.
        if self.row_words == 10
            && let Ok(key) = <&[u8; 36]>::try_from(key)
            && let Some([word, place @ ..]) = self.table.as_slice().as_chunks::<10>().0.get(row as usize)
        {
            let (eights, last) = key.as_chunks::<8>();
            let mut differ = u64::from(word & (SHORT | IN_USE) ^ IN_USE);
            for i in 0..4 {
                differ |= u64::from_le_bytes(eights[i]) ^ (u64::from(place[2 * i]) | u64::from(place[2 * i + 1]) << 32);
            }
            let last = <[u8; 4]>::try_from(last).map_or(0, u32::from_le_bytes);
            return differ | u64::from(last ^ place[8]) == 0;
        }
        self.holds_any(row, key)
    }

    #[inline(never)]
    fn holds_any(&self, row: u32, key: &[u8]) -> bool {
        if !self.is_row_used(row) {
            return false;
        }
        let (bytes, len) = self.row_key(row);
        bytes[..len] == *key
    }
}

#[cfg(test)]
mod tests;
