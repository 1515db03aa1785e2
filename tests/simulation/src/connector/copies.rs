//! Copies that take virtual time: each touches its bytes in pieces, between its submission and its end, in any order.
#![expect(
    unsafe_code,
    reason = "a copy engine is given addresses; every one is checked to be in the region or the arena"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_kernels::{Arena, CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, Order};
use terrace_primary::Region;
use terrace_tiers::{Clock, ManualClock, Time};

use super::settings::CopyFaults;
use crate::rng::Rng;

/// What happens to a copy next: after all its pieces comes its end.
const END: u32 = u32::MAX;
/// Who waits for a copy that hangs learns after this long that the device is lost.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// The copy engine of one process. Clones share it: one is the connector's, one the world's.
#[derive(Clone)]
pub(crate) struct Copies(Arc<Mutex<Inner>>);

struct Inner {
    clock: ManualClock,
    rng: Rng,
    faults: CopyFaults,
    /// Kept, since their addresses are used.
    region: Arc<Region>,
    arena: Arc<Arena>,
    flying: BTreeMap<u64, Flight>,
    /// Pieces and ends, by their time.
    agenda: BTreeMap<(Time, u64, u32), Piece>,
    done: Vec<CopyDone>,
    next: u64,
    stats: CopyStats,
    hung_since: Option<Time>,
    is_lost: bool,
    is_dead: bool,
    outside: Option<String>,
    counts: CopyCounts,
}

/// What became of copies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyCounts {
    pub failed: u64,
    pub refused: u64,
    pub slow: u64,
    pub hung: u64,
    /// In flight when their process died.
    pub torn: u64,
}

#[derive(Debug)]
struct Flight {
    bytes: u64,
    fails: bool,
}

/// Bytes that are copied at one moment.
#[derive(Clone, Copy, Debug)]
struct Piece {
    run: CopyRun,
    /// Noise arrives.
    spoilt: bool,
}

