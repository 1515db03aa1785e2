//! The interface between an engine and Terrace: two traits and the plain values that pass through them.
//!
//! The **scheduler half** decides, in the process that schedules; the **worker half** copies, in the process that holds
//! the KV memory. A step goes:
//!
//! 1. for each waiting request that may be scheduled: [`SchedulerHalf::get_num_new_matched_tokens`], then, once the engine
//!    has allocated GPU blocks for it, [`SchedulerHalf::update_state_after_alloc`];
//! 2. [`SchedulerHalf::build_connector_meta`] with everything the step schedules;
//! 3. [`WorkerHalf::handle_preemptions`], then [`WorkerHalf::start_load_kv`], with that metadata;
//! 4. the engine computes, then [`WorkerHalf::wait_for_save`] and [`WorkerHalf::get_finished`];
//! 5. [`SchedulerHalf::update_connector_output`] with what the worker reported;
//! 6. [`SchedulerHalf::request_finished`] for each request that ended.
//!
//! No call waits for a secondary tier. Every call that fails has changed nothing.

use std::sync::Arc;

use terrace_primary::SlotId;
use terrace_tiering::{Event, RequestId, TierFilter};

use crate::error::ConnectorError;
use crate::hashes::HashList;
use crate::pages::KvCaches;

/// A block of the engine's GPU memory, `0..gpu_blocks`; one id space for all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuBlock(pub u32);

impl GpuBlock {
    /// No block: the place of a block that a sliding-window group no longer keeps.
    pub const NULL: Self = Self(u32::MAX);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a transfer; unique in the life of a connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A request as it arrives.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// Its name, not in use.
    pub id: RequestId,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// One hash for each full GPU block of the prompt, from its start; fewer if the rest is not to be cached.
    pub block_hashes: HashList,
    /// Secondary tiers that it may use.
    pub tiers: TierFilter,
}

/// Answer to [`SchedulerHalf::get_num_new_matched_tokens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// Not known yet, or on the way: leave the request waiting and ask again in the next step.
    NotYet,
    /// So many tokens beyond `num_computed_tokens` can be loaded; a multiple of `tokens_per_block`.
    Tokens(u32),
}

/// What a step schedules for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// The request.
    pub id: RequestId,
    /// Per group, the GPU blocks appended to its table; all tables stay equally long ([`GpuBlock::NULL`] where a
    /// sliding-window group keeps none). Blocks already given to `update_state_after_alloc` are not repeated.
    pub new_blocks: Vec<Vec<GpuBlock>>,
    /// Tokens whose KV is in the GPU after this step.
    pub computed_tokens: u32,
}

/// What a step does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Requests that compute in this step.
    pub scheduled: Vec<ScheduledRequest>,
    /// Requests that lost their GPU blocks in this step. Their tables are empty afterwards.
    pub preempted: Vec<RequestId>,
    /// Every GPU block that was handed to a new owner for this step, also to a request of this plan.
    pub reused: Vec<GpuBlock>,
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferKind {
    /// GPU to primary.
    Store,
    /// Primary to GPU.
    Load,
}

/// One GPU block and its place in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The slot.
    pub slot: SlotId,
    /// The GPU block.
    pub block: GpuBlock,
    /// The KV-cache group.
    pub group: u16,
    /// Place of the GPU block in the offloaded block, `0..blocks_per_chunk`.
    pub place: u16,
}

/// A job of the worker: it is done as a whole.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Its name.
    pub job: JobId,
    /// For whom.
    pub request: RequestId,
    /// Which way.
    pub kind: TransferKind,
    /// What to copy.
    pub copies: Arc<[BlockCopy]>,
}

/// What the scheduler half tells the worker half in a step.
#[derive(Clone, Debug, Default)]
pub struct ConnectorMeta {
    /// Loads, to be submitted at once.
    pub loads: Vec<Transfer>,
    /// Stores, to be submitted at the start of the next step, when this step's blocks are computed.
    pub stores: Vec<Transfer>,
    /// Earlier jobs that touch GPU blocks which change owner: to be done before this step computes or loads.
    pub flush: Vec<JobId>,
}

/// What the worker half reports. Collected over any number of [`WorkerHalf::get_finished`] calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOutput {
    /// Jobs that are done, and whether all bytes arrived.
    pub finished: Vec<(JobId, bool)>,
    /// GPU blocks of failed loads, whose content is undefined.
    pub failed_blocks: Vec<GpuBlock>,
}

