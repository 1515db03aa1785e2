//! The NVMe tier's logic against a plain model, under random calls, faults and restarts.

mod common;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use common::{FILE_BYTES, FakeCatalog, FakeDisk, NAMESPACE, config, key, tier};
use proptest::prelude::*;
use terrace_primary::{Key, SlotId};
use terrace_tiers::catalog::NoCatalog;
use terrace_tiers::nvme::BlockName;
use terrace_tiers::{
    Fault, JobId, LoadBlock, LoadJob, ManualClock, NvmeTier, Refused, SecondaryTier, StoreBlock, StoreJob, TierEvent,
    TierLookup, Time,
};

const KEYS: u64 = 24;

#[derive(Clone, Debug)]
enum Call {
    /// Blocks, and whether their CRC is known.
    Store(Vec<u64>, bool),
    Load(Vec<u64>),
    Touch(Vec<u64>),
    Abandon(usize),
    Poll,
    Fault(Fault),
    Stop,
    Go,
    /// The file of a block is deleted behind the tier's back.
    Lose(u64),
    Advance(u64),
    CleanRestart {
        blocks: u64,
    },
    Crash {
        deaf: bool,
    },
    RestartWithoutCatalog,
}

fn call() -> impl Strategy<Value = Call> {
    let keys = || prop::collection::vec(0..KEYS, 0..6);
    let fault = prop::sample::select(vec![Fault::Io, Fault::Corrupt, Fault::Absent, Fault::Full, Fault::Expired]);
    prop_oneof![
        12 => (keys(), any::<bool>()).prop_map(|(keys, crc)| Call::Store(keys, crc)),
        8 => keys().prop_map(Call::Load),
        4 => keys().prop_map(Call::Touch),
        2 => (0..8_usize).prop_map(Call::Abandon),
        16 => Just(Call::Poll),
        2 => fault.prop_map(Call::Fault),
        1 => Just(Call::Stop),
        2 => Just(Call::Go),
        1 => (0..KEYS).prop_map(Call::Lose),
        1 => (1..100_u64).prop_map(Call::Advance),
        1 => (3..12_u64).prop_map(|blocks| Call::CleanRestart { blocks }),
        1 => any::<bool>().prop_map(|deaf| Call::Crash { deaf }),
        1 => Just(Call::RestartWithoutCatalog),
    ]
}

/// What the events say, and what must come of it.
struct Model {
    disks: Vec<FakeDisk>,
    catalog: FakeCatalog,
    clock: ManualClock,
    blocks: u64,
    next_job: u64,
    /// Blocks of jobs that are not done.
    open: HashMap<(JobId, u32), (Key, bool)>,
    jobs: Vec<JobId>,
    abandoned: BTreeSet<JobId>,
    /// Blocks that the tier says it holds. Not kept over restarts that scan.
    held: BTreeSet<Key>,
}

impl Model {
    fn new(lanes: usize) -> (Self, NvmeTier) {
        let model = Self {
            disks: (0..lanes).map(|_| FakeDisk::default()).collect(),
            catalog: FakeCatalog::default(),
            clock: ManualClock::default(),
            blocks: 8,
            next_job: 0,
            open: HashMap::new(),
            jobs: Vec::new(),
            abandoned: BTreeSet::new(),
            held: BTreeSet::new(),
        };
        let tier = model.start(true);
        (model, tier)
    }

    fn start(&self, with_catalog: bool) -> NvmeTier {
        let catalog = if with_catalog { self.catalog.open() } else { Box::new(NoCatalog) };
        tier(&config(self.blocks, self.disks.len()), &self.disks, catalog, &self.clock)
    }

    fn job(&mut self, keys: &[u64], load: bool) -> JobId {
        self.next_job += 1;
        let id = JobId(self.next_job);
        for (index, n) in keys.iter().enumerate() {
            self.open.insert((id, index as u32), (key(*n), load));
        }
        self.jobs.push(id);
        id
    }

    fn forget(&mut self, id: JobId) {
        self.open.retain(|(job, _), _| *job != id);
    }

