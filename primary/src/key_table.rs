//! Keys to rows: a fixed table, made for probing many keys at once.
//!
//! A row holds a key and a word of the table's user side by side, so that one or two cache lines answer a probe. The index
//! is an array of lines of 16 cells (one cache line each); a cell is 0 or `tag | row + 1`. A key's hash gives its home
//! line and its tag; when that line is full its cell is in the first later line that is not. Cells of a line stand
//! without gaps, so a line with an empty last cell ends every search, and there are no tombstones: `remove` pulls
//! cells of later lines back.

mod probe;

use std::fmt;
use std::ops::ControlFlow;

use rustix::io::Errno;

use crate::hash::Hasher;
use crate::key::{Key, KeyBytes, MAX_KEY_BYTES};
use crate::memory::{LINE_CELLS, Memory, Words};

pub(crate) use probe::Probe;

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
    probe: Probe<Words>,
    len: u32,
}

impl fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable").field("rows", &self.probe.rows).field("len", &self.len).finish_non_exhaustive()
    }
}

impl KeyTable {
    /// A table of `rows` rows (cut to [`MAX_ROWS`]) for keys of at most `key_bytes` bytes (1 to 68; cut to that).
    pub fn new(rows: u32, key_bytes: usize) -> Self {
        Self::with_hasher(rows, key_bytes, Hasher::random())
    }

    /// A table in memory that other processes read: `memory` gives zeros for so many lines and rows of so many words. Each cell is in one of `reach` lines from its home on.
    pub(crate) fn shared<T>(
        rows: u32,
        key_bytes: usize,
        hasher: Hasher,
        reach: u32,
        memory: impl FnOnce(&Probe<Words>) -> Result<(T, Words, Words), Errno>,
    ) -> Result<(Self, T), Errno> {
        let mut table = Self::with_hasher(rows, key_bytes, hasher);
        table.probe.reach = reach.clamp(1, table.probe.lines);
        let with;
        (with, table.probe.index, table.probe.table) = memory(&table.probe)?;
        Ok((table, with))
    }

    fn with_hasher(rows: u32, key_bytes: usize, hasher: Hasher) -> Self {
        let rows = rows.min(MAX_ROWS);
        let key_bytes = key_bytes.clamp(1, MAX_KEY_BYTES);
        let row_words = 1 + key_bytes.div_ceil(4);
        let lines = (f64::from(rows) / ROWS_PER_LINE).ceil().max(1.0) as u32;
        let probe = Probe {
            hasher,
            key_bytes,
            row_words,
            rows,
            lines,
            reach: lines,
            row_bits: u32::BITS - rows.leading_zeros(),
            index: Words::zeroed(lines as usize * LINE_CELLS),
            table: Words::zeroed(rows as usize * row_words),
        };
        Self { probe, len: 0 }
    }

    /// Rows, in use or not.
    pub const fn rows(&self) -> u32 {
        self.probe.rows
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
        self.probe.index.mapped_bytes() + self.probe.table.mapped_bytes()
    }

    /// A 64-bit fingerprint of `key`, good in this table only and in this process only.
    #[inline]
    pub fn fingerprint(&self, key: &[u8]) -> u64 {
        self.probe.hasher.hash(key)
    }

    /// Puts `key` into `row`, with a user's word of 0. False, and nothing changes, if the key is in the table already, does
    /// not fit, or the row is out of range or in use; in a table that is shared also if the lines that it may be in are full.
    pub fn insert(&mut self, key: &Key, row: u32) -> bool {
        self.insert_bytes(key.as_bytes(), row)
    }

    /// [`KeyTable::insert`] for a key of any bytes.
    pub fn insert_bytes(&mut self, key: &[u8], row: u32) -> bool {
        if row >= self.probe.rows || key.is_empty() || key.len() > self.probe.key_bytes || self.is_used(row) {
            return false;
        }
        let hash = self.probe.hasher.hash(key);
        if self.probe.find_hashed(key, hash).is_some() {
            return false;
        }
        let at = self.probe.row_at(row);
        let short = key.len() < self.probe.key_bytes;
        let place = &mut self.probe.table.as_mut_slice()[at..at + self.probe.row_words];
        place[0] = IN_USE | if short { SHORT } else { 0 };
        let mut padded = [0; MAX_KEY_BYTES];
        padded[..key.len()].copy_from_slice(key);
        if short {
            padded[self.probe.key_bytes - 1] = key.len() as u8;
        }
        for (word, bytes) in place[1..].iter_mut().zip(padded.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let cell = self.probe.tag(hash) | (row + 1);
        let mut line = self.probe.home(hash);
        for _ in 0..self.probe.reach {
            if let Some(empty) = self.line_mut(line).iter_mut().find(|cell| **cell == 0) {
                *empty = cell;
                self.len += 1;
                return true;
            }
            line = self.probe.line_after(line);
        }
        self.probe.table.as_mut_slice()[at] = 0;
        false
    }

    /// Takes the key out of `row`. False if the row is out of range or not in use.
    pub fn remove(&mut self, row: u32) -> bool {
        if row >= self.probe.rows || !self.is_used(row) {
            return false;
        }
        let hash = self.row_hash(row);
        let cell = self.probe.tag(hash) | (row + 1);
        let mut line = self.probe.home(hash);
        let mut place = self.line(line).iter().position(|other| *other == cell);
        // Every line from home to the cell's is full, and the cell exists: the row is in use.
        while place.is_none() {
            line = self.probe.line_after(line);
            place = self.line(line).iter().position(|other| *other == cell);
        }
        if let Some(place) = place {
            self.take_out(line, place);
        }
        let at = self.probe.row_at(row);
        self.probe.table.as_mut_slice()[at] = 0;
        self.len -= 1;
        true
    }

    /// Whether `key` is short enough for the table and not in it.
    pub(crate) fn could_insert(&self, key: &Key) -> bool {
        key.as_bytes().len() <= self.probe.key_bytes && self.find(key.as_bytes()).is_none()
    }

    /// The row of `key`.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.probe.find(key).map(|(row, _)| row)
    }

