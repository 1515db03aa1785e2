//! Who runs the half of a tier that talks to the store: a thread of its own, or whoever has virtual time.

use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::TierError;

/// The half of a tier that talks to the store. To be run within a tokio runtime of one thread, with timers, in which it spawns its
/// tasks. It ends after [`SecondaryTier::shutdown`](crate::SecondaryTier::shutdown), or when the tier is dropped.
pub type OtherHalf = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the other half of one tier.
pub trait Host: Send {
    /// Waits until the other half and all of its tasks have ended, or so long. True: they have ended.
    fn wait(&mut self, within: Duration) -> bool;
}

/// A thread with a runtime of its own.
pub(super) struct Thread {
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts the thread.
    pub fn start(half: OtherHalf) -> Result<Box<dyn Host>, TierError> {
        let (alive, ended) = channel();
        let system = |step| move |source| TierError::System { step, source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("the runtime of an object tier"))?;
        let thread = std::thread::Builder::new().name("terrace-object".to_owned()).spawn(move || {
            // Dropped last: whoever waits for it knows that no task is left.
            let _alive: Sender<()> = alive;
            runtime.block_on(half);
            runtime.shutdown_background();
        });
        let thread = thread.map_err(system("the thread of an object tier"))?;
        Ok(Box::new(Self { ended, thread: Some(thread) }))
    }
}

impl Host for Thread {
    fn wait(&mut self, within: Duration) -> bool {
        let ended = self.ended.recv_timeout(within) != Err(RecvTimeoutError::Timeout);
        if ended && let Some(thread) = self.thread.take() {
            // It has nothing left to do. That it panicked is told by what it did not report.
            let _ = thread.join();
        }
        ended
    }
}
