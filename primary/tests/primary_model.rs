//! Random calls, sensible and not, on the block table and on a plain model of it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use proptest::prelude::*;
use terrace_config::Policy;
use terrace_primary::{BlockState, Key, Primary, SlotId};

const KEYS: u32 = 40;
/// The origin of a block that its own run may displace.
const OF_THIS_RUN: u8 = u8::MAX;

fn key(number: u32) -> Key {
    Key::new(&[number as u8; 32], number % 2).expect("32 bytes")
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    InsertInRun(u32),
    EndRun(Vec<u32>),
    Room(u32),
    Publish(u32),
    Abort(u32),
    Detach(u32),
    ReleaseLimbo(u32),
    Acquire(u32),
    Release(u32),
    Remove(u32),
    Touch(Vec<u32>),
    TouchEarly(Vec<u32>),
    SetCrc(u32, u32),
    SetOrigin(u32, u8),
    SetUsable(u32),
}

fn op(slots: u32) -> impl Strategy<Value = Op> {
    let slot = 0..slots;
    prop_oneof![
        30 => (0..KEYS).prop_map(Op::Insert),
        30 => (0..KEYS).prop_map(Op::InsertInRun),
        4 => prop::collection::vec(slot.clone(), 0..5).prop_map(Op::EndRun),
        12 => (0..slots + 2).prop_map(Op::Room),
        30 => slot.clone().prop_map(Op::Publish),
        4 => slot.clone().prop_map(Op::Abort),
        4 => slot.clone().prop_map(Op::Detach),
        8 => slot.clone().prop_map(Op::ReleaseLimbo),
        20 => slot.clone().prop_map(Op::Acquire),
        20 => slot.clone().prop_map(Op::Release),
        4 => slot.clone().prop_map(Op::Remove),
        12 => prop::collection::vec(slot.clone(), 0..5).prop_map(Op::Touch),
        12 => prop::collection::vec(slot.clone(), 0..5).prop_map(Op::TouchEarly),
        4 => (slot.clone(), any::<u32>()).prop_map(|(slot, crc)| Op::SetCrc(slot, crc)),
        4 => (slot, any::<u8>()).prop_map(|(slot, origin)| Op::SetOrigin(slot, origin)),
        8 => (0..slots + 2).prop_map(Op::SetUsable),
    ]
}

#[derive(Clone, Debug)]
struct Block {
    key: u32,
    ready: bool,
    readers: u32,
    crc32: Option<u32>,
    origin: u8,
}

/// What the table should say, in maps and vectors; the order of eviction is that of LRU.
#[derive(Default)]
struct Model {
    blocks: HashMap<u32, Block>,
    limbo: HashSet<u32>,
    /// Oldest first.
    main: Vec<u32>,
    parked: Vec<u32>,
    overdue: Vec<u32>,
}

impl Model {
    fn evictable(&self, slot: u32) -> bool {
        self.blocks.get(&slot).is_some_and(|block| block.ready && block.readers == 0)
    }

    fn forget(&mut self, slot: u32) {
        self.blocks.remove(&slot);
        self.unrank(slot);
    }

    fn unrank(&mut self, slot: u32) {
        for list in [&mut self.main, &mut self.parked, &mut self.overdue] {
            list.retain(|other| *other != slot);
        }
    }

    fn unpin(&mut self, slot: u32) {
        if self.parked.contains(&slot) {
            self.unrank(slot);
            self.overdue.push(slot);
        }
    }

    /// Whether a run may take the slot: evictable, or of the run itself.
    fn may_leave(&self, slot: u32) -> bool {
        self.evictable(slot) || self.blocks.get(&slot).is_some_and(|block| !block.ready && block.origin == OF_THIS_RUN)
    }

    /// The oldest slot that may leave; older ones are set aside.
    fn oldest(&mut self, may_leave: impl Fn(&Self, u32) -> bool) -> Option<u32> {
        loop {
            let list = if self.overdue.is_empty() { &mut self.main } else { &mut self.overdue };
            if list.is_empty() {
                return None;
            }
            let slot = list.remove(0);
            if may_leave(self, slot) {
                return Some(slot);
            }
            self.parked.push(slot);
        }
    }

    fn state(&self, slot: u32) -> BlockState {
        match self.blocks.get(&slot) {
            Some(Block { ready: true, readers, .. }) => BlockState::Ready { readers: *readers },
            Some(_) => BlockState::Writing,
            None if self.limbo.contains(&slot) => BlockState::Limbo,
            None => BlockState::Free,
        }
    }
}

