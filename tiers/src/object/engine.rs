//! The other half of the tier: a thread with a tokio runtime that does all the talking to the store.
//!
//! It runs the probe, then the writer, the publisher, the folder and the collector as tasks, and one task per load job. A
//! job's task owns the slots that it fills until it has reported them; what is given up ends with its task.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel};

use super::id::WriterId;
use super::port::{Change, ChangesReceiver, Command, Report, changes};
use super::shared::Shared;
use crate::error::TierError;

/// What a shutdown may take beyond the time it was given: for tasks to be dropped.
const END_SLACK: Duration = Duration::from_secs(2);

/// The engine's thread has ended.
pub(super) struct Ended;

/// The manager's end of the engine.
pub(super) struct Engine {
    commands: UnboundedSender<Command>,
    reports: UnboundedReceiver<Report>,
    changes: ChangesReceiver,
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread. Nothing is sent to the store before.
    pub fn start(shared: Arc<Shared>, writer: WriterId) -> Result<Self, TierError> {
        let (commands, inbox) = unbounded_channel();
        let (outbox, reports) = unbounded_channel();
        let (changes_in, changes) = changes();
        let (alive, ended) = channel();
        let system = |step| move |source| TierError::System { step, source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("the runtime of an object tier"))?;
        let thread = std::thread::Builder::new().name("terrace-object".to_owned()).spawn(move || {
            // Dropped last: whoever waits for it knows that no task is left.
            let _alive: Sender<()> = alive;
            runtime.block_on(super::run::run(shared, writer, inbox, outbox, changes_in));
            runtime.shutdown_background();
        });
        let thread = thread.map_err(system("the thread of an object tier"))?;
        Ok(Self { commands, reports, changes, ended, thread: Some(thread) })
    }

    /// The next report, if one waits.
    pub fn report(&mut self) -> Result<Option<Report>, Ended> {
        match self.reports.try_recv() {
            Ok(report) => Ok(Some(report)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Ended),
        }
    }

    /// The next change, if one waits.
    pub fn change(&mut self) -> Option<Change> {
        self.changes.take()
    }

    /// Hands a command over. One that comes after the end is dropped: the next poll finds out.
    pub fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Ends the thread within this time and a little. Waits. False: it has not ended.
    pub fn shutdown(&mut self, within: Duration) -> bool {
        self.send(Command::Shutdown { within });
        let ended = self.ended.recv_timeout(within.saturating_add(END_SLACK)) != Err(RecvTimeoutError::Timeout);
        if ended && let Some(thread) = self.thread.take() {
            // It has nothing left to do. That it panicked is told by what it did not report.
            let _ = thread.join();
        }
        ended
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody takes reports any more: the thread ends by itself, with whatever it does.
        self.send(Command::Shutdown { within: Duration::ZERO });
    }
}
