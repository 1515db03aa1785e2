//! Random calls, nonsense among them, to a manager over random tiers, against a plain model: a map of keys to states.
//!
//! The model learns from the manager's answers and events alone, and says what the next answers may be. Beside it stand the bytes: each
//! slot's content is checked whenever somebody reads it.

#[path = "common/mod.rs"]
mod common;
#[path = "common/random_tier.rs"]
mod random_tier;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::{SECOND, key};
use random_tier::{Inner, Mood, Random, RandomTier, Region, content, crc32};
use terrace_config::{Config, Policy};
use terrace_primary::{BlockState, Key, SlotId};
use terrace_tiering::{
    Event, Located, Lookup, LookupMode, ReaderBudget, RequestContext, RequestId, Scan, Stats, StorePlan, TierFilter,
    TieringOffloadingManager,
};
use terrace_tiers::{Clock, Locality, ManualClock, Medium, SecondaryTier, Time};

const SEEDS: u64 = 2000;
const STEPS: u64 = 1500;
const KEYS: u64 = 48;
const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn random_calls_agree_with_a_plain_model() {
    if let Some(seed) = std::env::var("TERRACE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        World::new(seed).run();
        return;
    }
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(stats) => seen.add(&stats),
            Err(panic) => {
                eprintln!(
                    "seed {seed} failed; replay: TERRACE_SEED={seed} cargo test --release -p terrace-tiering --test model"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    seen.check();
}

/// What happened at all: a model that nothing happens to would agree with anything.
#[derive(Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn add(&mut self, stats: &Stats) {
        let mut add = |name, count: u64| *self.0.entry(name).or_insert(0) += count;
        add("lookups expired", stats.lookups_expired);
        add("retries", stats.retries);
        add("loaded from the primary", stats.loaded_primary);
        add("loaded from tiers", stats.loaded_by_tier.iter().sum());
        add("stores refused", stats.stores_refused);
        add("stores left out", stats.stores_left_out);
        add("stores not admitted", stats.not_admitted);
        add("evicted", stats.evicted);
        add("promotions refused", stats.promotions_refused);
        add("holds expired", stats.holds_expired);
        add("holds refused", stats.holds_refused);
        add("pins expired", stats.pins_expired);
        add("leases refused", stats.leases_refused);
        add("lost slots", stats.lost_slots);
        for tier in &stats.tiers {
            add("panics", u64::from(tier.panicked));
            add("breakers opened", tier.breaker_opened);
            add("unknowns expired", tier.unknown_expired);
            add("promotions landed", tier.promotions.landed);
            add("promotions failed", tier.promotions.failed);
            add("promotions expired", tier.promotions.expired);
            add("promotions cancelled", tier.promotions.cancelled);
            add("load jobs refused", tier.promotions.jobs_refused);
            add("cascades stored", tier.cascades.stored);
            add("cascades failed", tier.cascades.failed);
            add("cascades expired", tier.cascades.expired);
            add("cascades present", tier.cascades.present);
            add("cascades dropped, evicted", tier.cascades.dropped_evicted);
            add("cascades dropped, queue full", tier.cascades.dropped_full);
            add("cascades dropped, tier off", tier.cascades.dropped_off);
            add("cascades dropped, reset", tier.cascades.dropped_reset);
        }
    }

    fn check(&self) {
        let rare: Vec<_> = self.0.iter().filter(|(_, count)| **count < 10).collect();
        assert!(rare.is_empty(), "hardly ever: {rare:?} of {:?}", self.0);
    }
}

#[derive(Default)]
struct Asked {
    /// As in the contract of `lookup`: since when this request waits.
    waiting_since: Option<Time>,
    step: u64,
    unresolved: bool,
}

impl Asked {
    /// A lookup in this step.
    fn looks(&mut self, step: u64) {
        if self.step != step {
            if !self.unresolved {
                self.waiting_since = None;
            }
            self.unresolved = false;
            self.step = step;
        }
    }
}

