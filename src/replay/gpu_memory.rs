//! The place of GPU memory: per group two tensors (K and V) of one page a GPU block, filled and compared by content.

use std::sync::Arc;

use anyhow::{Context, Result};
use terrace_connector::{GpuBlock, KvCaches, KvTensor};
use terrace_kernels::Arena;
use terrace_kernels::cuda::{DeviceArena, Driver};

use super::payload::Content;

/// Tensors of a group.
const TENSORS: u32 = 2;

/// The engine's KV memory.
pub struct GpuMemory {
    memory: Memory,
    groups: u32,
    blocks: u32,
    page_bytes: u32,
    page: Vec<u8>,
}

enum Memory {
    /// No bytes are moved.
    None,
    /// Host memory stands for it.
    Host(Arc<Arena>),
    Device(Arc<DeviceArena>),
}

/// Where the memory is.
pub enum Place<'a> {
    Nowhere,
    Host,
    Device(&'a Arc<dyn Driver>),
}

impl GpuMemory {
    /// Memory for `blocks` GPU blocks of `block_bytes` in each of `groups`. Touches all of it.
    pub fn new(groups: u32, blocks: u32, block_bytes: u32, place: &Place<'_>) -> Result<Self> {
        let page_bytes = block_bytes / TENSORS;
        let bytes = groups as usize * TENSORS as usize * blocks as usize * page_bytes as usize;
        let memory = match place {
            Place::Nowhere => Memory::None,
            Place::Host => Memory::Host(Arc::new(Arena::new(bytes).context("memory that stands for the GPU's")?)),
            Place::Device(driver) => {
                Memory::Device(Arc::new(DeviceArena::new(driver, bytes).context("KV memory on the GPU")?))
            }
        };
        Ok(Self { memory, groups, blocks, page_bytes, page: vec![0; page_bytes as usize] })
    }

    /// Bytes of one GPU block in all tensors of its group.
    pub const fn block_bytes(&self) -> u64 {
        self.page_bytes as u64 * TENSORS as u64
    }

    /// Whether there are bytes to compare.
    pub const fn moves_bytes(&self) -> bool {
        !matches!(self.memory, Memory::None)
    }

    /// Address and length of the memory on the device; `None` where it is not on one.
    pub fn on_device(&self) -> Option<(usize, usize)> {
        match &self.memory {
            Memory::Device(arena) => Some((arena.address(), arena.len())),
            Memory::None | Memory::Host(_) => None,
        }
    }

    /// The tensors, for the connector.
    pub fn caches(&self) -> Result<KvCaches> {
        let tensor = |group: u32, tensor: u32| {
            let offset = self.offset(group, tensor, 0);
            match &self.memory {
                Memory::None => Ok(KvTensor::none(self.blocks, self.page_bytes)),
                Memory::Host(arena) => KvTensor::in_arena(arena, offset, self.blocks, self.page_bytes),
                Memory::Device(arena) => KvTensor::on_device(arena, offset, self.blocks, self.page_bytes),
            }
        };
        let groups = (0..self.groups).map(|group| (0..TENSORS).map(|number| tensor(group, number)).collect());
        Ok(KvCaches { groups: groups.collect::<std::result::Result<_, _>>()? })
    }

    const fn offset(&self, group: u32, tensor: u32, block: u32) -> usize {
        let tensor_bytes = self.blocks as usize * self.page_bytes as usize;
        (group * TENSORS + tensor) as usize * tensor_bytes + block as usize * self.page_bytes as usize
    }

    /// Computes a block: writes what block `id` holds in `group`.
    pub fn fill(&mut self, group: u32, block: GpuBlock, id: u64) -> Result<()> {
        if !self.moves_bytes() {
            return Ok(());
        }
        for tensor in 0..TENSORS {
            Content::of(id, group * TENSORS + tensor).fill(&mut self.page);
            let offset = self.offset(group, tensor, block.0);
            match &self.memory {
                Memory::None => {}
                Memory::Host(arena) => {
                    let written = arena.write(offset, &self.page);
                    debug_assert!(written, "the block lies in the arena");
                }
                Memory::Device(arena) => arena.write(offset, &self.page)?,
            }
        }
        Ok(())
    }

    /// Whether a block holds what block `id` demands in `group`, byte for byte. True where no bytes are moved.
    pub fn is_right(&mut self, group: u32, block: GpuBlock, id: u64) -> Result<bool> {
        for tensor in 0..TENSORS {
            let offset = self.offset(group, tensor, block.0);
            let is_read = match &self.memory {
                Memory::None => return Ok(true),
                Memory::Host(arena) => arena.read(offset, &mut self.page),
                Memory::Device(arena) => {
                    arena.read(offset, &mut self.page)?;
                    true
                }
            };
            if !is_read || Content::of(id, group * TENSORS + tensor).mismatch(&self.page).is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
