//! Stores: each full chunk of a request is offered once.

use terrace_tiering::RequestId;

use super::keys::{ChunkRef, chunk_key};
use super::{Scheduler, Scratch};
use crate::api::{BlockCopy, Transfer, TransferKind};
use crate::port::ManagerPort;

impl<M: ManagerPort> Scheduler<M> {
    /// Offers the chunks that a step completes and plans the transfer of those that the manager takes. Chunks it refuses
    /// are not offered again. Work in proportion to the new chunks.
    pub(super) fn plan_store(&mut self, id: RequestId, computed_tokens: u32) -> Option<Transfer> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let transfer = self.plan_store_with(id, computed_tokens, &mut scratch);
        self.scratch = scratch;
        transfer
    }

    fn plan_store_with(&mut self, id: RequestId, computed_tokens: u32, scratch: &mut Scratch) -> Option<Transfer> {
        self.collect_offer(id, computed_tokens, scratch);
        if scratch.keys.is_empty() {
            return None;
        }
        let job = self.jobs.reserve();
        match self.manager.prepare_store(id, job, &scratch.keys, &mut scratch.plan) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                self.counters.refused_offers += 1;
                tracing::debug!("blocks of request {} are not stored: {error}", id.0);
                return None;
            }
        }
        let per_chunk = self.options.geometry.blocks_per_chunk;
        let request = self.requests.get_mut(&id)?;
        let mut chunks = Vec::with_capacity(scratch.plan.store.len());
        let mut copies = Vec::with_capacity(scratch.plan.store.len() * per_chunk as usize);
        for (index, slot) in scratch.plan.store.iter().zip(&scratch.plan.slots) {
            let Some(chunk) = scratch.chunks.get(*index as usize).copied() else { continue };
            chunks.push(chunk);
            let first = (chunk.chunk * per_chunk) as usize;
            let table = request.tables.get(chunk.group as usize).and_then(|table| table.get(first..));
            let entries = table.unwrap_or(&[]).iter().take(per_chunk as usize);
            copies.extend(entries.enumerate().map(|(place, entry)| BlockCopy {
                slot: *slot,
                block: entry.block,
                group: chunk.group as u16,
                place: place as u16,
            }));
        }
        if chunks.is_empty() {
            return None;
        }
        let transfer = self.jobs.add(job, id, TransferKind::Store, chunks, copies);
        request.jobs.push(transfer.job);
        self.counters.stores += 1;
        Some(transfer)
    }

    /// Moves the cursor over the chunks that are complete and collects their keys, the groups of a chunk together.
    fn collect_offer(&mut self, id: RequestId, computed_tokens: u32, scratch: &mut Scratch) {
        scratch.keys.clear();
        scratch.chunks.clear();
        let Some(request) = self.requests.get_mut(&id) else { return };
        let geometry = &self.options.geometry;
        let per_chunk = geometry.blocks_per_chunk;
        let offered_tokens =
            if self.options.offload_prompt_only { computed_tokens.min(request.prompt_tokens) } else { computed_tokens };
        let hashed_chunks = (request.hashes.len() / per_chunk as usize) as u32;
        let end = (offered_tokens / geometry.tokens_per_block / per_chunk).min(hashed_chunks);
        for chunk in request.cursor..end {
            if request.loaded.contains(&chunk) {
                continue;
            }
            let first = (chunk * per_chunk) as usize;
            for (group, table) in request.tables.iter().enumerate() {
                let entries = table.get(first..first + per_chunk as usize).unwrap_or(&[]);
                // A sliding-window group may have given blocks of this chunk away before it was full.
                let kept =
                    !entries.is_empty() && entries.iter().all(|entry| self.jobs.still_owned(entry.block, entry.step));
                let chunk = ChunkRef { group: group as u32, chunk };
                match chunk_key(&request.hashes, per_chunk, chunk) {
                    Some(key) if kept => {
                        scratch.keys.push(key);
                        scratch.chunks.push(chunk);
                    }
                    _ => self.counters.not_offered += 1,
                }
            }
        }
        request.cursor = request.cursor.max(end);
    }
}
