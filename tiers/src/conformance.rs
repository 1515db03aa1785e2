//! What every tier and every wrapper must do, as one public function.
//!
//! A test builds a [`Fixture`] for its tier and calls [`run`]; the answer names the rule that was broken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::{Key, Region, SlotId};

use crate::clock::Time;
use crate::tier::{
    Fault, JobId, LoadBlock, LoadJob, Refused, SecondaryTier, StoreBlock, StoreJob, TierEvent, TierLookup,
};

/// Polls before a job that does not end is called stuck.
const POLLS: usize = 20_000;
/// Slots that the suite uses.
const SLOTS: u32 = 64;

/// An empty tier and what the suite needs to drive it.
pub struct Fixture {
    /// The tier, empty and open.
    pub tier: Box<dyn SecondaryTier>,
    /// The region that it was built with: at least 64 slots, not in use otherwise.
    pub region: Arc<Region>,
    /// Blocks that surely fit; storing twice as many must evict. At least 32 and at most 4096.
    pub capacity_blocks: u32,
    /// Whether stores and loads may fail without a reason (a faulty tier).
    pub may_fail: bool,
    /// Lets time pass: called between polls (moves a manual clock, or sleeps briefly).
    pub pass_time: Box<dyn FnMut()>,
}

/// Runs the suite; each rule gets a fresh fixture from `build`. The error says what was broken.
pub fn run(mut build: impl FnMut() -> Fixture) -> Result<(), String> {
    let rules: [(&str, Rule); 9] = [
        ("what was stored is found and loads with its bytes", stored_is_loaded),
        ("what was never stored is absent", absent_is_absent),
        ("storing again is done at once and changes nothing", storing_again),
        ("jobs beside each other keep their blocks apart", many_jobs),
        ("capacity holds, evictions are reported", capacity_holds),
        ("touched blocks stay longest", touch_protects),
        ("an abandoned job ends, and its blocks are done once", abandoned_job_ends),
        ("an empty job is taken and leaves nothing", empty_jobs),
        ("shutdown ends everything and takes no more", shutdown_ends),
    ];
    for (name, rule) in rules {
        let mut suite = Suite::new(build());
        rule(&mut suite).map_err(|fault| format!("{name}: {fault}"))?;
        suite.close().map_err(|fault| format!("{name}, at the end: {fault}"))?;
    }
    Ok(())
}

/// Drives a fresh tier and says what it broke.
type Rule = fn(&mut Suite) -> Result<(), String>;

/// A tier under test, and what was seen of it.
struct Suite {
    fixture: Fixture,
    next_job: u64,
    /// Blocks of running jobs: (job, place) to (key, slot, is a load).
    open: BTreeMap<(JobId, u32), (Key, SlotId, bool)>,
    outcomes: BTreeMap<(JobId, u32), Result<u32, Fault>>,
    removed: Vec<Key>,
    held: BTreeSet<Key>,
}

fn key(name: u64) -> Result<Key, String> {
    let mut hash = [0; 32];
    for (place, word) in hash.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(
            &name.wrapping_add(1).wrapping_mul(2 * place as u64 + 0x9E37_79B9_7F4A_7C15).swap_bytes().to_le_bytes(),
        );
    }
    hash[31] = name as u8;
    hash[30] = (name >> 8) as u8;
    Key::new(&hash, (name % 2) as u32).map_err(|fault| fault.to_string())
}

fn keys(names: impl IntoIterator<Item = u64>) -> Result<Vec<Key>, String> {
    names.into_iter().map(key).collect()
}

