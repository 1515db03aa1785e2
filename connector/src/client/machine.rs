//! What a session takes from the machine that it runs on: the time, waiting for a socket, and connections that are
//! opened behind its back. [`Host`](super::host::Host) is the real one; a simulator brings its own.

use std::io;
use std::os::fd::BorrowedFd;

use terrace_tiers::Time;

use super::opening::Opened;

/// The machine, as a session sees it.
pub trait Machine {
    /// Now, on a clock that only goes forward.
    fn now(&self) -> Time;

    /// Waits until `socket` can be read, has ended, or, with `to_send`, takes bytes. False: `until` came first.
    fn wait(&self, socket: BorrowedFd<'_>, to_send: bool, until: Time) -> io::Result<bool>;

    /// The connection is lost and another one is wanted. The first one is wanted from the start.
    fn want(&self);

    /// A connection that is open since one was wanted. Does not wait.
    fn take(&self) -> Option<Opened>;
}
