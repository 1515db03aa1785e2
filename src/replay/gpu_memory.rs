//! The place of GPU memory: per group two tensors (K and V) of one page a GPU block, filled and compared by content.

use std::sync::Arc;

use anyhow::{Context, Result};
use terrace_connector::{GpuBlock, KvCaches, KvTensor};
use terrace_kernels::Arena;

use super::payload::Content;

/// Tensors of a group.
const TENSORS: u32 = 2;

/// The engine's KV memory.
pub struct GpuMemory {
    /// `None`: no bytes are moved.
    arena: Option<Arc<Arena>>,
    groups: u32,
    blocks: u32,
    page_bytes: u32,
    page: Vec<u8>,
}

impl GpuMemory {
    /// Memory for `blocks` GPU blocks of `block_bytes` in each of `groups`. Touches all of it.
    pub fn new(groups: u32, blocks: u32, block_bytes: u32, moves_bytes: bool) -> Result<Self> {
        let page_bytes = block_bytes / TENSORS;
        let bytes = groups as usize * TENSORS as usize * blocks as usize * page_bytes as usize;
        let arena = if moves_bytes {
            Some(Arc::new(Arena::new(bytes).context("memory that stands for the GPU's")?))
        } else {
            None
        };
        Ok(Self { arena, groups, blocks, page_bytes, page: vec![0; page_bytes as usize] })
    }

    /// Bytes of one GPU block in all tensors of its group.
    pub const fn block_bytes(&self) -> u64 {
        self.page_bytes as u64 * TENSORS as u64
    }

    /// Whether there are bytes to compare.
    pub const fn moves_bytes(&self) -> bool {
        self.arena.is_some()
    }

    /// The tensors, for the connector.
    pub fn caches(&self) -> Result<KvCaches> {
        let tensor = |group: u32, tensor: u32| match &self.arena {
            None => Ok(KvTensor::none(self.blocks, self.page_bytes)),
            Some(arena) => KvTensor::in_arena(arena, self.offset(group, tensor, 0), self.blocks, self.page_bytes),
        };
        let groups = (0..self.groups).map(|group| (0..TENSORS).map(|number| tensor(group, number)).collect());
        Ok(KvCaches { groups: groups.collect::<std::result::Result<_, _>>()? })
    }

    const fn offset(&self, group: u32, tensor: u32, block: u32) -> usize {
        let tensor_bytes = self.blocks as usize * self.page_bytes as usize;
        (group * TENSORS + tensor) as usize * tensor_bytes + block as usize * self.page_bytes as usize
    }

    /// Computes a block: writes what block `id` holds in `group`.
    pub fn fill(&mut self, group: u32, block: GpuBlock, id: u64) {
        let Some(arena) = &self.arena else { return };
        for tensor in 0..TENSORS {
            Content::of(id, group * TENSORS + tensor).fill(&mut self.page);
            let written = arena.write(self.offset(group, tensor, block.0), &self.page);
            debug_assert!(written, "the block lies in the arena");
        }
    }

    /// Whether a block holds what block `id` demands in `group`, byte for byte. True where no bytes are moved.
    pub fn is_right(&mut self, group: u32, block: GpuBlock, id: u64) -> bool {
        let Some(arena) = &self.arena else { return true };
        for tensor in 0..TENSORS {
            let is_read = arena.read(self.offset(group, tensor, block.0), &mut self.page);
            if !is_read || Content::of(id, group * TENSORS + tensor).mismatch(&self.page).is_some() {
                return false;
            }
        }
        true
    }
}