    /// Calls `found` with the place of each key in `keys` and its row, in order, until it breaks.
    #[inline]
    pub fn find_batch<K: KeyBytes>(&self, keys: &[K], mut found: impl FnMut(usize, Option<u32>) -> ControlFlow<()>) {
        self.probe.find_batch(keys, |at, row| found(at, row.map(|(row, _)| row)));
    }

    /// The same with the row's word.
    #[inline]
    pub(crate) fn find_words<K: KeyBytes>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<(u32, u32)>) -> ControlFlow<()>,
    ) {
        self.probe.find_batch(keys, |at, row| found(at, row.map(|(row, word)| (row, word & USER_BITS))));
    }

    /// Whether `row` holds a key.
    #[inline]
    pub fn is_row_used(&self, row: u32) -> bool {
        row < self.probe.rows && self.is_used(row)
    }

    /// The key in `row`; `None` where the row is not in use, or the key is none of [`Key`]'s form (under 5 bytes).
    pub fn key(&self, row: u32) -> Option<Key> {
        if row >= self.probe.rows || !self.is_used(row) {
            return None;
        }
        let (bytes, len) = self.row_key(row);
        Key::from_bytes(&bytes[..len]).ok()
    }

    /// The user's 30 bits of `row`, which is 0 where the row is out of range or not in use.
    #[inline]
    pub fn word(&self, row: u32) -> u32 {
        self.probe.table.as_slice().get(self.probe.row_at(row)).map_or(0, |word| word & USER_BITS)
    }

    /// Sets the user's bits of `row` to the lower 30 of `word`. False if the row is out of range or not in use.
    #[inline]
    pub fn set_word(&mut self, row: u32, word: u32) -> bool {
        let at = self.probe.row_at(row);
        match self.probe.table.as_mut_slice().get_mut(at) {
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
            let at = self.probe.row_at(row);
            self.probe.table.prefetch(at);
            self.probe.table.prefetch(at + self.probe.row_words - 1);
        }
        for row in rows.filter(|row| self.is_row_used(*row)) {
            self.probe.index.prefetch(self.probe.home(self.row_hash(row)) as usize * LINE_CELLS);
        }
    }

    /// Takes every key out. Touches all rows.
    pub fn clear(&mut self) {
        self.probe.index.as_mut_slice().fill(0);
        self.probe.table.as_mut_slice().fill(0);
        self.len = 0;
    }

    /// Whether index and rows say the same; for tests. Touches all rows.
    pub fn check(&self) -> Result<(), String> {
        let mut cells = 0;
        for line in 0..self.probe.lines {
            let line_cells = self.line(line);
            if line_cells.iter().skip_while(|cell| **cell != 0).any(|cell| *cell != 0) {
                return Err(format!("line {line} has a gap"));
            }
            cells += line_cells.iter().filter(|cell| **cell != 0).count();
        }
        let used: Vec<u32> = (0..self.probe.rows).filter(|row| self.is_used(*row)).collect();
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
        let mut later = self.probe.line_after(line);
        while later != line && self.distance(line, later) < self.probe.reach {
            let cells = self.line(later);
            for (place, cell) in cells.iter().enumerate().take_while(|(_, cell)| **cell != 0) {
                let home = self.probe.home(self.row_hash(self.probe.cell_row(*cell)));
                if self.distance(home, later) >= self.distance(line, later) {
                    return Some((later, place));
                }
            }
            if cells[LINE_CELLS - 1] == 0 {
                return None;
            }
            later = self.probe.line_after(later);
        }
        None
    }

    const fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.probe.lines - from + to }
    }

    #[inline(always)]
    fn line(&self, line: u32) -> &[u32; LINE_CELLS] {
        &self.probe.index.as_slice().as_chunks().0[line as usize]
    }

    fn line_mut(&mut self, line: u32) -> &mut [u32; LINE_CELLS] {
        &mut self.probe.index.as_mut_slice().as_chunks_mut().0[line as usize]
    }

    #[inline(always)]
    fn is_used(&self, row: u32) -> bool {
        self.probe.word(row) & IN_USE != 0
    }

    fn row_hash(&self, row: u32) -> u64 {
        let (bytes, len) = self.row_key(row);
        self.probe.hasher.hash(&bytes[..len])
    }

    fn row_key(&self, row: u32) -> ([u8; MAX_KEY_BYTES], usize) {
        self.probe.row_key(row, self.probe.word(row))
    }
}

#[cfg(test)]
mod tests;
