//! The real machine: its clock, `poll`, and a thread that opens connections.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use terrace_tiers::{Clock, SystemClock, Time};

use super::connection::{Broken, Connection};
use super::error::ClientError;
use super::machine::Machine;
use super::opening::Opened;
use super::options::ClientOptions;
use super::reconnect::Reconnector;

/// The machine that this process runs on.
#[derive(Debug)]
pub struct Host {
    clock: SystemClock,
    reconnector: Reconnector,
}

impl Host {
    /// Begins to connect.
    pub(super) fn start(options: ClientOptions) -> Result<Self, ClientError> {
        Ok(Self { clock: SystemClock::new(), reconnector: Reconnector::start(options)? })
    }

    /// Waits until there is a connection to take. `Err`: why there was none within the time.
    pub(super) fn wait_opened(&self, within: Duration) -> Result<(), String> {
        self.reconnector.wait(within)
    }
}

impl Machine for Host {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wait(&self, socket: BorrowedFd<'_>, to_send: bool, until: Time) -> io::Result<bool> {
        wait_ready(socket, to_send, || until.since(self.clock.now()))
    }

    fn want(&self) {
        self.reconnector.want();
    }

    fn take(&self) -> Option<Opened> {
        self.reconnector.take()
    }
}

/// Waits until there is something to read, or room to send what waits. False: the deadline came first.
pub(super) fn wait_until(connection: &Connection, deadline: Instant) -> Result<bool, Broken> {
    let left = || deadline.saturating_duration_since(Instant::now());
    Ok(wait_ready(connection.socket(), connection.is_backed_up(), left)?)
}

fn wait_ready(socket: BorrowedFd<'_>, to_send: bool, left: impl Fn() -> Duration) -> io::Result<bool> {
    let wanted = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    loop {
        let left = left();
        let mut sockets = [PollFd::from_borrowed_fd(socket, wanted)];
        match poll(&mut sockets, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
