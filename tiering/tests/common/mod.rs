//! What the tests share: a configuration, keys, a stack with a clock that stands, and a tier that does what a test tells it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use terrace_config::{
    AdmissionConfig, BreakerConfig, Choice, Config, Deadlines, Geometry, Limits, MemoryConfig, Namespace, Policy,
    PrimaryConfig, TierConfig, TierKind,
};
use terrace_primary::{Key, SlotId};
use terrace_tiering::{
    Event, Lookup, LookupMode, RequestContext, RequestId, Stats, StorePlan, TierFilter, TieringOffloadingManager,
};
use terrace_tiers::{
    Fault, JobId, LoadJob, Locality, ManualClock, Medium, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent,
    TierLookup, TierStats,
};

pub const SECOND: Duration = Duration::from_secs(1);

pub fn key(n: u32) -> Key {
    Key::new(&n.to_be_bytes(), 0).expect("a key")
}

pub fn keys(range: std::ops::Range<u32>) -> Vec<Key> {
    range.map(key).collect()
}

/// `blocks` slots; every share is one half.
pub fn config(blocks: u32) -> Config {
    Config {
        server: Default::default(),
        copy: Default::default(),
        primary: PrimaryConfig {
            blocks,
            policy: Policy::Lru,
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
            check_on_load: false,
        },
        geometry: Geometry { block_bytes: 4096, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 },
        namespace: Namespace::default(),
        admission: AdmissionConfig { store_threshold: 1, tracker_entries: 16 },
        limits: Limits {
            promotion_share: 0.5,
            cascade_share: 0.5,
            queued_cascades: 64,
            pin_share: 0.5,
            requests: 16,
            keys_per_call: 4096,
            events: 1024,
        },
        deadlines: Deadlines {
            lookup: 5 * SECOND,
            promotion: 10 * SECOND,
            cascade: 30 * SECOND,
            hold: 10 * SECOND,
            pin: 300 * SECOND,
            drain: 30 * SECOND,
        },
        breaker: BreakerConfig { failures: 3, cooldown: 5 * SECOND, slow_factor: 10, stall: 2 * SECOND },
        tenants: Vec::new(),
        tiers: Vec::new(),
    }
}

pub fn tier_config(name: &str, backfill: bool) -> TierConfig {
    TierConfig { name: name.into(), backfill, kind: TierKind::Memory(MemoryConfig { capacity_bytes: 1 << 20 }) }
}

/// What a [`DeskTier`] is told and was given.
#[derive(Default)]
pub struct Desk {
    /// Answered `Found`.
    pub held: BTreeSet<Key>,
    /// Answered `Unknown`.
    pub unknown: BTreeSet<Key>,
    /// How submissions are refused.
    pub refuse: Option<Refused>,
    /// Calls panic that are named here.
    pub panic_in: Option<&'static str>,
    /// Largest lookup seen, and keys asked for in all.
    pub largest_lookup: usize,
    pub asked: usize,
    pub loads: Vec<LoadJob>,
    pub stores: Vec<StoreJob>,
    pub abandoned: Vec<JobId>,
    pub touched: Vec<Key>,
    /// The scrubber's round, begun anew at its end.
    pub cold: VecDeque<Key>,
    pub events: Vec<TierEvent>,
    pub polls: u32,
    pub shut_down: bool,
}

impl Desk {
    pub fn hold(&mut self, keys: &[Key]) {
        self.held.extend(keys);
    }

    /// The block at `index` of the `nth` load ended like this.
    pub fn load_done(&mut self, nth: usize, index: u32, outcome: Result<u32, Fault>) {
        let job = self.loads[nth].id;
        self.events.push(TierEvent::LoadDone { job, index, outcome });
    }

    /// All blocks of the `nth` load ended like this.
    pub fn loads_done(&mut self, nth: usize, outcome: Result<u32, Fault>) {
        (0..self.loads[nth].blocks.len() as u32).for_each(|index| self.load_done(nth, index, outcome));
    }

    pub fn store_done(&mut self, nth: usize, index: u32, outcome: Result<u32, Fault>) {
        let job = self.stores[nth].id;
        self.events.push(TierEvent::StoreDone { job, index, outcome });
    }

    pub fn stores_done(&mut self, nth: usize, outcome: Result<u32, Fault>) {
        (0..self.stores[nth].blocks.len() as u32).for_each(|index| self.store_done(nth, index, outcome));
    }

    fn may_panic(&self, call: &'static str) {
        if self.panic_in == Some(call) {
            // Without the panic hook: a test's output stays readable.
            std::panic::resume_unwind(Box::new("as told"));
        }
    }
}

/// A tier that keeps nothing and does what its desk says.
pub struct DeskTier {
    desk: Arc<Mutex<Desk>>,
    descriptor: TierDescriptor,
}

impl DeskTier {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl SecondaryTier for DeskTier {
    fn descriptor(&self) -> &TierDescriptor {
        &self.descriptor
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        let mut desk = self.desk();
        desk.may_panic("lookup");
        desk.largest_lookup = desk.largest_lookup.max(keys.len());
        desk.asked += keys.len();
        out.clear();
        out.extend(keys.iter().map(|key| match (desk.held.contains(key), desk.unknown.contains(key)) {
            (_, true) => TierLookup::Unknown,
            (true, _) => TierLookup::Found,
            _ => TierLookup::Absent,
        }));
    }

