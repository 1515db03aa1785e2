//! A shard on a thread of its own.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::abandon::AbandonList;
use super::device::Device;
use super::port::{BlockName, Command, PortCounters, PortEvent, ShardPort};
use super::shard::Shard;
use super::wake::Waker;
use crate::error::TierError;
use crate::tier::Fault;

/// Events beyond which the scan is held until somebody collects them.
const SCAN_HOLD_EVENTS: usize = 4096;

/// How the thread stands.
const RUNNING: u8 = 0;
/// It ended and nothing is unfinished: commands without a `Done` are `Closed`.
const ENDED: u8 = 1;
/// It panicked, and nothing is unfinished: commands without a `Done` are `Io`.
const FAILED: u8 = 2;

/// What both threads see.
#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    abandons: Arc<AbandonList>,
    waker: Arc<Waker>,
    /// The thread sleeps or is about to, and must be woken.
    sleeping: AtomicBool,
    state: AtomicU8,
}

#[derive(Debug, Default)]
struct Inbox {
    commands: Vec<Command>,
    /// Victims of stores that never left: bounded by the batch they came from.
    victims: Vec<BlockName>,
    scan: bool,
    /// Wait this long for what is in the kernel, then end.
    close: Option<Duration>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.victims.is_empty() && !self.scan && self.close.is_none()
    }
}

#[derive(Debug, Default)]
struct Outbox {
    events: Vec<PortEvent>,
    counters: PortCounters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks, and the content would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shard on a thread of its own, behind two queues. Commands wait in this port until a flush: one lock and at most one wake per batch.
///
/// A panic on the thread is caught: what the kernel still holds is waited for, every command that has no `Done` gets
/// [`Fault::Io`], and the port is closed.
#[derive(Debug)]
pub struct ThreadedPort {
    shared: Arc<Shared>,
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
            Ok(Ok(shared)) => Ok(Self {
                shared,
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

    fn wake(&self) {
        // Pairs with the fence in `run`: either the thread sees what was put into the inbox, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed) {
            self.shared.waker.wake();
        }
    }
}

impl ShardPort for ThreadedPort {
    fn push(&mut self, command: Command) -> Result<(), Command> {
        if self.closed || self.open.len() >= self.bound || self.shared.state.load(Ordering::Acquire) != RUNNING {
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
                lock(&self.shared.inbox).victims.push(name);
                self.dirty = true;
            }
            return;
        }
        self.shared.abandons.add(ticket);
        self.dirty = true;
    }

    fn scan(&mut self) {
        lock(&self.shared.inbox).scan = true;
        self.dirty = true;
    }

    fn flush(&mut self) {
        if self.batch.is_empty() && !self.dirty {
            return;
        }
        self.dirty = false;
        lock(&self.shared.inbox).commands.append(&mut self.batch);
        self.wake();
    }

    fn poll(&mut self, out: &mut Vec<PortEvent>) {
        self.flush();
        // Read before the events: once the thread has ended there will be no more of them.
        let state = self.shared.state.load(Ordering::Acquire);
        let mut events = std::mem::take(&mut self.own_events);
        events.append(&mut lock(&self.shared.outbox).events);
        if events.len() >= SCAN_HOLD_EVENTS {
            self.wake();
        }
        let open = &mut self.open;
        out.extend(events.drain(..).filter(|event| match event {
            PortEvent::Done { ticket, .. } => open.remove(ticket),
            PortEvent::Scanned(_) | PortEvent::ScanEnd { .. } => true,
        }));
        if events.capacity() <= SCAN_HOLD_EVENTS {
            self.own_events = events;
        }
        if state != RUNNING {
            let fault = if state == FAILED { Fault::Io } else { Fault::Closed };
            out.extend(open.drain().map(|ticket| PortEvent::Done { ticket, result: Err(fault) }));
        }
    }

    fn shutdown(&mut self, within: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.flush();
        lock(&self.shared.inbox).close = Some(within);
        self.shared.waker.wake();
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
        lock(&self.shared.outbox).counters
    }
}

impl Drop for ThreadedPort {
    fn drop(&mut self) {
        self.shutdown(Duration::from_secs(5));
    }
}

fn thread_main<D, F>(build: F, waker: Arc<Waker>, built: &Sender<Result<Arc<Shared>, TierError>>, end: &Sender<()>)
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
    let shared = Arc::new(Shared {
        inbox: Mutex::default(),
        outbox: Mutex::default(),
        abandons: shard.abandons(),
        waker,
        sleeping: AtomicBool::new(false),
        state: AtomicU8::new(RUNNING),
    });
    if built.send(Ok(Arc::clone(&shared))).is_err() {
        return;
    }
    let state = match catch_unwind(AssertUnwindSafe(|| run(&mut shard, &shared))) {
        Ok(quiet) => quiet.then_some(ENDED),
        Err(_) => {
            tracing::error!("a tier's thread panicked: the directory is closed, its blocks are misses");
            let quiet = catch_unwind(AssertUnwindSafe(|| drain_device(&mut shard, &shared)));
            quiet.unwrap_or(false).then_some(FAILED)
        }
    };
    match state {
        Some(state) => {
            // The shard first: it frees the ring, and gives the directory's lock back.
            drop(shard);
            shared.state.store(state, Ordering::Release);
        }
        // The kernel may still touch what the shard owns.
        None => std::mem::forget(shard),
    }
    let _ = end.send(());
}

/// Runs until closed. Tells whether nothing is unfinished.
fn run<D: Device>(shard: &mut Shard<D>, shared: &Shared) -> bool {
    let mut commands = Vec::new();
    let mut events = Vec::new();
    let mut give_up_at: Option<Instant> = None;
    loop {
        // In this order: whoever is on the list was put into the inbox before.
        shard.take_abandoned();
        let mut inbox = lock(&shared.inbox);
        std::mem::swap(&mut inbox.commands, &mut commands);
        let victims = std::mem::take(&mut inbox.victims);
        let (scan, close) = (std::mem::take(&mut inbox.scan), inbox.close.take());
        drop(inbox);
        for name in victims {
            shard.remove_victim(name);
        }
        for command in commands.drain(..) {
            shard.accept(command);
        }
        if scan {
            shard.scan();
        }
        if let Some(within) = close {
            shard.close(&mut events);
            give_up_at = Some(Instant::now() + within);
        }
        shard.step(&mut events);
        let mut outbox = lock(&shared.outbox);
        outbox.events.append(&mut events);
        outbox.counters = shard.counters();
        shard.hold_scan(outbox.events.len() >= SCAN_HOLD_EVENTS);
        drop(outbox);

        let mut at_most = None;
        if let Some(at) = give_up_at {
            if shard.is_quiet() {
                return true;
            }
            at_most = Some(at.saturating_duration_since(Instant::now()));
            if at_most == Some(Duration::ZERO) {
                return false;
            }
        }
        shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let inbox = lock(&shared.inbox);
        let work = !inbox.is_empty() || shard.is_asked_to_abandon();
        drop(inbox);
        if work {
            shard.flush();
        } else {
            shard.wait(at_most);
        }
        shared.sleeping.store(false, Ordering::Relaxed);
    }
}

/// After a panic: waits until the device touches nothing more, or the port is closed.
fn drain_device<D: Device>(shard: &mut Shard<D>, shared: &Shared) -> bool {
    let Some(device) = shard.device_mut() else { return true };
    let mut completions = Vec::new();
    while device.unfinished() > 0 {
        if lock(&shared.inbox).close.is_some() {
            return false;
        }
        device.wait(Some(Duration::from_millis(100)));
        device.reap(&mut completions);
        completions.clear();
    }
    true
}
