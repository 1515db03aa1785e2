//! What is stored comes back, byte for byte, wherever a load begins and ends.

mod common;

use std::sync::Arc;

use common::{Rig, Setup, TOKENS, chain, scheduled};
use terrace_config::MemoryConfig;
use terrace_connector::{GpuBlock, GroupKind, HashList, Matched, RequestId, SchedulerHalf, StepPlan};
use terrace_tiers::MemoryTier;

/// Loads what matches beyond `computed` blocks into GPU blocks from `first` on and checks the bytes.
fn load(rig: &mut Rig, id: RequestId, hashes: &HashList, computed: u32, first: u32) -> u32 {
    let Matched::Tokens(tokens) = rig.matched(id, computed * TOKENS) else { panic!("not known") };
    let blocks = tokens / TOKENS;
    let table = rig.table(first, hashes.len() as u32 + 1);
    for block in table.iter().flatten() {
        rig.poison(*block);
    }
    rig.connector.update_state_after_alloc(id, &table, tokens).unwrap();
    let mut loaded = rig.step(&StepPlan::default()).loaded;
    loaded.extend(rig.settle().loaded);
    assert_eq!(loaded, if blocks > 0 { vec![id] } else { Vec::new() });
    for (group, list) in table.iter().enumerate() {
        for (position, block) in list.iter().enumerate() {
            let inside = (computed as usize..(computed + blocks) as usize).contains(&position);
            let holds = hashes.get(position).is_some_and(|hash| rig.holds(group, *block, hash));
            assert_eq!(holds, inside, "group {group} position {position}, loaded {computed}..+{blocks}");
        }
    }
    blocks
}

#[test]
fn a_load_begins_and_ends_at_any_block() {
    for blocks_per_chunk in [1, 2, 8] {
        let setup = Setup { blocks_per_chunk, slots: 32, ..Setup::default() };
        let mut rig = Rig::new(&setup);
        let hashes = chain(0..24);
        rig.store_all(1, &hashes, 0);
        assert_eq!(rig.connector.manager().stats().stored, u64::from(24 / blocks_per_chunk));
        let mut id = 10;
        // A prompt of `blocks` whole blocks: the last one is never loaded.
        for blocks in [3, 8, 11, 16, 24] {
            let mut prefix = HashList::new(hashes.hash_bytes());
            (0..blocks).for_each(|at| prefix.push(hashes.get(at).unwrap()).unwrap());
            for computed in [0, 1, 3, 7, 8, 9, 15] {
                let request = rig.begin(id, blocks as u32 * TOKENS, &prefix);
                id += 1;
                let loaded = load(&mut rig, request, &prefix, computed, 100);
                let chunks = blocks as u32 / blocks_per_chunk * blocks_per_chunk;
                assert_eq!(
                    loaded,
                    chunks.min(blocks as u32 - 1).saturating_sub(computed),
                    "{blocks_per_chunk} {blocks} {computed}"
                );
                assert!(!rig.connector.request_finished(request).unwrap());
            }
        }
        rig.assert_no_leak();
    }
}

#[test]
fn another_prompt_hits_up_to_where_it_differs() {
    let setup = Setup { blocks_per_chunk: 2, ..Setup::default() };
    let mut rig = Rig::new(&setup);
    rig.store_all(1, &chain(0..10), 0);
    let hashes = chain([0, 1, 2, 3, 4, 99, 6, 7]);
    let request = rig.begin(2, 100, &hashes);
    assert_eq!(load(&mut rig, request, &hashes, 0, 100), 4);
    rig.connector.request_finished(request).unwrap();
    let none = rig.begin(3, 100, &chain(50..60));
    assert_eq!(rig.matched(none, 0), Matched::Tokens(0));
    rig.connector.request_finished(none).unwrap();
    rig.assert_no_leak();
}

