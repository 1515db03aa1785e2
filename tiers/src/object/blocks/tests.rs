//! The table against a plain model, also where hashes collide.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::object::{Shape, Stamp, WriterId};

const SHAPE: Shape = Shape { namespace: [7; 32], block_bytes: 4096, key_bytes: 8 };

fn key(number: u32) -> Key {
    Key::new(&number.to_be_bytes(), 0).expect("4 bytes")
}

fn segment(number: u64, created: u64, keys: &[u32]) -> Arc<SegmentRecord> {
    let id = SegmentId { writer: WriterId(1), number };
    let crcs = keys.to_vec().into_boxed_slice();
    let keys: Vec<u8> = keys.iter().flat_map(|number| key(*number).as_bytes().to_vec()).collect();
    Arc::new(SHAPE.record(id, Stamp(created), keys.into(), crcs).expect("a record"))
}

#[derive(Clone, Debug)]
enum Op {
    Add { number: u64, created: u64, keys: Vec<u32>, own: bool, twice: bool },
    Remove(u64),
    RemoveBlock(u64, u32),
    Use { keys: Vec<u32>, after_s: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let keys = || vec(0..60_u32, 0..40);
    let op = prop_oneof![
        4 => (0..12_u64, 0..4_u64, keys(), any::<(bool, bool)>()).prop_map(|(number, created, keys, (own, twice))| Op::Add { number, created, keys, own, twice }),
        2 => (0..12_u64).prop_map(Op::Remove),
        2 => (0..12_u64, 0..40_u32).prop_map(|(number, position)| Op::RemoveBlock(number, position)),
        1 => (keys(), 0..15_u64).prop_map(|(keys, after_s)| Op::Use { keys, after_s }),
    ];
    vec(op, 1..60)
}

/// Segments as lists of keys; which positions are left; which keys were reported as stored.
#[derive(Default)]
struct Model {
    segments: BTreeMap<u64, (Arc<SegmentRecord>, BTreeMap<u32, u32>)>,
    reported: HashSet<u32>,
    used: HashMap<u64, u64>,
}

impl Model {
    fn find(&self, key: u32) -> Option<(u64, u32)> {
        let copies = self.segments.values().flat_map(|(segment, blocks)| {
            let of_key = blocks.iter().filter(move |(_, block)| **block == key);
            of_key.map(move |(position, _)| (segment.created, segment.id.number, *position))
        });
        copies.max().map(|(_, number, position)| (number, position))
    }

