//! The engine's memory: bytes, who has which block, and the cache of prefixes.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_connector::{GpuBlock, KvCaches, KvTensor};
use terrace_kernels::Arena;

use super::content::Name;
use super::settings::Settings;
use crate::rng::Rng;

/// GPU blocks and their bytes.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub arena: Arc<Arena>,
    /// Offset and bytes of a page of each tensor.
    tensors: Vec<(usize, usize)>,
    group_tensors: Vec<usize>,
    /// Per block, requests that have it in a table.
    users: Vec<u32>,
    /// Blocks without users, in no order.
    free: Vec<GpuBlock>,
    /// What the bytes of a block are known to be, for the group that computed or loaded them.
    holds: Vec<Option<(usize, Name)>>,
    cached: BTreeMap<(usize, Name), GpuBlock>,
    /// Blocks that have a new owner since the last step.
    pub reused: Vec<GpuBlock>,
    buffer: Vec<u8>,
}

impl Gpu {
    pub fn new(settings: &Settings) -> Self {
        let blocks = settings.gpu_blocks as usize;
        let mut tensors = Vec::new();
        let mut bytes = 0;
        for page in &settings.pages {
            tensors.push((bytes, *page as usize));
            bytes += *page as usize * blocks;
        }
        let arena = Arena::new(bytes).unwrap_or_else(|error| panic!("no memory to simulate in: {error}"));
        Self {
            arena: Arc::new(arena),
            tensors,
            group_tensors: settings.group_tensors.clone(),
            users: vec![0; blocks],
            free: (0..settings.gpu_blocks).map(GpuBlock).collect(),
            holds: vec![None; blocks],
            cached: BTreeMap::new(),
            reused: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// The same memory for an engine that starts anew: noise, and nobody has anything.
    pub fn restart(&mut self, rng: &mut Rng) {
        self.users.fill(0);
        self.holds.fill(None);
        self.cached.clear();
        self.reused.clear();
        self.free = (0..self.users.len() as u32).map(GpuBlock).collect();
        assert!(self.arena.fill(0, self.arena.len(), rng.next() as u8), "the whole arena is inside");
    }

    /// The memory as the connector is told of it.
    pub fn caches(&self) -> KvCaches {
        let blocks = self.users.len() as u32;
        let tensor = |(offset, page): &(usize, usize)| {
            KvTensor::in_arena(&self.arena, *offset, blocks, *page as u32)
                .unwrap_or_else(|error| panic!("the tensors are inside: {error}"))
        };
        let group = |tensors: &usize| self.tensors.iter().take(*tensors).map(tensor).collect();
        KvCaches { groups: self.group_tensors.iter().map(group).collect() }
    }

    /// Blocks that can be taken.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A block for a new owner, whatever it held.
    pub fn take(&mut self, rng: &mut Rng) -> Option<GpuBlock> {
        if self.free.is_empty() {
            return None;
        }
        let block = self.free.swap_remove(rng.index(self.free.len()));
        self.forget(block);
        self.users[block.0 as usize] = 1;
        self.reused.push(block);
        Some(block)
    }

    /// A block that is known to hold this.
    pub fn find(&self, group: usize, name: Name) -> Option<GpuBlock> {
        self.cached.get(&(group, name)).copied()
    }

    /// Whether nobody has it.
    pub fn is_free(&self, block: GpuBlock) -> bool {
        self.users.get(block.0 as usize) == Some(&0)
    }

    /// One more request has it.
    pub fn share(&mut self, block: GpuBlock) {
        if self.is_free(block) {
            self.free.retain(|other| *other != block);
        }
        self.users[block.0 as usize] += 1;
    }

    /// A request has it no longer. What it holds stays known until it has a new owner.
    pub fn give(&mut self, block: GpuBlock) {
        if block == GpuBlock::NULL {
            return;
        }
        let users = &mut self.users[block.0 as usize];
        *users = users.checked_sub(1).unwrap_or_else(|| panic!("{block:?} is given back by nobody"));
        if *users == 0 {
            self.free.push(block);
        }
    }

    /// Its bytes are complete: other requests may share it.
    pub fn know(&mut self, block: GpuBlock, group: usize, name: Name) {
        if self.cached.contains_key(&(group, name)) {
            return;
        }
        self.forget(block);
        self.cached.insert((group, name), block);
        self.holds[block.0 as usize] = Some((group, name));
    }

    fn forget(&mut self, block: GpuBlock) {
        if let Some(held) = self.holds[block.0 as usize].take() {
            self.cached.remove(&held);
        }
    }

    /// The engine writes the bytes of a block, all tensors of the group.
    pub fn write(&self, group: usize, block: GpuBlock, bytes: &[u8]) {
        let mut at = 0;
        for (offset, page) in self.tensors.iter().take(self.group_tensors[group]) {
            assert!(self.arena.write(offset + block.0 as usize * page, &bytes[at..at + page]), "a block is inside");
            at += page;
        }
    }

    /// Whether a block holds these bytes.
    pub fn has(&mut self, group: usize, block: GpuBlock, bytes: &[u8]) -> bool {
        let mut at = 0;
        self.tensors.iter().take(self.group_tensors[group]).all(|(offset, page)| {
            self.buffer.resize(*page, 0);
            let inside = self.arena.read(offset + block.0 as usize * page, &mut self.buffer);
            at += page;
            inside && self.buffer == bytes[at - page..at]
        })
    }

    /// Its owner writes something of its own, in all tensors.
    pub fn spoil(&self, block: GpuBlock, with: u8) {
        for (offset, page) in &self.tensors {
            assert!(self.arena.fill(offset + block.0 as usize * page, *page, with), "a block is inside");
        }
    }
}
