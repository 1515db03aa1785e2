//! What the scheduler half knows of one request.

use std::ops::Range;

use crate::api::{GpuBlock, JobId};
use crate::hashes::HashList;

/// A place of a request's block table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub block: GpuBlock,
    /// Step in which the request got the block: if it was handed out again later, the request no longer keeps it.
    pub step: u32,
}

/// What is known of the request's match in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Matching {
    /// Blocks on their way to the primary that the request waits for.
    pub awaited: Option<Awaited>,
    /// The load of another request that this one waits for.
    pub blocked_on: Option<JobId>,
    /// Last answer: (computed blocks, end of the matched blocks).
    pub answer: Option<(u32, u32)>,
}

/// Blocks of one group on their way to the primary. While the next of them is being written there, nothing is looked up:
/// a lookup of the whole prefix costs much more than a look at one block, and tells no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub group: u32,
    /// The next chunk, not readable when it was last looked at.
    pub chunk: u32,
    /// End of the chunks that the lookup found.
    pub end_chunk: u32,
    /// Steps since the lookup.
    pub steps: u32,
    /// What the lookup was asked for.
    pub computed_block: u32,
}

/// An open request, or a finished one whose transfers are not done.
#[derive(Debug)]
pub(super) struct Request {
    pub prompt_tokens: u32,
    pub hashes: HashList,
    /// Per group, GPU blocks by position.
    pub tables: Vec<Vec<Entry>>,
    /// Most tokens that were ever computed or loaded.
    pub most_computed_tokens: u32,
    /// Chunks before this one have been offered.
    pub cursor: u32,
    /// Chunks that came from the primary and need no offer.
    pub loaded: Range<u32>,
    /// Tokens in the GPU once the load in flight has landed.
    pub tokens_after_load: u32,
    pub matching: Matching,
    /// The load in flight for which the engine waits.
    pub load: Option<JobId>,
    /// All transfers in flight, the load included.
    pub jobs: Vec<JobId>,
    /// The engine has ended it; it waits for `jobs`.
    pub finished: bool,
    /// Mark of the last plan that named it, to see duplicates.
    pub seen_in_plan: u64,
}

impl Request {
    pub fn new(prompt_tokens: u32, hashes: HashList, groups: usize) -> Self {
        Self {
            prompt_tokens,
            hashes,
            tables: vec![Vec::new(); groups],
            most_computed_tokens: 0,
            cursor: 0,
            loaded: 0..0,
            tokens_after_load: 0,
            matching: Matching::default(),
            load: None,
            jobs: Vec::new(),
            finished: false,
            seen_in_plan: 0,
        }
    }

    /// Positions in the block table; the same in all groups.
    pub fn table_blocks(&self) -> usize {
        self.tables.first().map_or(0, Vec::len)
    }

    /// The request lost its GPU blocks and starts over.
    pub fn preempt(&mut self) {
        for table in &mut self.tables {
            table.clear();
        }
        self.cursor = 0;
        self.loaded = 0..0;
        // If one is in flight it goes on, but it fills nothing of this request any more.
        self.load = None;
        self.matching = Matching::default();
    }

    /// A transfer is done. Answers whether it is the load for which the engine waits.
    pub fn remove_job(&mut self, job: JobId) -> bool {
        self.jobs.retain(|other| *other != job);
        self.load.take_if(|load| *load == job).is_some()
    }
}
