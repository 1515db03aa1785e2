//! Memory to memory, on own threads.

mod pieces;
mod queue;
mod stream;
mod sync;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use stream::{StreamKind, stream_copy};

use crate::engine::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, Order};
use crate::metrics::CopyTimes;
use pieces::Pieces;
use queue::{Job, Queue};
use stream::{stream_copy_unfenced, stream_fence};

/// Threads at most.
const MAX_THREADS: usize = 64;

/// Runs of at least so many bytes are copied past the cache: a plain copy first reads every line that it overwrites. Measured
/// with one fence for a whole piece, batches beyond the cache, AVX-512, one thread, in GB/s (streamed, plain): runs of 2 MiB
/// 28 and 20, 16 KiB 27 and 22, 8 KiB 27 and 20, 2 KiB 23 and 15; at 512 bytes the plain copy wins.
const STREAM_FROM_BYTES: usize = 2 * 1024;

/// Copies on its own threads. Batches are cut into pieces of half a MiB, so several threads share a large one. Dropping the
/// engine finishes what was accepted.
#[derive(Debug)]
pub struct HostCopyEngine {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// Accepted and not reported.
    in_flight: HashMap<CopyId, Arc<Job>>,
    queue_entries: usize,
    next: u64,
    stream: StreamKind,
    stats: CopyStats,
    times: CopyTimes,
}

impl HostCopyEngine {
    /// An engine with 1 to 64 threads that takes up to `queue_entries` copies (at least 1) until they are polled.
    pub fn new(threads: usize, queue_entries: usize) -> Result<Self, CopyError> {
        if threads == 0 || threads > MAX_THREADS || queue_entries == 0 {
            return Err(CopyError::Invalid(format!(
                "a host engine of {threads} threads (1 to {MAX_THREADS}) and {queue_entries} queue entries (at least 1)"
            )));
        }
        let stream = StreamKind::detect();
        let mut engine = Self {
            queue: Arc::default(),
            threads: Vec::with_capacity(threads),
            in_flight: HashMap::with_capacity(queue_entries.min(4096)),
            queue_entries,
            next: 0,
            stream,
            stats: CopyStats::default(),
            times: CopyTimes::new(),
        };
        for index in 0..threads {
            let queue = Arc::clone(&engine.queue);
            let thread = std::thread::Builder::new()
                .name(format!("terrace-copy-{index}"))
                .spawn(move || copy_until_closed(&queue, stream))
                .map_err(|error| CopyError::Failed(format!("no thread to copy on: {error}")))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }
}

fn copy_until_closed(queue: &Queue, stream: StreamKind) {
    while let Some((job, piece)) = queue.take() {
        for run in job.pieces.get(piece) {
            copy_run(stream, run);
        }
        stream_fence();
        queue.piece_done(&job);
    }
}

#[expect(unsafe_code, reason = "the copy itself")]
fn copy_run(stream: StreamKind, run: &CopyRun) {
    let (src, dst) = (run.src as *const u8, run.dst as *mut u8);
    // SAFETY: `submit`'s caller promised valid, unshared ranges until the job is reported done, which is after this;
    // `Pieces::cut` refused ranges that overlap or wrap.
    unsafe {
        if run.len >= STREAM_FROM_BYTES {
            stream_copy_unfenced(stream, src, dst, run.len);
        } else {
            std::ptr::copy_nonoverlapping(src, dst, run.len);
        }
    }
}

impl CopyEngine for HostCopyEngine {
    #[expect(unsafe_code, reason = "the trait's")]
    unsafe fn submit(&mut self, direction: Direction, runs: &[CopyRun], order: Order) -> Result<CopyId, CopyError> {
        if self.in_flight.len() >= self.queue_entries {
            self.stats.refused += 1;
            return Err(CopyError::QueueFull { limit: self.queue_entries });
        }
        if order.after.is_some() || order.before.is_some() {
            return Err(CopyError::Unsupported(
                "the host engine has no device whose streams a copy could be ordered by".to_owned(),
            ));
        }
        let after = order.after_copy;
        if after.is_some_and(|earlier| earlier.0 >= self.next) {
            return Err(CopyError::Invalid("ordered after a copy that was never submitted".to_owned()));
        }
        let pieces = Pieces::cut(runs)?;
        self.stats.count(direction, runs.len(), pieces.bytes);
        let id = CopyId(self.next);
        self.next += 1;
        let after = after.and_then(|earlier| self.in_flight.get(&earlier));
        let job = Arc::new(Job::new(id, pieces, after.map(Arc::as_ref), self.times.of(direction).clone()));
        self.in_flight.insert(id, Arc::clone(&job));
        self.queue.push(job);
        Ok(id)
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let before = out.len();
        self.queue.poll(out);
        for done in out.iter().skip(before) {
            self.in_flight.remove(&done.id);
        }
    }

    fn wait(&mut self, ids: &[CopyId]) -> Result<(), CopyError> {
        for id in ids {
            if let Some(job) = self.in_flight.get(id) {
                self.queue.wait(job);
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn describe(&self) -> String {
        format!("host ({} threads, {:?} from {} bytes)", self.threads.len(), self.stream, STREAM_FROM_BYTES)
    }

    fn moves_bytes(&self) -> bool {
        true
    }

    fn stats(&self) -> CopyStats {
        self.stats
    }
}

impl Drop for HostCopyEngine {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a copy thread ended with a panic");
            }
        }
    }
}
