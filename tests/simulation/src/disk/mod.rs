//! A simulated disk: a file system in memory, operations that take virtual time, and faults.
//!
//! One [`Disk`] holds the files of all directories and outlives the processes that use it; each directory of a process is
//! driven through a [`SimDevice`]. Operations advance by sub-steps in the order of their due times whenever the disk is
//! run; a crash falls between any two sub-steps.

mod damage;
mod device;
mod faults;
mod files;
mod memory;
mod op;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_tiers::nvme::FileOp;
use terrace_tiers::{Clock, ManualClock};

pub use device::SimDevice;
pub use faults::{Faults, KIND_COUNT, Kind, Weather};
pub use files::{Errno, Files, Ino, Name, PAGE_BYTES};

use self::op::Op;
use crate::rng::Rng;
use crate::trace::SharedTrace;

/// How the processes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: what the kernel has done stays, what it has taken goes on or not.
    Kill,
    /// The machine loses power: what was not flushed may be gone, wholly or in parts.
    PowerLoss,
}

/// The state behind a [`Disk`].
pub(crate) struct State {
    /// The files.
    pub(crate) files: Files,
    /// What goes wrong.
    pub(crate) faults: Faults,
    /// Bytes that all files may take.
    pub(crate) space_bytes: u64,
    clock: ManualClock,
    rng: Rng,
    trace: SharedTrace,
    roots: Vec<Name>,
    weather: Vec<Weather>,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    echoes: Vec<Echo>,
    life: u64,
    disorder: bool,
    weather_failures: u64,
    denied: u64,
    removals_failed: u64,
    reads_of_nothing: u64,
}

/// A write that arrives once more.
struct Echo {
    due_ns: u64,
    ino: Ino,
    bytes: Vec<u8>,
}

/// The disk, shared by the devices and the driver. Clones share it.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// A disk with these directories, empty, without faults.
    pub fn new(roots: &[PathBuf], clock: ManualClock, rng: Rng, trace: SharedTrace) -> Self {
        let roots: Vec<Name> = roots.iter().map(|root| root.to_string_lossy().into()).collect();
        Self(Arc::new(Mutex::new(State {
            files: Files::new(&roots),
            faults: Faults::none(),
            space_bytes: u64::MAX,
            clock,
            rng,
            trace,
            weather: vec![Weather::Fair; roots.len()],
            roots,
            ops: BTreeMap::new(),
            next_op: 0,
            echoes: Vec::new(),
            life: 0,
            disorder: false,
            weather_failures: 0,
            denied: 0,
            removals_failed: 0,
            reads_of_nothing: 0,
        })))
    }

    /// The state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of directory `root` (its number) for a process that starts now, `depth` operations deep.
    pub fn device(&self, root: usize, depth: u32) -> SimDevice {
        SimDevice::new(self.clone(), root, self.lock().life, depth)
    }

    /// What goes wrong from now on. With `disorder` a power loss may keep later changes of names and lose earlier ones.
    pub fn set_faults(&self, faults: Faults, disorder: bool) {
        let mut state = self.lock();
        state.faults = faults;
        state.disorder = disorder;
    }

    /// How often each kind of fault struck.
    pub fn faults_struck(&self) -> impl Iterator<Item = (Kind, u64)> + use<> {
        self.lock().faults.struck().collect::<Vec<_>>().into_iter()
    }

    /// How often any fault struck, and operations that foul weather failed.
    pub fn failures(&self) -> u64 {
        let state = self.lock();
        state.weather_failures + state.faults.struck().map(|(_, times)| times).sum::<u64>()
    }

    /// Operations that were told that a file is not there while its whole directory was away.
    pub fn denied(&self) -> u64 {
        self.lock().denied
    }

    /// Reads that found no file.
    pub fn reads_of_nothing(&self) -> u64 {
        self.lock().reads_of_nothing
    }

    /// Number of directories.
    pub fn roots(&self) -> usize {
        self.lock().roots.len()
    }

    /// Lets everything happen that is due by now.
    pub fn run(&self) {
        let mut state = self.lock();
        let now_ns = state.clock.now().0;
        state.run_until(now_ns);
    }

    /// Ends the process that uses the disk. Its memory must still be there; after this call no operation touches it.
    pub fn crash(&self, how: Crash) {
        self.lock().crash(how);
    }

    /// Sets the weather of one directory.
    pub fn set_weather(&self, root: usize, weather: Weather) {
        if let Some(place) = self.lock().weather.get_mut(root) {
            *place = weather;
        }
    }

    /// Ends all faults and bad weather. With `release` what hung goes on, otherwise it hangs for ever.
    pub fn heal(&self, release: bool) {
        let mut state = self.lock();
        state.faults.cease();
        state.space_bytes = u64::MAX;
        state.weather.fill(Weather::Fair);
        let now_ns = state.clock.now().0;
        if release {
            state.ops.values_mut().for_each(|op| op.release(now_ns));
        }
    }

    /// Operations of the running process that read into memory and are not over.
    pub fn reads_held(&self) -> usize {
        self.lock().ops.values().filter(|op| op.is_read()).count()
    }

    /// Removals that failed: a file that had to go may still stand there.
    pub fn removals_failed(&self) -> u64 {
        self.lock().removals_failed
    }

    /// Removals of the running process that are not over.
    pub fn removals_held(&self) -> u64 {
        self.lock().ops.values().filter(|op| op.is_removal()).count() as u64
    }

    /// Puts some of what was written on the medium: what a kernel does now and then.
    pub fn write_back(&self) {
        let state = &mut *self.lock();
        let changes = state.rng.index(state.files.journal_len() + 1);
        let rng = &mut state.rng;
        state.files.flush(changes, |_| rng.chance(500));
    }

    /// Adds all files to the trace.
    pub fn trace_files(&self) {
        let state = self.lock();
        for (path, ino) in state.files.all() {
            state.trace.add(format_args!("{path} takes {} bytes", state.files.allocated_bytes(ino)));
        }
    }

    /// Puts everything on the medium.
    pub fn flush(&self) {
        let state = &mut *self.lock();
        state.files.flush(usize::MAX, |_| true);
    }

    /// Bytes that the files take: those that tiers use, and those in quarantine.
    pub fn used(&self) -> Used {
        let state = self.lock();
        let mut used = Used::default();
        for (path, ino) in state.files.all() {
            let place = if path.contains("/quarantine/") { &mut used.quarantined_bytes } else { &mut used.bytes };
            *place += state.files.allocated_bytes(ino);
        }
        used
    }
}

