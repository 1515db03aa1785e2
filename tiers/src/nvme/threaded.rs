//! A shard on a thread of its own.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::device::Device;
use super::mailbox::{Mailbox, Standing};
use super::port::{Command, PortCounters, PortEvent, ShardPort};
use super::shard::Shard;
use super::wake::Waker;
use crate::error::TierError;
use crate::tier::Fault;

/// Events beyond which the scan is held until somebody collects them.
const SCAN_HOLD_EVENTS: usize = 4096;

/// A shard on a thread of its own, behind two queues. Commands wait in this port until a flush: one lock and at most one wake per batch.
///
/// A panic on the thread is caught: what the kernel still holds is waited for, every command that has no `Done` gets
/// [`Fault::Io`], and the port is closed.
#[derive(Debug)]
pub struct ThreadedPort {
    mail: Arc<Mailbox>,
    /// Pushed and not flushed.
    batch: Vec<Command>,
    /// Accepted and not reported. The one place that decides that each is reported once.
    open: HashSet<u64>,
    bound: usize,
    /// Something was asked for since the last flush.
    dirty: bool,
    /// Events of this side: given up before they were flushed.
    own_events: Vec<PortEvent>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

impl ThreadedPort {
    /// Starts the thread `name` and builds the shard there: a ring belongs to the thread that made it. `queue_entries` bounds the
    /// commands that are not done. Fails if the thread cannot start, or with what `build` says.
    pub fn spawn<D, F>(name: &str, queue_entries: u32, build: F) -> Result<Self, TierError>
    where
        D: Device + 'static,
        F: FnOnce(Arc<Waker>) -> Result<Shard<D>, TierError> + Send + 'static,
    {
        let waker = Waker::new().map_err(|source| TierError::System { step: "making an eventfd", source })?;
        let waker = Arc::new(waker);
        let (built, wait_built) = channel();
        let (end, ended) = channel();
        let thread_waker = Arc::clone(&waker);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || thread_main(build, thread_waker, &built, &end))
            .map_err(|source| TierError::System { step: "starting a thread", source })?;
        match wait_built.recv() {
            Ok(Ok(mail)) => Ok(Self {
                mail,
                batch: Vec::new(),
                open: HashSet::new(),
                bound: queue_entries.max(1) as usize,
                dirty: false,
                own_events: Vec::new(),
                closed: false,
                thread: Some(thread),
                ended,
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let source = std::io::Error::other("the thread panicked while it opened its device");
                Err(TierError::System { step: "starting a tier's thread", source })
            }
        }
    }
}

impl ShardPort for ThreadedPort {
    fn push(&mut self, command: Command) -> Result<(), Command> {
        if self.closed || self.open.len() >= self.bound || self.mail.standing() != Standing::Running {
            return Err(command);
        }
        self.open.insert(command.ticket());
        self.batch.push(command);
        Ok(())
    }

    fn abandon(&mut self, ticket: u64) {
        if !self.open.contains(&ticket) {
            return;
        }
        if let Some(at) = self.batch.iter().position(|command| command.ticket() == ticket) {
            // It never left. A store's victim must go all the same.
            let command = self.batch.remove(at);
            self.own_events.push(PortEvent::Done { ticket, result: Err(Fault::Expired) });
            if let Command::Store { recycle: Some(name), .. } = command {
                self.mail.add_victim(name);
                self.dirty = true;
            }
            return;
        }
        self.mail.abandon(ticket);
        self.dirty = true;
    }

    fn scan(&mut self) {
        self.mail.ask_scan();
        self.dirty = true;
    }

    fn flush(&mut self) {
        if self.batch.is_empty() && !self.dirty {
            return;
        }
        self.dirty = false;
        self.mail.send(&mut self.batch);
    }

    fn poll(&mut self, out: &mut Vec<PortEvent>) {
        self.flush();
        // Read before the events: once the thread has ended there will be no more of them.
        let standing = self.mail.standing();
        let mut events = std::mem::take(&mut self.own_events);
        self.mail.collect(&mut events);
        let open = &mut self.open;
        out.extend(events.drain(..).filter(|event| match event {
            PortEvent::Done { ticket, .. } => open.remove(ticket),
            PortEvent::Scanned(_) | PortEvent::ScanEnd { .. } => true,
        }));
        if events.capacity() <= SCAN_HOLD_EVENTS {
            self.own_events = events;
        }
        if standing != Standing::Running {
            let fault = if standing == Standing::Failed { Fault::Io } else { Fault::Closed };
            out.extend(open.drain().map(|ticket| PortEvent::Done { ticket, result: Err(fault) }));
        }
    }

    fn shutdown(&mut self, within: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.flush();
        self.mail.close(within);
        // A thread that sits in a blocking call on a hung device is left behind, with all that it owns.
        match self.ended.recv_timeout(within.saturating_add(Duration::from_secs(1))) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if let Some(thread) = self.thread.take() {
                    let _ = thread.join();
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("a tier's thread did not end in time and is left behind with its memory");
            }
        }
    }

    fn counters(&self) -> PortCounters {
        self.mail.counters()
    }
}

impl Drop for ThreadedPort {
    fn drop(&mut self) {
        self.shutdown(Duration::from_secs(5));
    }
}

fn thread_main<D, F>(build: F, waker: Arc<Waker>, built: &Sender<Result<Arc<Mailbox>, TierError>>, end: &Sender<()>)
where
    D: Device,
    F: FnOnce(Arc<Waker>) -> Result<Shard<D>, TierError>,
{
    let mut shard = match build(Arc::clone(&waker)) {
        Ok(shard) => shard,
        Err(error) => {
            let _ = built.send(Err(error));
            return;
        }
    };
    let mail = Arc::new(Mailbox::new(shard.abandons(), waker, SCAN_HOLD_EVENTS));
    if built.send(Ok(Arc::clone(&mail))).is_err() {
        return;
    }
    let standing = match catch_unwind(AssertUnwindSafe(|| mail.serve(&mut shard))) {
        Ok(quiet) => quiet.then_some(Standing::Ended),
        Err(_) => {
            tracing::error!("a tier's thread panicked: the directory is closed, its blocks are misses");
            let quiet = catch_unwind(AssertUnwindSafe(|| drain_device(&mut shard, &mail)));
            quiet.unwrap_or(false).then_some(Standing::Failed)
        }
    };
    match standing {
        Some(standing) => {
            // The shard first: it frees the ring, and gives the directory's lock back.
            drop(shard);
            mail.end(standing);
        }
        // The kernel may still touch what the shard owns.
        None => std::mem::forget(shard),
    }
    let _ = end.send(());
}

/// After a panic: waits until the device touches nothing more, or the port is closed.
fn drain_device<D: Device>(shard: &mut Shard<D>, mail: &Mailbox) -> bool {
    let Some(device) = shard.device_mut() else { return true };
    let mut completions = Vec::new();
    while device.unfinished() > 0 {
        if mail.is_closed() {
            return false;
        }
        device.wait(Some(Duration::from_millis(100)));
        device.reap(&mut completions);
        completions.clear();
    }
    true
}
