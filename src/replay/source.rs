//! Where the requests of a replay come from.

use anyhow::Result;

/// One request as it arrives. Block ids stand for a block *and its whole prefix*.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When it arrives, milliseconds since the start of the trace.
    pub timestamp_ms: f64,
    /// Tokens that it generates.
    pub output_tokens: u32,
    /// Its prompt, block by block.
    pub block_ids: Vec<u64>,
}

/// How far a source is, for a progress bar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What was read.
    pub done: u64,
    /// What there is; 0: without end.
    pub total: u64,
}

/// Requests in the order of their arrival.
pub trait Source: Send {
    /// The next request; `None` at the end.
    fn next_arrival(&mut self) -> Result<Option<Arrival>>;

    /// Tokens that one block id stands for.
    fn tokens_per_block(&self) -> u32;

    /// How far it is.
    fn progress(&self) -> Progress;
}
