//! epoll, with timeouts below a millisecond.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Events taken at once.
const BATCH: usize = 64;

/// Something that may be read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
}

pub(super) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
    }

    /// What is waited for from here on. A peer that hung up is told in any case.
    pub fn interest(&self, fd: impl AsFd, token: u64, read: bool, write: bool) -> Result<(), Errno> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags)
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or `timeout` is over (`None`: for ever), and fills `out`.
    pub fn wait(&self, timeout: Option<Duration>, out: &mut Vec<Ready>) {
        out.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(86_400).cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // epoll_pwait counts milliseconds; poll on the epoll itself counts nanoseconds, on every kernel.
        let is_fine = timeout.is_some_and(|timeout| timeout.tv_nsec % 1_000_000 != 0);
        if is_fine {
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            if !matches!(poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0) {
                return;
            }
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if is_fine { Some(&zero) } else { timeout.as_ref() };
        let mut events = [const { MaybeUninit::uninit() }; BATCH];
        // An interrupted wait is a short one.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout) else { return };
        out.extend(events.iter().map(|event| {
            let flags = event.flags;
            let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            Ready {
                token: event.data.u64(),
                readable: flags.contains(EventFlags::IN) || gone,
                writable: flags.contains(EventFlags::OUT) || gone,
            }
        }));
    }
}
