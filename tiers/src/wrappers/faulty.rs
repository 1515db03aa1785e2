//! A tier that fails now and then, by seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace_primary::Key;

use crate::tier::{
    Fault, JobId, LoadJob, Refused, SecondaryTier, StoreJob, TierDescriptor, TierEvent, TierLookup, TierStats,
};

/// Blocks that a failed load made absent and that are remembered; beyond, loads no longer fail.
const LOST_BLOCKS: usize = 65_536;

/// How often what fails, each in `0.0..=1.0`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// A block's store ends in [`Fault::Io`].
    pub store: f64,
    /// A block's load ends in [`Fault::Io`], and the block is absent from then on until it is stored anew.
    pub load: f64,
    /// A job is refused as busy.
    pub busy: f64,
    /// A lookup answers [`TierLookup::Unknown`].
    pub unknown: f64,
}

/// Fails blocks of the inner tier at given rates, drawn from a seed.
pub struct Faulty<T> {
    inner: T,
    rates: FaultRates,
    state: u64,
    /// Jobs of which only a part was passed on: the original place of each block that was, and its key.
    partial: BTreeMap<JobId, Partial>,
    lost: BTreeSet<Key>,
    failed: Vec<TierEvent>,
    inner_events: Vec<TierEvent>,
    answers: Vec<TierLookup>,
    closed: bool,
    io_errors: u64,
    refused: u64,
}

struct Partial {
    places: Vec<(u32, Key)>,
    open: usize,
}

impl<T: SecondaryTier> Faulty<T> {
    /// `inner`, failing at `rates` as `seed` decides.
    pub fn new(inner: T, rates: FaultRates, seed: u64) -> Self {
        Self {
            inner,
            rates,
            state: seed,
            partial: BTreeMap::new(),
            lost: BTreeSet::new(),
            failed: Vec::new(),
            inner_events: Vec::new(),
            answers: Vec::new(),
            closed: false,
            io_errors: 0,
            refused: 0,
        }
    }

    /// Draws by SplitMix64 (Steele, Lea and Flood, OOPSLA '14).
    fn draw(&mut self, rate: f64) -> bool {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 <= rate && rate > 0.0
    }

    fn refuse(&mut self) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        if self.draw(self.rates.busy) {
            self.refused += 1;
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn keep(&mut self, job: JobId, places: Vec<(u32, Key)>) {
        if !places.is_empty() {
            self.partial.insert(job, Partial { open: places.len(), places });
        }
    }

    /// The original place and the key of a block that the inner tier has done.
    fn place(&mut self, job: JobId, index: u32) -> Option<(u32, Key)> {
        let partial = self.partial.get_mut(&job)?;
        let place = partial.places.get(index as usize).copied();
        partial.open = partial.open.saturating_sub(1);
        if partial.open == 0 {
            self.partial.remove(&job);
        }
        place
    }
}

impl<T: SecondaryTier> SecondaryTier for Faulty<T> {
    fn descriptor(&self) -> &TierDescriptor {
        self.inner.descriptor()
    }

    fn lookup(&mut self, keys: &[Key], out: &mut Vec<TierLookup>) {
        self.inner.lookup(keys, out);
        for (key, answer) in keys.iter().zip(out.iter_mut()) {
            if self.lost.contains(key) {
                *answer = TierLookup::Absent;
            } else if self.draw(self.rates.unknown) {
                *answer = TierLookup::Unknown;
            }
        }
    }

    fn submit_store(&mut self, mut job: StoreJob) -> Result<(), Refused> {
        self.refuse()?;
        let (id, all) = (job.id, std::mem::take(&mut job.blocks));
        let (mut places, mut failing) = (Vec::with_capacity(all.len()), Vec::new());
        for (index, block) in all.into_iter().enumerate() {
            if self.draw(self.rates.store) {
                failing.push(index as u32);
            } else {
                places.push((index as u32, block.key));
                job.blocks.push(block);
            }
        }
        if !job.blocks.is_empty() {
            self.inner.submit_store(job)?;
        }
        self.keep(id, places);
        self.io_errors += failing.len() as u64;
        let fail = |index| TierEvent::StoreDone { job: id, index, outcome: Err(Fault::Io) };
        self.failed.extend(failing.into_iter().map(fail));
        Ok(())
    }

    fn submit_load(&mut self, mut job: LoadJob) -> Result<(), Refused> {
        self.refuse()?;
        let (id, all) = (job.id, std::mem::take(&mut job.blocks));
        let (mut places, mut failing) = (Vec::with_capacity(all.len()), Vec::new());
        for (index, block) in all.into_iter().enumerate() {
            let is_lost = self.lost.contains(&block.key);
            if is_lost || self.lost.len() + failing.len() < LOST_BLOCKS && self.draw(self.rates.load) {
                failing.push((index as u32, block.key, if is_lost { Fault::Absent } else { Fault::Io }));
            } else {
                places.push((index as u32, block.key));
                job.blocks.push(block);
            }
        }
        if !job.blocks.is_empty() {
            self.inner.submit_load(job)?;
        }
        self.keep(id, places);
        for (index, key, fault) in failing {
            self.failed.push(TierEvent::LoadDone { job: id, index, outcome: Err(fault) });
            self.io_errors += u64::from(fault == Fault::Io);
            self.inner.lookup(&[key], &mut self.answers);
            if self.answers.first() == Some(&TierLookup::Found) && self.lost.insert(key) {
                self.failed.push(TierEvent::Removed { key });
            }
        }
        Ok(())
    }

    fn abandon(&mut self, job: JobId) {
        self.inner.abandon(job);
    }

    fn poll(&mut self, out: &mut Vec<TierEvent>) {
        out.append(&mut self.failed);
        let mut events = std::mem::take(&mut self.inner_events);
        self.inner.poll(&mut events);
        for event in events.drain(..) {
            match event {
                TierEvent::StoreDone { job, index, outcome } => {
                    let Some((index, key)) = self.place(job, index) else { continue };
                    if outcome.is_ok() {
                        self.lost.remove(&key);
                    }
                    out.push(TierEvent::StoreDone { job, index, outcome });
                }
                TierEvent::LoadDone { job, index, outcome } => {
                    let Some((index, _)) = self.place(job, index) else { continue };
                    out.push(TierEvent::LoadDone { job, index, outcome });
                }
                TierEvent::Removed { key } => {
                    // A lost block was reported as removed when it was lost.
                    if !self.lost.remove(&key) {
                        out.push(event);
                    }
                }
            }
        }
        self.inner_events = events;
    }

    fn next_to_scrub(&mut self) -> Option<Key> {
        self.inner.next_to_scrub()
    }

    fn set_limit(&mut self, bytes: u64) {
        self.inner.set_limit(bytes);
    }

    fn touch(&mut self, keys: &[Key]) {
        self.inner.touch(keys);
    }

    fn shutdown(&mut self, within: Duration) {
        self.closed = true;
        self.inner.shutdown(within);
    }

    fn stats(&self) -> TierStats {
        let inner = self.inner.stats();
        TierStats {
            io_errors: inner.io_errors + self.io_errors,
            refused: inner.refused + self.refused,
            in_flight: inner.in_flight + self.failed.len() as u64,
            ..inner
        }
    }
}