    fn poll(&mut self, tier: &mut NvmeTier) {
        let mut events = Vec::new();
        tier.poll(&mut events);
        for event in events {
            match event {
                TierEvent::StoreDone { job, index, outcome } | TierEvent::LoadDone { job, index, outcome } => {
                    let (key, load) = self.open.remove(&(job, index)).expect("done twice, or never asked for");
                    assert_eq!(load, matches!(event, TierEvent::LoadDone { .. }));
                    if self.abandoned.contains(&job) {
                        assert!(outcome.is_err(), "{event:?} was abandoned");
                    }
                    match outcome {
                        Ok(_) if !load => {
                            self.held.insert(key);
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                TierEvent::Removed { key } => {
                    self.held.remove(&key);
                }
            }
        }
        tier.check().unwrap();
    }

    fn settle(&mut self, tier: &mut NvmeTier) {
        for disk in &self.disks {
            (disk.lock().stopped, disk.lock().faults) = (false, Default::default());
        }
        for _ in 0..200 {
            self.poll(tier);
            if tier.is_known() && tier.stats().in_flight == 0 {
                for _ in 0..20 {
                    self.poll(tier);
                }
                return;
            }
        }
        panic!("does not settle: {:?}", tier.stats());
    }

    fn bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.lock().bytes()).sum()
    }

    /// A new life: what it holds is what it says.
    fn restart(&mut self, tier: &mut NvmeTier, with_catalog: bool) {
        self.open.clear();
        self.jobs.clear();
        *tier = self.start(with_catalog);
        self.settle(tier);
        let all: Vec<Key> = (0..KEYS).map(key).collect();
        let mut answers = Vec::new();
        tier.lookup(&all, &mut answers);
        self.held = all.into_iter().zip(answers).filter(|(_, a)| *a == TierLookup::Found).map(|(key, _)| key).collect();
    }

    fn run(&mut self, tier: &mut NvmeTier, call: Call) {
        match call {
            Call::Store(keys, crc) => {
                let id = self.job(&keys, false);
                let block = |n: &u64| StoreBlock { key: key(*n), slot: SlotId(0), crc32: crc.then_some(*n as u32) };
                let blocks = keys.iter().map(block).collect();
                match tier.submit_store(StoreJob { id, blocks, deadline: Time(u64::MAX) }) {
                    Ok(()) => {}
                    Err(Refused::Busy) => self.forget(id),
                    Err(Refused::Closed) => panic!("closed"),
                }
            }
            Call::Load(keys) => {
                let id = self.job(&keys, true);
                let blocks = keys.iter().map(|n| LoadBlock { key: key(*n), slot: SlotId(0) }).collect();
                if tier.submit_load(LoadJob { id, blocks, deadline: Time(u64::MAX) }).is_err() {
                    self.forget(id);
                }
            }
            Call::Touch(keys) => tier.touch(&keys.iter().map(|n| key(*n)).collect::<Vec<_>>()),
            Call::Abandon(nth) => {
                if let Some(job) = self.jobs.iter().rev().nth(nth).copied() {
                    // What is done already is not undone.
                    self.poll(tier);
                    tier.abandon(job);
                    self.abandoned.insert(job);
                }
            }
            Call::Poll => self.poll(tier),
            Call::Fault(fault) => self.disks[0].lock().faults.push_back(fault),
            Call::Stop => self.disks[0].lock().stopped = true,
            Call::Go => self.disks.iter().for_each(|disk| disk.lock().stopped = false),
            Call::Lose(n) => {
                for disk in &self.disks {
                    disk.lock().files.remove(&BlockName { namespace: NAMESPACE, key: key(n) });
                }
            }
            Call::Advance(seconds) => self.clock.advance(Duration::from_secs(seconds)),
            Call::CleanRestart { blocks } => {
                tier.shutdown(Duration::from_secs(1));
                self.poll(tier);
                assert!(self.open.is_empty(), "not done by shutdown: {:?}", self.open);
                self.blocks = blocks;
                self.restart(tier, true);
            }
            Call::Crash { deaf } => {
                self.catalog.lock().deaf = deaf;
                if deaf {
                    for _ in 0..3 {
                        self.poll(tier);
                    }
                }
                self.catalog.lock().deaf = false;
                self.restart(tier, true);
            }
            Call::RestartWithoutCatalog => {
                tier.shutdown(Duration::from_secs(1));
                self.catalog.lock().exists = false;
                self.restart(tier, false);
            }
        }
    }

    /// Nothing in flight: index, events and disk say the same.
    fn check_settled(&mut self, tier: &mut NvmeTier, exact: bool) {
        self.settle(tier);
        assert!(self.open.is_empty(), "never done: {:?}", self.open);
        let all: Vec<Key> = (0..KEYS).map(key).collect();
        let mut answers = Vec::new();
        tier.lookup(&all, &mut answers);
        for (key, answer) in all.iter().zip(answers) {
            assert_eq!(answer == TierLookup::Found, self.held.contains(key), "{key}: {answer:?}");
        }
        let stats = tier.stats();
        assert_eq!(stats.blocks, self.held.len() as u64);
        assert!(stats.allocated_bytes <= stats.capacity_bytes, "{stats:?}");
        assert!(self.bytes() <= self.blocks * FILE_BYTES, "{} bytes on disk, {stats:?}", self.bytes());
        if exact {
            assert_eq!(self.bytes(), stats.allocated_bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn index_events_and_disk_agree_whatever_happens(
        lanes in 1..4_usize,
        calls in prop::collection::vec(call(), 1..120),
    ) {
        let (mut model, mut tier) = Model::new(lanes);
        // A file that is lost, or cannot be removed, is the one thing that the tier may count and the disk not have.
        let exact = !calls.iter().any(|call| matches!(call, Call::Lose(_) | Call::Fault(_)));
        for call in calls {
            model.run(&mut tier, call);
            tier.check().unwrap();
        }
        model.check_settled(&mut tier, exact);
    }

    /// With one directory and a device that answers at once the tier is an LRU list, block by block.
    #[test]
    fn one_directory_is_exactly_lru(
        capacity in 1..10_u64,
        calls in prop::collection::vec((any::<bool>(), prop::collection::vec(0..KEYS, 1..4)), 1..150),
    ) {
        let (mut model, _) = Model::new(1);
        model.blocks = capacity;
        let mut tier = model.start(true);
        model.settle(&mut tier);
        let mut lru: Vec<Key> = Vec::new();
        for (touch, names) in calls {
            let keys: Vec<Key> = names.iter().map(|n| key(*n)).collect();
            if touch {
                tier.touch(&keys);
                for key in keys {
                    if let Some(at) = lru.iter().position(|held| *held == key) {
                        let key = lru.remove(at);
                        lru.push(key);
                    }
                }
            } else {
                for (n, key) in names.iter().zip(keys) {
                    model.run(&mut tier, Call::Store(vec![*n], true));
                    model.settle(&mut tier);
                    if !lru.contains(&key) {
                        if lru.len() as u64 == capacity {
                            lru.remove(0);
                        }
                        lru.push(key);
                    }
                }
            }
            let held: BTreeSet<Key> = lru.iter().copied().collect();
            prop_assert_eq!(&model.held, &held);
        }
    }
}
