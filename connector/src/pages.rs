//! Where the engine's KV memory is, and how a block lies in a slot.
//!
//! Each group has tensors of shape `(num_blocks, page_bytes)`: GPU block `b`'s page of a tensor is the `page_bytes` bytes at
//! `base + b * page_bytes`. In a slot the group's tensors follow each other, and inside each tensor the pages of the chunk's
//! GPU blocks:
//!
//! ```text
//! slot: | tensor 0: page of place 0 | place 1 | .. place n-1 | tensor 1: place 0 | .. |   n = blocks_per_chunk
//! ```
//!
//! so GPU blocks that are neighbours in the GPU and in the chunk are one run per tensor. What is left of the slot is unused.
#![expect(unsafe_code, reason = "an engine hands over raw addresses")]

use std::sync::Arc;

use terrace_kernels::Arena;

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
        }
    }
}

/// A tensor ready for address arithmetic, already checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorPlace {
    /// Address of GPU block 0's page; 0 where there is no memory.
    pub base: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Where this tensor's pages begin in a slot.
    pub slot_offset: usize,
}

/// The layout of all groups.
#[derive(Debug)]
pub(crate) struct Layout {
    pub groups: Vec<GroupLayout>,
    /// Keeps arenas alive as long as their addresses are used.
    _caches: KvCaches,
}

/// The layout of one group.
#[derive(Debug)]
pub(crate) struct GroupLayout {
    pub tensors: Vec<TensorPlace>,
    /// Bytes of one GPU block, all tensors.
    pub block_bytes: u64,
}

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
            groups.push(GroupLayout::new(index, tensors, options, moves_bytes)?);
        }
        Ok(Self { groups, _caches: caches })
    }
}

impl GroupLayout {
    fn new(
        group: usize,
        tensors: &[KvTensor],
        options: &ConnectorOptions,
        moves_bytes: bool,
    ) -> Result<Self, ConnectorError> {
        let refuse = |text: String| Err(ConnectorError::Invalid(format!("KV cache of group {group}: {text}")));
        let chunk_blocks = u64::from(options.geometry.blocks_per_chunk);
        let (mut places, mut block_bytes) = (Vec::with_capacity(tensors.len()), 0u64);
        for tensor in tensors {
            if tensor.num_blocks < options.gpu_blocks {
                return refuse(format!(
                    "a tensor of {} blocks for {} GPU blocks",
                    tensor.num_blocks, options.gpu_blocks
                ));
            }
            if tensor.page_bytes == 0 {
                return refuse("a tensor of empty pages".to_owned());
            }
            let page_bytes = tensor.page_bytes as usize;
            let base = match tensor.address() {
                Some(address) if address != 0 => address,
                _ if moves_bytes => return refuse("a tensor without memory".to_owned()),
                _ => 0,
            };
            let end = page_bytes.checked_mul(tensor.num_blocks as usize).and_then(|len| base.checked_add(len));
            if end.is_none() {
                return refuse("a tensor that wraps around the address space".to_owned());
            }
            let slot_offset = block_bytes.saturating_mul(chunk_blocks);
            block_bytes = block_bytes.saturating_add(u64::from(tensor.page_bytes));
            places.push(TensorPlace { base, page_bytes, slot_offset: slot_offset as usize });
        }
        if block_bytes == 0 {
            return refuse("no tensor".to_owned());
        }
        if block_bytes.saturating_mul(chunk_blocks) > u64::from(options.geometry.block_bytes) {
            return refuse(format!(
                "{chunk_blocks} GPU blocks of {block_bytes} bytes do not fit block_bytes = {}",
                options.geometry.block_bytes
            ));
        }
        Ok(Self { tensors: places, block_bytes })
    }
}
