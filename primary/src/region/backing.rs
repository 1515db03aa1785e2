//! Backing the pages of a mapping, piece by piece from its start upwards, several threads at a time. A first touch is
//! a hundred
//! times slower than any later one, so it must not happen while an engine waits.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;

use super::map::{HUGE_PAGE_BYTES, Mapping};
use super::tally::Tally;
use super::{PageKind, Progress, limits};
use crate::error::PrimaryError;

/// Bytes that a thread takes at a time, and by which what is ready grows.
const PIECE_BYTES: usize = 8 << 20;

/// Bytes backed by one call into the kernel, which holds the process's memory map for as long: whoever maps or unmaps
/// memory
/// meanwhile waits for it.
const STEP_BYTES: usize = 256 << 10;

/// Pieces after which the machine is asked again what it has left.
const PIECES_PER_ASK: usize = 8;

/// Threads where the configuration leaves it open: beyond eight the kernel's locks eat the gain.
const MOST_THREADS: usize = 8;

/// Of the threads that back a region behind a running service, in which what serves comes first.
const NICE: i32 = 10;

const NAME: &str = "terrace-prefault";

/// The backing of one mapping: which pieces are taken, which are done, and why it ended early.
#[derive(Debug)]
pub(super) struct Backing {
    mapping: Arc<Mapping>,
    lock_memory: bool,
    numa_node: Option<u32>,
    /// Where the machine's limits are read.
    root: PathBuf,
    tally: Tally,
    failure: OnceLock<PrimaryError>,
}

impl Backing {
    pub(super) fn new(mapping: Arc<Mapping>, lock_memory: bool, numa_node: Option<u32>, root: PathBuf) -> Self {
        let tally = Tally::new(mapping.bytes(), PIECE_BYTES);
        Self { mapping, lock_memory, numa_node, root, tally, failure: OnceLock::new() }
    }

