pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use std::sync::PoisonError;
}

pub mod abandon {
    include!(concat!(env!("OUT_DIR"), "/abandon-kept.rs"));
}

pub mod device {
    pub trait Device {}
}

pub mod port {
    pub type BlockName = u64;
    pub type Command = u64;
    pub type PortEvent = u64;
    pub type PortCounters = u64;
}

/// An eventfd, and a wait that ends when it is not zero and makes it zero: what the devices do.
pub mod wake {
    use loom::sync::{Condvar, Mutex};

    #[derive(Debug, Default)]
    pub struct Waker {
        wakes: Mutex<u64>,
        woken: Condvar,
    }

    impl Waker {
        pub fn wake(&self) {
            *self.wakes.lock().unwrap() += 1;
            self.woken.notify_all();
        }

        pub fn wait(&self) {
            let mut wakes = self.wakes.lock().unwrap();
            while *wakes == 0 {
                wakes = self.woken.wait(wakes).unwrap();
            }
            *wakes = 0;
        }
    }
}

/// A shard that does each command at once and scans one block a step.
pub mod shard {
    use std::marker::PhantomData;
    use std::sync::Arc;
    use std::time::Duration;

    use super::abandon::AbandonList;
    use super::wake::Waker;

    pub struct Shard<D> {
        pub abandons: Arc<AbandonList>,
        pub waker: Arc<Waker>,
        /// What the shard has dealt with.
        pub done: Arc<super::Flag>,
        pub seen: u64,
        pub accepted: Vec<u64>,
        /// Blocks that the scan has still to find.
        pub to_scan: u64,
        pub scanning: bool,
        pub held: bool,
        pub device: PhantomData<D>,
    }

    impl<D> Shard<D> {
        pub fn take_abandoned(&mut self) {
            if self.is_asked_to_abandon() {
                let mut tickets = Vec::new();
                self.seen = self.abandons.take(&mut tickets);
                self.done.add(100 * tickets.len() as u64);
            }
        }

        pub fn is_asked_to_abandon(&self) -> bool {
            self.abandons.seen() != self.seen
        }

        pub fn remove_victim(&mut self, _name: u64) {}

        pub fn accept(&mut self, command: u64) {
            self.accepted.push(command);
        }

        pub fn scan(&mut self) {
            self.scanning = true;
        }

        pub fn close(&mut self, _events: &mut Vec<u64>) {}

        pub fn step(&mut self, events: &mut Vec<u64>) {
            self.done.add(self.accepted.len() as u64);
            events.append(&mut self.accepted);
            if self.scanning && !self.held && self.to_scan > 0 {
                self.to_scan -= 1;
                events.push(self.to_scan);
                self.done.add(1);
            }
        }

        pub fn counters(&self) -> u64 {
            0
        }

        pub fn hold_scan(&mut self, held: bool) {
            self.held = held;
        }

        pub fn is_quiet(&self) -> bool {
            true
        }

        pub fn flush(&mut self) {}

        pub fn wait(&mut self, _at_most: Option<Duration>) {
            // As the real one: a scan that can go on does not wait.
            if !(self.scanning && !self.held && self.to_scan > 0) {
                self.waker.wait();
            }
        }
    }
}

use std::sync::Arc;
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

use mailbox::{Mailbox, Standing};

/// Counts what the thread has done, for a model that waits for it without waking the thread.
#[derive(Default)]
pub struct Flag {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Flag {
    fn add(&self, more: u64) {
        if more > 0 {
            *self.count.lock().unwrap() += more;
            self.changed.notify_all();
        }
    }

    fn wait_for(&self, count: u64) {
        let mut now = self.count.lock().unwrap();
        while *now < count {
            now = self.changed.wait(now).unwrap();
        }
    }
}

struct Plain;

impl device::Device for Plain {}

/// A mailbox with its thread, which scans so many blocks when it is asked to.
fn start(to_scan: u64) -> (Arc<Mailbox>, Arc<Flag>, loom::thread::JoinHandle<()>) {
    let abandons = Arc::new(abandon::AbandonList::default());
    let waker = Arc::new(wake::Waker::default());
    let done = Arc::new(Flag::default());
    let mail = Arc::new(Mailbox::new(Arc::clone(&abandons), Arc::clone(&waker), 1));
    let thread = {
        let (mail, done) = (Arc::clone(&mail), Arc::clone(&done));
        loom::thread::spawn(move || {
            let (accepted, device) = (Vec::new(), std::marker::PhantomData);
            let mut shard: shard::Shard<Plain> =
                shard::Shard { abandons, waker, done, seen: 0, accepted, to_scan, scanning: false, held: false, device };
            assert!(mail.serve(&mut shard));
            mail.end(Standing::Ended);
        })
    };
    (mail, done, thread)
}

fn end(mail: &Mailbox, thread: loom::thread::JoinHandle<()>) -> Vec<u64> {
    mail.close(Duration::from_secs(3600));
    thread.join().unwrap();
    assert_eq!(mail.standing(), Standing::Ended);
    let mut events = Vec::new();
    mail.collect(&mut events);
    events
}

/// The thread does what it is sent, without being told twice.
pub fn a_command_is_not_slept_over() {
    let (mail, done, thread) = start(0);
    mail.send(&mut vec![1]);
    done.wait_for(1);
    mail.send(&mut vec![2]);
    done.wait_for(2);
    assert_eq!(end(&mail, thread), [1, 2]);
}

/// A ticket that is given up is seen, without a command behind it.
pub fn a_ticket_that_is_given_up_is_seen() {
    let (mail, done, thread) = start(0);
    mail.abandon(1);
    mail.send(&mut Vec::new());
    done.wait_for(100);
    end(&mail, thread);
}

/// A scan that was held because nobody collected goes on once somebody has, though nobody collects again.
pub fn a_scan_that_was_held_goes_on() {
    let (mail, done, thread) = start(2);
    mail.ask_scan();
    mail.send(&mut Vec::new());
    let mut found = Vec::new();
    while found.is_empty() {
        mail.collect(&mut found);
        loom::thread::yield_now();
    }
    done.wait_for(2);
    found.append(&mut end(&mail, thread));
    assert_eq!(found, [1, 0]);
}

/// When the thread has ended, all that it reported is there.
pub fn who_sees_the_end_sees_all_events() {
    let (mail, _, thread) = start(0);
    mail.send(&mut vec![1]);
    mail.close(Duration::from_secs(3600));
    let standing = mail.standing();
    let mut events = Vec::new();
    mail.collect(&mut events);
    if standing != Standing::Running {
        assert_eq!(events, [1]);
    }
    thread.join().unwrap();
}
