//! What the engine does with its memory: the forward pass, and loads that landed or failed.

use std::ops::Range;

use terrace_connector::{ConnectorOutput, GpuBlock, StepPlan};
use terrace_tiering::RequestId;

use super::requests::{Request, State};
use super::settings::TOKENS;
use super::world::World;
use crate::failure::Reason;

impl World {
    /// The forward pass: new owners overwrite their blocks, then what is scheduled is computed from what was there, which must be right.
    pub(crate) fn compute(&mut self, plan: &StepPlan) -> Result<(), Reason> {
        for block in &plan.reused {
            // A block that a load of this step fills belongs to the load.
            let loads = self.requests.values().filter(|request| request.state == State::Loading).any(|request| {
                request
                    .tables
                    .iter()
                    .any(|table| table.get(request.load.clone()).is_some_and(|blocks| blocks.contains(block)))
            });
            if !loads {
                let with = self.rng.next() as u8;
                self.gpu.spoil(*block, with);
            }
        }
        for scheduled in &plan.scheduled {
            let Some(mut request) = self.requests.remove(&scheduled.id) else { continue };
            let computed = self.compute_one(scheduled.id, &mut request, scheduled.computed_tokens);
            self.requests.insert(scheduled.id, request);
            computed?;
        }
        Ok(())
    }

    fn compute_one(&mut self, id: RequestId, request: &mut Request, tokens: u32) -> Result<(), Reason> {
        let before = request.computed_tokens;
        let full = before / TOKENS..tokens / TOKENS;
        for group in 0..self.settings.groups.len() {
            let first = self.settings.first_kept(group, before);
            self.check_gpu(id, request, group, first..full.start as usize)?;
        }
        for at in full.start as usize..full.end as usize {
            let Some(name) = request.names.get(at).copied() else { continue };
            self.content.compute(self.life.namespace, name);
            for (group, table) in request.tables.iter().enumerate() {
                if let Some(block) = table.get(at).copied().filter(|block| *block != GpuBlock::NULL) {
                    self.gpu.write(group, block, self.content.of(self.life.namespace, name, group));
                    if self.settings.prefix_cache {
                        self.gpu.know(block, group, name);
                    }
                }
            }
        }
        request.computed_tokens = tokens;
        Ok(())
    }

    /// The blocks at these places have the bytes of their tokens.
    fn check_gpu(
        &mut self,
        id: RequestId,
        request: &Request,
        group: usize,
        places: Range<usize>,
    ) -> Result<(), Reason> {
        for at in places {
            let Some(name) = request.names.get(at).copied() else { continue };
            let block = request.tables[group].get(at).copied().unwrap_or(GpuBlock::NULL);
            if block == GpuBlock::NULL {
                return Err(Reason::Contract(format!("request {} needs block {at} of group {group}, has none", id.0)));
            }
            if !self.gpu.has(group, block, self.content.of(self.life.namespace, name, group)) {
                let text = format!("request {}, block {at} of group {group}, in {block:?} of the GPU", id.0);
                return Err(Reason::WrongBytes(text));
            }
        }
        Ok(())
    }

    /// Takes in what the connector tells after a step.
    pub(crate) fn take(&mut self, output: ConnectorOutput) -> Result<(), Reason> {
        if !output.is_empty() {
            self.trace.add(format_args!("{output:?}"));
        }
        for id in output.loaded {
            self.landed(id)?;
        }
        for (id, blocks) in output.failed_loads {
            let Some(request) = self.requests.get_mut(&id).filter(|request| request.state == State::Loading) else {
                return Err(Reason::Contract(format!("a load of request {} failed, which loads nothing", id.0)));
            };
            let is_own = |block: &GpuBlock| request.tables.iter().any(|table| table.contains(block));
            let needs_any = (0..self.settings.groups.len())
                .any(|group| self.settings.first_kept(group, request.load.end as u32 * TOKENS) < request.load.end);
            if (blocks.is_empty() && needs_any) || !blocks.iter().all(is_own) {
                return Err(Reason::Contract(format!("the failed load of request {} names {blocks:?}", id.0)));
            }
            *self.counts.others.entry("failed loads").or_default() += 1;
            request.state = State::Running;
            let rest = request.computed_tokens as usize / TOKENS as usize..;
            let is_gone = |table: &Vec<GpuBlock>| table.get(rest.clone()).unwrap_or_default().contains(&GpuBlock::NULL);
            request.must_restart = request.tables.iter().any(is_gone);
        }
        for id in output.released {
            if self.requests.get(&id).is_none_or(|request| request.state != State::Held) {
                return Err(Reason::Contract(format!("request {} is released, which is not held", id.0)));
            }
            self.free_blocks(id);
            self.requests.remove(&id);
        }
        Ok(())
    }

    fn landed(&mut self, id: RequestId) -> Result<(), Reason> {
        let loads = self.requests.get(&id).is_some_and(|request| request.state == State::Loading);
        let Some(mut request) = self.requests.remove(&id).filter(|_| loads) else {
            return Err(Reason::Contract(format!("a load of request {} landed, which loads nothing", id.0)));
        };
        let tokens = request.load.end as u32 * TOKENS;
        for group in 0..self.settings.groups.len() {
            let places = self.settings.first_kept(group, tokens).max(request.load.start)..request.load.end;
            self.counts.loaded += places.len() as u64;
            self.check_gpu(id, &request, group, places.clone())?;
            for at in places {
                let (block, name) = (request.tables[group][at], request.names[at]);
                if self.settings.prefix_cache {
                    self.gpu.know(block, group, name);
                }
            }
        }
        request.computed_tokens = tokens;
        request.state = State::Running;
        self.requests.insert(id, request);
        Ok(())
    }
}