impl Copies {
    pub fn new(clock: ManualClock, rng: Rng, faults: CopyFaults, region: Arc<Region>, arena: Arc<Arena>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            clock,
            rng,
            faults,
            region,
            arena,
            flying: BTreeMap::new(),
            agenda: BTreeMap::new(),
            done: Vec::new(),
            next: 0,
            stats: CopyStats::default(),
            hung_since: None,
            is_lost: false,
            is_dead: false,
            outside: None,
            counts: CopyCounts::default(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies go on until now.
    pub fn run(&self) {
        let inner = &mut *self.lock();
        inner.run_until(inner.clock.now());
    }

    /// Whether somebody waited for a copy that hangs.
    pub fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Whether a copy never ends.
    pub fn hangs(&self) -> bool {
        self.lock().hung_since.is_some()
    }

    /// Whether one should have ended long ago.
    pub fn hangs_since(&self, long: Duration) -> bool {
        let inner = self.lock();
        inner.hung_since.is_some_and(|since| inner.clock.now().since(since) > long)
    }

    /// An address that is in no memory of the engine's, if one was ever submitted.
    pub fn outside(&self) -> Option<String> {
        self.lock().outside.clone()
    }

    /// The process dies: what is copied by now is copied, no byte more.
    pub fn die(&self) {
        let inner = &mut *self.lock();
        inner.counts.torn += inner.flying.len() as u64;
        inner.is_dead = true;
        inner.flying.clear();
        inner.agenda.clear();
        inner.done.clear();
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&self) {
        self.lock().faults.heal();
    }

    pub fn in_flight(&self) -> usize {
        self.lock().flying.len()
    }

    pub fn counts(&self) -> CopyCounts {
        self.lock().counts
    }
}

impl Inner {
    fn run_until(&mut self, now: Time) {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= now
        {
            let ((_, id, index), piece) = entry.remove_entry();
            if index != END {
                self.copy(piece);
                continue;
            }
            let Some(flight) = self.flying.remove(&id) else { continue };
            let result = if flight.fails { Err(CopyError::Failed("by seed".to_owned())) } else { Ok(()) };
            self.done.push(CopyDone { id: CopyId(id), result, bytes: flight.bytes });
        }
    }

    fn copy(&mut self, Piece { run, spoilt }: Piece) {
        if spoilt {
            let noise = self.rng.next() as u8;
            // SAFETY: `submit` checked that the bytes are in the region or the arena, which are kept here.
            unsafe { std::ptr::write_bytes(run.dst as *mut u8, noise, run.len) };
            return;
        }
        // SAFETY: as above; one side is in the region and the other in the arena, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(run.src as *const u8, run.dst as *mut u8, run.len) };
    }

    /// Whether the run goes from one memory to the other, and nowhere else.
    fn is_inside(&self, direction: Direction, run: &CopyRun) -> bool {
        let within = |memory: &Range<usize>, at: usize| memory.contains(&at) && run.len <= memory.end - at;
        let arena = self.arena.address()..self.arena.address() + self.arena.len();
        let Some((base, bytes)) = self.region.parts() else { return false };
        let region = base.as_ptr() as usize..base.as_ptr() as usize + bytes;
        match direction {
            Direction::DeviceToHost => within(&arena, run.src) && within(&region, run.dst),
            Direction::HostToDevice => within(&region, run.src) && within(&arena, run.dst),
        }
    }

    fn duration_ns(&mut self) -> u64 {
        if self.rng.chance(self.faults.slow_per_mille) {
            self.counts.slow += 1;
            return self.rng.skewed(5_000_000_000);
        }
        self.rng.skewed(3_000_000)
    }

    /// Puts the pieces of a copy and its end on the agenda.
    fn plan(&mut self, id: u64, runs: &[CopyRun]) {
        let now = self.clock.now();
        let takes_ns = self.duration_ns();
        let fails = self.rng.chance(self.faults.fail_per_mille);
        let hangs = self.rng.chance(self.faults.hang_per_mille);
        let mut index = 0;
        for run in runs {
            // In two pieces: nothing is copied at once.
            let cut = self.rng.index(run.len + 1);
            for (from, len) in [(0, cut), (cut, run.len - cut)] {
                let at = now.plus(Duration::from_nanos(self.rng.below(takes_ns + 1)));
                let run = CopyRun { src: run.src + from, dst: run.dst + from, len };
                let left_out = hangs && self.rng.chance(500);
                let spoilt = fails && self.rng.chance(500);
                if len > 0 && !left_out {
                    self.agenda.insert((at, id, index), Piece { run, spoilt });
                    index += 1;
                }
            }
        }
        let bytes = runs.iter().map(|run| run.len as u64).sum();
        self.flying.insert(id, Flight { bytes, fails });
        self.counts.failed += u64::from(fails && !hangs);
        if hangs {
            self.counts.hung += 1;
            self.hung_since.get_or_insert(now);
            return;
        }
        let end = now.plus(Duration::from_nanos(takes_ns));
        let nothing = CopyRun { src: 0, dst: 0, len: 0 };
        self.agenda.insert((end, id, END), Piece { run: nothing, spoilt: false });
    }
}

impl CopyEngine for Copies {
    unsafe fn submit(&mut self, direction: Direction, runs: &[CopyRun], _order: Order) -> Result<CopyId, CopyError> {
        let inner = &mut *self.lock();
        if inner.is_lost || inner.is_dead {
            return Err(CopyError::DeviceLost("by seed".to_owned()));
        }
        let limit = inner.faults.queue_entries;
        if inner.flying.len() + inner.done.len() >= limit {
            inner.stats.refused += 1;
            return Err(CopyError::QueueFull { limit });
        }
        if let Some(run) = runs.iter().find(|run| !inner.is_inside(direction, run)) {
            inner.outside.get_or_insert(format!("{direction:?} {run:?}"));
            return Err(CopyError::Invalid("outside".to_owned()));
        }
        if inner.rng.chance(inner.faults.refuse_per_mille) {
            inner.counts.refused += 1;
            return Err(CopyError::Failed("by seed".to_owned()));
        }
        let id = inner.next;
        inner.next += 1;
        inner.stats.copies += 1;
        inner.plan(id, runs);
        Ok(CopyId(id))
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let inner = &mut *self.lock();
        inner.run_until(inner.clock.now());
        // In any order.
        while !inner.done.is_empty() {
            let at = inner.rng.index(inner.done.len());
            out.push(inner.done.swap_remove(at));
        }
    }

    fn wait(&mut self, ids: &[CopyId]) -> Result<(), CopyError> {
        let inner = &mut *self.lock();
        if inner.is_lost || inner.is_dead {
            return Err(CopyError::DeviceLost("by seed".to_owned()));
        }
        inner.run_until(inner.clock.now());
        while ids.iter().any(|id| inner.flying.contains_key(&id.0)) {
            let ends = |id: &CopyId| inner.agenda.keys().any(|(_, other, index)| *other == id.0 && *index == END);
            let next = inner.agenda.first_key_value().map(|((at, _, _), _)| *at);
            let is_hung = ids.iter().all(|id| !inner.flying.contains_key(&id.0) || !ends(id));
            let Some(next) = next.filter(|_| !is_hung) else {
                inner.clock.advance(LOST_AFTER);
                inner.is_lost = true;
                return Err(CopyError::DeviceLost("a copy never ends".to_owned()));
            };
            let now = inner.clock.now();
            inner.clock.advance(next.since(now));
            inner.run_until(next);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        let inner = self.lock();
        inner.flying.len() + inner.done.len()
    }

    fn describe(&self) -> String {
        "simulated".to_owned()
    }

    fn moves_bytes(&self) -> bool {
        true
    }

    fn stats(&self) -> CopyStats {
        self.lock().stats
    }
}
