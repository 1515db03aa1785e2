//! Where the engine's KV memory is. How a block lies in a slot: [`terrace_kernels::layout`]; a slot has one part here.
#![expect(unsafe_code, reason = "an engine hands over raw addresses")]

use std::sync::Arc;

use terrace_kernels::Arena;
use terrace_kernels::cuda::DeviceArena;
use terrace_kernels::layout::{PageTensor, PagedLayout};

use crate::error::ConnectorError;
use crate::groups::ConnectorOptions;

/// The KV memory of an engine.
#[derive(Clone, Debug, Default)]
pub struct KvCaches {
    /// Per group, its tensors.
    pub groups: Vec<Vec<KvTensor>>,
}

/// One tensor of KV memory.
#[derive(Clone, Debug)]
pub struct KvTensor {
    memory: Memory,
    num_blocks: u32,
    page_bytes: u32,
}

#[derive(Clone, Debug)]
enum Memory {
    /// No bytes: for engines that move none.
    None,
    /// The engine's own.
    Raw(usize),
    /// Kept alive here.
    Arena { arena: Arc<Arena>, offset: usize },
    /// The same on a device.
    Device { arena: Arc<DeviceArena>, offset: usize },
}

impl KvTensor {
    /// A tensor at `offset` of an arena. `Invalid` if it does not lie inside.
    pub fn in_arena(
        arena: &Arc<Arena>,
        offset: usize,
        num_blocks: u32,
        page_bytes: u32,
    ) -> Result<Self, ConnectorError> {
        let len = (num_blocks as usize).checked_mul(page_bytes as usize);
        if len.and_then(|len| arena.span(offset, len)).is_none() {
            return Err(ConnectorError::invalid(format!(
                "{num_blocks} pages of {page_bytes} bytes at {offset} in an arena of {} bytes",
                arena.len()
            )));
        }
        Ok(Self { memory: Memory::Arena { arena: Arc::clone(arena), offset }, num_blocks, page_bytes })
    }

    /// A tensor at `offset` of device memory, for an engine on that device. `Invalid` if it does not lie inside.
    pub fn on_device(
        arena: &Arc<DeviceArena>,
        offset: usize,
        num_blocks: u32,
        page_bytes: u32,
    ) -> Result<Self, ConnectorError> {
        let len = (num_blocks as usize).checked_mul(page_bytes as usize);
        if len.and_then(|len| arena.span(offset, len)).is_none() {
            return Err(ConnectorError::invalid(format!(
                "{num_blocks} pages of {page_bytes} bytes at {offset} in device memory of {} bytes",
                arena.len()
            )));
        }
        Ok(Self { memory: Memory::Device { arena: Arc::clone(arena), offset }, num_blocks, page_bytes })
    }

    /// A tensor at an address.
    ///
    /// # Safety
    /// `num_blocks * page_bytes` bytes from `address` on stay valid for reads and writes until the connector is dropped, and the
    /// engine accesses no block while a transfer touches it: it reads no block that is being loaded and writes none
    /// that is being stored or loaded, as the traits' contract says.
    pub const unsafe fn from_raw(address: usize, num_blocks: u32, page_bytes: u32) -> Self {
        Self { memory: Memory::Raw(address), num_blocks, page_bytes }
    }

    /// A tensor without memory, for a region and a copy engine that move no bytes.
    pub const fn none(num_blocks: u32, page_bytes: u32) -> Self {
        Self { memory: Memory::None, num_blocks, page_bytes }
    }

    /// Address of the first page; `None` where there is no memory.
    fn address(&self) -> Option<usize> {
        match &self.memory {
            Memory::None => None,
            Memory::Raw(address) => Some(*address),
            Memory::Arena { arena, offset } => arena.address().checked_add(*offset),
            Memory::Device { arena, offset } => arena.address().checked_add(*offset),
        }
    }
}

/// The layout of all groups.
#[derive(Debug)]
pub(crate) struct Layout {
    pub paged: PagedLayout,
    /// Keeps arenas alive as long as their addresses are used.
    _caches: KvCaches,
}

/// Stands for an address where there is no memory, and is never used as one.
const NO_MEMORY: usize = 4096;

impl Layout {
    /// Checks the tensors against the options. With `moves_bytes`, each must have memory.
    pub fn new(caches: KvCaches, options: &ConnectorOptions, moves_bytes: bool) -> Result<Self, ConnectorError> {
        if caches.groups.len() != options.groups.len() {
            return Err(ConnectorError::invalid(format!(
                "KV caches of {} groups where the connector has {}",
                caches.groups.len(),
                options.groups.len()
            )));
        }
        let mut groups = Vec::with_capacity(caches.groups.len());
        for (index, tensors) in caches.groups.iter().enumerate() {
            let pages: Result<Vec<_>, _> =
                tensors.iter().map(|tensor| tensor.pages(index, options.gpu_blocks, moves_bytes)).collect();
            groups.push(pages?);
        }
        let geometry = &options.geometry;
        let paged = PagedLayout::new(groups, geometry.blocks_per_chunk, 0, geometry.block_bytes as usize)?;
        Ok(Self { paged, _caches: caches })
    }
}

impl KvTensor {
    fn pages(&self, group: usize, gpu_blocks: u32, moves_bytes: bool) -> Result<PageTensor, ConnectorError> {
        let refuse = |text: String| Err(ConnectorError::Invalid(format!("KV cache of group {group}: {text}")));
        if self.num_blocks < gpu_blocks {
            return refuse(format!("a tensor of {} blocks for {gpu_blocks} GPU blocks", self.num_blocks));
        }
        let base = match self.address() {
            Some(address) if address != 0 => address,
            _ if moves_bytes => return refuse("a tensor without memory".to_owned()),
            _ => NO_MEMORY,
        };
        let page_bytes = self.page_bytes as usize;
        Ok(PageTensor { base, num_blocks: self.num_blocks, page_bytes, page_stride: page_bytes })
    }
}
