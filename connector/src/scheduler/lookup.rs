//! How much of a request is in the cache: a prefix for full attention, the window before a boundary for sliding windows,
//! and the longest boundary on which all groups agree.

use terrace_tiering::{Lookup, LookupMode, RequestId};

use super::keys::{ChunkRef, chunk_key, fingerprint};
use super::request::{Awaited, Matching};
use super::{Scheduler, unknown};
use crate::api::{JobId, Matched};
use crate::error::ConnectorError;
use crate::groups::GroupKind;
use crate::port::{Arrival, ManagerPort, PortQuery};

/// After so many steps of waiting the whole prefix is looked up again, so that the manager's deadlines count.
const STEPS_BETWEEN_LOOKUPS: u32 = 16;

/// Where a search stands: the candidates lie in `first_chunk..end_chunk`, and the match ends at most at `limit_block`.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    computed_block: u32,
    limit_block: u32,
    first_chunk: u32,
    end_chunk: u32,
    blocks_per_chunk: u32,
}

impl Bounds {
    /// End of the match in GPU blocks if it ends with `end_chunk`.
    fn boundary(&self) -> u32 {
        self.limit_block.min(self.end_chunk.saturating_mul(self.blocks_per_chunk))
    }
}

impl<M: ManagerPort> Scheduler<M> {
    /// See [`crate::SchedulerHalf::get_num_new_matched_tokens`].
    pub(super) fn match_request(&mut self, id: RequestId, computed_tokens: u32) -> Result<Matched, ConnectorError> {
        let tokens_per_block = self.options.geometry.tokens_per_block;
        let request = self.running(id)?;
        if !computed_tokens.is_multiple_of(tokens_per_block) {
            return Err(ConnectorError::Invalid(format!(
                "request {}: {computed_tokens} computed tokens are no whole blocks of {tokens_per_block}",
                id.0
            )));
        }
        if request.load.is_some() || request.matching.blocked_on.is_some_and(|job| self.jobs.contains(job)) {
            return Ok(Matched::NotYet);
        }
        let computed_block = computed_tokens / tokens_per_block;
        if self.still_awaits(id, computed_block)? {
            return Ok(Matched::NotYet);
        }
        let mut bounds = self.bounds(id, computed_block)?;
        let awaited = self.search(id, &mut bounds)?;
        let boundary = bounds.boundary().max(computed_block);
        let blocked_on = if awaited.is_none() { self.loaded_by_another(id, computed_block, boundary) } else { None };
        let waits = awaited.is_some() || blocked_on.is_some();
        let answer = (!waits).then_some((computed_block, boundary));
        self.running_mut(id)?.matching = Matching { awaited, blocked_on, answer };
        self.counters.waits_for_other_load += u64::from(blocked_on.is_some());
        Ok(if waits { Matched::NotYet } else { Matched::Tokens((boundary - computed_block) * tokens_per_block) })
    }