    fn submit_store(&mut self, job: StoreJob) -> Result<(), Refused> {
        let mut desk = self.desk();
        desk.may_panic("submit_store");
        desk.refuse.map_or(Ok(()), Err)?;
        desk.stores.push(job);
        Ok(())
    }

    fn submit_load(&mut self, job: LoadJob) -> Result<(), Refused> {
        let mut desk = self.desk();
        desk.may_panic("submit_load");
        desk.refuse.map_or(Ok(()), Err)?;
        desk.loads.push(job);
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        self.desk().may_panic("abandon");
        self.desk().abandoned.push(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        let mut desk = self.desk();
        desk.may_panic("poll");
        desk.polls += 1;
        out.append(&mut desk.events);
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        let mut desk = self.desk();
        desk.may_panic("next_to_scrub");
        let next = desk.cold.pop_front()?;
        desk.cold.push_back(next);
        Some(next)
    }

    fn touch(&mut self, keys: &[Key]) {
        let mut desk = self.desk();
        desk.may_panic("touch");
        desk.touched.extend(keys);
    }

    fn shutdown(&mut self, _within: Duration) {
        let mut desk = self.desk();
        desk.may_panic("shutdown");
        desk.shut_down = true;
    }

    fn stats(&self) -> TierStats {
        self.desk().may_panic("stats");
        TierStats::default()
    }
}

/// A manager over tiers with desks, and a clock that stands.
pub struct Stack {
    pub manager: TieringOffloadingManager,
    pub clock: ManualClock,
    desks: Vec<Arc<Mutex<Desk>>>,
}

impl Stack {
    pub fn new(blocks: u32, tiers: usize) -> Self {
        Self::with(config(blocks), tiers)
    }

    pub fn with(config: Config, tiers: usize) -> Self {
        let desks: Vec<Arc<Mutex<Desk>>> = (0..tiers).map(|_| Arc::default()).collect();
        let tier = |(index, desk): (usize, &Arc<Mutex<Desk>>)| -> Box<dyn SecondaryTier> {
            let descriptor = TierDescriptor {
                name: format!("desk{index}"),
                medium: Medium::Storage,
                locality: if index == 0 { Locality::Local } else { Locality::Remote },
            };
            Box::new(DeskTier { desk: desk.clone(), descriptor })
        };
        let tiers = desks.iter().enumerate().map(tier).collect();
        let clock = ManualClock::default();
        let manager = TieringOffloadingManager::new(&config, tiers, Arc::new(clock.clone())).expect("a manager");
        Self { manager, clock, desks }
    }

    pub fn desk(&self, tier: usize) -> MutexGuard<'_, Desk> {
        self.desks[tier].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens request `n`.
    pub fn begin(&mut self, n: u64) -> RequestId {
        self.begin_with(n, TierFilter::ALL)
    }

    pub fn begin_with(&mut self, n: u64, tiers: TierFilter) -> RequestId {
        self.manager.begin_request(RequestContext { id: RequestId(n), tiers }).expect("a new request");
        RequestId(n)
    }

    pub fn look(&mut self, id: RequestId, keys: &[Key], mode: LookupMode) -> String {
        let mut out = vec![Lookup::Retry; 3];
        self.manager.lookup(id, keys, mode, &mut out).expect("a lookup");
        assert_eq!(out.len(), keys.len());
        self.manager.check().expect("consistent after a lookup");
        letters(&out)
    }

    pub fn prefix(&mut self, id: RequestId, keys: &[Key]) -> String {
        self.look(id, keys, LookupMode::Prefix)
    }

    /// Stores blocks for a request of its own, and takes the cascades' result as it comes.
    pub fn store(&mut self, keys: &[Key]) -> StorePlan {
        let id = self.begin(u64::MAX);
        let mut plan = StorePlan::default();
        assert_eq!(self.manager.prepare_store(id, keys, false, &mut plan), Ok(true));
        let stored: Vec<Key> = plan.store.iter().map(|at| keys[*at as usize]).collect();
        self.manager.complete_store(id, &stored, true).expect("the store completes");
        self.manager.finish_request(id);
        self.check();
        plan
    }

    pub fn load(&mut self, id: RequestId, keys: &[Key]) -> Vec<SlotId> {
        let mut slots = Vec::new();
        self.manager.prepare_load(id, keys, &mut slots).expect("the load is prepared");
        slots
    }

    pub fn end_step(&mut self) {
        self.manager.end_step();
        self.check();
    }

    pub fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
    }

    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.manager.take_events(&mut events);
        events
    }

    pub fn stats(&self) -> Stats {
        self.manager.stats()
    }

    pub fn check(&self) {
        self.manager.check().expect("consistent");
    }

    pub fn readers(&self) -> u64 {
        self.manager.primary().readers()
    }
}

/// `H`it, `P`ending, `R`etry, miss `.`.
pub fn letters(out: &[Lookup]) -> String {
    let letter = |answer: &Lookup| match answer {
        Lookup::Hit => 'H',
        Lookup::Pending => 'P',
        Lookup::Retry => 'R',
        Lookup::Miss => '.',
    };
    out.iter().map(letter).collect()
}
