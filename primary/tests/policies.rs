//! What every eviction policy keeps to, and what tells ARC from LRU.

use std::collections::HashSet;

use terrace_primary::{ArcPolicy, EvictionPolicy, LruPolicy, SlotId};

const SLOTS: u32 = 100;

fn policies() -> [(&'static str, Box<dyn EvictionPolicy>); 2] {
    [("lru", Box::new(LruPolicy::new(SLOTS))), ("arc", Box::new(ArcPolicy::new(SLOTS)))]
}

fn any(_: SlotId) -> bool {
    true
}

/// Half of the slots used once, half used again, in an order that is not that of their numbers.
fn fill(policy: &mut dyn EvictionPolicy) {
    for i in 0..SLOTS {
        policy.insert(SlotId(i * 37 % SLOTS), u64::from(i));
    }
    for i in 0..SLOTS / 2 {
        policy.touch(SlotId(i * 61 % SLOTS));
    }
}

#[test]
fn an_eviction_that_cannot_be_whole_changes_nothing() {
    for ((name, mut policy), (_, mut twin)) in policies().into_iter().zip(policies()) {
        fill(&mut *policy);
        fill(&mut *twin);
        let mut victims = vec![SlotId(7)];
        assert!(!policy.evict(SLOTS + 1, &any, &mut victims), "{name}");
        assert_eq!((victims.len(), policy.tracked()), (1, SLOTS), "{name}");
        let mut expected = Vec::new();
        assert!(policy.evict(SLOTS, &any, &mut victims) && twin.evict(SLOTS, &any, &mut expected), "{name}");
        assert_eq!(victims[1..].iter().collect::<HashSet<_>>(), expected.iter().collect(), "{name}");
        assert_eq!(policy.tracked(), 0, "{name}");
    }
}

#[test]
fn a_failed_eviction_keeps_the_order_of_lru() {
    let (mut policy, mut twin) = (LruPolicy::new(SLOTS), LruPolicy::new(SLOTS));
    fill(&mut policy);
    fill(&mut twin);
    let (mut victims, mut expected) = (Vec::new(), Vec::new());
    let even = |slot: SlotId| slot.0.is_multiple_of(2);
    assert!(!policy.evict(51, &even, &mut victims));
    assert!(policy.evict(50, &even, &mut victims) && twin.evict(50, &even, &mut expected));
    assert_eq!(victims, expected);
}

#[test]
fn only_evictable_slots_are_taken_and_the_others_stay() {
    for (name, mut policy) in policies() {
        fill(&mut *policy);
        let pinned = |slot: SlotId| slot.0.is_multiple_of(3);
        let mut victims = Vec::new();
        assert!(policy.evict(66, &|slot| !pinned(slot), &mut victims), "{name}");
        assert!(!victims.iter().any(|slot| pinned(*slot)), "{name}");
        assert!(!policy.evict(1, &|slot| !pinned(slot), &mut victims), "{name}");
        (0..SLOTS).for_each(|slot| policy.unpinned(SlotId(slot)));
        assert!(policy.evict(34, &any, &mut victims), "{name}");
        assert_eq!(victims.iter().collect::<HashSet<_>>().len(), SLOTS as usize, "{name}");
    }
}

#[test]
fn calls_for_slots_that_are_not_tracked_do_nothing() {
    for (name, mut policy) in policies() {
        policy.insert(SlotId(SLOTS), 1);
        policy.insert(SlotId(u32::MAX), 1);
        for slot in [0, SLOTS, u32::MAX].map(SlotId) {
            policy.touch(slot);
            policy.rerank(slot);
            policy.unpinned(slot);
            policy.remove(slot);
        }
        assert_eq!(policy.tracked(), 0, "{name}");
        assert!(!policy.evict(1, &any, &mut Vec::new()), "{name}");
        fill(&mut *policy);
        policy.clear();
        assert_eq!(policy.tracked(), 0, "{name}");
    }
}

/// Blocks in use by one policy after another, as a table would drive it: `true` if the block was there.
struct Cache<P> {
    policy: P,
    blocks: Vec<Option<u64>>,
}

impl<P: EvictionPolicy> Cache<P> {
    fn new(policy: P) -> Self {
        Self { policy, blocks: vec![None; SLOTS as usize] }
    }

    fn access(&mut self, block: u64) -> bool {
        if let Some(slot) = self.blocks.iter().position(|held| *held == Some(block)) {
            self.policy.touch(SlotId(slot as u32));
            return true;
        }
        let slot = self.blocks.iter().position(Option::is_none).unwrap_or_else(|| {
            let mut victims = Vec::new();
            assert!(self.policy.evict(1, &any, &mut victims));
            victims[0].index()
        });
        self.blocks[slot] = Some(block);
        self.policy.insert(SlotId(slot as u32), block);
        false
    }
}

/// Blocks used again outlive a scan of blocks used once; under LRU they do not.
#[test]
fn arc_resists_a_scan() {
    let mut lru = Cache::new(LruPolicy::new(SLOTS));
    let mut arc = Cache::new(ArcPolicy::new(SLOTS));
    for _ in 0..2 {
        (0..50).for_each(|block| {
            lru.access(block);
            arc.access(block);
        });
    }
    (1000..2000).for_each(|block| {
        lru.access(block);
        arc.access(block);
    });
    assert_eq!((0..50).filter(|block| lru.access(*block)).count(), 0);
    assert_eq!((0..50).filter(|block| arc.access(*block)).count(), 50);
}

/// A loop slightly longer than the cache: blocks come back just after they left, and ARC learns to give them room.
#[test]
fn arc_learns_from_what_it_evicted() {
    let mut arc = Cache::new(ArcPolicy::new(SLOTS));
    for _ in 0..2 {
        (0..60).for_each(|block| {
            arc.access(block);
        });
    }
    let hits: Vec<usize> = (0..6).map(|_| (1000..1080).filter(|block| arc.access(*block)).count()).collect();
    assert_eq!(hits[0], 0);
    assert!(hits[5] == 80, "{hits:?}");
}

/// An evicted block that comes back counts as used again; a removed one does not.
#[test]
fn evicted_blocks_are_remembered_and_removed_ones_are_not() {
    let mut arc = ArcPolicy::new(4);
    let oldest = |arc: &mut ArcPolicy| {
        let mut victims = Vec::new();
        assert!(arc.evict(1, &any, &mut victims));
        victims[0]
    };
    arc.insert(SlotId(0), 10);
    arc.remove(SlotId(0));
    for slot in 0..3 {
        arc.insert(SlotId(slot), 10 + u64::from(slot));
    }
    assert_eq!(oldest(&mut arc), SlotId(0), "all three were used once");
    // Known again in any slot.
    arc.insert(SlotId(3), 10);
    assert_eq!(oldest(&mut arc), SlotId(1), "10 was used again, 11 and 12 once");
    assert_eq!(oldest(&mut arc), SlotId(3), "that 10 came back left one place to blocks used once");
}
