//! What the submitting thread and the copying threads share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use metrics::Histogram;

use super::pieces::Pieces;
use super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, PoisonError};
use crate::engine::{CopyDone, CopyId};

/// A submitted copy.
#[derive(Debug)]
pub(super) struct Job {
    pub id: CopyId,
    pub pieces: Pieces,
    submitted: Instant,
    /// Gets the time that it took.
    took: Histogram,
    /// The flag of the job that must be done first. Not the job itself: a chain of them would be dropped recursively.
    after: Option<Arc<AtomicBool>>,
    /// Pieces not yet copied.
    left: AtomicUsize,
    /// Set, with release, after the last byte of the last piece.
    done: Arc<AtomicBool>,
}

impl Job {
    /// A job that starts once `after` is done.
    pub fn new(id: CopyId, pieces: Pieces, after: Option<&Self>, took: Histogram) -> Self {
        let left = AtomicUsize::new(pieces.len());
        let after = after.map(|job| Arc::clone(&job.done));
        Self { id, pieces, submitted: Instant::now(), took, after, left, done: Arc::default() }
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn is_ready(&self) -> bool {
        self.after.as_ref().is_none_or(|earlier| earlier.load(Ordering::Acquire))
    }

    fn report(&self) -> CopyDone {
        CopyDone { id: self.id, result: Ok(()), bytes: self.pieces.bytes }
    }
}

#[derive(Debug)]
struct Waiting {
    job: Arc<Job>,
    next_piece: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Jobs with pieces that no thread has taken, in order of submission.
    waiting: VecDeque<Waiting>,
    finished: Vec<CopyDone>,
    closing: bool,
}

/// The queue between one submitting thread and the copying threads.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something can be taken, or the queue closes.
    work: Condvar,
    /// A job is done.
    done: Condvar,
    /// Length of `finished`, to poll without the lock.
    finished: AtomicUsize,
}

impl Queue {
    /// A thread that panicked while it held the lock left the state whole: each change is a single push or pop.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, job: Arc<Job>) {
        let pieces = job.pieces.len();
        let mut state = self.lock();
        if pieces == 0 {
            self.finish(&mut state, &job);
            return;
        }
        state.waiting.push_back(Waiting { job, next_piece: 0 });
        drop(state);
        match pieces {
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
    }

    /// The next piece to copy; waits for one. `None`: the queue is closed and empty.
    pub fn take(&self) -> Option<(Arc<Job>, usize)> {
        let mut state = self.lock();
        loop {
            if let Some(at) = state.waiting.iter().position(|waiting| waiting.job.is_ready()) {
                let waiting = state.waiting.get_mut(at)?;
                let taken = (Arc::clone(&waiting.job), waiting.next_piece);
                waiting.next_piece += 1;
                if waiting.next_piece == waiting.job.pieces.len() {
                    state.waiting.remove(at);
                }
                return Some(taken);
            }
            if state.closing && state.waiting.is_empty() {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A piece of this job has been copied.
    pub fn piece_done(&self, job: &Arc<Job>) {
        if job.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            self.finish(&mut state, job);
            let others_wait = !state.waiting.is_empty();
            drop(state);
            if others_wait {
                self.work.notify_all();
            }
        }
    }

    fn finish(&self, state: &mut State, job: &Job) {
        state.finished.push(job.report());
        job.took.record(job.submitted.elapsed());
        self.finished.store(state.finished.len(), Ordering::Release);
        // Last: who sees it as done without the lock finds its report in the next poll.
        job.done.store(true, Ordering::Release);
        self.done.notify_all();
    }

    pub fn poll(&self, out: &mut Vec<CopyDone>) {
        if self.finished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.lock();
        out.append(&mut state.finished);
        self.finished.store(0, Ordering::Release);
    }

    /// Waits until the job is done.
    pub fn wait(&self, job: &Job) {
        if job.is_done() {
            return;
        }
        let mut state = self.lock();
        while !job.is_done() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Threads leave once nothing is left to copy.
    pub fn close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
    }
}