    /// Backs all of it, on this thread and others. Blocks until it is done or one piece failed.
    pub(super) fn run(self, threads: u32, progress: Progress<'_>) -> Result<(), PrimaryError> {
        let work = || self.work(progress);
        thread::scope(|scope| {
            for _ in 1..self.threads(threads) {
                // Without another thread the work takes longer; it gets done all the same.
                if thread::Builder::new().name(NAME.to_owned()).spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        self.failure.into_inner().map_or(Ok(()), Err)
    }

    /// Bytes from the start on that are backed. Only grows.
    pub(super) fn ready_bytes(&self) -> u64 {
        self.tally.ready_bytes()
    }

    /// Why the rest will never be backed.
    pub(super) fn failure(&self) -> Option<String> {
        let error = self.failure.get()?;
        Some(match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    fn threads(&self, asked: u32) -> usize {
        let threads = match asked as usize {
            0 => thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS),
            asked => asked,
        };
        threads.min(self.mapping.bytes().div_ceil(PIECE_BYTES))
    }

    /// Takes pieces until there are no more, one failed, or the backing was stopped.
    fn work(&self, progress: Progress<'_>) {
        let bytes = self.mapping.bytes();
        while let Some((piece, start, len)) = self.tally.take() {
            match self.ask(piece, bytes - start).and_then(|()| self.back(start, len)) {
                Ok(true) => self.tally.done(piece, len, |done| progress(done as u64, bytes as u64)),
                Ok(false) => return,
                Err(error) => {
                    let _ = self.failure.set(error);
                    self.tally.stop();
                }
            }
        }
    }

    /// Whether the machine still has what the next pieces take: others may have taken it since the start, and asking
    /// too much ends in
    /// a kill. Huge pages are reserved.
    fn ask(&self, piece: usize, left_bytes: usize) -> Result<(), PrimaryError> {
        if !piece.is_multiple_of(PIECES_PER_ASK) || self.mapping.pages() == PageKind::Huge {
            return Ok(());
        }
        let soon_bytes = left_bytes.min(PIECES_PER_ASK * PIECE_BYTES) as u64;
        match limits::available_memory(&self.root, self.numa_node) {
            Some(available) if available.bytes < soon_bytes => Err(PrimaryError::Memory {
                need_bytes: left_bytes as u64,
                available_bytes: available.bytes,
                limit: available.limit,
            }),
            _ => Ok(()),
        }
    }

    /// Backs a piece, and locks it where that is wanted. `false`: stopped on the way.
    fn back(&self, start: usize, len: usize) -> Result<bool, PrimaryError> {
        let step = if self.mapping.pages() == PageKind::Huge { HUGE_PAGE_BYTES } else { STEP_BYTES };
        let system = |step| move |errno: Errno| PrimaryError::System { step, source: errno.into() };
        for offset in (start..start + len).step_by(step) {
            if self.tally.is_stopped() {
                return Ok(false);
            }
            self.mapping.populate(offset, step.min(start + len - offset)).map_err(system("backing its pages"))?;
        }
        if self.lock_memory {
            self.mapping.lock(start, len).map_err(|errno| match errno {
                // What the process had locked before counts too, and a container may have less than its own view says.
                Errno::NOMEM | Errno::PERM | Errno::AGAIN => PrimaryError::LockLimit {
                    need_bytes: self.mapping.bytes() as u64,
                    limit_bytes: limits::lock_limit(&self.root).unwrap_or(0),
                },
                errno => system("locking its memory")(errno),
            })?;
        }
        Ok(true)
    }
}

/// A backing on threads of its own, behind whatever else the process does. Dropping it stops and joins them, within
/// one step.
#[derive(Debug)]
pub(super) struct Behind {
    backing: Arc<Backing>,
    threads: Vec<JoinHandle<()>>,
}

impl Behind {
    /// Starts the threads. Fails if not even one can be had.
    pub(super) fn start(backing: Backing, threads: u32) -> Result<Self, PrimaryError> {
        let count = backing.threads(threads);
        let mut behind = Self { backing: Arc::new(backing), threads: Vec::new() };
        for _ in 0..count {
            let backing = Arc::clone(&behind.backing);
            let work = move || {
                // Where it is refused the threads compete with what serves: slower, and still right.
                let _ = rustix::process::setpriority_process(None, NICE);
                backing.work(&|_, _| {});
            };
            match thread::Builder::new().name(NAME.to_owned()).spawn(work) {
                Ok(thread) => behind.threads.push(thread),
                Err(source) if behind.threads.is_empty() => {
                    return Err(PrimaryError::System { step: "starting a thread that backs its pages", source });
                }
                Err(_) => break,
            }
        }
        Ok(behind)
    }

    pub(super) fn backing(&self) -> &Backing {
        &self.backing
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.backing.tally.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PIECES: usize = 3 * PIECES_PER_ASK;

    fn mapping(pieces: usize) -> Arc<Mapping> {
        Arc::new(Mapping::new(pieces * PIECE_BYTES - 4096, PageKind::Normal).expect("a mapping"))
    }

    fn machine(available_bytes: usize) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("proc")).expect("a folder");
        set_available(root.path(), available_bytes);
        root
    }

    fn set_available(root: &std::path::Path, bytes: usize) {
        fs::write(root.join("proc/meminfo"), format!("MemAvailable: {} kB\n", bytes >> 10)).expect("a file");
    }

    #[test]
    fn memory_that_others_take_meanwhile_ends_the_backing_where_it_is() {
        let root = machine(PIECES * PIECE_BYTES);
        let backing = Backing::new(mapping(PIECES), false, None, root.path().into());
        // Gone while the first piece was backed: noticed when it is asked for again.
        backing.work(&|_, _| set_available(root.path(), PIECES_PER_ASK * PIECE_BYTES - 1024));
        assert_eq!(backing.ready_bytes(), (PIECES_PER_ASK * PIECE_BYTES) as u64);
        let failure = backing.failure().expect("it ended early");
        assert!(failure.contains("MemAvailable") && failure.contains("lower [primary] capacity"), "{failure}");
        assert!(backing.run(1, &|_, _| panic!("nothing more is backed")).is_err());
    }

    #[test]
    fn the_last_bytes_of_a_machine_can_be_backed() {
        let root = machine(PIECES * PIECE_BYTES);
        let backing = Backing::new(mapping(PIECES), false, None, root.path().into());
        let left = |done, all| set_available(root.path(), (all - done) as usize);
        backing.work(&left);
        assert_eq!((backing.ready_bytes(), backing.failure()), ((PIECES * PIECE_BYTES - 4096) as u64, None));
    }
}
