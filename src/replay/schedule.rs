//! The scheduling half of a step: who computes, who is preempted, who starts.

use std::time::Instant;

use anyhow::Result;
use terrace_connector::{GpuBlock, Matched, ScheduledRequest};

use super::engine::Engine;
use super::prefix;
use super::request::State;

impl Engine {
    /// Gives running requests their part of the step, oldest first.
    pub(super) fn schedule_running(&mut self) {
        let mut budget = (self.options.step_tokens / self.options.tokens_per_block).max(1);
        for at in 0..self.requests.len() {
            if self.requests[at].state != State::Running {
                continue;
            }
            let left = self.requests[at].blocks() - self.requests[at].done_blocks;
            if left == 0 {
                self.requests[at].decode_left = self.requests[at].decode_left.saturating_sub(1);
                self.plan_request(at, 0);
                continue;
            }
            let wanted = left.min(budget);
            if wanted > 0 && self.make_room(at) {
                let got = wanted.min(self.pool.free() / self.options.groups.len() as u32);
                budget -= got;
                self.plan_request(at, got);
            }
        }
    }

    /// Preempts running requests younger than the one at `at`, the youngest first, until one block for each group is free.
    /// True: there is room for one at least. False: older or loading requests have it all, which passes by itself (the
    /// oldest can take from all others, a load lands, a held request is released), so the request waits with what it has:
    /// were it preempted, two requests that load in turn could throw each other out for ever.
    fn make_room(&mut self, at: usize) -> bool {
        let needed = self.options.groups.len() as u32;
        while self.pool.free() < needed {
            let younger = self.requests.get(at + 1..).unwrap_or_default();
            let Some(victim) = younger.iter().rposition(|request| request.state == State::Running) else {
                return false;
            };
            self.preempt(at + 1 + victim);
        }
        true
    }

    fn preempt(&mut self, at: usize) {
        let request = &mut self.requests[at];
        self.plan.preempted.push(request.id);
        request.state = State::Waiting;
        request.done_blocks = 0;
        request.take_blocks().for_each(|block| self.pool.release(block));
        self.counts.preemptions += 1;
    }

    /// Schedules `blocks` further blocks of a request; 0: a step of generation.
    fn plan_request(&mut self, at: usize, blocks: u32) {
        let mut new_blocks = vec![Vec::with_capacity(blocks as usize); self.options.groups.len()];
        for list in &mut new_blocks {
            list.extend((0..blocks).map_while(|_| self.pool.allocate()));
        }
        let request = &mut self.requests[at];
        for (table, list) in request.tables.iter_mut().zip(&new_blocks) {
            table.extend(list);
            self.plan.reused.extend(list);
        }
        let first = request.done_blocks;
        request.done_blocks += blocks;
        // The prompt's last token lies in no block that is modelled.
        let computed_tokens = request.done_blocks * self.options.tokens_per_block;
        self.computed.push((at, first..request.done_blocks));
        self.plan.scheduled.push(ScheduledRequest { id: request.id, new_blocks, computed_tokens });
    }

    /// Starts waiting requests, oldest first, until one finds no room: younger ones must not starve it.
    pub(super) fn schedule_waiting(&mut self) -> Result<()> {
        for at in 0..self.requests.len() {
            let request = &self.requests[at];
            if request.state != State::Waiting || self.plan.preempted.contains(&request.id) {
                continue;
            }
            let Some((cached, external)) = self.look_up(at)? else { continue };
            if !self.start_request(at, cached, external)? {
                break;
            }
        }
        Ok(())
    }

    /// Blocks of a waiting request that are in the GPU, and those behind them that can be loaded; `None`: not known yet.
    fn look_up(&mut self, at: usize) -> Result<Option<(u32, u32)>> {
        let tokens_per_block = self.options.tokens_per_block;
        let request = &self.requests[at];
        let cached = prefix::cached_blocks(&self.pool, &self.options, &request.block_ids);
        let asked = Instant::now();
        let matched = self.connector.get_num_new_matched_tokens(request.id, cached * tokens_per_block)?;
        self.counts.lookup_calls += 1;
        self.counts.lookup_ns += asked.elapsed().as_nanos() as u64;
        self.counts.keys_asked += u64::from(request.blocks() - cached) * self.options.groups.len() as u64;
        Ok(match matched {
            Matched::Tokens(external_tokens) => Some((cached, external_tokens / tokens_per_block)),
            Matched::NotYet => {
                self.counts.retries += 1;
                None
            }
        })
    }

    /// Gives a waiting request its cached blocks and room for what is to be loaded. False: there is no room now.
    fn start_request(&mut self, at: usize, cached: u32, external: u32) -> Result<bool> {
        let boundary = cached + external;
        // Cached blocks that nobody uses are in the free list: take them first, so that what is allocated is not one of them.
        let mut tables = self.share_cached(at, cached);
        let kinds = self.options.groups.iter();
        let firsts: Vec<_> = kinds.map(|kind| self.options.first_needed(*kind, boundary).max(cached)).collect();
        let needed: u32 = firsts.iter().map(|first| boundary - first.min(&boundary)).sum();
        if needed > self.pool.free() {
            let taken = tables.iter_mut().flat_map(|table| table.drain(..).rev());
            taken.filter(|block| *block != GpuBlock::NULL).for_each(|block| self.pool.release(block));
            return Ok(false);
        }
        for (table, first) in tables.iter_mut().zip(firsts) {
            table.resize(first.min(boundary) as usize, GpuBlock::NULL);
            let loaded = (first..boundary).map_while(|_| self.pool.allocate());
            let allocated_from = table.len();
            table.extend(loaded);
            self.plan.reused.extend(&table[allocated_from..]);
        }
        let request = &mut self.requests[at];
        self.connector.update_state_after_alloc(request.id, &tables, external * self.options.tokens_per_block)?;
        if !request.counted {
            self.counts.hits_gpu += u64::from(cached);
        }
        request.tables = tables;
        request.done_blocks = cached;
        if external > 0 {
            request.state = State::Loading { from: cached, to: boundary };
        } else {
            request.state = State::Running;
            request.counted = true;
        }
        self.check(at, 0..cached)?;
        Ok(true)
    }

    /// The tables of a request that begins with blocks found in the GPU, one user more on each.
    fn share_cached(&mut self, at: usize, cached: u32) -> Vec<Vec<GpuBlock>> {
        let ids = &self.requests[at].block_ids[..cached as usize];
        let mut tables = Vec::with_capacity(self.options.groups.len());
        for (group, kind) in (0..).zip(&self.options.groups) {
            let first = self.options.first_needed(*kind, cached) as usize;
            let found = ids[first..].iter().map(|id| self.pool.cached((*id, group)).unwrap_or(GpuBlock::NULL));
            let mut table = vec![GpuBlock::NULL; first];
            table.extend(found);
            tables.push(table);
        }
        for block in tables.iter().flatten().filter(|block| **block != GpuBlock::NULL) {
            self.pool.share(*block);
        }
        tables
    }
}