/// `first`: the slots that are usable at the start; none said: all.
fn run(slots: u32, first: Option<u32>, policy: Policy, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut primary = Primary::new(slots, 32, policy);
    let mut model = Model::default();
    let mut misuse = 0;
    let (mut usable, mut told, mut handed_out) = (slots, false, false);
    for op in first.map(Op::SetUsable).into_iter().chain(ops) {
        let free = usable - model.blocks.len() as u32 - model.limbo.len() as u32;
        let state = |model: &Model, slot: &u32| model.state(*slot);
        let mut expect = |got: bool, expected: bool| {
            misuse += u64::from(!expected);
            got == expected
        };
        match &op {
            Op::Insert(number) => {
                let taken = primary.insert_writing(&key(*number));
                let fits = free > 0 && model.blocks.values().all(|block| block.key != *number);
                prop_assert_eq!(taken.is_some(), fits);
                if let Some(SlotId(slot)) = taken {
                    handed_out = true;
                    prop_assert!(slot < usable, "slot {} of {} usable ones", slot, usable);
                    prop_assert_eq!(model.state(slot), BlockState::Free);
                    let block = Block { key: *number, ready: false, readers: 0, crc32: None, origin: 0 };
                    model.blocks.insert(slot, block);
                    model.main.push(slot);
                }
            }
            Op::InsertInRun(number) => {
                let (mut evicted, mut displaced) = (Vec::new(), Vec::new());
                let taken = primary.insert_in_run(&key(*number), &mut evicted, &mut displaced);
                let absent = model.blocks.values().all(|block| block.key != *number);
                let gone: Vec<u32> = match (&evicted[..], &displaced[..]) {
                    ([], []) => vec![],
                    ([victim], []) => {
                        let held = |block: &Block| block.ready && key(block.key) == *victim;
                        model.blocks.iter().filter(|(_, block)| held(block)).map(|(slot, _)| *slot).collect()
                    }
                    ([], [SlotId(slot)]) if !model.evictable(*slot) => vec![*slot],
                    _ => return Err(TestCaseError::fail("more than one victim, or of two kinds")),
                };
                prop_assert_eq!(gone.len(), evicted.len() + displaced.len());
                prop_assert!(gone.iter().all(|slot| model.may_leave(*slot)));
                if absent && free == 0 && policy == Policy::Lru {
                    prop_assert_eq!(model.oldest(Model::may_leave), gone.first().copied());
                }
                prop_assert_eq!(taken.is_some(), absent && (free > 0 || gone.len() == 1));
                prop_assert!(gone.is_empty() || free == 0);
                // Nothing was taken: nothing ready may have been there to take.
                prop_assert!(taken.is_some() || !absent || (0..slots).all(|slot| !model.evictable(slot)));
                gone.iter().for_each(|slot| model.forget(*slot));
                if let Some(SlotId(slot)) = taken {
                    handed_out = true;
                    prop_assert!(slot < usable, "slot {} of {} usable ones", slot, usable);
                    prop_assert_eq!(model.state(slot), BlockState::Free);
                    let block = Block { key: *number, ready: false, readers: 0, crc32: None, origin: OF_THIS_RUN };
                    model.blocks.insert(slot, block);
                    model.main.push(slot);
                }
            }
            Op::EndRun(run) => {
                primary.end_run(&run.iter().map(|slot| SlotId(*slot)).collect::<Vec<_>>());
                for slot in run {
                    let block = model.blocks.get_mut(slot);
                    expect(true, block.is_some());
                    block.into_iter().for_each(|block| block.origin = 0);
                }
            }
            Op::Room(n) => {
                let missing = n.saturating_sub(free) as usize;
                let evictable = (0..slots).filter(|slot| model.evictable(*slot)).count();
                let mut evicted = vec![key(0)];
                prop_assert_eq!(primary.make_room(*n, &mut evicted), missing <= evictable);
                let count = if missing <= evictable { missing } else { 0 };
                prop_assert_eq!(evicted.len(), 1 + count);
                for gone in &evicted[1..] {
                    let slot = model.blocks.iter().find(|(_, block)| key(block.key) == *gone).map(|(slot, _)| *slot);
                    let slot = slot.ok_or_else(|| TestCaseError::fail("evicted what was not there"))?;
                    prop_assert!(model.evictable(slot));
                    if policy == Policy::Lru {
                        prop_assert_eq!(model.oldest(Model::evictable), Some(slot));
                    }
                    model.forget(slot);
                }
            }
            Op::Publish(slot) => {
                let writing = state(&model, slot) == BlockState::Writing;
                prop_assert!(expect(primary.publish(SlotId(*slot)), writing));
                if writing {
                    model.blocks.entry(*slot).and_modify(|block| block.ready = true);
                    model.unpin(*slot);
                }
            }
            Op::Abort(slot) => {
                let writing = state(&model, slot) == BlockState::Writing;
                prop_assert!(expect(primary.abort(SlotId(*slot)), writing));
                if writing {
                    model.forget(*slot);
                }
            }
            Op::Detach(slot) => {
                let writing = state(&model, slot) == BlockState::Writing;
                prop_assert!(expect(primary.detach(SlotId(*slot)), writing));
                if writing {
                    model.forget(*slot);
                    model.limbo.insert(*slot);
                }
            }
            Op::ReleaseLimbo(slot) => {
                let limbo = model.limbo.remove(slot);
                prop_assert!(expect(primary.release_limbo(SlotId(*slot)), limbo));
            }
            Op::Acquire(slot) => {
                let block = model.blocks.get_mut(slot).filter(|block| block.ready);
                prop_assert!(expect(primary.acquire(SlotId(*slot)), block.is_some()));
                block.into_iter().for_each(|block| block.readers += 1);
            }
            Op::Release(slot) => {
                let block = model.blocks.get_mut(slot).filter(|block| block.readers > 0);
                prop_assert!(expect(primary.release(SlotId(*slot)), block.is_some()));
                if let Some(block) = block {
                    block.readers -= 1;
                    if block.readers == 0 {
                        model.unpin(*slot);
                    }
                }
            }
            Op::Remove(slot) => {
                let evictable = model.evictable(*slot);
                prop_assert!(expect(primary.remove(SlotId(*slot)), evictable));
                if evictable {
                    model.forget(*slot);
                }
            }
            Op::Touch(touched) | Op::TouchEarly(touched) => {
                let ids = touched.iter().map(|slot| SlotId(*slot));
                match op {
                    Op::Touch(_) => primary.touch(&ids.collect::<Vec<_>>()),
                    _ => primary.touch_early(ids),
                }
                for slot in touched {
                    if model.blocks.contains_key(slot) {
                        model.unrank(*slot);
                        model.main.push(*slot);
                    }
                }
            }
            Op::SetCrc(slot, crc32) => {
                primary.set_crc32(SlotId(*slot), *crc32);
                let block = model.blocks.get_mut(slot);
                expect(true, block.is_some());
                block.into_iter().for_each(|block| block.crc32 = Some(*crc32));
            }
            Op::SetOrigin(slot, origin) => {
                primary.set_origin(SlotId(*slot), *origin);
                let block = model.blocks.get_mut(slot);
                expect(true, block.is_some());
                block.into_iter().for_each(|block| block.origin = *origin);
            }
            Op::SetUsable(count) => {
                primary.set_usable(*count);
                let first = !told && !handed_out;
                told = true;
                usable = if first { slots.min(*count) } else { usable.max(slots.min(*count)) };
            }
        }
        let used = model.blocks.len() as u32 + model.limbo.len() as u32;
        prop_assert_eq!((primary.usable(), primary.free()), (usable, usable - used), "{:?}", op);
        primary.check().map_err(|fault| TestCaseError::fail(format!("{op:?}: {fault}")))?;
        compare(&primary, &model, slots)?;
        prop_assert_eq!(primary.stats().misuse, misuse, "{:?}", op);
    }
    Ok(())
}

