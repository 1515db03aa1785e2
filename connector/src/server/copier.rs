//! Threads that copy between rows of engines' regions and slots.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use terrace_primary::{Region, SlotId};

use super::foreign::Foreign;
use super::wake::Wake;

/// Threads of a pool.
const THREADS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Row to slot.
    Store,
    /// Slot to row.
    Load,
}

/// Blocks for a thread.
pub(super) struct Piece {
    pub job: u64,
    pub direction: Direction,
    pub file: Arc<Foreign>,
    /// Place in the job, slot, row.
    pub blocks: Vec<(u32, SlotId, u32)>,
}

/// Blocks that a thread has copied, or failed to.
pub(super) struct Copied {
    pub job: u64,
    pub blocks: Vec<(u32, bool)>,
}

/// The threads that copy for a pool.
pub(super) struct Copier {
    work: Option<Sender<Piece>>,
    done: Receiver<Copied>,
    handles: Vec<JoinHandle<()>>,
}

impl Copier {
    pub fn start(region: &Arc<Region>, wake: &Wake) -> std::io::Result<Self> {
        let (work, pieces) = channel::<Piece>();
        let (tell, done) = channel();
        let pieces = Arc::new(Mutex::new(pieces));
        let mut handles = Vec::with_capacity(THREADS);
        for index in 0..THREADS {
            let (region, wake, pieces, tell) = (Arc::clone(region), wake.clone(), Arc::clone(&pieces), tell.clone());
            let run = move || {
                loop {
                    let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(piece) = next else { return };
                    if tell.send(copy(&region, &piece)).is_err() {
                        return;
                    }
                    wake.wake();
                }
            };
            handles.push(std::thread::Builder::new().name(format!("terrace-rows-{index}")).spawn(run)?);
        }
        Ok(Self { work: Some(work), done, handles })
    }

    /// Gives a piece to the threads.
    pub fn send(&self, piece: Piece) -> std::io::Result<()> {
        let sent = self.work.as_ref().is_some_and(|work| work.send(piece).is_ok());
        if sent { Ok(()) } else { Err(std::io::Error::other("the copy threads are over")) }
    }

    /// A piece that is copied, if there is one.
    pub fn next(&self) -> Option<Copied> {
        self.done.try_recv().ok()
    }

    /// Waits until all that was given is copied, and ends the threads. What they copied is still to be taken.
    pub fn join(&mut self) {
        self.work = None;
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a copy thread panicked");
            }
        }
    }
}

/// Reads and writes: a file that is cut off ends a copy, not the daemon.
fn copy(region: &Region, piece: &Piece) -> Copied {
    let bytes = region.block_bytes() as usize;
    let blocks = piece.blocks.iter().map(|(at, slot, row)| {
        if !piece.file.is_open() {
            return (*at, false);
        }
        let (fd, offset) = (piece.file.fd(), piece.file.offset(*row));
        let copied = match piece.direction {
            Direction::Store => region.fill_slot_from(*slot, fd, offset, bytes),
            Direction::Load => region.drain_slot_to(*slot, fd, offset, bytes),
        };
        if let Err(error) = &copied {
            tracing::warn!(row, slot = slot.0, "a row of an engine's region cannot be copied: {error}");
        }
        (*at, copied.is_ok())
    });
    Copied { job: piece.job, blocks: blocks.collect() }
}
