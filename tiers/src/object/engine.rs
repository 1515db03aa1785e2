//! The other half of the tier: all the talking to the store, run by a [`Host`].
//!
//! It runs the probe, then the writer, the publisher, the folder and the collector as tasks, and one task per load job. A
//! job's task owns the slots that it fills until it has reported them; what is given up ends with its task.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel};

use super::host::{Host, OtherHalf};
use super::id::WriterId;
use super::port::{Change, ChangesReceiver, Command, Report, changes};
use super::shared::Shared;
use crate::error::TierError;

/// What a shutdown may take beyond the time it was given: for tasks to be dropped.
const END_SLACK: Duration = Duration::from_secs(2);

/// The other half has ended.
pub(super) struct Ended;

/// The manager's end of the engine.
pub(super) struct Engine {
    commands: UnboundedSender<Command>,
    reports: UnboundedReceiver<Report>,
    changes: ChangesReceiver,
    host: Box<dyn Host>,
}

impl Engine {
    /// Hands the other half to its host. Nothing is sent to the store before that runs it.
    pub fn start(
        shared: Arc<Shared>,
        writer: WriterId,
        host: impl FnOnce(OtherHalf) -> Result<Box<dyn Host>, TierError>,
    ) -> Result<Self, TierError> {
        let (commands, inbox) = unbounded_channel();
        let (outbox, reports) = unbounded_channel();
        let (changes_in, changes) = changes();
        let host = host(Box::pin(super::run::run(shared, writer, inbox, outbox, changes_in)))?;
        Ok(Self { commands, reports, changes, host })
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

    /// Ends the other half within this time and a little. Waits. False: it has not ended.
    pub fn shutdown(&mut self, within: Duration) -> bool {
        self.send(Command::Shutdown { within });
        self.host.wait(within.saturating_add(END_SLACK))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody takes reports any more: the other half ends by itself, with whatever it does.
        self.send(Command::Shutdown { within: Duration::ZERO });
    }
}
