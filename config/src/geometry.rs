//! The shape of a block: what all tiers and all engines of a namespace agree on.

use crate::bounds::{NVME_FOOTER_BYTES, OBJECT_HEADER_BYTES};

/// Shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Payload bytes of one offloaded block: `blocks_per_chunk` GPU blocks of one group, all layers.
    pub block_bytes: u32,
    /// Tokens in one GPU block.
    pub tokens_per_block: u32,
    /// GPU blocks in one offloaded block.
    pub blocks_per_chunk: u32,
    /// KV-cache groups of the model.
    pub groups: u32,
    /// Length of the engine's block hashes, 1..=64.
    pub hash_bytes: u8,
}

impl Geometry {
    /// Distance between two slots: `block_bytes` rounded up to 4 KiB, the alignment of direct I/O.
    pub const fn slot_stride(&self) -> u32 {
        self.block_bytes.next_multiple_of(4096)
    }

    /// Bytes of one block's file on an NVMe tier: the slot and the footer.
    pub const fn file_bytes(&self) -> u64 {
        self.slot_stride() as u64 + NVME_FOOTER_BYTES
    }

    /// Bytes of one block in a segment of an object tier: its header and the payload.
    pub const fn object_bytes(&self) -> u64 {
        self.block_bytes as u64 + OBJECT_HEADER_BYTES
    }
}
