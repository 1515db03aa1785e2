//! Bounds that validation keeps and that other crates may rely on.

/// Most blocks of one tier: block indices are `u32`, and half of their range keeps room for index tables twice as large.
pub const MAX_BLOCKS: u32 = 1 << 31;
/// Largest block.
pub const MAX_BLOCK_BYTES: u32 = 1 << 30;
/// Largest primary region, well inside a process's address space.
pub const MAX_PRIMARY_BYTES: u64 = 1 << 46;
/// Largest secondary tier.
pub const MAX_TIER_BYTES: u64 = 1 << 60;
/// Most secondary tiers.
pub const MAX_TIERS: usize = 16;
/// Most tenants that are named.
pub const MAX_TENANTS: usize = 256;
/// Most directories of one tier.
pub const MAX_PATHS: usize = 64;
/// Pieces of the region that are registered with a GPU's driver are multiples of this: huge pages.
pub const COPY_PIECE_BYTES: u64 = 2 << 20;
/// Bytes that follow a block's payload in its file on an NVMe tier.
pub const NVME_FOOTER_BYTES: u64 = 4096;

/// Bytes that stand in front of a block's payload in a segment of an object tier.
pub const OBJECT_HEADER_BYTES: u64 = 256;
/// Room that a segment of an object tier needs beside its blocks: enough for the index and the end of a segment of one block.
pub const OBJECT_SEGMENT_BYTES: u64 = 4096;