    /// Whether the blocks that the last lookup found on their way are still being written. Looks at each of them once, and at
    /// one in each step.
    fn still_awaits(&mut self, id: RequestId, computed_block: u32) -> Result<bool, ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or_else(|| unknown(id))?;
        let Some(awaited) = &mut request.matching.awaited else { return Ok(false) };
        awaited.steps += 1;
        if awaited.steps >= STEPS_BETWEEN_LOOKUPS || awaited.computed_block != computed_block {
            return Ok(false);
        }
        self.manager.poll_once();
        let per_chunk = self.options.geometry.blocks_per_chunk;
        while awaited.chunk < awaited.end_chunk {
            let chunk = ChunkRef { group: awaited.group, chunk: awaited.chunk };
            let Some(key) = chunk_key(&request.hashes, per_chunk, chunk) else { break };
            match self.manager.arrival(id, &key) {
                Arrival::Ready => awaited.chunk += 1,
                Arrival::Writing => return Ok(true),
                Arrival::Unknown => break,
            }
        }
        Ok(false)
    }

    /// The widest possible match: full chunks with known hashes, at least one known token left to compute.
    fn bounds(&self, id: RequestId, computed_block: u32) -> Result<Bounds, ConnectorError> {
        let request = self.running(id)?;
        let geometry = &self.options.geometry;
        let blocks_per_chunk = geometry.blocks_per_chunk;
        // A preempted request also knows the tokens that it had generated; the last of them was not computed.
        let known_tokens = request.prompt_tokens.saturating_sub(1).max(request.most_computed_tokens);
        let full_chunks = (request.hashes.len() / blocks_per_chunk as usize) as u32;
        let limit_block = (known_tokens / geometry.tokens_per_block).min(full_chunks.saturating_mul(blocks_per_chunk));
        let first_chunk = computed_block / blocks_per_chunk;
        let end_chunk =
            if limit_block <= computed_block { first_chunk } else { limit_block.div_ceil(blocks_per_chunk) };
        Ok(Bounds { computed_block, limit_block, first_chunk, end_chunk, blocks_per_chunk })
    }

    /// Narrows the bounds to what the cache holds in all groups. Answers what part of it is not known or not there yet.
    fn search(&mut self, id: RequestId, bounds: &mut Bounds) -> Result<Option<Awaited>, ConnectorError> {
        if M::BATCHES_LOOKUPS {
            self.announce(id, bounds)?;
        }
        let mut in_prefix: Option<Awaited> = None;
        for group in 0..self.options.groups.len() {
            if self.options.groups.get(group) == Some(&GroupKind::FullAttention) {
                let awaited = self.search_prefix(id, group, bounds)?;
                in_prefix = [in_prefix, awaited].into_iter().flatten().min_by_key(|awaited| awaited.chunk);
            }
        }
        let mut in_window;
        // A round that narrows the bounds may leave another group's window uncovered, so all are asked again. The bounds
        // shrink with every such round.
        loop {
            let end_chunk = bounds.end_chunk;
            in_window = None;
            for group in 0..self.options.groups.len() {
                if let Some(kind @ GroupKind::SlidingWindow { .. }) = self.options.groups.get(group).copied() {
                    in_window = self.search_window(id, group, kind, bounds)?.or(in_window);
                }
            }
            if bounds.end_chunk == end_chunk {
                break;
            }
        }
        Ok(in_prefix.filter(|awaited| awaited.chunk < bounds.end_chunk).or(in_window))
    }

    /// Tells the manager all that the search may ask.
    fn announce(&mut self, id: RequestId, bounds: &Bounds) -> Result<(), ConnectorError> {
        let request = self.requests.get(&id).ok_or_else(|| unknown(id))?;
        let queries = (0..).zip(&self.options.groups).map(|(group, kind)| {
            let chunks = bounds.first_chunk..bounds.end_chunk;
            let keys = chunks
                .filter_map(|chunk| chunk_key(&request.hashes, bounds.blocks_per_chunk, ChunkRef { group, chunk }));
            PortQuery { prefix_only: *kind == GroupKind::FullAttention, keys: keys.collect() }
        });
        Ok(self.manager.prepare_lookup(id, queries.collect())?)
    }

    /// Full attention: the leading run.
    fn search_prefix(
        &mut self,
        id: RequestId,
        group: usize,
        bounds: &mut Bounds,
    ) -> Result<Option<Awaited>, ConnectorError> {
        self.ask(id, group, bounds, LookupMode::Prefix)?;
        let answers = &self.scratch.answers;
        let run = answers.iter().position(|answer| *answer == Lookup::Miss).unwrap_or(answers.len());
        bounds.end_chunk = bounds.first_chunk + run as u32;
        Ok(self.awaited(group, bounds))
    }

    /// A sliding window: the last run that covers it.
    fn search_window(
        &mut self,
        id: RequestId,
        group: usize,
        kind: GroupKind,
        bounds: &mut Bounds,
    ) -> Result<Option<Awaited>, ConnectorError> {
        let boundary = bounds.boundary();
        if boundary <= bounds.computed_block {
            return Ok(None);
        }
        let needed = kind.needed(boundary, bounds.computed_block, self.options.geometry.tokens_per_block);
        let window = needed.chunks(bounds.blocks_per_chunk).len() as u32;
        if window == 0 {
            return Ok(None); // A window of one token needs nothing but that token.
        }
        self.ask(id, group, bounds, LookupMode::Suffix { window })?;
        let answers = &self.scratch.answers;
        let end = answers.iter().rposition(|answer| *answer != Lookup::Miss).map_or(0, |last| last + 1);
        bounds.end_chunk = bounds.first_chunk + end as u32;
        Ok(self.awaited(group, bounds))
    }

    /// The first chunk of the last answers that is not readable yet.
    fn awaited(&self, group: usize, bounds: &Bounds) -> Option<Awaited> {
        let at = self.scratch.answers.iter().position(|answer| answer.is_unresolved())?;
        Some(Awaited {
            group: group as u32,
            chunk: bounds.first_chunk + at as u32,
            end_chunk: bounds.end_chunk,
            steps: 0,
            computed_block: bounds.computed_block,
        })
    }

    /// Looks the chunks within the bounds up in a group; the answers are in the scratch.
    fn ask(&mut self, id: RequestId, group: usize, bounds: &Bounds, mode: LookupMode) -> Result<(), ConnectorError> {
        let request = self.requests.get(&id).ok_or_else(|| unknown(id))?;
        let keys = &mut self.scratch.keys;
        keys.clear();
        keys.extend((bounds.first_chunk..bounds.end_chunk).filter_map(|chunk| {
            chunk_key(&request.hashes, bounds.blocks_per_chunk, ChunkRef { group: group as u32, chunk })
        }));
        self.scratch.answers.clear();
        if !keys.is_empty() {
            self.manager.lookup(id, group, keys, mode, &mut self.scratch.answers)?;
        }
        Ok(())
    }

    /// A load of another request that brings a block of this match into the GPU.
    fn loaded_by_another(&self, id: RequestId, computed_block: u32, boundary: u32) -> Option<JobId> {
        if self.loading.is_empty() {
            return None;
        }
        let request = self.requests.get(&id)?;
        let geometry = &self.options.geometry;
        let per_chunk = geometry.blocks_per_chunk;
        for (group, kind) in self.options.groups.iter().enumerate() {
            let needed = kind.needed(boundary, computed_block, geometry.tokens_per_block);
            for chunk in needed.chunks(per_chunk) {
                let key = chunk_key(&request.hashes, per_chunk, ChunkRef { group: group as u32, chunk })?;
                if let Some(job) = self.loading.get(&fingerprint(&key)) {
                    return Some(*job);
                }
            }
        }
        None
    }
}
