//! The engine's pool of GPU blocks with its prefix cache: which blocks are free, who uses one, what a free one still holds.
//!
//! A block that nobody uses stays in the free list with its content until it is handed out again; the list's front is
//! handed out next. A block of known content goes to the back when it is let go, any other to the front: least recently
//! used content goes first, and memory that holds nothing of use before it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use terrace_connector::GpuBlock;

use super::mix::GOLDEN;

/// Names the content of a GPU block: block id and group.
pub type ContentName = (u64, u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Row {
    previous: u32,
    next: u32,
    users: u32,
    content: Option<ContentName>,
}

/// The pool.
pub struct GpuPool {
    rows: Vec<Row>,
    front: u32,
    back: u32,
    free: u32,
    /// Where known content is; `None`: the prefix cache is off.
    cache: Option<HashMap<ContentName, GpuBlock, BuildHasherDefault<IdHasher>>>,
}

impl GpuPool {
    /// A pool of `blocks` free blocks.
    pub fn new(blocks: u32, prefix_cache: bool) -> Self {
        let row = |index: u32| Row {
            previous: index.checked_sub(1).unwrap_or(NONE),
            next: if index + 1 < blocks { index + 1 } else { NONE },
            users: 0,
            content: None,
        };
        Self {
            rows: (0..blocks).map(row).collect(),
            front: if blocks > 0 { 0 } else { NONE },
            back: blocks.checked_sub(1).unwrap_or(NONE),
            free: blocks,
            cache: prefix_cache.then(HashMap::default),
        }
    }

    /// Blocks that nobody uses.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Whether the prefix cache is on.
    pub fn caches(&self) -> bool {
        self.cache.is_some()
    }

    /// The block that holds this content, used or free.
    pub fn cached(&self, content: ContentName) -> Option<GpuBlock> {
        self.cache.as_ref()?.get(&content).copied()
    }

    /// Takes a free block, whose content is forgotten. One user.
    pub fn allocate(&mut self) -> Option<GpuBlock> {
        let index = self.front;
        if index == NONE {
            return None;
        }
        self.unlink(index);
        let row = &mut self.rows[index as usize];
        row.users = 1;
        if let (Some(content), Some(cache)) = (row.content.take(), self.cache.as_mut()) {
            cache.remove(&content);
        }
        Some(GpuBlock(index))
    }

    /// One user more of a block found in the cache.
    pub fn share(&mut self, block: GpuBlock) {
        if self.rows[block.0 as usize].users == 0 {
            self.unlink(block.0);
        }
        self.rows[block.0 as usize].users += 1;
    }

    /// Names the content of a used block, which is complete. Content that another block holds already is not named twice.
    pub fn name(&mut self, block: GpuBlock, content: ContentName) {
        let Some(cache) = self.cache.as_mut() else { return };
        if self.rows[block.0 as usize].content.is_none() && !cache.contains_key(&content) {
            cache.insert(content, block);
            self.rows[block.0 as usize].content = Some(content);
        }
    }

    /// One user less. To be called with a request's last block first, so that tails are handed out before heads.
    pub fn release(&mut self, block: GpuBlock) {
        let row = &mut self.rows[block.0 as usize];
        debug_assert!(row.users > 0, "{block:?} has no user");
        row.users = row.users.saturating_sub(1);
        if row.users > 0 {
            return;
        }
        let known = row.content.is_some();
        let (previous, next) = if known { (self.back, NONE) } else { (NONE, self.front) };
        let row = &mut self.rows[block.0 as usize];
        (row.previous, row.next) = (previous, next);
        match self.rows.get_mut(previous as usize) {
            Some(row) => row.next = block.0,
            None => self.front = block.0,
        }
        match self.rows.get_mut(next as usize) {
            Some(row) => row.previous = block.0,
            None => self.back = block.0,
        }
        self.free += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Row { previous, next, .. } = self.rows[index as usize];
        match self.rows.get_mut(previous as usize) {
            Some(row) => row.next = next,
            None => self.front = next,
        }
        match self.rows.get_mut(next as usize) {
            Some(row) => row.previous = previous,
            None => self.back = previous,
        }
        self.free -= 1;
    }
}

/// Block ids come from traces that the user chose: no defence against chosen collisions is needed, only speed.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let x = (self.0.rotate_left(5) ^ value).wrapping_mul(GOLDEN);
        self.0 = x ^ (x >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pool: &mut GpuPool) -> Vec<u32> {
        std::iter::from_fn(|| pool.allocate()).map(|block| block.0).collect()
    }

    #[test]
    fn known_content_is_handed_out_last_and_oldest_first() {
        let mut pool = GpuPool::new(4, true);
        assert_eq!(all(&mut pool), [0, 1, 2, 3]);
        assert_eq!((pool.free(), pool.allocate()), (0, None));
        pool.name(GpuBlock(1), (10, 0));
        pool.name(GpuBlock(2), (11, 0));
        pool.name(GpuBlock(3), (11, 0));
        for block in [3, 2, 1, 0] {
            pool.release(GpuBlock(block));
        }
        assert_eq!(pool.cached((11, 0)), Some(GpuBlock(2)));
        pool.share(GpuBlock(2));
        pool.release(GpuBlock(2));
        assert_eq!(all(&mut pool), [0, 3, 1, 2]);
        assert_eq!(pool.cached((10, 0)), None);
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_user() {
        let mut pool = GpuPool::new(1, true);
        let block = pool.allocate().unwrap();
        pool.name(block, (1, 0));
        pool.share(block);
        pool.release(block);
        assert_eq!(pool.free(), 0);
        pool.release(block);
        assert_eq!((pool.free(), pool.cached((1, 0))), (1, Some(block)));
    }

    #[test]
    fn without_a_cache_nothing_is_kept() {
        let mut pool = GpuPool::new(2, false);
        let block = pool.allocate().unwrap();
        pool.name(block, (1, 0));
        pool.release(block);
        assert_eq!(pool.cached((1, 0)), None);
        assert_eq!(pool.free(), 2);
    }
}
