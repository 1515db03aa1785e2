//! Transfers in flight and the GPU blocks that they touch.

use std::collections::HashMap;
use std::sync::Arc;

use terrace_tiering::RequestId;

use super::keys::ChunkRef;
use crate::api::{BlockCopy, GpuBlock, JobId, Transfer, TransferKind};

/// A transfer that is planned or running.
#[derive(Debug)]
pub(super) struct Job {
    pub request: RequestId,
    pub kind: TransferKind,
    /// The chunks, in the order in which the manager was given their keys.
    pub chunks: Vec<ChunkRef>,
    pub copies: Arc<[BlockCopy]>,
    /// The worker has been told of it.
    pub handed_over: bool,
}

/// All transfers in flight.
#[derive(Debug)]
pub(super) struct Jobs {
    jobs: HashMap<JobId, Job>,
    next: u64,
    /// Per GPU block, transfers in flight that touch it.
    touching: Vec<u32>,
    /// Per GPU block, the step in which it was last handed to a new owner.
    handed_out: Vec<u32>,
    /// A block that a transfer touches was handed out in this step.
    must_flush: bool,
}

impl Jobs {
    pub fn new(gpu_blocks: u32) -> Self {
        Self {
            jobs: HashMap::new(),
            next: 0,
            touching: vec![0; gpu_blocks as usize],
            handed_out: vec![0; gpu_blocks as usize],
            must_flush: false,
        }
    }

    /// A name for a transfer that may follow. No name is given twice.
    pub fn reserve(&mut self) -> JobId {
        let id = JobId(self.next);
        self.next += 1;
        id
    }

    /// Adds a transfer under a name that was reserved for it.
    pub fn add(
        &mut self,
        id: JobId,
        request: RequestId,
        kind: TransferKind,
        chunks: Vec<ChunkRef>,
        copies: Vec<BlockCopy>,
    ) -> Transfer {
        let copies: Arc<[BlockCopy]> = copies.into();
        for copy in copies.iter() {
            if let Some(count) = self.touching.get_mut(copy.block.index()) {
                *count += 1;
            }
        }
        self.jobs.insert(id, Job { request, kind, chunks, copies: Arc::clone(&copies), handed_over: false });
        Transfer { job: id, request, kind, copies }
    }

    /// Takes a transfer out that is done or cancelled.
    pub fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        for copy in job.copies.iter() {
            if let Some(count) = self.touching.get_mut(copy.block.index()) {
                *count = count.saturating_sub(1);
            }
        }
        Some(job)
    }

    pub fn contains(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    pub fn get(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Names of all transfers.
    pub fn ids(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// The worker is told of this transfer now.
    pub fn hand_over(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.handed_over = true;
        }
    }

    /// The block has a new owner from this step on.
    #[inline]
    pub fn block_handed_out(&mut self, block: GpuBlock, step: u32) {
        if let Some(handed_out) = self.handed_out.get_mut(block.index()) {
            *handed_out = step;
            self.must_flush |= self.touching.get(block.index()).is_some_and(|count| *count > 0);
        }
    }

    /// Whether a transfer in flight touches the block.
    pub fn touches(&self, block: GpuBlock) -> bool {
        self.touching.get(block.index()).is_some_and(|count| *count > 0)
    }

    /// Whether a block that was given to a request in `step` is still its own. Steps wrap around, so they are compared by distance.
    #[inline]
    pub fn still_owned(&self, block: GpuBlock, step: u32) -> bool {
        self.handed_out.get(block.index()).is_some_and(|handed_out| (handed_out.wrapping_sub(step) as i32) <= 0)
    }

    /// Appends the transfers, known to the worker, that touch a block handed out in `step`. Scans all transfers, and only if there
    /// is one.
    pub fn collect_flush(&mut self, step: u32, flush: &mut Vec<JobId>) {
        if !std::mem::take(&mut self.must_flush) {
            return;
        }
        let handed_out = &self.handed_out;
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.handed_over) {
            if job.copies.iter().any(|copy| handed_out.get(copy.block.index()) == Some(&step)) {
                flush.push(*id);
            }
        }
    }
}
