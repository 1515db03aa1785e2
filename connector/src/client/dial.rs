//! Opening a session on a thread that may wait for it.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::ClientError;
use super::host::wait_until;
use super::opening::{Opened, Opening};
use super::options::ClientOptions;
use crate::protocol::Hello;

/// How long the daemon may take to answer.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked whether nobody wants the session any more.
const SLICE: Duration = Duration::from_millis(20);

/// Opens a session as whoever `hello` says. Blocks, [`HELLO_DEADLINE`] at most, or until `stop` is set.
pub(crate) fn open_as(options: &ClientOptions, hello: &Hello, stop: &AtomicBool) -> Result<Opened, ClientError> {
    let stream = UnixStream::connect(&options.socket)
        .map_err(|error| ClientError::Connect { socket: options.socket.clone(), error })?;
    let deadline = Instant::now() + HELLO_DEADLINE;
    let mut opening = Opening::begin_as(OwnedFd::from(stream), hello)?;
    while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
        if wait_until(&opening.connection, deadline.min(Instant::now() + SLICE))? {
            opening = match opening.advance(options)? {
                ControlFlow::Break(opened) => return Ok(opened),
                ControlFlow::Continue(opening) => opening,
            };
        }
    }
    let within_ms = HELLO_DEADLINE.as_millis() as u64;
    Err(ClientError::Timeout { socket: options.socket.clone(), within_ms })
}
