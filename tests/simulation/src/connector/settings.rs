//! What a seed decides once, beside what it decides of the disks.

use terrace_config::Geometry;
use terrace_connector::{ConnectorOptions, GroupKind};

use crate::rng::Rng;

/// Tokens in a GPU block.
pub(crate) const TOKENS: u32 = 4;

/// What goes wrong with copies: so many of a thousand.
#[derive(Clone, Debug)]
pub(crate) struct CopyFaults {
    /// End as failed, with noise where they wrote.
    pub fail_per_mille: u32,
    /// Are not taken.
    pub refuse_per_mille: u32,
    /// Take up to seconds.
    pub slow_per_mille: u32,
    /// Never end: whoever waits for one finds the device lost.
    pub hang_per_mille: u32,
    /// Copies taken at once.
    pub queue_entries: usize,
}

impl CopyFaults {
    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        (self.fail_per_mille, self.refuse_per_mille) = (0, 0);
        (self.slow_per_mille, self.hang_per_mille) = (0, 0);
    }
}

/// The settings of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Disks, tiers, manager, crashes.
    pub disks: crate::settings::Settings,
    pub groups: Vec<GroupKind>,
    /// Bytes of a page of each tensor.
    pub pages: Vec<u32>,
    /// Per group, how many of the tensors it uses: the first of them. Groups share memory.
    pub group_tensors: Vec<usize>,
    pub gpu_blocks: u32,
    pub prompt_only: bool,
    /// Requests share GPU blocks of equal prefixes.
    pub prefix_cache: bool,
    pub copies: CopyFaults,
    /// Reports of the worker that reach the scheduler half in a later step.
    pub late_report_per_mille: u32,
    /// Steps in which something is reported that is not in flight.
    pub false_report_per_mille: u32,
    /// Steps in which a given request is given up.
    pub abort_per_mille: u32,
    /// Steps in which a request is preempted although there are blocks.
    pub preempt_per_mille: u32,
    pub arrival_per_mille: u32,
    pub families: u64,
    /// Longest chain of a request, in GPU blocks.
    pub chain_blocks: u64,
}

impl Settings {
    /// Draws everything. Without `faults` nothing goes wrong and nothing crashes.
    pub fn draw(rng: &mut Rng, faults: bool) -> Self {
        let groups: Vec<GroupKind> = (0..rng.between(1, 3))
            .map(|_| match rng.below(2) {
                0 => GroupKind::FullAttention,
                _ => GroupKind::SlidingWindow { window_tokens: rng.between(1, 4 * u64::from(TOKENS)) as u32 },
            })
            .collect();
        let pages = [vec![96], vec![33, 128], vec![40, 24, 7]][rng.index(3)].clone();
        let group_tensors: Vec<usize> = groups.iter().map(|_| 1 + rng.index(pages.len())).collect();
        let widest = group_tensors.iter().max().copied().unwrap_or(1);
        let blocks_per_chunk = [1, 1, 2, 4][rng.index(4)];
        let geometry = Geometry {
            block_bytes: pages.iter().take(widest).sum::<u32>() * blocks_per_chunk,
            tokens_per_block: TOKENS,
            blocks_per_chunk,
            groups: groups.len() as u32,
            hash_bytes: [8, 32][rng.index(2)],
        };
        let mut disks = crate::settings::Settings::of(rng, faults, geometry);
        disks.config.primary.blocks = disks.config.primary.blocks.max(8);
        let rate = |rng: &mut Rng, rates: [u32; 4]| if faults { rates[rng.index(4)] } else { 0 };
        let gpu_blocks = rng.between(20, 60) as u32 * groups.len() as u32;
        Self {
            disks,
            groups,
            pages,
            group_tensors,
            gpu_blocks,
            prompt_only: rng.chance(400),
            prefix_cache: rng.chance(600),
            copies: CopyFaults {
                fail_per_mille: rate(rng, [0, 5, 30, 150]),
                refuse_per_mille: rate(rng, [0, 0, 5, 50]),
                slow_per_mille: rate(rng, [0, 20, 100, 300]),
                hang_per_mille: rate(rng, [0, 0, 1, 3]),
                queue_entries: [1, 3, 64][rng.index(3)],
            },
            late_report_per_mille: rate(rng, [0, 100, 300, 700]),
            false_report_per_mille: rate(rng, [0, 10, 10, 50]),
            abort_per_mille: rate(rng, [0, 5, 20, 60]),
            preempt_per_mille: rate(rng, [0, 10, 50, 200]),
            arrival_per_mille: [200, 500, 900][rng.index(3)],
            families: rng.between(1, 4),
            chain_blocks: rng.between(4, 20),
        }
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        let disks = &mut self.disks;
        (disks.crash_per_mille, disks.restart_per_mille, disks.weather_per_mille) = (0, 0, 0);
        self.copies.heal();
        (self.late_report_per_mille, self.false_report_per_mille) = (0, 0);
        (self.abort_per_mille, self.preempt_per_mille) = (0, 0);
    }

    /// What the connector is told.
    pub fn options(&self) -> ConnectorOptions {
        ConnectorOptions {
            geometry: self.disks.config.geometry,
            groups: self.groups.clone(),
            gpu_blocks: self.gpu_blocks,
            offload_prompt_only: self.prompt_only,
            gpu_prefix_cache: self.prefix_cache,
        }
    }

    /// Place of the first block that a group still needs when so many tokens are computed: the next token attends to it.
    pub fn first_kept(&self, group: usize, tokens: u32) -> usize {
        match self.groups.get(group) {
            Some(GroupKind::SlidingWindow { window_tokens }) => {
                (tokens.saturating_sub(window_tokens - 1) / TOKENS) as usize
            }
            _ => 0,
        }
    }
}
