//! Waking a thread that sleeps in epoll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// Readable from [`Wake::wake`] until [`Wake::clear`]. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Wake(Arc<OwnedFd>);

impl Wake {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Any thread. A full counter is readable too, so a refusal is none.
    pub fn wake(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// The one that was woken.
    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