/// What files take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// Everything but quarantine.
    pub bytes: u64,
    /// Quarantine.
    pub quarantined_bytes: u64,
}

impl State {
    /// Runs sub-steps in the order of their due times.
    pub(crate) fn run_until(&mut self, now_ns: u64) {
        loop {
            let next = self
                .ops
                .iter()
                .filter(|(_, op)| op.is_due(now_ns) && self.weather[op.root] != Weather::Hanging)
                .min_by_key(|(id, op)| (op.due_ns, **id))
                .map(|(id, _)| *id);
            let Some(id) = next else { break };
            self.step(id);
        }
        while let Some(at) = self.echoes.iter().position(|echo| echo.due_ns <= now_ns) {
            let echo = self.echoes.swap_remove(at);
            let _ = self.files.write(echo.ino, 0, &echo.bytes, now_ns);
        }
    }

    /// When the next sub-step is due; `None` while nothing can move.
    fn next_due_ns(&self) -> Option<u64> {
        let moving = self.ops.values().filter(|op| self.weather[op.root] != Weather::Hanging);
        moving.filter_map(Op::next_due_ns).min()
    }

    /// Runs one sub-step of one operation.
    fn step(&mut self, id: u64) {
        let Some(mut op) = self.ops.remove(&id) else { return };
        op.step(self);
        self.ops.insert(id, op);
    }

    fn crash(&mut self, how: Crash) {
        self.life += 1;
        // What the kernel had taken may still go on for some sub-steps, in any order.
        for _ in 0..self.rng.below(3 * self.ops.len() as u64 + 1) {
            let waiting: Vec<u64> =
                self.ops.iter().filter(|(_, op)| op.is_due(u64::MAX - 1)).map(|(id, _)| *id).collect();
            let Some(id) = self.rng.pick(&waiting).copied() else { break };
            if self.ops.get(&id).is_some_and(|op| self.weather[op.root] != Weather::Hanging) {
                self.step(id);
            }
        }
        self.ops.clear();
        self.echoes.clear();
        match how {
            Crash::Kill => self.files.process_death(),
            Crash::PowerLoss => {
                let ordered = !self.disorder || self.rng.chance(500);
                self.files.power_loss(ordered, &mut self.rng);
            }
        }
    }

    /// Takes a new operation.
    fn submit(&mut self, root: usize, tag: u64, file_op: FileOp) {
        let op = Op::new(root, tag, file_op, self);
        self.ops.insert(self.next_op, op);
        self.next_op += 1;
    }

    /// Time that one sub-step takes.
    fn latency_ns(&mut self) -> u64 {
        let usual = self.rng.between(5_000, 300_000);
        if self.faults.strikes(Kind::Slow, &mut self.rng) { usual * self.rng.skewed(100_000) } else { usual }
    }
}
