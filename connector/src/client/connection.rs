//! Frames over a socket that never blocks: bytes wait in two buffers, and whoever holds it waits for them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};

use crate::protocol::{Body, FrameFlags, FrameHeader, HEADER_BYTES, Inbox, Kind, MAX_HELLO_BYTES, ProtocolError};

/// Bytes read at a time, or more.
const READ_BYTES: usize = 64 << 10;
/// Reads in one call, so that a peer that never stops sending does not keep the caller.
const READS: usize = 64;
/// Bytes that may wait to be sent. Who does not take that much is not served any more.
const MOST_OUTPUT: usize = 16 << 20;

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub header: FrameHeader,
    pub body: Vec<u8>,
}

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the other side closed it")]
    Closed,
    #[error("{0} bytes wait to be sent")]
    Output(usize),
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    input: Inbox,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    next_sequence: u64,
    most_body_bytes: u32,
    descriptors: Vec<OwnedFd>,
}

impl Connection {
    /// Over a connected socket, which is made non-blocking.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            input: Inbox::default(),
            output: Vec::new(),
            sent: 0,
            next_sequence: 1,
            most_body_bytes: MAX_HELLO_BYTES,
            descriptors: Vec::new(),
        })
    }

    /// What to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bodies up to this length are taken from now on.
    pub fn set_most_body_bytes(&mut self, bytes: u32) {
        self.most_body_bytes = bytes;
    }

    /// Appends a frame to what is to be sent and names it. `None`: an empty body.
    pub fn queue<T: Body>(&mut self, kind: Kind, flags: FrameFlags, body: Option<&T>) -> Result<u64, Broken> {
        let waiting = self.output.len() - self.sent;
        if waiting > MOST_OUTPUT {
            return Err(Broken::Output(waiting));
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let start = self.output.len();
        self.output.extend_from_slice(&[0; HEADER_BYTES]);
        if let Some(body) = body
            && let Err(error) = body.put(&mut self.output)
        {
            self.output.truncate(start);
            return Err(error.into());
        }
        let length = self.output.len() - start - HEADER_BYTES;
        let body_bytes = u32::try_from(length).unwrap_or(u32::MAX);
        if body_bytes > self.most_body_bytes {
            self.output.truncate(start);
            return Err(ProtocolError::Length { got: body_bytes, limit: self.most_body_bytes }.into());
        }
        let header = FrameHeader { kind, flags, body_bytes, sequence, descriptors: 0 };
        if let Some(place) = self.output.get_mut(start..start + HEADER_BYTES) {
            place.copy_from_slice(&header.to_bytes());
        }
        Ok(sequence)
    }

    /// Whether bytes wait to be sent.
    pub fn is_backed_up(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Sends what the other side takes now.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads what is there, without descriptors: one that comes is closed by the kernel.
    pub fn read(&mut self) -> Result<(), Broken> {
        for _ in 0..READS {
            let place = self.input.room(READ_BYTES);
            let most = place.len();
            match recv(&self.socket, place, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(Broken::Closed),
                Ok((_, bytes)) => {
                    self.input.came(bytes);
                    if bytes < most {
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what is there and keeps the descriptors that come along: for the opening of a session.
    pub fn read_with_descriptors(&mut self) -> Result<(), Broken> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(self.input.room(READ_BYTES))];
        let got = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        self.input.came(got.as_ref().map_or(0, |message| message.bytes));
        let message = match got {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            other => other?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ProtocolError::Descriptors { got: u16::MAX }.into());
        }
        if message.bytes == 0 { Err(Broken::Closed) } else { Ok(()) }
    }

    /// The descriptors that came.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// The next frame that is there as a whole.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Broken> {
        let Some((header, body)) = self.input.frame(self.most_body_bytes)? else { return Ok(None) };
        let frame = Frame { header, body: body.to_vec() };
        self.input.take(&header);
        Ok(Some(frame))
    }
}
