//! Who copies: each its part of a slot, piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_primary::{Key, Region, SlotId};

use super::common::Common;
use crate::failure::Reason;

/// A job, as one copier sees it.
pub(crate) struct Task {
    pub job: u64,
    pub is_store: bool,
    pub region: Arc<Region>,
    pub blocks: Vec<(SlotId, Key)>,
    /// Whether anybody will use what is loaded.
    pub is_used: bool,
    /// Blocks that are done.
    at: usize,
    /// Noise lies where the next block will.
    is_half: bool,
}

impl Task {
    pub const fn new(job: u64, is_store: bool, region: Arc<Region>, blocks: Vec<(SlotId, Key)>) -> Self {
        Self { job, is_store, region, blocks, is_used: true, at: 0, is_half: false }
    }
}

/// One of those who copy for an engine.
pub(crate) struct Copier {
    pub namespace: u8,
    pub rank: u32,
    /// Into how many parts a slot is divided.
    pub parts: u32,
    pub tasks: VecDeque<Task>,
}

impl Copier {
    /// Copies a piece of a block. Gives the job that is over with it, and whether all was copied.
    pub fn work(&mut self, common: &mut Common) -> Result<Option<(u64, bool)>, Reason> {
        let Some(mut task) = self.tasks.pop_front() else { return Ok(None) };
        let Some((slot, key)) = task.blocks.get(task.at).copied() else { return Ok(Some((task.job, true))) };
        if common.rng.chance(common.settings.fail_per_mille) {
            *common.counts.others.entry("copies that failed").or_default() += 1;
            return Ok(Some((task.job, false)));
        }
        let bytes = common.settings.disks.config.geometry.block_bytes as usize;
        let place = |rank: u32| bytes * rank as usize / self.parts as usize;
        let (from, to) = (place(self.rank), place(self.rank + 1));
        let must = common.model.content(self.namespace, &key).get(from..to).unwrap_or_default();
        if !task.is_store {
            let mut found = vec![0; to - from];
            let read = task.region.read_slot_at(slot, from, &mut found);
            if task.is_used && (!read || found != must) {
                return Err(Reason::WrongBytes(format!("job {} loads {key} from {slot:?}", task.job)));
            }
            common.counts.loaded += u64::from(task.is_used);
            task.at += 1;
        } else if task.is_half {
            task.region.write_slot_at(slot, from, must);
            (task.at, task.is_half) = (task.at + 1, false);
        } else {
            let noise: Vec<u8> = must.iter().map(|byte| byte ^ 0x5a).collect();
            task.region.write_slot_at(slot, from, &noise);
            task.is_half = true;
        }
        self.tasks.push_front(task);
        Ok(None)
    }

    /// Breaks off everything, and gives the jobs.
    pub fn break_off(&mut self) -> Vec<u64> {
        self.tasks.drain(..).map(|task| task.job).collect()
    }
}
