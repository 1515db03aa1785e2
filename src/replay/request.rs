//! A request inside the modelled engine.

use std::time::Instant;

use terrace_connector::{GpuBlock, RequestId};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Has no GPU blocks.
    Waiting,
    /// Waits for the blocks `from..to` of its prompt, which are being loaded.
    Loading {
        /// First block.
        from: u32,
        /// End.
        to: u32,
    },
    /// Computes.
    Running,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    /// The prompt, block by block.
    pub block_ids: Vec<u64>,
    /// GPU blocks per group, equally long.
    pub tables: Vec<Vec<GpuBlock>>,
    /// Leading blocks of the prompt that are in the GPU.
    pub done_blocks: u32,
    /// Steps of generation left.
    pub decode_left: u32,
    pub state: State,
    /// When it came.
    pub opened: Instant,
    /// Its prompt was computed once.
    pub prompted: bool,
    /// Its hits were counted: once, also if it is preempted later.
    pub counted: bool,
}

impl Request {
    /// A request as it arrives.
    pub fn new(id: RequestId, block_ids: Vec<u64>, groups: u32, decode_steps: u32) -> Self {
        Self {
            id,
            block_ids,
            tables: vec![Vec::new(); groups as usize],
            done_blocks: 0,
            decode_left: decode_steps,
            state: State::Waiting,
            opened: Instant::now(),
            prompted: false,
            counted: false,
        }
    }

    /// Blocks of the prompt.
    pub fn blocks(&self) -> u32 {
        self.block_ids.len() as u32
    }

    /// Takes its GPU blocks away, last ones first.
    pub fn take_blocks(&mut self) -> impl Iterator<Item = GpuBlock> + use<> {
        let tables: Vec<_> = self.tables.iter_mut().map(std::mem::take).collect();
        tables.into_iter().flat_map(|table| table.into_iter().rev()).filter(|block| *block != GpuBlock::NULL)
    }
}
