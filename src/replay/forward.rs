//! The computing half of a step: what is computed, what was loaded, who ends. Every byte is compared here.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use terrace_connector::{ConnectorOutput, GpuBlock, RequestId};

use super::engine::Engine;
use super::request::State;

impl Engine {
    /// The forward pass: writes the scheduled blocks, in the time that the modelled GPU takes for them and for what failed loads left to it.
    pub(super) fn compute(&mut self) -> Result<()> {
        let begun = Instant::now();
        for (at, blocks) in std::mem::take(&mut self.computed) {
            let request = &self.requests[at];
            for place in blocks {
                let id = request.block_ids[place as usize];
                for (group, table) in (0..).zip(&request.tables) {
                    self.memory.fill(group, table[place as usize], id)?;
                    self.pool.name(table[place as usize], (id, group));
                }
                self.counts.computed_blocks += 1;
            }
        }
        let blocks = self.counts.computed_blocks + self.counts.recomputed_blocks;
        let tokens =
            (blocks - std::mem::replace(&mut self.blocks_paid, blocks)) * u64::from(self.options.tokens_per_block);
        if let Some(rate) = self.options.prefill_tokens_per_second {
            let takes = Duration::from_secs_f64(tokens as f64 / rate as f64);
            std::thread::sleep(takes.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    /// Takes in what the connector tells after a step.
    pub(super) fn take_output(&mut self, output: ConnectorOutput) -> Result<()> {
        for id in output.loaded {
            self.loaded(id, &mut [])?;
        }
        for (id, mut failed) in output.failed_loads {
            self.counts.failed_loads += 1;
            self.loaded(id, &mut failed)?;
        }
        for id in output.released {
            for block in self.held.remove(&id).into_iter().flatten() {
                self.pool.release(block);
            }
        }
        Ok(())
    }

    /// A load ended: what arrived is compared with what its blocks demand, what failed is computed.
    fn loaded(&mut self, id: RequestId, failed: &mut [GpuBlock]) -> Result<()> {
        failed.sort_unstable();
        let Some(at) = self.requests.iter().position(|request| request.id == id) else { return Ok(()) };
        let State::Loading { from, to } = self.requests[at].state else { return Ok(()) };
        let request = &self.requests[at];
        for place in from..to {
            let (mut hit, content) = (true, request.block_ids[place as usize]);
            for (group, table) in (0..).zip(&request.tables) {
                let block = table[place as usize];
                if failed.binary_search(&block).is_ok() {
                    hit = false;
                    self.counts.recomputed_blocks += 1;
                    self.memory.fill(group, block, content)?;
                }
            }
            if hit && !request.counted {
                self.counts.hits_external += 1;
            }
        }
        self.check(at, from..to)?;
        let request = &mut self.requests[at];
        for place in from..to {
            for (group, table) in (0..).zip(&request.tables) {
                if table[place as usize] != GpuBlock::NULL {
                    self.pool.name(table[place as usize], (request.block_ids[place as usize], group));
                }
            }
        }
        request.done_blocks = to;
        request.state = State::Running;
        request.counted = true;
        Ok(())
    }

    /// Compares blocks of a request's prompt with what they must hold. A wrong one is counted and mended, so that it is
    /// counted once.
    pub(super) fn check(&mut self, at: usize, blocks: Range<u32>) -> Result<()> {
        if !self.memory.moves_bytes() {
            return Ok(());
        }
        let request = &self.requests[at];
        for place in blocks {
            let content = request.block_ids[place as usize];
            for (group, table) in (0..).zip(&request.tables) {
                let block = table[place as usize];
                if block != GpuBlock::NULL && !self.memory.is_right(group, block, content)? {
                    self.counts.wrong_blocks += 1;
                    tracing::error!(
                        request = request.id.0,
                        place,
                        group,
                        gpu_block = block.0,
                        "a block holds wrong bytes"
                    );
                    self.memory.fill(group, block, content)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the requests that have generated all they had to. True: there were some.
    pub(super) fn finish_requests(&mut self) -> Result<bool> {
        let mut ended = false;
        let mut at = 0;
        while let Some(request) = self.requests.get_mut(at) {
            let prompted = request.state == State::Running && request.done_blocks == request.blocks();
            if prompted && !request.prompted {
                request.prompted = true;
                self.waits.add(request.opened.elapsed());
            }
            if !(prompted && request.decode_left == 0) {
                at += 1;
                continue;
            }
            // Everything that it attended to, also what it shared or computed: nothing may have written there meanwhile.
            self.check(at, 0..self.requests[at].blocks())?;
            let mut request = self.requests.remove(at);
            let blocks = request.take_blocks();
            if self.connector.request_finished(request.id)? {
                self.held.insert(request.id, blocks.collect());
            } else {
                blocks.for_each(|block| self.pool.release(block));
            }
            self.counts.requests += 1;
            self.served = self.start.elapsed();
            ended = true;
        }
        Ok(ended)
    }
}
