//! One socket: bytes in, frames out of them; frames in, bytes out.

use std::io::IoSlice;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, send, sendmsg,
};

use super::refusal::Refusal;
use crate::protocol::{FrameHeader, Inbox};

/// Descriptors that are taken, all in all: that of a tier's region.
const MOST_TAKEN: usize = 1;
/// Descriptors that are sent at once: region and table.
const MOST_SENT: usize = 2;
/// Reading pauses while so much waits to be written.
const PAUSE_BYTES: usize = 1 << 20;
/// Memory that an empty buffer keeps.
const KEEP_BYTES: usize = 256 << 10;

/// What reading brought.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// Bytes.
    Some,
    /// Nothing for now.
    Nothing,
    /// The other side has closed, or the connection is broken.
    End,
    /// A descriptor where none belongs.
    Refused(Refusal),
}

/// A connected socket that does not block.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// What came. Lent to whoever serves its frames, which takes place without copies of them.
    pub input: Inbox,
    pub output: Vec<u8>,
    /// Bytes of `output` that are written.
    written: usize,
    /// Bytes written since it was made.
    sent: u64,
    /// Goes out with the first byte.
    send_descriptors: Vec<OwnedFd>,
    /// Came in before the session was open.
    descriptors: Vec<OwnedFd>,
    /// Whether descriptors may come: until the first frame.
    takes_descriptors: bool,
    /// Whether reading and writing are waited for.
    pub interest: (bool, bool),
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Inbox::default(),
            output: Vec::new(),
            written: 0,
            sent: 0,
            send_descriptors: Vec::new(),
            descriptors: Vec::new(),
            takes_descriptors: true,
            interest: (true, false),
        }
    }

    /// Reads once, with room for `least` bytes or more.
    pub fn read(&mut self, least: usize) -> Input {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_TAKEN))];
        // Where none belongs there is no room for any: the kernel closes them and says so.
        let room = if self.takes_descriptors { space.as_mut_slice() } else { &mut [] };
        let mut control = RecvAncillaryBuffer::new(room);
        let place = self.input.room(least);
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(place)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Input::Nothing,
            Err(_) => return Input::End,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MOST_TAKEN {
            self.descriptors.clear();
            let text = "descriptors belong to the first frame of a session of role \"tier\", one, and nowhere else";
            return Input::Refused(Refusal::malformed(text));
        }
        self.input.came(received.bytes);
        if received.bytes > 0 { Input::Some } else { Input::End }
    }

    /// Takes the descriptor that came with the first frame. From here on none belongs to any.
    pub fn take_descriptor(&mut self, header: &FrameHeader) -> Result<Option<OwnedFd>, Refusal> {
        if self.descriptors.len() != usize::from(header.descriptors) {
            let text = format!(
                "the header announces {} descriptors and {} came: send them with the frame's first byte",
                header.descriptors,
                self.descriptors.len()
            );
            return Err(Refusal::malformed(text));
        }
        self.takes_descriptors = false;
        Ok(self.descriptors.pop())
    }

    /// These go out with the next byte. Nothing has been written before.
    pub fn send_descriptors(&mut self, descriptors: Vec<OwnedFd>) {
        self.send_descriptors = descriptors;
    }

    /// Writes what can be written. `Err`: the connection is broken.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while let Some(rest) = self.output.get(self.written..)
            && !rest.is_empty()
        {
            let sent = match self.send_descriptors.as_slice() {
                [] => send(&self.socket, rest, SendFlags::NOSIGNAL),
                descriptors => send_with(&self.socket, rest, descriptors),
            };
            match sent {
                Ok(bytes) => {
                    self.send_descriptors.clear();
                    self.written += bytes;
                    self.sent += bytes as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        if self.waiting_bytes() == 0 {
            self.output.clear();
            self.output.shrink_to(KEEP_BYTES);
            self.written = 0;
        } else if self.written > PAUSE_BYTES {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// Bytes that wait to be written.
    pub fn waiting_bytes(&self) -> usize {
        self.output.len().saturating_sub(self.written)
    }

    /// Bytes written since it was made: while they grow, the other side reads.
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// Whether the other side reads too slowly to be read from.
    pub fn is_paused(&self) -> bool {
        self.waiting_bytes() > PAUSE_BYTES
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_with(socket: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}
