//! Loads: from a match and a block table to a transfer.

use terrace_tiering::{RequestId, TieringError};

use super::keys::{ChunkRef, fingerprint};
use super::request::{Entry, Matching};
use super::{Scheduler, unknown};
use crate::api::{BlockCopy, GpuBlock, JobId, TransferKind};
use crate::error::ConnectorError;
use crate::groups::GroupKind;
use crate::port::ManagerPort;

impl<M: ManagerPort> Scheduler<M> {
    /// See [`crate::SchedulerHalf::update_state_after_alloc`].
    pub(super) fn take_allocation(
        &mut self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        external_tokens: u32,
    ) -> Result<(), ConnectorError> {
        self.check_blocks(id, blocks)?;
        let span = self.check_allocation(id, blocks, external_tokens)?;
        if let Some((computed, boundary)) = span {
            self.plan_load(id, blocks, computed, boundary)?;
        }
        let step = self.step;
        let geometry = self.options.geometry;
        let (per_chunk, tokens_per_block) = (geometry.blocks_per_chunk, geometry.tokens_per_block);
        let request = self.requests.get_mut(&id).ok_or_else(|| unknown(id))?;
        for (table, list) in request.tables.iter_mut().zip(blocks) {
            // A block that the request had before keeps its age: it may have been handed out again since.
            table.truncate(list.len());
            let kept = table.iter().zip(list).take_while(|(entry, block)| entry.block == **block).count();
            table.truncate(kept);
            table.extend(list.iter().skip(kept).map(|block| Entry { block: *block, step }));
        }
        if request.load.is_some()
            && let Some((computed, boundary)) = span
        {
            request.loaded = computed / per_chunk..boundary.div_ceil(per_chunk);
            request.tokens_after_load = boundary * tokens_per_block;
        }
        request.matching = Matching::default();
        Ok(())
    }

    /// The GPU blocks `computed..boundary` that are to be loaded, if any.
    fn check_allocation(
        &self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        external_tokens: u32,
    ) -> Result<Option<(u32, u32)>, ConnectorError> {
        let refuse = |text: String| Err(ConnectorError::Invalid(format!("request {}: {text}", id.0)));
        let request = self.running(id)?;
        if request.load.is_some() {
            return refuse("a load is in flight".to_owned());
        }
        if external_tokens == 0 {
            return Ok(None);
        }
        let tokens_per_block = self.options.geometry.tokens_per_block;
        let Some((computed, matched)) = request.matching.answer else {
            return refuse(format!("{external_tokens} external tokens, but nothing was matched"));
        };
        let external_blocks = external_tokens / tokens_per_block;
        if !external_tokens.is_multiple_of(tokens_per_block) || external_blocks > matched - computed {
            return refuse(format!(
                "{external_tokens} external tokens, {} blocks of {tokens_per_block} were matched",
                matched - computed
            ));
        }
        let boundary = computed + external_blocks;
        let windows = self.options.groups.iter().any(|kind| matches!(kind, GroupKind::SlidingWindow { .. }));
        if windows && boundary != matched {
            return refuse("less than the match cannot be loaded where a group has a sliding window".to_owned());
        }
        for (group, (list, kind)) in blocks.iter().zip(&self.options.groups).enumerate() {
            let needed = kind.needed(boundary, computed, tokens_per_block);
            let places = list.get(needed.first_block as usize..needed.end_block as usize);
            if places.is_none_or(|places| places.contains(&GpuBlock::NULL)) {
                return refuse(format!(
                    "group {group} has no GPU blocks for {}..{} of its table",
                    needed.first_block, needed.end_block
                ));
            }
        }
        Ok(Some((computed, boundary)))
    }

    /// Takes readers on the slots and plans the transfer. Blocks that are gone by now make the load a failed one.
    fn plan_load(
        &mut self,
        id: RequestId,
        blocks: &[Vec<GpuBlock>],
        computed: u32,
        boundary: u32,
    ) -> Result<(), ConnectorError> {
        let geometry = self.options.geometry;
        let per_chunk = geometry.blocks_per_chunk;
        let (mut chunks, mut copies) = (Vec::new(), Vec::new());
        for (group, (list, kind)) in blocks.iter().zip(&self.options.groups).enumerate() {
            let needed = kind.needed(boundary, computed, geometry.tokens_per_block);
            for chunk in needed.chunks(per_chunk) {
                chunks.push(ChunkRef { group: group as u32, chunk });
                let first = needed.first_block.max(chunk * per_chunk);
                let end = needed.end_block.min((chunk + 1) * per_chunk);
                for position in first..end {
                    let Some(block) = list.get(position as usize).copied() else { continue };
                    // The slot follows once the readers are taken; until then its place in `chunks` stands for it.
                    let slot = terrace_primary::SlotId(chunks.len() as u32 - 1);
                    copies.push(BlockCopy { slot, block, group: group as u16, place: (position % per_chunk) as u16 });
                }
            }
        }
        let mut keys = std::mem::take(&mut self.scratch.keys);
        let mut slots = std::mem::take(&mut self.scratch.slots);
        slots.clear();
        self.fill_keys(id, &chunks, &mut keys);
        let job = self.jobs.reserve();
        let prepared = self.manager.prepare_load(id, job, &keys, &mut slots);
        if prepared.is_ok() {
            for copy in &mut copies {
                if let Some(slot) = slots.get(copy.slot.index()) {
                    copy.slot = *slot;
                }
            }
        }
        let result = match prepared {
            Ok(()) => {
                self.add_load(job, id, chunks, copies, &keys);
                Ok(())
            }
            Err(TieringError::NotResident { .. } | TieringError::TooManyReaders { .. }) => {
                self.counters.failed_loads += 1;
                self.outcome.failed_loads.push((id, copies.iter().map(|copy| copy.block).collect()));
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
        self.scratch.keys = keys;
        self.scratch.slots = slots;
        result
    }

    fn add_load(
        &mut self,
        job: JobId,
        id: RequestId,
        chunks: Vec<ChunkRef>,
        copies: Vec<BlockCopy>,
        keys: &[terrace_primary::Key],
    ) {
        for copy in &copies {
            // An engine should name these in `reused`; a load over a running copy must not depend on it.
            if self.jobs.touches(copy.block) {
                self.jobs.block_handed_out(copy.block, self.step);
            }
        }
        let transfer = self.jobs.add(job, id, TransferKind::Load, chunks, copies);
        if self.options.gpu_prefix_cache {
            for key in keys {
                self.loading.entry(fingerprint(key)).or_insert(transfer.job);
            }
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.load = Some(transfer.job);
            request.jobs.push(transfer.job);
        }
        self.counters.loads += 1;
        self.planned_loads.push(transfer);
    }

    /// The blocks of this load are no longer on their way.
    pub(super) fn forget_loading(&mut self, job: JobId, keys: &[terrace_primary::Key]) {
        if self.loading.is_empty() {
            return;
        }
        for key in keys {
            let print = fingerprint(key);
            if self.loading.get(&print) == Some(&job) {
                self.loading.remove(&print);
            }
        }
    }
}