/// What the engine must know after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectorOutput {
    /// Requests whose load landed: they may be scheduled.
    pub loaded: Vec<RequestId>,
    /// Requests whose load failed, with the GPU blocks that hold nothing: compute those. They are in no `loaded`.
    pub failed_loads: Vec<(RequestId, Vec<GpuBlock>)>,
    /// Finished requests that were held: their GPU blocks may be freed now.
    pub released: Vec<RequestId>,
}

impl ConnectorOutput {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.loaded.is_empty() && self.failed_loads.is_empty() && self.released.is_empty()
    }
}

/// The half that decides. Driven by one thread; nothing blocks except [`SchedulerHalf::shutdown`] and
/// [`SchedulerHalf::reset`], which wait for copies in flight.
pub trait SchedulerHalf {
    /// Opens a request. `Invalid`: id in use, hashes of another width, more hashes than full blocks. `Capacity`: too many
    /// requests.
    fn new_request(&mut self, request: NewRequest) -> Result<(), ConnectorError>;

    /// Adds the hashes of further full blocks: generated tokens filled them.
    fn append_blocks(&mut self, id: RequestId, hashes: &HashList) -> Result<(), ConnectorError>;

    /// How many tokens beyond `num_computed_tokens` (those in the GPU already; a multiple of `tokens_per_block`) can be
    /// loaded. At least one token of the prompt is left to compute. The same matched length holds for all groups. `NotYet`
    /// also while a load of this request is in flight, or while another request loads a block of the match.
    fn get_num_new_matched_tokens(
        &mut self,
        id: RequestId,
        num_computed_tokens: u32,
    ) -> Result<Matched, ConnectorError>;

    /// The engine has allocated GPU blocks. `blocks` is the whole table of the request, per group, covering at least
    /// the computed and the `external_tokens` that are to be loaded: what the last
    /// [`SchedulerHalf::get_num_new_matched_tokens`] answered, less (a multiple of `tokens_per_block`; full attention
    /// only), or 0 for no load. The load is part of this step's metadata; its end is told by `loaded` or `failed_loads`, and until then the
    /// request is not scheduled. If the blocks were evicted in the meantime, the call succeeds and the load is told failed.
    fn update_state_after_alloc(
        &mut self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        external_tokens: u32,
    ) -> Result<(), ConnectorError>;

    /// Ends the step's scheduling: plans stores, collects loads, submits promotions.
    fn build_connector_meta(&mut self, plan: &StepPlan) -> Result<ConnectorMeta, ConnectorError>;

    /// Takes in what the worker reported; to be called each step, also with nothing reported.
    fn update_connector_output(&mut self, output: WorkerOutput) -> Result<ConnectorOutput, ConnectorError>;

    /// Ends a request, in any state. `true`: transfers still touch its GPU blocks; they must stay allocated until `released` names
    /// it. `false`: they may be freed at once. The id may be used again after that.
    fn request_finished(&mut self, id: RequestId) -> Result<bool, ConnectorError>;

    /// Moves what happened to blocks since the last call to `out`.
    fn take_events(&mut self, out: &mut Vec<Event>);

    /// Whether steps must go on although nothing is scheduled.
    fn has_pending_work(&self) -> bool;

    /// Forgets all blocks of the primary. Waits for copies in flight. `Retry` while that is not possible yet.
    fn reset(&mut self) -> Result<(), ConnectorError>;

    /// Finishes copies in flight and the manager. Every later call is `Closed`. Waits.
    fn shutdown(&mut self);
}

/// The half that copies. Driven by one thread.
pub trait WorkerHalf {
    /// Names the engine's KV memory. Once, before the first transfer. `Invalid`: twice, groups or sizes that do not fit.
    fn register_kv_caches(&mut self, caches: KvCaches) -> Result<(), ConnectorError>;

    /// Waits until the jobs in `meta.flush` are done; stores of them that were kept are submitted first.
    fn handle_preemptions(&mut self, meta: &ConnectorMeta) -> Result<(), ConnectorError>;

    /// Submits the stores kept from the step before, then these loads; keeps these stores. Flushes first if
    /// [`WorkerHalf::handle_preemptions`] was not called. Does not wait otherwise.
    fn start_load_kv(&mut self, meta: ConnectorMeta) -> Result<(), ConnectorError>;

    /// Called after the forward pass. Stores go on behind; nothing to wait for.
    fn wait_for_save(&mut self) -> Result<(), ConnectorError>;

    /// Appends the jobs that are done since the last call. Does not wait.
    fn get_finished(&mut self, out: &mut WorkerOutput) -> Result<(), ConnectorError>;
}

/// Both halves in one process.
pub trait Connector: SchedulerHalf + WorkerHalf {}