/// The bytes that `key` stands for.
fn payload(key: &Key, bytes: &mut [u8]) {
    let seed = crc32fast::hash(key.as_bytes());
    for (place, word) in bytes.chunks_mut(4).enumerate() {
        let value = seed.wrapping_mul(0x9E37_79B1).wrapping_add(place as u32).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

fn check(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(fault()) }
}

impl Suite {
    fn new(fixture: Fixture) -> Self {
        Self {
            fixture,
            next_job: 1,
            open: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            removed: Vec::new(),
            held: BTreeSet::new(),
        }
    }

    fn job(&mut self) -> JobId {
        self.next_job += 1;
        JobId(self.next_job)
    }

    fn block_bytes(&self) -> usize {
        if self.fixture.region.moves_bytes() { self.fixture.region.block_bytes() as usize } else { 0 }
    }

    /// Puts each key's bytes into its slot.
    fn fill(&self, blocks: &[(Key, SlotId)]) -> Result<(), String> {
        let mut bytes = vec![0; self.block_bytes()];
        for (key, slot) in blocks {
            payload(key, &mut bytes);
            check(bytes.is_empty() || self.fixture.region.write_slot(*slot, &bytes), || {
                format!("{slot:?} not writable")
            })?;
        }
        Ok(())
    }

    fn submit_store(&mut self, blocks: &[(Key, SlotId)]) -> Result<JobId, String> {
        self.fill(blocks)?;
        let id = self.job();
        let job = StoreJob {
            id,
            blocks: blocks.iter().map(|&(key, slot)| StoreBlock { key, slot, crc32: None }).collect(),
            deadline: Time(u64::MAX),
        };
        self.submit(|tier| tier.submit_store(job.clone()))?;
        self.note(id, blocks, false);
        Ok(id)
    }

    fn submit_load(&mut self, blocks: &[(Key, SlotId)]) -> Result<JobId, String> {
        let poison = vec![0xA5; self.block_bytes()];
        for (_, slot) in blocks {
            check(poison.is_empty() || self.fixture.region.write_slot(*slot, &poison), || {
                format!("{slot:?} not writable")
            })?;
        }
        let id = self.job();
        let job = LoadJob {
            id,
            blocks: blocks.iter().map(|&(key, slot)| LoadBlock { key, slot }).collect(),
            deadline: Time(u64::MAX),
        };
        self.submit(|tier| tier.submit_load(job.clone()))?;
        self.note(id, blocks, true);
        Ok(id)
    }

    fn submit(&mut self, mut submit: impl FnMut(&mut dyn SecondaryTier) -> Result<(), Refused>) -> Result<(), String> {
        for _ in 0..POLLS {
            match submit(&mut *self.fixture.tier) {
                Ok(()) => return Ok(()),
                Err(Refused::Busy) => self.poll()?,
                Err(Refused::Closed) => return Err("an open tier refused a job as closed".into()),
            }
        }
        Err("a tier stayed busy for ever".into())
    }

    fn note(&mut self, id: JobId, blocks: &[(Key, SlotId)], load: bool) {
        for (index, &(key, slot)) in blocks.iter().enumerate() {
            self.open.insert((id, index as u32), (key, slot, load));
        }
    }

    fn poll(&mut self) -> Result<(), String> {
        (self.fixture.pass_time)();
        self.collect()
    }

    fn collect(&mut self) -> Result<(), String> {
        let mut events = Vec::new();
        self.fixture.tier.poll(&mut events);
        for event in events {
            let (job, index, outcome, load) = match event {
                TierEvent::StoreDone { job, index, outcome } => (job, index, outcome, false),
                TierEvent::LoadDone { job, index, outcome } => (job, index, outcome, true),
                TierEvent::Removed { key } => {
                    check(self.held.remove(&key), || format!("{key} was reported removed, and was not held"))?;
                    self.removed.push(key);
                    continue;
                }
            };
            let Some((key, slot, is_load)) = self.open.remove(&(job, index)) else {
                return Err(format!("{event:?}: no such block is open: done twice, or never asked for"));
            };
            check(load == is_load, || format!("{event:?}: the wrong kind of event"))?;
            if outcome.is_ok() && load {
                self.check_bytes(&key, slot)?;
            }
            if outcome.is_ok() && !load {
                self.held.insert(key);
            }
            self.outcomes.insert((job, index), outcome);
        }
        Ok(())
    }

    fn check_bytes(&self, key: &Key, slot: SlotId) -> Result<(), String> {
        let (mut wanted, mut found) = (vec![0; self.block_bytes()], vec![0; self.block_bytes()]);
        if wanted.is_empty() {
            return Ok(());
        }
        payload(key, &mut wanted);
        check(self.fixture.region.read_slot(slot, &mut found), || format!("{slot:?} not readable"))?;
        check(wanted == found, || format!("{key} was loaded with wrong bytes"))
    }

    /// Polls until no job is open.
    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..POLLS {
            if self.open.is_empty() {
                return Ok(());
            }
            self.poll()?;
        }
        Err(format!("{} blocks were never done: {:?}", self.open.len(), self.open.keys().next()))
    }

    /// Stores keys through the slots in turn, a slot's worth at a time.
    fn store(&mut self, keys: &[Key]) -> Result<(), String> {
        for part in keys.chunks(SLOTS as usize) {
            let blocks: Vec<_> = part.iter().copied().zip((0..SLOTS).map(SlotId)).collect();
            let job = self.submit_store(&blocks)?;
            self.finish()?;
            self.check_outcomes(job, part.len(), |outcome| outcome.is_ok())?;
        }
        Ok(())
    }

    fn load(&mut self, keys: &[Key]) -> Result<(), String> {
        for part in keys.chunks(SLOTS as usize) {
            let blocks: Vec<_> = part.iter().copied().zip((0..SLOTS).map(SlotId)).collect();
            let job = self.submit_load(&blocks)?;
            self.finish()?;
            self.check_outcomes(job, part.len(), |outcome| outcome.is_ok())?;
        }
        Ok(())
    }

    fn check_outcomes(
        &self,
        job: JobId,
        blocks: usize,
        good: impl Fn(&Result<u32, Fault>) -> bool,
    ) -> Result<(), String> {
        for index in 0..blocks as u32 {
            let outcome = self.outcomes.get(&(job, index));
            let fine = outcome.is_some_and(|outcome| good(outcome) || self.fixture.may_fail && outcome.is_err());
            check(fine, || format!("block {index} of {blocks} ended as {outcome:?}"))?;
        }
        Ok(())
    }

    /// Looks up until each key was known once.
    fn lookup(&mut self, keys: &[Key]) -> Result<Vec<TierLookup>, String> {
        let mut known = vec![TierLookup::Unknown; keys.len()];
        let mut out = vec![TierLookup::Found; 3];
        for _ in 0..POLLS {
            self.fixture.tier.lookup(keys, &mut out);
            check(out.len() == keys.len(), || format!("{} answers for {} keys", out.len(), keys.len()))?;
            for (known, answer) in known.iter_mut().zip(&out).filter(|(known, _)| **known == TierLookup::Unknown) {
                *known = *answer;
            }
            if !known.contains(&TierLookup::Unknown) {
                return Ok(known);
            }
            self.poll()?;
        }
        Err("a lookup stayed unknown for ever".into())
    }

    /// Every key that was reported as stored and not as removed is found, unless loads may lose blocks.
    fn check_held(&mut self, keys: &[Key]) -> Result<(), String> {
        let answers = self.lookup(keys)?;
        for (key, answer) in keys.iter().zip(answers) {
            let wanted = if self.held.contains(key) { TierLookup::Found } else { TierLookup::Absent };
            check(answer == wanted, || format!("{key}: {answer:?}, the events say {wanted:?}"))?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.fixture.tier.shutdown(Duration::from_secs(10));
        self.collect()?;
        check(self.open.is_empty(), || format!("{} blocks were not done by shutdown", self.open.len()))?;
        let in_flight = self.fixture.tier.stats().in_flight;
        check(in_flight == 0, || format!("stats count {in_flight} blocks in flight after shutdown"))
    }
}

fn stored_is_loaded(suite: &mut Suite) -> Result<(), String> {
    let keys = keys(0..20)?;
    suite.store(&keys)?;
    suite.check_held(&keys)?;
    suite.load(&keys)?;
    let stats = suite.fixture.tier.stats();
    check(suite.fixture.may_fail || stats.stored == 20 && stats.loaded == 20, || format!("counters: {stats:?}"))?;
    check(stats.allocated_bytes <= stats.capacity_bytes, || format!("over capacity: {stats:?}"))
}

fn absent_is_absent(suite: &mut Suite) -> Result<(), String> {
    suite.store(&keys(0..4)?)?;
    let others = keys(1000..1004)?;
    suite.check_held(&others)?;
    let blocks: Vec<_> = others.iter().copied().zip((0..SLOTS).map(SlotId)).collect();
    let job = suite.submit_load(&blocks)?;
    suite.finish()?;
    suite.check_outcomes(job, 4, |outcome| *outcome == Err(Fault::Absent))
}

fn storing_again(suite: &mut Suite) -> Result<(), String> {
    let keys = keys(0..8)?;
    suite.store(&keys)?;
    let before = suite.fixture.tier.stats();
    suite.store(&keys)?;
    let after = suite.fixture.tier.stats();
    let same = before.blocks == after.blocks && before.allocated_bytes == after.allocated_bytes;
    check(suite.fixture.may_fail || same, || format!("{before:?} became {after:?}"))?;
    // Twice in one job: done twice, held once.
    let twice = [(keys[0], SlotId(0)), (keys[0], SlotId(1)), (key(90)?, SlotId(2)), (key(90)?, SlotId(3))];
    suite.submit_store(&twice)?;
    suite.finish()?;
    suite.check_held(&[keys[0], key(90)?])
}

fn many_jobs(suite: &mut Suite) -> Result<(), String> {
    let names: Vec<_> = (0..16).map(|job| keys(job * 2..job * 2 + 2)).collect::<Result<_, _>>()?;
    for (place, pair) in names.iter().enumerate() {
        let slots = [SlotId(place as u32 * 2), SlotId(place as u32 * 2 + 1)];
        suite.submit_store(&[(pair[0], slots[0]), (pair[1], slots[1])])?;
    }
    suite.finish()?;
    for (place, pair) in names.iter().enumerate() {
        let slots = [SlotId(place as u32 * 2), SlotId(place as u32 * 2 + 1)];
        suite.submit_load(&[(pair[0], slots[0]), (pair[1], slots[1])])?;
    }
    suite.finish()?;
    suite.check_held(&names.concat())
}

fn capacity_holds(suite: &mut Suite) -> Result<(), String> {
    let all = keys(0..2 * u64::from(suite.fixture.capacity_blocks) + 8)?;
    for part in all.chunks(SLOTS as usize / 2) {
        suite.store(part)?;
        let stats = suite.fixture.tier.stats();
        check(stats.allocated_bytes <= stats.capacity_bytes, || format!("over capacity: {stats:?}"))?;
    }
    suite.poll()?;
    suite.check_held(&all)?;
    let stats = suite.fixture.tier.stats();
    check(stats.blocks == suite.held.len() as u64, || {
        format!("{} blocks by the events, stats say {stats:?}", suite.held.len())
    })?;
    check(!suite.removed.is_empty() && stats.evicted > 0, || format!("nothing was evicted: {stats:?}"))
}

fn touch_protects(suite: &mut Suite) -> Result<(), String> {
    let kept = keys(0..4)?;
    suite.store(&kept)?;
    let others = keys(100..100 + u64::from(suite.fixture.capacity_blocks))?;
    // A third of the capacity at a time: what is touched in between is never the least recent.
    for part in others.chunks((suite.fixture.capacity_blocks as usize / 3).clamp(1, SLOTS as usize / 2)) {
        suite.fixture.tier.touch(&kept);
        suite.store(part)?;
    }
    let evicted = suite.removed.iter().any(|key| kept.contains(key));
    check(suite.fixture.may_fail || !evicted, || "a block that was just touched was evicted before others".into())
}

fn abandoned_job_ends(suite: &mut Suite) -> Result<(), String> {
    let stored = keys(0..8)?;
    suite.store(&stored)?;
    let blocks: Vec<_> = stored.iter().copied().zip((0..8).map(SlotId)).collect();
    let load = suite.submit_load(&blocks)?;
    suite.fixture.tier.abandon(load);
    let fresh: Vec<_> = keys(50..58)?.into_iter().zip((8..16).map(SlotId)).collect();
    let store = suite.submit_store(&fresh)?;
    suite.fixture.tier.abandon(store);
    // From here on the slots of the abandoned store may change: no later load may see what comes now.
    for (_, slot) in &fresh {
        suite.fixture.region.write_slot(*slot, &vec![0xEE; suite.block_bytes()]);
    }
    suite.fixture.tier.abandon(JobId(u64::MAX));
    suite.finish()?;
    suite.fixture.tier.abandon(store);
    suite.poll()?;
    // One that was taken up whole before may be found: then with its own bytes, which loading it shows.
    let names: Vec<_> = fresh.iter().map(|(key, _)| *key).collect();
    let blocks: Vec<_> = names.iter().copied().zip((16..24).map(SlotId)).collect();
    suite.submit_load(&blocks)?;
    suite.finish()
}

fn empty_jobs(suite: &mut Suite) -> Result<(), String> {
    suite.submit_store(&[])?;
    suite.submit_load(&[])?;
    suite.poll()?;
    suite.fixture.tier.touch(&[]);
    suite.check_held(&[])
}

fn shutdown_ends(suite: &mut Suite) -> Result<(), String> {
    let blocks: Vec<_> = keys(0..16)?.into_iter().zip((0..16).map(SlotId)).collect();
    suite.submit_store(&blocks)?;
    suite.fixture.tier.shutdown(Duration::from_secs(10));
    suite.collect()?;
    check(suite.open.is_empty(), || format!("{} blocks were not done by shutdown", suite.open.len()))?;
    let job = StoreJob { id: JobId(u64::MAX), blocks: Vec::new(), deadline: Time(u64::MAX) };
    check(suite.fixture.tier.submit_store(job) == Err(Refused::Closed), || "a closed tier took a store".into())?;
    let job = LoadJob { id: JobId(u64::MAX), blocks: Vec::new(), deadline: Time(u64::MAX) };
    check(suite.fixture.tier.submit_load(job) == Err(Refused::Closed), || "a closed tier took a load".into())
}
