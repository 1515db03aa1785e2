//! Backing the pages of a region, several threads at a time. A first touch is a hundred times slower than any later one, so it
//! must not happen while an engine waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;

use super::Progress;
use super::map::Mapping;

/// Bytes that a thread backs between two reports.
const PIECE_BYTES: usize = 32 << 20;

/// Threads where the configuration leaves it open: beyond eight the kernel's locks eat the gain.
const MOST_THREADS: usize = 8;

/// Backs every page of `mapping`. Blocks until it is done or one piece failed.
pub(super) fn prefault(mapping: &Mapping, threads: u32, progress: Progress<'_>) -> Result<(), Errno> {
    let (_, bytes) = mapping.parts();
    let pieces = bytes.div_ceil(PIECE_BYTES);
    let threads = match threads as usize {
        0 => thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS),
        threads => threads,
    };
    let next = AtomicUsize::new(0);
    let done_bytes = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let reporting = Mutex::new(());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return;
            }
            let start = piece * PIECE_BYTES;
            let len = PIECE_BYTES.min(bytes - start);
            if let Err(errno) = mapping.populate(start, len) {
                stop.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(errno);
                return;
            }
            let _one_at_a_time = reporting.lock();
            let done = done_bytes.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
            progress(done, bytes as u64);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(pieces) {
            // Without another thread the work takes longer; it gets done all the same.
            if thread::Builder::new().name("terrace-prefault".to_owned()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    match failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(errno) => Err(errno),
        None => Ok(()),
    }
}