#[test]
fn stores_wait_for_the_next_step_and_read_what_was_computed() {
    let mut rig = Rig::new(&Setup::default());
    let hashes = chain(0..3);
    let request = rig.begin(1, 3 * TOKENS + 1, &hashes);
    let table = rig.table(0, 4);
    let meta = rig.build(&scheduled(request, table.clone(), 3 * TOKENS + 1));
    assert_eq!((meta.loads.len(), meta.stores.len()), (0, 1));
    rig.work(meta, |rig| {
        assert_eq!(rig.control.pending(), 0, "not before the blocks are computed");
        rig.compute(&table, &hashes, 0);
    });
    rig.control.set().hold = true;
    rig.step(&StepPlan::default());
    assert_eq!(rig.control.pending(), 1);
    let other = rig.begin(2, 100, &hashes);
    assert_eq!(rig.matched(other, 0), Matched::NotYet, "being stored");
    rig.control.set().hold = false;
    rig.settle();
    assert_eq!(load(&mut rig, other, &hashes, 0, 100), 3);
    for id in [request, other] {
        assert!(!rig.connector.request_finished(id).unwrap());
    }
    rig.assert_no_leak();
}

#[test]
fn each_chunk_is_offered_once_as_it_fills() {
    let setup = Setup { blocks_per_chunk: 2, ..Setup::default() };
    let mut rig = Rig::new(&setup);
    let hashes = chain(0..6);
    let request = rig.begin(1, 6 * TOKENS + 2, &hashes);
    let mut stores = Vec::new();
    for (new, computed) in [(2, 6), (0, 8), (1, 9), (4, 26), (0, 27)] {
        let first = stores.len() as u32 * 10;
        let meta = rig.build(&scheduled(request, rig.table(first, new), computed));
        stores.push(meta.stores.iter().map(|store| store.copies.len()).sum::<usize>());
        rig.work(meta, |_| {});
    }
    assert_eq!(stores, [0, 2, 0, 4, 0]);
    rig.settle();
    rig.connector.request_finished(request).unwrap();
    rig.assert_no_leak();
}

#[test]
fn generated_blocks_are_stored_on_request_only() {
    for prompt_only in [true, false] {
        let mut rig = Rig::new(&Setup { prompt_only, ..Setup::default() });
        let hashes = chain(0..4);
        let mut prompt = HashList::new(hashes.hash_bytes());
        let mut generated = prompt.clone();
        (0..2).for_each(|at| prompt.push(hashes.get(at).unwrap()).unwrap());
        (2..4).for_each(|at| generated.push(hashes.get(at).unwrap()).unwrap());
        let request = rig.begin(1, 2 * TOKENS + 1, &prompt);
        let table = rig.table(0, 5);
        let meta = rig.build(&scheduled(request, table.clone(), 2 * TOKENS + 1));
        rig.work(meta, |rig| rig.compute(&table, &hashes, 0));
        rig.connector.append_blocks(request, &generated).unwrap();
        rig.step(&scheduled(request, vec![Vec::new()], 4 * TOKENS));
        rig.settle();
        rig.connector.request_finished(request).unwrap();
        let other = rig.begin(2, 100, &hashes);
        assert_eq!(load(&mut rig, other, &hashes, 0, 100), if prompt_only { 2 } else { 4 });
        rig.connector.request_finished(other).unwrap();
        rig.assert_no_leak();
    }
}

#[test]
fn blocks_come_back_from_a_tier() {
    let setup = Setup { blocks_per_chunk: 2, ..Setup::default() };
    let mut rig = Rig::with_tiers(&setup, &|region, _| {
        vec![Box::new(MemoryTier::new("memory", MemoryConfig { capacity_bytes: 1 << 20 }, Arc::clone(region)))]
    });
    let hashes = chain(0..8);
    rig.store_all(1, &hashes, 0);
    rig.settle();
    rig.connector.reset().unwrap();
    assert_eq!(rig.connector.manager().primary().resident(), 0);
    let request = rig.begin(2, 100, &hashes);
    let mut waited = 0;
    while rig.matched(request, 0) == Matched::NotYet {
        rig.step(&StepPlan::default());
        waited += 1;
        assert!(waited < 20);
    }
    assert!(waited > 0, "it was not in the primary");
    assert_eq!(load(&mut rig, request, &hashes, 0, 100), 8);
    rig.connector.request_finished(request).unwrap();
    rig.settle();
    rig.assert_no_leak();
}

