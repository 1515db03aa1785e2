//! What the modelled engine counted.

/// Counters of a replay. Blocks are blocks of the trace: one GPU block of each group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests_arrived: u64,
    pub requests: u64,
    /// Block references of all requests: each request looks each of its blocks up once.
    pub blocks_looked_up: u64,
    pub hits_gpu: u64,
    /// Loaded from Terrace.
    pub hits_external: u64,
    pub computed_blocks: u64,
    /// Blocks of requests that the GPU pool cannot hold.
    pub truncated_blocks: u64,
    /// Loaded, and not what their key demands.
    pub wrong_blocks: u64,
    /// Blocks of failed loads, computed instead.
    pub recomputed_blocks: u64,
    pub failed_loads: u64,
    /// Lookups that were answered "not yet".
    pub retries: u64,
    pub preemptions: u64,
    pub steps: u64,
    pub events: u64,
    /// Lookups: one for a waiting request and step.
    pub lookup_calls: u64,
    /// Time spent in lookups, and the keys that they could have asked for.
    pub lookup_ns: u64,
    pub keys_asked: u64,
}
