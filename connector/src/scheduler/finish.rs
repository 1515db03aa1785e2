//! The end of a request, and of everything.

use terrace_tiering::RequestId;

use super::Scheduler;
use super::keys::{ChunkRef, chunk_key};
use crate::error::ConnectorError;
use crate::port::ManagerPort;

impl<M: ManagerPort> Scheduler<M> {
    /// See [`crate::SchedulerHalf::request_finished`].
    pub(super) fn finish(&mut self, id: RequestId) -> Result<bool, ConnectorError> {
        self.running(id)?;
        self.cancel_planned_load(id);
        self.rank(id);
        if !self.manager.finish_request(id) {
            self.note_inconsistency("a request ended that the manager does not know", &id.0);
        }
        self.outcome.failed_loads.retain(|(request, _)| *request != id);
        self.outcome.loaded.retain(|request| *request != id);
        let Some(request) = self.requests.get_mut(&id) else { return Ok(false) };
        if request.jobs.is_empty() {
            self.requests.remove(&id);
            return Ok(false);
        }
        request.finished = true;
        // Only its hashes are still needed, to name what is in flight.
        request.tables = Vec::new();
        Ok(true)
    }

    /// Ranks the chunks that the request used: head most recent, tail least, the groups of a chunk together.
    fn rank(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let geometry = &self.options.geometry;
        let per_chunk = geometry.blocks_per_chunk;
        let used = request.most_computed_tokens / geometry.tokens_per_block / per_chunk;
        let groups = self.options.groups.len() as u32;
        let keys = &mut self.scratch.keys;
        keys.clear();
        for chunk in 0..used.min((request.hashes.len() / per_chunk as usize) as u32) {
            keys.extend(
                (0..groups).filter_map(|group| chunk_key(&request.hashes, per_chunk, ChunkRef { group, chunk })),
            );
        }
        if !keys.is_empty() {
            self.manager.touch(keys);
        }
    }

    /// Ends every transfer as failed: their worker is gone.
    pub(super) fn abandon_jobs(&mut self) {
        self.planned_loads.clear();
        for job in self.jobs.ids() {
            self.complete(job, false);
        }
    }
}
