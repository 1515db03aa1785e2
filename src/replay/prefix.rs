//! The engine's own prefix cache: how much of a prompt is in the GPU already.

use terrace_connector::GroupKind;

use super::engine::EngineOptions;
use super::gpu_pool::GpuPool;

impl EngineOptions {
    /// First block that a group needs to go on at a boundary: the token behind it attends to no earlier one.
    pub fn first_needed(&self, kind: GroupKind, boundary_blocks: u32) -> u32 {
        match kind {
            GroupKind::FullAttention => 0,
            GroupKind::SlidingWindow { window_tokens } => {
                let tokens_per_block = u64::from(self.tokens_per_block);
                let boundary = u64::from(boundary_blocks) * tokens_per_block;
                let reach = boundary.saturating_sub(u64::from(window_tokens.saturating_sub(1)));
                (reach / tokens_per_block) as u32
            }
        }
    }
}

/// The longest prefix of a prompt at whose end every group has in the GPU what it needs to go on.
pub fn cached_blocks(pool: &GpuPool, options: &EngineOptions, block_ids: &[u64]) -> u32 {
    if !pool.caches() {
        return 0;
    }
    let mut prefix = block_ids;
    for (group, kind) in (0..).zip(&options.groups) {
        if *kind == GroupKind::FullAttention {
            let held = prefix.iter().take_while(|id| pool.cached((**id, group)).is_some()).count();
            prefix = &prefix[..held];
        }
    }
    let mut boundary = prefix.len() as u32;
    // Each window may pull the boundary back, and with it the other windows: until all agree.
    loop {
        let before = boundary;
        for (group, kind) in (0..).zip(&options.groups) {
            if *kind != GroupKind::FullAttention {
                boundary = window_end(pool, options, *kind, group, &prefix[..boundary as usize]);
            }
        }
        if boundary == before {
            return boundary;
        }
    }
}

/// The last boundary in `prefix` before which a window of the group is in the GPU.
fn window_end(pool: &GpuPool, options: &EngineOptions, kind: GroupKind, group: u32, prefix: &[u64]) -> u32 {
    let mut boundary = prefix.len();
    // Blocks from here to the boundary are in the GPU.
    let mut run_from = boundary;
    while boundary > 0 {
        let first = options.first_needed(kind, boundary as u32) as usize;
        while run_from > first && pool.cached((prefix[run_from - 1], group)).is_some() {
            run_from -= 1;
        }
        if run_from <= first {
            return boundary as u32;
        }
        // The block before the run is missing: the next boundary that can hold lies before it.
        boundary = run_from - 1;
        run_from = boundary;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(groups: Vec<GroupKind>) -> EngineOptions {
        EngineOptions {
            concurrency: 1,
            step_tokens: 16,
            prefill_tokens_per_second: None,
            decode_steps: 0,
            tokens_per_block: 16,
            groups,
            lossless: false,
            speed: None,
            requests: None,
        }
    }

    /// A pool that holds these blocks of each group.
    fn pool(held: &[&[u64]]) -> GpuPool {
        let mut pool = GpuPool::new(64, true);
        for (group, ids) in (0..).zip(held) {
            for id in *ids {
                let block = pool.allocate().unwrap();
                pool.name(block, (*id, group));
                pool.release(block);
            }
        }
        pool
    }

    #[test]
    fn full_attention_needs_every_block() {
        let options = options(vec![GroupKind::FullAttention]);
        assert_eq!(cached_blocks(&pool(&[&[1, 2, 4]]), &options, &[1, 2, 3, 4]), 2);
        assert_eq!(cached_blocks(&pool(&[&[2]]), &options, &[1, 2]), 0);
        assert_eq!(cached_blocks(&pool(&[&[1]]), &options, &[]), 0);
    }

    #[test]
    fn a_window_needs_the_blocks_before_the_boundary() {
        // 33 tokens: the 32 before the next one, which are two blocks.
        let options = options(vec![GroupKind::FullAttention, GroupKind::SlidingWindow { window_tokens: 33 }]);
        let all = [1, 2, 3, 4, 5];
        assert_eq!(cached_blocks(&pool(&[&all, &[4, 5]]), &options, &all), 5);
        assert_eq!(cached_blocks(&pool(&[&all, &[2, 3, 5]]), &options, &all), 3);
        assert_eq!(cached_blocks(&pool(&[&all[..4], &[2, 3, 5]]), &options, &all), 3);
        assert_eq!(cached_blocks(&pool(&[&all, &[1]]), &options, &all), 1);
        assert_eq!(cached_blocks(&pool(&[&all, &[2]]), &options, &all), 0);
    }

    #[test]
    fn a_window_shorter_than_a_block_needs_part_of_one() {
        let options = options(vec![GroupKind::SlidingWindow { window_tokens: 2 }]);
        assert_eq!(options.first_needed(options.groups[0], 3), 2);
        assert_eq!(cached_blocks(&pool(&[&[3]]), &options, &[1, 2, 3]), 3);
        let one = GroupKind::SlidingWindow { window_tokens: 1 };
        assert_eq!(options.first_needed(one, 3), 3);
    }
}
