//! What goes between a port and its shard's thread: two queues, and the agreement by which the thread never sleeps over work.
//!
//! Every order of accesses is checked by a model (`tests/models/tests/mailbox.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abandon::AbandonList;
use super::device::Device;
use super::port::{BlockName, Command, PortCounters, PortEvent};
use super::shard::Shard;
use super::sync::{AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, PoisonError, fence};
use super::wake::Waker;

/// How a shard's thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It serves.
    Running,
    /// It ended and nothing is unfinished: commands without a `Done` are `Closed`.
    Ended,
    /// It panicked, and nothing is unfinished: commands without a `Done` are `Io`.
    Failed,
}

/// What both threads see.
#[derive(Debug)]
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    abandons: Arc<AbandonList>,
    waker: Arc<Waker>,
    /// Events beyond which the scan is held until somebody collects them.
    hold_events: usize,
    /// The thread sleeps or is about to, and must be woken.
    sleeping: AtomicBool,
    standing: AtomicU8,
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

/// The port's side.
impl Mailbox {
    /// Empty. The scan is held while `hold_events` wait.
    pub fn new(abandons: Arc<AbandonList>, waker: Arc<Waker>, hold_events: usize) -> Self {
        Self {
            inbox: Mutex::default(),
            outbox: Mutex::default(),
            abandons,
            waker,
            hold_events,
            sleeping: AtomicBool::new(false),
            standing: AtomicU8::new(Standing::Running as u8),
        }
    }

    /// How the thread stands. After anything but `Running` it adds no event.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::Running,
            1 => Standing::Ended,
            _ => Standing::Failed,
        }
    }

    /// Gives up a command that was sent. Seen by the thread after the next [`Mailbox::send`], or before.
    pub fn abandon(&self, ticket: u64) {
        self.abandons.add(ticket);
    }

    /// Adds the victim of a store that never left. Seen after the next [`Mailbox::send`], or before.
    pub fn add_victim(&self, name: BlockName) {
        lock(&self.inbox).victims.push(name);
    }

    /// Asks for a scan. Seen after the next [`Mailbox::send`], or before.
    pub fn ask_scan(&self) {
        lock(&self.inbox).scan = true;
    }

    /// Sends all of `batch`, and wakes the thread if it sleeps.
    pub fn send(&self, batch: &mut Vec<Command>) {
        lock(&self.inbox).commands.append(batch);
        self.wake();
    }

    /// Appends what was reported to `out`.
    pub fn collect(&self, out: &mut Vec<PortEvent>) {
        let before = out.len();
        out.append(&mut lock(&self.outbox).events);
        if out.len() - before >= self.hold_events {
            self.wake();
        }
    }

    /// Asks the thread to end, and to wait for so long for what is in the kernel.
    pub fn close(&self, within: Duration) {
        lock(&self.inbox).close = Some(within);
        self.waker.wake();
    }

    /// The counters of the last report.
    pub fn counters(&self) -> PortCounters {
        lock(&self.outbox).counters
    }

    fn wake(&self) {
        // Pairs with the fence in `may_sleep`: either the thread sees what was done, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.waker.wake();
        }
    }
}

/// The thread's side.
impl Mailbox {
    /// Serves `shard` until closed. Tells whether nothing is unfinished.
    #[allow(clippy::disallowed_methods, reason = "the last moment of a real thread")]
    pub fn serve<D: Device>(&self, shard: &mut Shard<D>) -> bool {
        let mut commands = Vec::new();
        let mut events = Vec::new();
        let mut give_up_at: Option<Instant> = None;
        loop {
            // In this order: whoever is on the list was put into the inbox before.
            shard.take_abandoned();
            let mut inbox = lock(&self.inbox);
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
            let mut outbox = lock(&self.outbox);
            outbox.events.append(&mut events);
            outbox.counters = shard.counters();
            let held = outbox.events.len() >= self.hold_events;
            drop(outbox);
            shard.hold_scan(held);

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
            if self.may_sleep(held) && !shard.is_asked_to_abandon() {
                shard.wait(at_most);
            } else {
                shard.flush();
            }
            self.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Announces that the thread will sleep, and looks once more whether it may: nothing came, and if the scan is held, nobody has collected
    /// the events meanwhile.
    fn may_sleep(&self, held: bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        lock(&self.inbox).is_empty() && !(held && lock(&self.outbox).events.len() < self.hold_events)
    }

    /// Whether the port was closed and the thread has not seen it.
    pub fn is_closed(&self) -> bool {
        lock(&self.inbox).close.is_some()
    }

    /// The last that the thread does.
    pub fn end(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Release);
    }
}