fn compare(primary: &Primary, model: &Model, slots: u32) -> Result<(), TestCaseError> {
    for slot in 0..slots + 1 {
        let id = SlotId(slot);
        let block = model.blocks.get(&slot);
        prop_assert_eq!(primary.state(id), model.state(slot));
        prop_assert_eq!(primary.key(id), block.map(|block| key(block.key)));
        prop_assert_eq!(primary.crc32(id), block.and_then(|block| block.crc32));
        prop_assert_eq!(primary.origin(id), block.map_or(0, |block| block.origin));
    }
    let slot_of = |number: u32| model.blocks.iter().find(|(_, block)| block.key == number).map(|(slot, _)| *slot);
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    let mut found = Vec::new();
    primary.find_batch(&keys, |_, answer| {
        found.push(answer);
        ControlFlow::Continue(())
    });
    for (number, answer) in (0..KEYS).zip(found) {
        let expected = slot_of(number);
        prop_assert_eq!(primary.find(&key(number)), expected.map(SlotId));
        prop_assert_eq!(answer, expected.map(|slot| (SlotId(slot), model.state(slot))));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lru((slots, first, ops) in case()) {
        run(slots, first, Policy::Lru, ops)?;
    }

    #[test]
    fn arc((slots, first, ops) in case()) {
        run(slots, first, Policy::Arc, ops)?;
    }
}

/// Slots, those usable at the start, and what is done.
fn case() -> impl Strategy<Value = (u32, Option<u32>, Vec<Op>)> {
    (1..20_u32)
        .prop_flat_map(|slots| (Just(slots), prop::option::of(0..slots), prop::collection::vec(op(slots + 1), 0..200)))
}

/// A weak reference (slot and generation) never outlives its block.
#[test]
fn a_generation_changes_with_every_block_that_leaves() {
    let mut primary = Primary::new(1, 32, Policy::Lru);
    let mut seen = HashSet::new();
    for number in 0..20 {
        let slot = primary.insert_writing(&key(number)).expect("the slot is free");
        assert!(seen.insert(primary.generation(slot)));
        match number % 4 {
            0 => assert!(primary.abort(slot)),
            1 => assert!(primary.detach(slot) && primary.release_limbo(slot)),
            2 => assert!(primary.publish(slot) && primary.remove(slot)),
            _ => assert!(primary.publish(slot) && primary.make_room(1, &mut Vec::new())),
        }
        assert!(!seen.contains(&primary.generation(slot)), "after block {number} left");
    }
}

/// The touch at the end of the request that inserted a block is not a second use; the next one is.
#[test]
fn the_first_touch_only_ranks() {
    let mut primary = Primary::new(3, 32, Policy::Arc);
    let mut insert = |number, touches| {
        let slot = primary.insert_writing(&key(number)).expect("room");
        primary.publish(slot);
        (0..touches).for_each(|_| primary.touch(&[slot]));
    };
    insert(0, 2);
    insert(1, 1);
    insert(2, 1);
    let mut evicted = Vec::new();
    assert!(primary.make_room(2, &mut evicted));
    assert_eq!(evicted, [key(1), key(2)], "used once, though used last");
}

/// A run longer than what may be evicted keeps its head and loses its tail.
#[test]
fn a_long_run_displaces_its_own_tail() {
    for policy in [Policy::Lru, Policy::Arc] {
        let mut primary = Primary::new(4, 32, policy);
        let kept = primary.insert_writing(&key(30)).expect("room");
        assert!(primary.publish(kept) && primary.acquire(kept));
        let (mut evicted, mut displaced) = (Vec::new(), Vec::new());
        for number in (0..10).rev() {
            assert!(primary.insert_in_run(&key(number), &mut evicted, &mut displaced).is_some(), "{policy:?}");
        }
        assert_eq!((evicted.len(), displaced.len()), (0, 7), "{policy:?}");
        let resident: Vec<u32> = (0..10).filter(|number| primary.find(&key(*number)).is_some()).collect();
        assert_eq!(resident, [0, 1, 2], "{policy:?}");
        // Once the run has ended its blocks are safe.
        let slots: Vec<SlotId> = resident.iter().filter_map(|number| primary.find(&key(*number))).collect();
        primary.end_run(&slots);
        assert_eq!(primary.insert_in_run(&key(20), &mut evicted, &mut displaced), None, "{policy:?}");
        primary.check().expect("all agree");
    }
}

/// What a hung tier pins is passed over once and not looked at by every later eviction; it leaves first when it is unpinned.
#[test]
fn pinned_blocks_are_passed_over_and_leave_first_once_they_can() {
    let mut primary = Primary::new(10, 32, Policy::Lru);
    let slots: Vec<SlotId> = (0..10).map(|number| primary.insert_writing(&key(number)).expect("room")).collect();
    assert!(slots.iter().all(|slot| primary.publish(*slot)));
    assert!(slots[..4].iter().all(|slot| primary.acquire(*slot)));
    let mut evicted = Vec::new();
    assert!(primary.make_room(2, &mut evicted));
    assert_eq!(evicted, [key(4), key(5)]);
    assert!(primary.release(slots[2]) && primary.release(slots[0]));
    evicted.clear();
    assert!(primary.make_room(5, &mut evicted));
    assert_eq!(evicted, [key(2), key(0), key(6)]);
    assert!(!primary.make_room(9, &mut evicted), "two are pinned");
    assert_eq!((evicted.len(), primary.stats().room_refused), (3, 1));
}

#[test]
fn keys_of_every_length_fit_up_to_the_table_s() {
    let mut primary = Primary::new(100, 32, Policy::Lru);
    for len in 1..=64 {
        let key = Key::new(&vec![0; len], 0).expect("1 to 64 bytes");
        let slot = primary.insert_writing(&key);
        assert_eq!(slot.is_some(), len <= 32, "{len}");
        assert_eq!(slot.and_then(|slot| primary.key(slot)), slot.map(|_| key));
    }
    primary.check().expect("all agree");
}

/// The budget: everything that a resident block takes, key of 36 bytes included.
#[test]
fn a_block_takes_64_bytes_at_most() {
    for blocks in [10_000, 100_000, 1_000_000] {
        let primary = Primary::new(blocks, 32, Policy::Lru);
        // Pages of the two mappings, the scratch vector, list heads.
        let fixed = 3 * 4096;
        assert!(primary.table_bytes() <= 64 * blocks as usize + fixed, "{}", primary.table_bytes());
    }
}