    /// Forgets reports of keys that are not found any more; these are what goes.
    fn settle(&mut self) -> HashSet<u32> {
        let gone: HashSet<u32> = self.reported.iter().copied().filter(|key| self.find(*key).is_none()).collect();
        self.reported.retain(|key| !gone.contains(key));
        gone
    }
}

fn run(mut blocks: Blocks, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (mut model, mut now) = (Model::default(), 0);
    for op in ops {
        match op {
            Op::Add { number, created, keys, own, twice } => {
                let new = segment(number, created, &keys);
                match twice {
                    true => blocks.add_all([(Arc::clone(&new), false), (Arc::clone(&new), own)]),
                    false => blocks.add(Arc::clone(&new), own),
                }
                let positions = (0..).zip(keys).collect();
                let (_, kept) = model.segments.entry(number).or_insert((new, positions));
                if own {
                    model.reported.extend(kept.values());
                }
            }
            Op::Remove(number) => {
                model.segments.remove(&number);
                model.used.remove(&number);
                let mut gone = Vec::new();
                blocks.remove(SegmentId { writer: WriterId(1), number }, &mut gone);
                let wanted = model.settle();
                prop_assert_eq!(gone.len(), wanted.len(), "each once");
                prop_assert_eq!(gone.into_iter().collect::<HashSet<_>>(), wanted.into_iter().map(key).collect());
            }
            Op::RemoveBlock(number, position) => {
                let block = model.segments.get_mut(&number).and_then(|(_, blocks)| blocks.remove(&position));
                let gone = model.settle();
                let wanted = block.filter(|key| model.find(*key).is_none()).map(|key| gone.contains(&key));
                prop_assert_eq!(blocks.remove_block(SegmentId { writer: WriterId(1), number }, position), wanted);
            }
            Op::Use { keys, after_s } => {
                now += after_s;
                let again = 10;
                let mut wanted = Vec::new();
                for key in &keys {
                    let Some((number, _)) = model.find(*key) else { continue };
                    if model.used.get(&number).is_none_or(|used| now - used >= again) {
                        model.used.insert(number, now);
                        wanted.push(number);
                    }
                }
                let (keys, mut used): (Vec<Key>, _) = (keys.into_iter().map(key).collect(), Vec::new());
                let time = Time::default().plus(Duration::from_secs(now));
                blocks.use_segments(&keys, time, Duration::from_secs(again), &mut used);
                prop_assert_eq!(used.into_iter().map(|id| id.number).collect::<Vec<_>>(), wanted);
            }
        }
        let keys: Vec<Key> = (0..70).map(key).collect();
        let mut found = vec![TierLookup::Unknown];
        blocks.lookup(&keys, &mut found, TierLookup::Absent);
        prop_assert_eq!(found.len(), keys.len());
        for (number, found) in (0..).zip(found) {
            let wanted = model.find(number);
            let place = blocks.find(&key(number)).map(|(segment, position)| (segment.id.number, position));
            prop_assert_eq!(place, wanted);
            prop_assert_eq!(found == TierLookup::Found, wanted.is_some());
            prop_assert_eq!(blocks.is_own(&key(number)), model.reported.contains(&number));
        }
        prop_assert_eq!(blocks.len(), (0..60).filter(|key| model.find(*key).is_some()).count());
        prop_assert_eq!(blocks.segments(), model.segments.len());
        prop_assert_eq!(blocks.bytes(), model.segments.values().map(|(segment, _)| segment.bytes).sum::<u64>());
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_table_is_a_map(ops in ops()) {
        run(Blocks::new(), ops)?;
    }

    #[test]
    fn collisions_change_nothing(ops in ops()) {
        let mut blocks = Blocks::new();
        blocks.table.collide();
        run(blocks, ops)?;
    }
}

/// Some segment of 512 keys that no other number has.
fn wide(number: u32) -> Arc<SegmentRecord> {
    let keys: Vec<u32> = (number * 512..(number + 1) * 512).collect();
    segment(u64::from(number), 1, &keys)
}

#[test]
fn a_block_takes_16_bytes_of_table_at_any_size() {
    let mut blocks = Blocks::new();
    for number in 0..1200 {
        blocks.add(wide(number), false);
        // Below some hundred blocks a table, what a table takes at least weighs.
        if blocks.len() > 100_000 {
            let each = blocks.table_bytes() as f64 / blocks.len() as f64;
            assert!(each < 17.0, "{each} bytes a block at {}", blocks.len());
        }
    }
    assert_eq!(blocks.len(), 1200 * 512);
}

#[test]
fn a_table_does_not_grow_while_blocks_come_and_go() {
    let (mut blocks, mut gone) = (Blocks::new(), Vec::new());
    blocks.add_all((0..300).map(|number| (wide(number), false)));
    for number in 300..1500 {
        blocks.remove(SegmentId { writer: WriterId(1), number: u64::from(number) - 300 }, &mut gone);
        blocks.add(wide(number), false);
        let each = blocks.table_bytes() as f64 / blocks.len() as f64;
        // One table in eleven is so full that it doubles.
        assert!(each < 18.5, "{each} bytes a block");
    }
    assert_eq!((blocks.len(), gone.len()), (300 * 512, 0));
    let full = blocks.memory_bytes();
    for number in 1200..1500 {
        blocks.remove(SegmentId { writer: WriterId(1), number }, &mut gone);
    }
    assert!(blocks.is_empty() && blocks.bytes() == 0 && blocks.segments() == 0);
    blocks.add_all((0..300).map(|number| (wide(number), true)));
    assert!(blocks.memory_bytes() < full + full / 8, "{} after {full}", blocks.memory_bytes());
}
