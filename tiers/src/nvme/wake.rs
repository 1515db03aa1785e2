//! Waking a thread that sleeps in its device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd. A device whose thread is to be woken waits for it beside its completions.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that nobody has used.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the current or the next wait.
    pub fn wake(&self) {
        // It fails only when 2^64 - 2 wakes are pending: then the sleeper is woken anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets the wakes up to now.
    pub fn clear(&self) {
        // It fails when there are none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
