//! The thread that seals and opens: bytes go from slots to staging slots and back through one buffer of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use terrace_primary::{Key, Region, SlotId};

use super::seal::{ENVELOPE_BYTES, Sealer, Unopened};
use crate::error::TierError;
use crate::tier::Fault;

/// One block to seal or to open.
pub(super) struct Task {
    /// Comes back with the outcome.
    pub ticket: u64,
    /// Opening, from `staging` to `slot`; else sealing, the other way.
    pub load: bool,
    pub name: Key,
    pub slot: SlotId,
    pub staging: SlotId,
    /// Of a block to seal, if it is known: it must be this.
    pub crc32: Option<u32>,
    /// Its job was given up: the slot is not touched any more.
    pub given_up: Arc<AtomicBool>,
}

/// What became of a task. The slot and the staging slot are not touched any more.
pub(super) struct Done {
    pub ticket: u64,
    /// CRC32 of the plain bytes.
    pub outcome: Result<u32, Fault>,
    /// It was sound as stored and did not open: another key, or changed.
    pub unopened: Option<Unopened>,
}

/// The manager's end. Tasks are done in their order.
pub(super) struct Worker {
    tasks: Option<Sender<Task>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. `plain` holds the blocks, `staging` what the tier below reads and fills.
    pub fn start(sealer: Sealer, plain: Arc<Region>, staging: Arc<Region>) -> Result<Self, TierError> {
        let (tasks, inbox) = channel();
        let (outbox, done) = channel();
        let run = move || {
            let mut bytes = vec![0; plain.block_bytes() as usize + ENVELOPE_BYTES];
            for task in inbox {
                let done = work(&sealer, &plain, &staging, &mut bytes, &task);
                if outbox.send(done).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("terrace-seal".to_owned()).spawn(run);
        let thread = thread.map_err(|source| TierError::System { step: "the thread that seals blocks", source })?;
        Ok(Self { tasks: Some(tasks), done, thread: Some(thread) })
    }

    /// Hands a task over. False: the thread is gone.
    pub fn send(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok())
    }

    /// The next task that is done. `Err`: none will be any more.
    pub fn take(&self) -> Result<Option<Done>, ()> {
        match self.done.try_recv() {
            Ok(done) => Ok(Some(done)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(()),
        }
    }

    /// Waits until all that was sent is done. Takes no more.
    pub fn finish(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that seals blocks panicked");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.finish();
    }
}

fn work(sealer: &Sealer, plain: &Region, staging: &Region, bytes: &mut [u8], task: &Task) -> Done {
    let done = |outcome, unopened| Done { ticket: task.ticket, outcome, unopened };
    let block_bytes = plain.block_bytes() as usize;
    if task.given_up.load(Ordering::SeqCst) {
        return done(Err(Fault::Expired), None);
    }
    if task.load {
        if !staging.read_slot(task.staging, bytes) {
            return done(Err(Fault::Io), None);
        }
        return match sealer.open(&task.name, bytes) {
            Ok(block) => {
                let crc32 = crc32fast::hash(block);
                // A slot whose load was given up is limbo until this is reported: nobody else has it.
                done(if plain.write_slot(task.slot, block) { Ok(crc32) } else { Err(Fault::Io) }, None)
            }
            Err(why) => done(Err(Fault::Corrupt), Some(why)),
        };
    }
    let Some(block) = bytes.get_mut(..block_bytes).filter(|_| plain.moves_bytes()) else {
        return done(Err(Fault::Io), None);
    };
    if !plain.read_slot(task.slot, block) {
        return done(Err(Fault::Io), None);
    }
    // Given up while it was copied: the slot may have held another block's bytes by then.
    fence(Ordering::SeqCst);
    if task.given_up.load(Ordering::SeqCst) {
        return done(Err(Fault::Expired), None);
    }
    let crc32 = crc32fast::hash(block);
    if task.crc32.is_some_and(|known| known != crc32) {
        return done(Err(Fault::Corrupt), None);
    }
    let stored = sealer.seal(&task.name, bytes) && staging.write_slot(task.staging, bytes);
    done(if stored { Ok(crc32) } else { Err(Fault::Io) }, None)
}
