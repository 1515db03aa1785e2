//! Hashes to numbers, of blocks or of slots: 256 small tables, each of which grows alone.
//!
//! A cell is 8 bytes: 31 bits of the hash, one flag, the block's number. The bits are all that a table needs to move its cells, so
//! growing reads no key. Tables have shares of the keys from 1 to 2 parts, evenly spread on a logarithmic scale: they double at
//! different times, so no call meets many of them, and at any size of the whole they take 14.3 to 15.2 bytes a block.

use hashbrown::HashTable;
use terrace_primary::hash::Hasher;

/// Tables.
const SHARDS: usize = 256;
/// Bits of a hash that choose the table, and the places that they tell apart.
const CHOICE_BITS: u32 = 12;
const CHOICES: usize = 1 << CHOICE_BITS;
/// The flag in a cell's first word; the other bits are of the hash.
const OWN: u32 = 1 << 31;
/// Bits of a cell's hash that name its place in a table; the seven above tell neighbours apart.
const PLACE_BITS: u32 = 24;

/// A block in a table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    bits: u32,
    /// Number of the block.
    pub block: u32,
}

impl Cell {
    const fn new(hash: u64, block: u32, own: bool) -> Self {
        Self { bits: bits_of(hash) | if own { OWN } else { 0 }, block }
    }

    /// The flag.
    pub const fn is_own(self) -> bool {
        self.bits & OWN != 0
    }

    const fn is_of(self, hash: u64) -> bool {
        self.bits & !OWN == bits_of(hash)
    }
}

/// Cells on their way into a table, by shard.
#[derive(Default)]
pub struct Sorted {
    shards: Vec<Vec<Cell>>,
    len: usize,
}

impl Sorted {
    /// Cells.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// One more, for `table`.
    #[inline]
    pub fn push(&mut self, table: &Table, hash: u64, block: u32, own: bool) {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, Vec::new);
        }
        self.shards[table.shard(hash)].push(Cell::new(hash, block, own));
        self.len += 1;
    }
}

/// All cells. Two may have one hash; who asks says by number which is meant.
pub struct Table {
    hasher: Hasher,
    shares: Box<[u8]>,
    shards: Box<[HashTable<Cell>]>,
    /// Bits of hashes that count: tests make keys collide.
    #[cfg(test)]
    mask: u64,
}

impl Table {
    pub fn with_capacity(blocks: usize) -> Self {
        // Half a percent more than the mean share, and some for small tables: hashes do not spread evenly.
        let shares = shares();
        let mut widths = [0_usize; SHARDS];
        for share in &shares {
            widths[usize::from(*share)] += 1;
        }
        let shards = widths.map(|width| {
            let mean = (blocks as f64 * width as f64 / CHOICES as f64) as usize;
            HashTable::with_capacity(if mean == 0 { 0 } else { mean + mean / 200 + mean.isqrt() })
        });
        Self {
            hasher: Hasher::random(),
            shares,
            shards: Box::new(shards),
            #[cfg(test)]
            mask: u64::MAX,
        }
    }

    /// Leaves four different hashes.
    #[cfg(test)]
    pub fn collide(&mut self) {
        self.mask = 3;
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let hash = self.hasher.hash(key);
        #[cfg(test)]
        let hash = hash & self.mask;
        hash
    }

    /// The first cell of `hash` whose block `is` the one.
    #[inline]
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<Cell> {
        let shard = &self.shards[self.shard(hash)];
        shard.find(place_of(bits_of(hash)), |cell| cell.is_of(hash) && is(cell.block)).copied()
    }

    /// All cells of `hash`.
    pub fn all(&self, hash: u64) -> impl Iterator<Item = Cell> {
        let shard = &self.shards[self.shard(hash)];
        shard.iter_hash(place_of(bits_of(hash))).copied().filter(move |cell| cell.is_of(hash))
    }

    pub fn insert(&mut self, hash: u64, block: u32, own: bool) {
        let (shard, cell) = (self.shard(hash), Cell::new(hash, block, own));
        make_room(&mut self.shards[shard], 1);
        self.shards[shard].insert_unique(place_of(cell.bits), cell, |cell| place_of(cell.bits));
    }

    /// Inserts all of `sorted`, which is empty then. Answers how many were not there yet: `is_same` tells of two blocks whether they are one.
    pub fn insert_sorted(&mut self, sorted: &mut Sorted, is_same: impl Fn(u32, u32) -> bool) -> usize {
        let mut new = 0;
        for (shard, cells) in self.shards.iter_mut().zip(&mut sorted.shards) {
            make_room(shard, cells.len());
            shard.reserve(cells.len(), |cell| place_of(cell.bits));
            for cell in cells.drain(..) {
                let place = place_of(cell.bits);
                let is = |other: &Cell| (other.bits ^ cell.bits) & !OWN == 0 && is_same(other.block, cell.block);
                new += usize::from(shard.find(place, is).is_none());
                shard.insert_unique(place, cell, |cell| place_of(cell.bits));
            }
        }
        sorted.len = 0;
        new
    }

    /// Takes the cell of a block out.
    pub fn remove(&mut self, hash: u64, block: u32) -> Option<Cell> {
        let shard = self.shard(hash);
        let place = place_of(bits_of(hash));
        let found = self.shards[shard].find_entry(place, |cell| cell.is_of(hash) && cell.block == block);
        found.ok().map(|entry| entry.remove().0)
    }

    /// Flags the first cell of `hash` whose block `is` the one.
    pub fn mark_own(&mut self, hash: u64, is: impl Fn(u32) -> bool) {
        let shard = self.shard(hash);
        let place = place_of(bits_of(hash));
        if let Some(cell) = self.shards[shard].find_mut(place, |cell| cell.is_of(hash) && is(cell.block)) {
            cell.bits |= OWN;
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.shares.len() + self.shards.iter().map(HashTable::allocation_size).sum::<usize>()
    }

    #[inline]
    fn shard(&self, hash: u64) -> usize {
        usize::from(self.shares[(hash >> (u64::BITS - CHOICE_BITS)) as usize])
    }
}

/// Keeps a table from growing for the marks that removed cells leave behind: where live cells and `more` take no more than 15/16 of what it
/// holds, it is made anew at its size. (Left alone it does so at one half only, and doubles above.)
fn make_room(shard: &mut HashTable<Cell>, more: usize) {
    let holds = shard.num_buckets() / 8 * 7;
    if shard.capacity() - shard.len() < more && shard.len() + more <= holds / 16 * 15 {
        let mut clean = HashTable::with_capacity(holds);
        for cell in shard.iter() {
            clean.insert_unique(place_of(cell.bits), *cell, |cell| place_of(cell.bits));
        }
        *shard = clean;
    }
}

/// Which table each of the choices goes to: table `i` gets a share in proportion to 2^(i / 256).
fn shares() -> Box<[u8]> {
    (0..CHOICES).map(|choice| (SHARDS as f64 * (1.0 + choice as f64 / CHOICES as f64).log2()) as u8).collect()
}

/// The bits of a hash that a cell keeps: none of those that chose the table.
#[inline]
const fn bits_of(hash: u64) -> u32 {
    hash as u32 & !OWN
}

/// A cell's bits spread over the 64 of which the table takes the seven highest to tell neighbours apart and the lowest for the place.
#[inline]
const fn place_of(bits: u32) -> u64 {
    let bits = (bits & !OWN) as u64;
    bits >> PLACE_BITS << 57 | bits & ((1 << PLACE_BITS) - 1)
}
