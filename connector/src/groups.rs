//! KV-cache groups of a model and how their blocks are grouped into offloaded blocks.

use std::ops::Range;

use terrace_config::Geometry;

use crate::error::ConnectorError;

/// How the layers of one KV-cache group attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// To all earlier tokens: a hit is a prefix.
    FullAttention,
    /// To the last `window_tokens` tokens, the current one included: a hit is the run of blocks before a boundary.
    SlidingWindow {
        /// Length of the window, at least 1.
        window_tokens: u32,
    },
}

/// What a connector is built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectorOptions {
    /// Shape of blocks. `groups` must equal the length of `groups` below.
    pub geometry: Geometry,
    /// The groups, in the order of their index.
    pub groups: Vec<GroupKind>,
    /// GPU blocks of the engine: ids are `0..gpu_blocks`, one space for all groups.
    pub gpu_blocks: u32,
    /// Store blocks of the prompt only (the default), or generated ones too.
    pub offload_prompt_only: bool,
    /// The engine shares GPU blocks between requests of one prefix. A request then waits while another one loads a block
    /// that it needs, and finds it in the GPU afterwards. Without it each request loads its own copy.
    pub gpu_prefix_cache: bool,
}

impl ConnectorOptions {
    /// Options with the defaults: full attention in each group, prompt only, GPU prefix cache.
    pub fn new(geometry: Geometry, gpu_blocks: u32) -> Self {
        Self {
            groups: vec![GroupKind::FullAttention; geometry.groups as usize],
            geometry,
            gpu_blocks,
            offload_prompt_only: true,
            gpu_prefix_cache: true,
        }
    }

    /// Checks that the values fit each other.
    pub fn validate(&self) -> Result<(), ConnectorError> {
        /// What [`crate::BlockCopy`] can name.
        const MOST: u32 = u16::MAX as u32;
        let g = &self.geometry;
        let fault = if g.tokens_per_block == 0 || g.blocks_per_chunk == 0 || g.block_bytes == 0 {
            Some("tokens_per_block, blocks_per_chunk and block_bytes must be at least 1".to_owned())
        } else if g.hash_bytes == 0 || usize::from(g.hash_bytes) > terrace_primary::MAX_HASH_BYTES {
            Some(format!("hash_bytes must be 1 to 64, is {}", g.hash_bytes))
        } else if self.groups.is_empty() || self.groups.len() != g.groups as usize {
            Some(format!("{} groups described where the geometry has {}", self.groups.len(), g.groups))
        } else if g.blocks_per_chunk > MOST || g.groups > MOST {
            Some(format!("blocks_per_chunk and groups must be {MOST} at most"))
        } else if g.tokens_per_block.checked_mul(g.blocks_per_chunk).is_none() {
            Some("tokens_per_block x blocks_per_chunk does not fit 32 bits".to_owned())
        } else if self.groups.contains(&GroupKind::SlidingWindow { window_tokens: 0 }) {
            Some("a sliding window must have at least 1 token".to_owned())
        } else if self.gpu_blocks == 0 || self.gpu_blocks == u32::MAX {
            Some(format!("gpu_blocks must be 1 to {}, is {}", u32::MAX - 1, self.gpu_blocks))
        } else {
            None
        };
        fault.map_or(Ok(()), |text| Err(ConnectorError::Invalid(text)))
    }
}

/// GPU blocks that one group needs, counted from the prompt's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// First GPU block that must be there.
    pub first_block: u32,
    /// End of the GPU blocks that must be there.
    pub end_block: u32,
}

impl Span {
    /// The chunks in which these blocks lie.
    pub(crate) fn chunks(self, blocks_per_chunk: u32) -> Range<u32> {
        if self.first_block >= self.end_block {
            return 0..0;
        }
        self.first_block / blocks_per_chunk..self.end_block.div_ceil(blocks_per_chunk)
    }
}

impl GroupKind {
    /// The GPU blocks that a request needs to go on at `boundary_blocks`, those from `computed_blocks` on.
    pub(crate) fn needed(self, boundary_blocks: u32, computed_blocks: u32, tokens_per_block: u32) -> Span {
        let reach = match self {
            Self::FullAttention => 0,
            // The token at the boundary attends to `window_tokens - 1` tokens before itself.
            Self::SlidingWindow { window_tokens } => {
                let boundary = u64::from(boundary_blocks) * u64::from(tokens_per_block);
                (boundary.saturating_sub(u64::from(window_tokens - 1)) / u64::from(tokens_per_block)) as u32
            }
        };
        Span { first_block: reach.max(computed_blocks).min(boundary_blocks), end_block: boundary_blocks }
    }
}
