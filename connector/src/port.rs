//! What the scheduler half needs of a manager, in this process or behind the socket.

use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiering::{
    Event, Lookup, LookupMode, RequestContext, RequestId, StorePlan, TieringError, TieringOffloadingManager,
};

use crate::api::JobId;
use crate::error::ConnectorError;

/// The keys that a request may ask for in one group, in the order of their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQuery {
    /// Whether only the run from the first key on counts.
    pub prefix_only: bool,
    /// The keys.
    pub keys: Vec<Key>,
}

/// How far a block is that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Readable.
    Ready,
    /// On its way: look again in a later step.
    Writing,
    /// Anything else: only a lookup tells.
    Unknown,
}

/// A manager as the scheduler half sees it. Driven by one thread. Nothing waits for a secondary tier but
/// [`ManagerPort::shutdown`]; behind the socket nothing waits longer than the client's call budget.
///
/// Jobs are named by the scheduler, each once: an implementation that is not in this process tells its peer by name
/// which transfer ended.
pub trait ManagerPort {
    /// Whether [`ManagerPort::prepare_lookup`] is to be called before the lookups of a request in a step.
    const BATCHES_LOOKUPS: bool;

    /// Opens a request. Refused if it is open, or too many are.
    fn begin_request(&mut self, context: RequestContext) -> Result<(), TieringError>;

    /// Closes a request; its transfers go on. False if it is not open.
    fn finish_request(&mut self, id: RequestId) -> bool;

    /// All that the next [`ManagerPort::lookup`]s of this request may ask in this step, one query a group, so that it
    /// can be asked at once.
    fn prepare_lookup(&mut self, id: RequestId, queries: Vec<PortQuery>) -> Result<(), TieringError>;

    /// Looks up `keys` of `group`: the leading ones of what was announced. `out` gets one answer for each.
    fn lookup(
        &mut self,
        id: RequestId,
        group: usize,
        keys: &[Key],
        mode: LookupMode,
        out: &mut Vec<Lookup>,
    ) -> Result<(), TieringError>;

    /// Takes in what has happened below, once a step.
    fn poll_once(&mut self);

    /// How far a block is that the request's last lookup found on its way.
    fn arrival(&self, id: RequestId, key: &Key) -> Arrival;

    /// Takes a reader on each of `keys`, all or none, for the transfer `job`, and appends their slots.
    fn prepare_load(
        &mut self,
        id: RequestId,
        job: JobId,
        keys: &[Key],
        slots: &mut Vec<SlotId>,
    ) -> Result<(), TieringError>;

    /// Ends the load `job` of `keys`.
    fn complete_load(&mut self, id: RequestId, job: JobId, keys: &[Key], ok: bool) -> Result<(), TieringError>;

    /// Reserves slots for the transfer `job`: of `keys` the leading part that fits. False: no room.
    fn prepare_store(
        &mut self,
        id: RequestId,
        job: JobId,
        keys: &[Key],
        plan: &mut StorePlan,
    ) -> Result<bool, TieringError>;

    /// Ends the store `job` of `keys`: they are readable from now on if it is `ok`.
    fn complete_store(&mut self, id: RequestId, job: JobId, keys: &[Key], ok: bool) -> Result<(), TieringError>;

    /// Makes `keys` the most recently used blocks, the first the most.
    fn touch(&mut self, keys: &[Key]);

    /// Ends the step.
    fn end_step(&mut self);

    /// Moves what happened to blocks since the last call to `out`.
    fn take_events(&mut self, out: &mut Vec<Event>);

    /// Whether steps must go on although nothing is scheduled.
    fn has_pending_work(&self) -> bool;

    /// Empties the primary. `Retry` where that is not possible yet.
    fn reset(&mut self) -> Result<(), ConnectorError>;

    /// Ends everything. Waits.
    fn shutdown(&mut self);
}

impl ManagerPort for TieringOffloadingManager {
    const BATCHES_LOOKUPS: bool = false;

    fn begin_request(&mut self, context: RequestContext) -> Result<(), TieringError> {
        self.begin_request(context)
    }

    fn finish_request(&mut self, id: RequestId) -> bool {
        self.finish_request(id).is_some()
    }

    fn prepare_lookup(&mut self, _id: RequestId, _queries: Vec<PortQuery>) -> Result<(), TieringError> {
        Ok(())
    }

    #[inline]
    fn lookup(
        &mut self,
        id: RequestId,
        _group: usize,
        keys: &[Key],
        mode: LookupMode,
        out: &mut Vec<Lookup>,
    ) -> Result<(), TieringError> {
        self.lookup(id, keys, mode, out)
    }

    fn poll_once(&mut self) {
        self.poll_once();
    }

    #[inline]
    fn arrival(&self, _id: RequestId, key: &Key) -> Arrival {
        let primary = self.primary();
        match primary.find(key).map(|slot| primary.state(slot)) {
            Some(BlockState::Ready { .. }) => Arrival::Ready,
            Some(BlockState::Writing) => Arrival::Writing,
            _ => Arrival::Unknown,
        }
    }

    fn prepare_load(
        &mut self,
        id: RequestId,
        _job: JobId,
        keys: &[Key],
        slots: &mut Vec<SlotId>,
    ) -> Result<(), TieringError> {
        self.prepare_load(id, keys, slots)
    }

    fn complete_load(&mut self, id: RequestId, _job: JobId, keys: &[Key], _ok: bool) -> Result<(), TieringError> {
        self.complete_load(id, keys)
    }

    fn prepare_store(
        &mut self,
        id: RequestId,
        _job: JobId,
        keys: &[Key],
        plan: &mut StorePlan,
    ) -> Result<bool, TieringError> {
        self.prepare_store(id, keys, true, plan)
    }

    fn complete_store(&mut self, id: RequestId, _job: JobId, keys: &[Key], ok: bool) -> Result<(), TieringError> {
        self.complete_store(id, keys, ok)
    }

    fn touch(&mut self, keys: &[Key]) {
        self.touch(keys);
    }

    fn end_step(&mut self) {
        self.end_step();
    }

    fn take_events(&mut self, out: &mut Vec<Event>) {
        self.take_events(out);
    }

    fn has_pending_work(&self) -> bool {
        self.has_pending_work()
    }

    fn reset(&mut self) -> Result<(), ConnectorError> {
        Ok(self.reset()?)
    }

    fn shutdown(&mut self) {
        self.shutdown();
    }
}