struct World {
    random: Random,
    manager: TieringOffloadingManager,
    clock: ManualClock,
    config: Config,
    tiers: Vec<Arc<Mutex<Inner>>>,
    region: Region,
    /// Slots that may be handed out.
    usable: u32,
    // The model.
    /// Readable in the primary.
    ready: BTreeSet<Key>,
    /// Stores of the engine: key to slot.
    storing: BTreeMap<Key, SlotId>,
    /// Loads and leases of the engine: key and slot, one for each reader.
    loading: Vec<(Key, SlotId)>,
    pinned: BTreeMap<(Key, RequestId), Time>,
    requests: BTreeMap<RequestId, Asked>,
    next_request: u64,
    step: u64,
    /// A reset waits for these.
    resetting: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let blocks = 4 + random.below(20) as u32;
        let mut config = common::config(blocks);
        config.primary.policy = if random.one_in(2) { Policy::Arc } else { Policy::Lru };
        config.limits.promotion_share = [0.1, 0.5, 1.0][random.below(3) as usize];
        config.limits.cascade_share = [0.1, 0.5, 1.0][random.below(3) as usize];
        config.limits.queued_cascades = [0, 3, 64][random.below(3) as usize];
        config.limits.requests = 6;
        config.admission.store_threshold = 1 + random.below(2) as u32;
        let tier_count = random.below(4) as usize;
        for index in 0..tier_count {
            config.tiers.push(common::tier_config(&format!("tier{index}"), random.one_in(2)));
        }
        let region: Region = Arc::new(Mutex::new(vec![0; blocks as usize]));
        let inners: Vec<Arc<Mutex<Inner>>> = (0..tier_count).map(|_| Arc::default()).collect();
        let tier = |(index, inner): (usize, &Arc<Mutex<Inner>>)| -> Box<dyn SecondaryTier> {
            let mut pick = |often: u64| if random.one_in(2) { 0 } else { 1 + random.below(often) };
            let mood = Mood {
                slow: 1 + pick(8),
                fault: pick(20),
                unknown: pick(20),
                busy: pick(6),
                hang: pick(30),
                forget: 1 + pick(30),
                lie: pick(60),
                panic: if pick(3) == 1 { 3000 } else { 0 },
                close: if pick(4) == 1 { 3000 } else { 0 },
            };
            let mut guard = lock(inner);
            guard.mood = mood;
            guard.deaf = random.one_in(3);
            Box::new(RandomTier::new(index, random.next(), region.clone(), inner.clone()))
        };
        let tiers = inners.iter().enumerate().map(tier).collect();
        let clock = ManualClock::default();
        let mut manager = TieringOffloadingManager::new(&config, tiers, Arc::new(clock.clone())).expect("a manager");
        // A region that is still being backed.
        let usable = if random.one_in(3) { random.below(u64::from(blocks)) as u32 } else { blocks };
        manager.set_usable_slots(usable);
        Self {
            random,
            manager,
            clock,
            config,
            tiers: inners,
            region,
            usable,
            ready: BTreeSet::new(),
            storing: BTreeMap::new(),
            loading: Vec::new(),
            pinned: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            step: 0,
            resetting: false,
        }
    }

    fn run(mut self) -> Stats {
        for step in 0..STEPS {
            match self.random.below(100) {
                0..8 => self.begin(),
                8..12 => self.finish(),
                12..28 => self.lookup(),
                28..38 => self.locate(),
                38..42 => self.wait_for(),
                42..50 => self.prepare_load(),
                50..52 => self.begin_load(),
                52..60 => self.complete_load(),
                60..72 => self.prepare_store(),
                72..80 => self.complete_store(),
                80..82 => self.pin(),
                82..84 => self.touch(),
                84..86 => self.nonsense(),
                86..96 => self.end_step(),
                96..99 => self.advance(),
                _ if self.random.one_in(10) => self.reset(),
                _ if self.random.one_in(4) => self.back_more(),
                _ => self.manager.poll_once(),
            }
            self.learn();
            if step % 16 == 0 {
                self.check();
            }
        }
        self.end()
    }

    fn keys(&mut self) -> Vec<Key> {
        // A run, as in a prefix, now and then with a gap or a repetition.
        let start = self.random.below(KEYS);
        let count = self.random.below(8);
        let mut keys: Vec<Key> = (0..count).map(|n| key(((start + n) % KEYS) as u32)).collect();
        if self.random.one_in(8) && !keys.is_empty() {
            let (from, to) = (self.random.below(count) as usize, self.random.below(count) as usize);
            keys[to] = keys[from];
        }
        keys
    }

    /// An open request, now and then one that never was.
    fn request(&mut self) -> RequestId {
        if self.requests.is_empty() || self.random.one_in(50) {
            return RequestId(u64::MAX);
        }
        let nth = self.random.below(self.requests.len() as u64) as usize;
        *self.requests.keys().nth(nth).expect("one of them")
    }

    fn begin(&mut self) {
        let id = RequestId(self.next_request);
        let tiers = if self.random.one_in(4) { TierFilter(self.random.below(8) as u32) } else { TierFilter::ALL };
        let result = self.manager.begin_request(RequestContext { id, tiers });
        assert_eq!(result.is_ok(), self.requests.len() < self.config.limits.requests as usize);
        if result.is_ok() {
            self.next_request += 1;
            self.requests.insert(id, Asked::default());
        }
    }

    fn finish(&mut self) {
        let id = self.request();
        let summary = self.manager.finish_request(id);
        assert_eq!(summary.is_some(), self.requests.remove(&id).is_some());
    }

    fn lookup(&mut self) {
        let (id, keys) = (self.request(), self.keys());
        let mode = match self.random.below(3) {
            0 => LookupMode::Prefix,
            1 => LookupMode::Suffix { window: self.random.below(5) as u32 },
            _ => LookupMode::Each,
        };
        let mut out = vec![Lookup::Hit; 2];
        let panicked = self.panicked();
        let result = self.manager.lookup(id, &keys, mode, &mut out);
        let buried = self.panicked() > panicked;
        self.learn();
        let now = self.clock.now();
        let Some(asked) = self.requests.get_mut(&id) else {
            assert!(result.is_err());
            return;
        };
        result.expect("an open request");
        assert_eq!(out.len(), keys.len());
        asked.looks(self.step);
        let is_expired = asked.waiting_since.is_some_and(|since| now >= since.plus(self.config.deadlines.lookup));
        let unresolved = out.iter().any(|answer| answer.is_unresolved());
        assert!(!(is_expired && unresolved), "every wait ends");
        if unresolved {
            asked.unresolved = true;
            asked.waiting_since.get_or_insert(now);
        }
        self.check_answers(&keys, mode, &out, buried);
    }

    fn panicked(&self) -> usize {
        self.manager.stats().tiers.iter().filter(|tier| tier.panicked).count()
    }

    /// `buried`: a tier panicked when it was asked, and took with it what it was bringing.
    fn check_answers(&self, keys: &[Key], mode: LookupMode, out: &[Lookup], buried: bool) {
        for (key, answer) in keys.iter().zip(out) {
            let ready = self.ready.contains(key) && !self.resetting;
            match answer {
                Lookup::Hit => assert!(ready, "{key} is no hit"),
                Lookup::Pending => {
                    let is_coming = buried || self.manager.primary().find(key).is_some();
                    assert!(!ready && is_coming, "{key} is not pending")
                }
                Lookup::Retry => assert!(!ready && !self.storing.contains_key(key), "{key} is known"),
                Lookup::Miss if mode == LookupMode::Each => assert!(!ready, "{key} is ready"),
                Lookup::Miss => {}
            }
        }
        let found = |answer: &Lookup| *answer != Lookup::Miss;
        match mode {
            LookupMode::Each => {}
            LookupMode::Prefix => {
                let end = out.iter().position(|answer| !found(answer)).unwrap_or(out.len());
                assert!(!out[end..].iter().any(found), "nothing behind a miss");
                let resident = keys.iter().take_while(|key| self.ready.contains(key)).count();
                assert!(self.resetting || end >= resident, "a resident prefix is hit");
            }
            LookupMode::Suffix { window } => {
                let window = window.max(1) as usize;
                assert!(out.iter().filter(|answer| found(answer)).count() <= window, "no more than the window");
                let last = keys.len().saturating_sub(window);
                let is_resident = !keys.is_empty() && keys[last..].iter().all(|key| self.ready.contains(key));
                assert!(self.resetting || !is_resident || out[last..].iter().all(found), "a resident window is hit");
            }
        }
    }

    /// Where keys are, with and without taking readers: one answer for each, or up to and with the first miss.
    fn locate(&mut self) {
        let (id, keys) = (self.request(), self.keys());
        let scan = if self.random.one_in(2) { Scan::Prefix } else { Scan::Each };
        let allowed = self.random.one_in(2).then(|| self.random.below(10) as u32);
        let mut budget = allowed.map(|left| ReaderBudget { left, frees_soon: false });
        let mut out = Vec::new();
        let panicked = self.panicked();
        let result = self.manager.locate(id, &keys, scan, budget.as_mut(), &mut out);
        let readers = budget.map(|budget| budget.left);
        let buried = self.panicked() > panicked;
        self.learn();
        let Some(asked) = self.requests.get_mut(&id) else {
            assert!(result.is_err() && out.is_empty() && readers == allowed);
            return;
        };
        result.expect("an open request");
        asked.looks(self.step);
        let first_miss = out.iter().position(|answer| *answer == Located::Miss);
        match scan {
            Scan::Each => assert_eq!(out.len(), keys.len()),
            Scan::Prefix => assert_eq!(out.len(), first_miss.map_or(keys.len(), |at| at + 1)),
        }
        let mut taken = 0;
        for (key, answer) in keys.iter().zip(&out) {
            let ready = self.ready.contains(key) && !self.resetting;
            match answer {
                Located::Hit { slot, origin } => {
                    assert!(ready, "{key} is no hit");
                    assert!(usize::from(*origin) <= self.tiers.len(), "{key} comes from tier {origin}");
                    self.check_bytes(key, *slot);
                    if allowed.is_some() {
                        taken += 1;
                        self.loading.push((*key, *slot));
                    }
                }
                Located::Pending => {
                    let is_coming = buried || self.manager.primary().find(key).is_some();
                    assert!(!ready && is_coming, "{key} is not pending");
                }
                Located::Found { tier } => assert!(!ready && usize::from(*tier) < self.tiers.len(), "{key}"),
                Located::Retry => assert!(!ready && !self.storing.contains_key(key), "{key} is known"),
                Located::Miss => assert!(!ready || allowed == Some(taken), "{key} is ready"),
            }
        }
        assert_eq!(readers, allowed.map(|allowed| allowed - taken));
    }

    /// After a `locate` or out of nowhere: what comes is on its way, and the wait ends.
    fn wait_for(&mut self) {
        let (id, keys) = (self.request(), self.keys());
        let mut out = vec![Lookup::Hit; 2];
        let panicked = self.panicked();
        let result = self.manager.wait_for(id, &keys, &mut out);
        let buried = self.panicked() > panicked;
        self.learn();
        let now = self.clock.now();
        let Some(asked) = self.requests.get_mut(&id) else {
            assert!(result.is_err());
            return;
        };
        result.expect("an open request");
        assert_eq!(out.len(), keys.len());
        let is_expired = asked.waiting_since.is_some_and(|since| now >= since.plus(self.config.deadlines.lookup));
        let unresolved = out.iter().any(|answer| answer.is_unresolved());
        assert!(!(is_expired && unresolved), "every wait ends");
        if unresolved {
            asked.unresolved = true;
            asked.waiting_since.get_or_insert(now);
        }
        self.check_answers(&keys, LookupMode::Each, &out, buried);
    }

    /// Of what has readers, whoever took them: a load of something else is refused.
    fn begin_load(&mut self) {
        let id = self.request();
        let keys = self.keys();
        let result = self.manager.begin_load(id, &keys);
        let leased = |key: &Key| self.loading.iter().any(|(loading, _)| loading == key);
        assert_eq!(result.is_ok(), keys.iter().all(leased), "{result:?}");
        if !self.loading.is_empty() {
            let nth = self.random.below(self.loading.len() as u64) as usize;
            let (key, slot) = self.loading[nth];
            self.manager.begin_load(id, &[key]).expect("it has a reader");
            self.check_bytes(&key, slot);
        }
    }

    fn prepare_load(&mut self) {
        let id = self.request();
        let mut keys = self.keys();
        if !self.random.one_in(4) {
            keys.retain(|key| self.ready.contains(key)); // what an engine would do
        }
        let mut slots = Vec::new();
        let result = self.manager.prepare_load(id, &keys, &mut slots);
        let possible = keys.iter().all(|key| self.ready.contains(key)) && (!self.resetting || keys.is_empty());
        assert_eq!(result.is_ok(), possible && self.requests.contains_key(&id), "{result:?}");
        assert_eq!(slots.len(), if result.is_ok() { keys.len() } else { 0 });
        for (key, slot) in keys.iter().zip(slots) {
            self.check_bytes(key, slot);
            self.loading.push((*key, slot));
        }
    }

    fn check_bytes(&self, key: &Key, slot: SlotId) {
        assert_eq!(lock(&self.region)[slot.index()], content(key), "wrong bytes of {key} in {slot:?}");
        let known = self.manager.primary().crc32(slot);
        assert!(known.is_none_or(|known| known == crc32(key)), "wrong CRC32 of {key}");
    }

    fn complete_load(&mut self) {
        if self.loading.is_empty() {
            return;
        }
        let nth = self.random.below(self.loading.len() as u64) as usize;
        let (key, slot) = self.loading.swap_remove(nth);
        self.check_bytes(&key, slot); // still
        let id = self.request(); // late, another's, or never begun: it acts on the key
        self.manager.complete_load(id, &[key]).expect("a running load");
        if self.resetting && !self.loading.iter().any(|(other, _)| *other == key) {
            self.ready.remove(&key);
        }
        self.continue_reset();
    }

    fn prepare_store(&mut self) {
        let (id, keys) = (self.request(), self.keys());
        let partial = self.random.one_in(2);
        let before = self.ready.clone();
        let mut plan = StorePlan::default();
        let result = self.manager.prepare_store(id, &keys, partial, &mut plan);
        assert_eq!(result.is_ok(), self.requests.contains_key(&id));
        if result != Ok(true) {
            assert_eq!(plan, StorePlan::default());
        }
        for victim in &plan.evicted {
            assert!(before.contains(victim) && !keys.contains(victim), "{victim} must not go");
            assert!(!self.loading.iter().any(|(key, _)| key == victim), "{victim} is being loaded");
            assert!(!self.is_pinned(victim), "{victim} is pinned");
        }
        assert_eq!(plan.store.len(), plan.slots.len());
        let mut region = lock(&self.region);
        for (at, slot) in plan.store.iter().zip(&plan.slots) {
            let key = keys[*at as usize];
            assert!(!before.contains(&key), "{key} is present");
            assert!(slot.0 < self.usable, "{slot:?} of {} usable ones", self.usable);
            assert!(self.storing.insert(key, *slot).is_none(), "{key} is being stored");
            region[slot.index()] = 1; // the copy begins
        }
        drop(region);
        self.learn();
        assert!(keys.iter().all(|key| !before.contains(key) || self.ready.contains(key)), "the call's own keys stay");
    }

    fn complete_store(&mut self) {
        let Some(nth) = self.random.below(self.storing.len() as u64 + 1).checked_sub(1) else { return };
        let (key, slot) = self.storing.iter().nth(nth as usize).map(|(key, slot)| (*key, *slot)).expect("one of them");
        assert_eq!(lock(&self.region)[slot.index()], 1, "somebody else wrote to {slot:?}");
        self.storing.remove(&key);
        let ok = !self.random.one_in(5);
        if ok {
            lock(&self.region)[slot.index()] = content(&key);
        }
        let id = self.request();
        self.manager.complete_store(id, &[key], ok).expect("a running store");
        self.learn();
        assert_eq!(self.ready.contains(&key), ok && !self.resetting);
        self.continue_reset();
    }

    fn pin(&mut self) {
        let (id, keys) = (self.request(), self.keys());
        if self.random.one_in(3) {
            self.manager.unpin(id, &keys);
            keys.iter().for_each(|key| {
                self.pinned.remove(&(*key, id));
            });
            return;
        }
        let ttl = SECOND * self.random.below(20) as u32;
        let until = self.clock.now().plus(ttl);
        // Which ones do not fit is not modelled: only what was pinned as a whole is remembered.
        let ready = keys.iter().filter(|key| self.ready.contains(key)).count() as u32;
        if self.manager.pin(id, &keys, ttl) == Ok(ready) && !self.resetting {
            for key in keys.into_iter().filter(|key| self.ready.contains(key)) {
                let pinned = self.pinned.entry((key, id)).or_insert(until);
                *pinned = until.max(*pinned);
            }
        }
    }

    fn is_pinned(&self, key: &Key) -> bool {
        let now = self.clock.now();
        self.pinned.iter().any(|((pinned, _), until)| pinned == key && *until > now)
    }

    fn touch(&mut self) {
        let keys = self.keys();
        self.manager.touch(&keys);
    }

    /// Completions of what does not run: refused, and nothing changes.
    fn nonsense(&mut self) {
        let id = self.request();
        for key in self.keys() {
            if !self.loading.iter().any(|(loading, _)| *loading == key) {
                assert!(self.manager.complete_load(id, &[key]).is_err());
            }
            if !self.storing.contains_key(&key) {
                let ok = self.random.one_in(2);
                assert!(self.manager.complete_store(id, &[key], ok).is_err());
            }
        }
        let mut out = Vec::new();
        let keys = vec![key(0); self.config.limits.keys_per_call as usize + 1];
        assert!(self.manager.lookup(id, &keys, LookupMode::Each, &mut out).is_err());
        assert!(self.manager.wait_for(id, &keys, &mut out).is_err());
        assert!(
            self.manager
                .locate(
                    id,
                    &keys,
                    Scan::Each,
                    Some(&mut ReaderBudget { left: 100, frees_soon: false }),
                    &mut Vec::new()
                )
                .is_err()
        );
    }

    fn end_step(&mut self) {
        self.manager.end_step();
        self.step += 1;
    }

    fn advance(&mut self) {
        let by = match self.random.below(3) {
            0 => MILLISECOND,
            1 => SECOND,
            _ => SECOND * self.random.below(12) as u32,
        };
        self.clock.advance(by);
    }

    fn reset(&mut self) {
        self.learn();
        self.manager.reset().expect("open");
        self.ready.retain(|key| self.loading.iter().any(|(loading, _)| loading == key));
        self.pinned.clear();
        self.requests.values_mut().for_each(|asked| *asked = Asked { step: asked.step, ..Asked::default() });
        self.resetting = true;
        self.continue_reset();
    }

    fn back_more(&mut self) {
        // Now and then fewer than before: nothing changes.
        let slots = self.random.below(u64::from(self.config.primary.blocks) + 1) as u32;
        self.manager.set_usable_slots(slots);
        self.usable = self.usable.max(slots);
    }

    fn continue_reset(&mut self) {
        self.resetting &= !self.ready.is_empty() || !self.storing.is_empty();
    }

    /// Takes the events in.
    fn learn(&mut self) {
        let mut events = Vec::new();
        self.manager.take_events(&mut events);
        for event in events {
            match event {
                Event::BlockStored { key, medium: Medium::Cpu, locality: Locality::Local } => {
                    assert!(self.ready.insert(key), "{key} was readable already");
                }
                Event::BlockRemoved { key, medium: Medium::Cpu, locality: Locality::Local } => {
                    assert!(self.ready.remove(&key), "{key} was not readable");
                    assert!(!self.loading.iter().any(|(loading, _)| *loading == key), "{key} is being loaded");
                }
                _ => {}
            }
        }
    }

    fn check(&self) {
        self.manager.check().expect("consistent");
        for tier in &self.tiers {
            assert_eq!(lock(tier).wrong, Vec::<String>::new());
        }
        let primary = self.manager.primary();
        for n in 0..KEYS as u32 {
            let state = primary.find(&key(n)).map(|slot| primary.state(slot));
            let ready = matches!(state, Some(BlockState::Ready { .. }));
            assert_eq!(ready, self.ready.contains(&key(n)), "{:?} is {state:?}", key(n));
            let storing = self.storing.contains_key(&key(n));
            assert!(!storing || state == Some(BlockState::Writing), "{:?} is {state:?}", key(n));
        }
        let used = primary.resident() + primary.limbo();
        assert_eq!((primary.usable(), primary.free()), (self.usable, self.usable - used));
        let stats = self.manager.stats();
        assert_eq!(stats.tiers.iter().map(|tier| tier.protocol_faults).sum::<u64>(), 0);
    }

    /// Everything ends: engine transfers, requests, deadlines. Then nothing may be left.
    fn end(mut self) -> Stats {
        for (key, slot) in std::mem::take(&mut self.loading) {
            self.check_bytes(&key, slot);
            self.manager.complete_load(RequestId(0), &[key]).expect("a running load");
        }
        for (key, _) in std::mem::take(&mut self.storing) {
            self.manager.complete_store(RequestId(0), &[key], false).expect("a running store");
        }
        for id in std::mem::take(&mut self.requests).into_keys() {
            self.manager.finish_request(id).expect("open");
        }
        // Hung jobs are not waited for beyond their deadlines; what is queued behind them has its turn after that, a job a step.
        for _ in 0..12 + self.manager.cascade_backlog() {
            self.manager.end_step();
            self.clock.advance(30 * SECOND);
        }
        self.manager.end_step();
        assert_eq!(self.manager.primary().readers(), 0);
        assert_eq!(self.manager.primary().writing(), 0);
        if self.random.one_in(4) {
            self.manager.shutdown();
        } else {
            self.tiers.iter().for_each(|tier| {
                let mut inner = lock(tier);
                inner.deaf = false;
                inner.mood = Mood { slow: 2, ..Mood::default() };
            });
            let drained = (0..400).any(|_| {
                self.clock.advance(SECOND);
                self.manager.drain()
            });
            assert!(drained, "drain ends");
            assert!(!self.manager.has_pending_work() && self.manager.cascade_backlog() == 0);
        }
        self.manager.check().expect("consistent");
        for tier in &self.tiers {
            assert_eq!(lock(tier).wrong, Vec::<String>::new());
        }
        let stats = self.manager.stats();
        assert_eq!((stats.readers, stats.writing, stats.holds, stats.pins, stats.requests), (0, 0, 0, 0, 0));
        assert_eq!(stats.limbo, stats.lost_slots);
        let is_panicked = stats.tiers.iter().any(|tier| tier.panicked);
        assert!(stats.lost_slots == 0 || is_panicked, "slots are lost to panics alone");
        stats
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
