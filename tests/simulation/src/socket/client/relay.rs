//! What lies between the product's client and the daemon: bytes, and the region's descriptor, go a few at a time, late, or not at all.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::rng::Rng;

/// Bytes read at a time, at most.
const READ_BYTES: usize = 64 << 10;

/// One connection. `None`: this end is over.
pub(crate) struct Relay {
    client: Option<UnixStream>,
    server: Option<UnixStream>,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Room to read into.
    room: Vec<u8>,
}

impl Relay {
    /// Between the other ends of these two.
    pub fn new(client: UnixStream, server: UnixStream) -> Self {
        Self {
            client: Some(client),
            server: Some(server),
            to_server: Vec::new(),
            to_client: Vec::new(),
            descriptors: Vec::new(),
            room: vec![0; READ_BYTES],
        }
    }

    /// Nothing will go through it any more.
    pub const fn is_over(&self) -> bool {
        self.client.is_none() && self.server.is_none()
    }

    /// Nothing is on its way in it.
    pub const fn is_empty(&self) -> bool {
        self.to_server.is_empty() && self.to_client.is_empty()
    }

    /// Carries some bytes each way. An end is told once what came before it is through; to the client at once, as a
    /// kernel does.
    pub fn carry(&mut self, rng: &mut Rng, delay_per_mille: u32) {
        if !rng.chance(delay_per_mille) {
            if !self.read_client() && self.to_server.is_empty() {
                self.server = None;
            }
            self.write_server(portion(rng, self.to_server.len()));
        }
        let is_late = rng.chance(delay_per_mille);
        if !self.read_server() {
            self.write_client(self.to_client.len());
            if self.to_client.is_empty() {
                self.client = None;
            }
        } else if !is_late {
            self.write_client(portion(rng, self.to_client.len()));
        }
    }

    /// Breaks, after any part of what is on its way has come through.
    pub fn cut(&mut self, rng: &mut Rng) {
        self.read_client();
        self.write_server(rng.index(self.to_server.len() + 1));
        self.write_client(rng.index(self.to_client.len() + 1));
        (self.client, self.server) = (None, None);
    }

    /// False: the client's end is over.
    fn read_client(&mut self) -> bool {
        let Some(client) = &mut self.client else { return false };
        match client.read(&mut self.room) {
            Ok(0) => self.client = None,
            Ok(read) => self.to_server.extend(self.room.iter().take(read)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.client = None,
        }
        self.client.is_some()
    }

    /// False: the daemon's end is over.
    fn read_server(&mut self) -> bool {
        let Some(server) = &self.server else { return false };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(server, &mut [IoSliceMut::new(&mut self.room)], &mut control, RecvFlags::CMSG_CLOEXEC);
        match got {
            Ok(message) if message.bytes == 0 => self.server = None,
            Ok(message) => self.to_client.extend(self.room.iter().take(message.bytes)),
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => self.server = None,
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.server.is_some()
    }

    fn write_server(&mut self, most: usize) {
        let (Some(server), Some(bytes)) = (&mut self.server, self.to_server.get(..most)) else {
            return self.to_server.clear();
        };
        if bytes.is_empty() {
            return;
        }
        match server.write(bytes) {
            Ok(written) => drop(self.to_server.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // What came before the end can still be read.
            Err(_) => self.to_server.clear(),
        }
    }

    fn write_client(&mut self, most: usize) {
        let (Some(client), Some(bytes)) = (&self.client, self.to_client.get(..most)) else {
            return self.to_client.clear();
        };
        if bytes.is_empty() {
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        match sendmsg(client, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(written) => {
                self.to_client.drain(..written);
                self.descriptors.clear();
            }
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => self.to_client.clear(),
        }
    }
}

fn portion(rng: &mut Rng, len: usize) -> usize {
    if rng.chance(200) { (rng.skewed(len as u64) as usize).min(len) } else { len }
}