/// A window of 8 tokens: beyond the boundary's own token 7 more, so 2 blocks of 4.
fn hybrid(blocks_per_chunk: u32) -> Setup {
    let kinds = vec![GroupKind::FullAttention, GroupKind::SlidingWindow { window_tokens: 8 }];
    Setup { kinds, blocks_per_chunk, slots: 64, ..Setup::default() }
}

#[test]
fn a_sliding_window_needs_its_last_blocks_only() {
    for blocks_per_chunk in [1, 2, 8] {
        let mut rig = Rig::new(&hybrid(blocks_per_chunk));
        let hashes = chain(0..24);
        rig.store_all(1, &hashes, 0);
        let request = rig.begin(2, 24 * TOKENS + 1, &hashes);
        assert_eq!(rig.matched(request, 0), Matched::Tokens(24 * TOKENS));
        let mut table = rig.table(100, 25);
        table[1][..22].fill(GpuBlock::NULL);
        table.iter().flatten().filter(|block| **block != GpuBlock::NULL).for_each(|block| rig.poison(*block));
        rig.connector.update_state_after_alloc(request, &table, 24 * TOKENS).unwrap();
        let meta = rig.build(&StepPlan::default());
        assert_eq!(meta.loads[0].copies.iter().filter(|copy| copy.group == 1).count(), 2);
        rig.work(meta, |_| {});
        rig.settle();
        (0..24).for_each(|at| assert!(rig.holds(0, table[0][at], hashes.get(at).unwrap())));
        (22..24).for_each(|at| assert!(rig.holds(1, table[1][at], hashes.get(at).unwrap())));
        assert!(!rig.connector.request_finished(request).unwrap());
        rig.assert_no_leak();
    }
}

#[test]
fn groups_agree_on_the_longest_boundary_that_all_have() {
    // The window group keeps only some blocks; full attention has 12.
    for (kept, computed, expected) in [
        (vec![10, 11], 0, 12),
        (vec![9, 11], 0, 0),
        (vec![4, 5, 8], 0, 6),
        (vec![4, 5, 6, 11], 0, 7),
        (vec![0], 0, 1),
        (vec![6], 6, 7),
        (vec![6], 5, 0),
        (vec![], 0, 0),
    ] {
        let mut rig = Rig::new(&hybrid(1));
        let hashes = chain(0..12);
        let writer = rig.begin(1, 12 * TOKENS + 1, &hashes);
        let mut table = rig.table(0, 13);
        for (position, block) in table[1].iter_mut().enumerate() {
            if !kept.contains(&position) {
                *block = GpuBlock::NULL;
            }
        }
        let meta = rig.build(&scheduled(writer, table.clone(), 12 * TOKENS));
        rig.work(meta, |rig| rig.compute(&table, &hashes, 0));
        rig.settle();
        rig.connector.request_finished(writer).unwrap();
        let reader = rig.begin(2, 12 * TOKENS + 1, &hashes);
        let matched = rig.matched(reader, computed * TOKENS);
        let expected: u32 = expected;
        assert_eq!(matched, Matched::Tokens(expected.saturating_sub(computed) * TOKENS), "kept {kept:?}");
        rig.connector.request_finished(reader).unwrap();
        rig.assert_no_leak();
    }
}

#[test]
fn a_window_block_that_was_given_away_is_not_stored() {
    let mut rig = Rig::new(&hybrid(4));
    let hashes = chain(0..4);
    let request = rig.begin(1, 4 * TOKENS + 1, &hashes);
    let table = rig.table(0, 4);
    rig.step(&scheduled(request, table.iter().map(|list| list[..3].to_vec()).collect(), 3 * TOKENS));
    // Before the chunk is full, block 0 of the window group leaves the window and goes to somebody else.
    let given_away = StepPlan { reused: vec![table[1][0]], ..StepPlan::default() };
    rig.step(&given_away);
    let meta = rig.build(&scheduled(request, table.iter().map(|list| list[3..].to_vec()).collect(), 4 * TOKENS));
    assert!(meta.stores.iter().flat_map(|store| store.copies.iter()).all(|copy| copy.group == 0));
    assert_eq!(rig.connector.counters().not_offered, 1);
    rig.work(meta, |_| {});
    rig.settle();
    rig.connector.request_finished(request).unwrap();
    rig.assert_no_leak();
}
