//! The engine's side of a connection, and the relay on it: bytes go a few at a time, late, or not at all.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use terrace_connector::protocol::{FrameFlags, FrameHeader, HEADER_BYTES, Kind, encode};
use terrace_connector::server::InlineServer;

use crate::failure::Reason;
use crate::rng::Rng;

/// Bytes read in a step, at most.
const READ_BYTES: usize = 64 << 10;

/// A process that connects. Its end is seen by the daemon when this is let go of.
pub(crate) struct Process {
    pid: i32,
    is_seen: bool,
    /// The other ends are what the daemon has for its pidfd.
    ends: Vec<UnixStream>,
}

impl Process {
    pub fn start(pid: i32, is_seen: bool) -> Self {
        Self { pid, is_seen, ends: Vec::new() }
    }

    /// Connects to the daemon: this end.
    pub fn dial(&mut self, server: &mut InlineServer) -> UnixStream {
        let (here, there) = pair();
        let told = self.is_seen.then(|| {
            let (end, told) = pair();
            self.ends.push(end);
            told.into()
        });
        server.connect(there.into(), self.pid, told);
        here
    }

    /// Whether the daemon is told of its end.
    pub const fn is_seen(&self) -> bool {
        self.is_seen
    }
}

/// A connection. What is sent stays in the relay until it is carried.
pub(crate) struct Wire {
    /// `None`: it is over.
    socket: Option<UnixStream>,
    out: Vec<u8>,
    inbox: Vec<u8>,
    /// Room to read into.
    room: Vec<u8>,
    sequence: u64,
    /// The other side's replies are not read.
    pub stalls: bool,
}

/// Two ends that do not block.
pub(crate) fn pair() -> (UnixStream, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap_or_else(|error| panic!("no socket to simulate with: {error}"));
    for end in [&here, &there] {
        end.set_nonblocking(true).unwrap_or_else(|error| panic!("a socket that blocks: {error}"));
    }
    (here, there)
}

impl Wire {
    pub fn connect(server: &mut InlineServer, process: &mut Process) -> Self {
        let here = process.dial(server);
        let (out, inbox, room) = (Vec::new(), Vec::new(), vec![0; READ_BYTES]);
        Self { socket: Some(here), out, inbox, room, sequence: 0, stalls: false }
    }

    pub const fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether the daemon has closed its end. What it had sent before can still be read.
    pub fn has_hung_up(&self) -> bool {
        let Some(socket) = &self.socket else { return true };
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Sends a frame, and gives its sequence.
    pub fn send<T: Serialize>(&mut self, kind: Kind, flags: FrameFlags, message: &T) -> u64 {
        let mut body = Vec::new();
        encode(message, &mut body).unwrap_or_else(|error| panic!("a message that cannot be written: {error}"));
        self.push(kind, flags, &body)
    }

    /// Sends a frame without a body.
    pub fn send_empty(&mut self, kind: Kind, flags: FrameFlags) -> u64 {
        self.push(kind, flags, &[])
    }

    fn push(&mut self, kind: Kind, flags: FrameFlags, body: &[u8]) -> u64 {
        self.sequence += 1;
        let header =
            FrameHeader { kind, flags, body_bytes: body.len() as u32, sequence: self.sequence, descriptors: 0 };
        self.out.extend_from_slice(&header.to_bytes());
        self.out.extend_from_slice(body);
        self.sequence
    }

    /// Sends what is no frame.
    pub fn send_noise(&mut self, rng: &mut Rng) {
        self.out.extend((0..HEADER_BYTES).map(|_| rng.next() as u8));
    }

    /// Carries some bytes each way.
    pub fn carry(&mut self, rng: &mut Rng, delay_per_mille: u32) {
        if !rng.chance(delay_per_mille) {
            let most = self.out.len();
            self.write(if rng.chance(200) { rng.skewed(most as u64) as usize } else { most });
        }
        if !self.stalls && !rng.chance(delay_per_mille) {
            self.read(if rng.chance(200) { rng.skewed(READ_BYTES as u64) as usize } else { READ_BYTES });
        }
    }

    /// Ends it, after any part of what waits has gone out.
    pub fn cut(&mut self, rng: &mut Rng) {
        self.write(rng.index(self.out.len() + 1));
        self.socket = None;
    }

    fn write(&mut self, most: usize) {
        let (Some(socket), Some(bytes)) = (&mut self.socket, self.out.get(..most.min(self.out.len()))) else { return };
        if bytes.is_empty() {
            return;
        }
        match socket.write(bytes) {
            Ok(written) => drop(self.out.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // What came before the end can still be read.
            Err(_) => self.out.clear(),
        }
    }

    fn read(&mut self, most: usize) {
        let Some(socket) = &mut self.socket else { return };
        let room = self.room.get_mut(..most).unwrap_or_default();
        match socket.read(room) {
            Ok(0) => self.socket = None,
            Ok(read) => self.inbox.extend(room.iter().take(read)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.socket = None,
        }
    }

    /// The next frame that came as a whole.
    pub fn next(&mut self) -> Result<Option<(FrameHeader, Vec<u8>)>, Reason> {
        let Some(header) = self.inbox.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = FrameHeader::from_bytes(header, u32::MAX)
            .map_err(|error| Reason::Contract(format!("the daemon sent what is no frame: {error}")))?;
        let end = HEADER_BYTES + header.body_bytes as usize;
        if self.inbox.len() < end {
            return Ok(None);
        }
        let frame: Vec<u8> = self.inbox.drain(..end).skip(HEADER_BYTES).collect();
        Ok(Some((header, frame)))
    }
}
