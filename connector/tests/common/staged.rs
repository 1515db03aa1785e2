//! A copy engine that copies when the test says so: late, in any order, or not at all.
#![expect(unsafe_code, reason = "it copies")]

use std::sync::{Arc, Mutex, MutexGuard};

use terrace_kernels::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, Order};

use super::Random;

pub struct Behaviour {
    /// Nothing is copied by `poll`.
    pub hold: bool,
    /// Share of the copies in flight that a `poll` finishes.
    pub finish_percent: u32,
    /// Share of the copies that fail, with garbage at the destination.
    pub fail_percent: u32,
    /// Copies taken at once.
    pub queue_entries: usize,
    /// Copies taken and not finished.
    pub pending: usize,
    pub random: Random,
}

#[derive(Clone)]
pub struct Control(Arc<Mutex<Behaviour>>);

impl Control {
    pub fn set(&self) -> MutexGuard<'_, Behaviour> {
        self.0.lock().expect("no panic under the lock")
    }

    pub fn pending(&self) -> usize {
        self.set().pending
    }
}

pub struct StagedEngine {
    control: Control,
    pending: Vec<(CopyId, Vec<CopyRun>)>,
    done: Vec<CopyDone>,
    next: u64,
    stats: CopyStats,
}

impl StagedEngine {
    pub fn new() -> (Self, Control) {
        let behaviour = Behaviour {
            hold: false,
            finish_percent: 100,
            fail_percent: 0,
            queue_entries: usize::MAX,
            pending: 0,
            random: Random(1),
        };
        let control = Control(Arc::new(Mutex::new(behaviour)));
        let engine = Self {
            control: control.clone(),
            pending: Vec::new(),
            done: Vec::new(),
            next: 0,
            stats: CopyStats::default(),
        };
        (engine, control)
    }

    fn finish(&mut self, mut chosen: impl FnMut(CopyId) -> bool) {
        let mut behaviour = self.control.set();
        for (id, runs) in self.pending.extract_if(.., |(id, _)| chosen(*id)) {
            let percent = behaviour.fail_percent;
            let fails = behaviour.random.chance(percent);
            for run in &runs {
                // SAFETY: as `submit`'s caller promised.
                unsafe {
                    if fails {
                        std::ptr::write_bytes(run.dst as *mut u8, 0x5A, run.len);
                    } else {
                        std::ptr::copy_nonoverlapping(run.src as *const u8, run.dst as *mut u8, run.len);
                    }
                }
            }
            let result = if fails { Err(CopyError::Failed("by seed".to_owned())) } else { Ok(()) };
            self.done.push(CopyDone { id, result, bytes: runs.iter().map(|run| run.len as u64).sum() });
        }
        behaviour.pending = self.pending.len();
    }
}

impl CopyEngine for StagedEngine {
    unsafe fn submit(&mut self, _direction: Direction, runs: &[CopyRun], _order: Order) -> Result<CopyId, CopyError> {
        let limit = self.control.set().queue_entries;
        if self.pending.len() + self.done.len() >= limit {
            return Err(CopyError::QueueFull { limit });
        }
        let id = CopyId(self.next);
        self.next += 1;
        self.pending.push((id, runs.to_vec()));
        self.control.set().pending = self.pending.len();
        Ok(id)
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let (hold, percent, mut random) = {
            let mut behaviour = self.control.set();
            (behaviour.hold, behaviour.finish_percent, Random(behaviour.random.next()))
        };
        if !hold {
            self.finish(|_| random.chance(percent));
        }
        out.append(&mut self.done);
    }

    fn wait(&mut self, ids: &[CopyId]) -> Result<(), CopyError> {
        self.finish(|id| ids.contains(&id));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.done.len()
    }

    fn describe(&self) -> String {
        "staged".to_owned()
    }

    fn moves_bytes(&self) -> bool {
        true
    }

    fn stats(&self) -> CopyStats {
        self.stats
    }
}

impl Drop for StagedEngine {
    fn drop(&mut self) {
        self.finish(|_| true);
    }
}
