//! The frame: 32 bytes of header, then the body.
//!
//! ```text
//! offset  bytes  field         value
//!      0      4  magic         "TRRC"
//!      4      2  version       1
//!      6      2  kind          what the body is: `Kind`
//!      8      4  flags         1 REPLY, 2 ERROR, 4 ONE_WAY; others 0
//!     12      4  body_bytes    length of the body
//!     16      8  sequence      of the request; its reply carries the same
//!     24      2  descriptors   file descriptors sent along with the first byte of this frame
//!     26      6  reserved      0
//! ```
//!
//! All numbers are little-endian. Anything else in a field makes the frame invalid.

use super::error::ProtocolError;
use super::limits::MAX_DESCRIPTORS;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// "TRRC".
pub const MAGIC: [u8; 4] = *b"TRRC";
/// The version that this code speaks.
pub const VERSION: u16 = 1;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Opens a session: [`super::Hello`], [`super::HelloReply`]. The first frame of a connection, and no other.
    Hello = 1,
    /// [`super::Lookup`], [`super::LookupReply`].
    Lookup = 2,
    /// [`super::PrepareStore`], [`super::PrepareStoreReply`].
    PrepareStore = 3,
    /// [`super::EndStep`], [`super::EndStepReply`].
    EndStep = 4,
    /// [`super::Complete`], one way.
    Complete = 5,
    /// An empty body, an empty reply: what a round trip costs.
    Ping = 6,
    /// Empties the primary of the namespace. Empty body, empty reply.
    Reset = 7,
    /// [`super::Pin`], [`super::PinReply`].
    Pin = 8,
    /// [`super::Unpin`], empty reply.
    Unpin = 9,
    /// [`super::StoreRows`], one way; its end is told by an [`super::EndStepReply`].
    StoreRows = 10,
    /// [`super::LoadRows`], one way; its end is told by an [`super::EndStepReply`].
    LoadRows = 11,
    /// Empty body, [`super::StatsReply`].
    Stats = 12,
    /// Ends the session in order, one way, empty body: nothing copies to or from the region any more for it.
    Bye = 13,
    /// From the server, one way: [`super::Goodbye`].
    Goodbye = 14,
    /// [`super::Attach`], [`super::AttachReply`].
    Attach = 15,
    /// [`super::Copy`], one way; its end is told by [`super::Copied`].
    Copy = 16,
    /// From the server, one way: [`super::Copied`].
    Copied = 17,
    /// [`super::Lease`], [`super::LeaseReply`].
    Lease = 18,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::Hello,
        Self::Lookup,
        Self::PrepareStore,
        Self::EndStep,
        Self::Complete,
        Self::Ping,
        Self::Reset,
        Self::Pin,
        Self::Unpin,
        Self::StoreRows,
        Self::LoadRows,
        Self::Stats,
        Self::Bye,
        Self::Goodbye,
        Self::Attach,
        Self::Copy,
        Self::Copied,
        Self::Lease,
    ];

    /// The kind with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// The flags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameFlags {
    /// From the server, to the request with the same sequence.
    pub reply: bool,
    /// The body is an [`super::ErrorReply`]; set together with `reply`. A one-way frame gets a reply only if it failed.
    pub error: bool,
    /// No reply is wanted.
    pub one_way: bool,
}

impl FrameFlags {
    /// No flag.
    pub const REQUEST: Self = Self { reply: false, error: false, one_way: false };
    /// A request that wants no reply.
    pub const ONE_WAY: Self = Self { reply: false, error: false, one_way: true };
    /// An answer.
    pub const REPLY: Self = Self { reply: true, error: false, one_way: false };
    /// A refusal.
    pub const ERROR: Self = Self { reply: true, error: true, one_way: false };

    const fn bits(self) -> u32 {
        self.reply as u32 | (self.error as u32) << 1 | (self.one_way as u32) << 2
    }

    const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::REQUEST),
            1 => Some(Self::REPLY),
            3 => Some(Self::ERROR),
            4 => Some(Self::ONE_WAY),
            _ => None,
        }
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the body is.
    pub kind: Kind,
    /// Direction and outcome.
    pub flags: FrameFlags,
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// Of the request; chosen by its sender, ascending within a connection.
    pub sequence: u64,
    /// Descriptors that come with the frame.
    pub descriptors: u16,
}

impl FrameHeader {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.descriptors.to_le_bytes());
        bytes
    }

    /// From bytes. Refuses another magic or version, unknown kinds and flags, a body of more than `most_body_bytes`, more descriptors
    /// than [`MAX_DESCRIPTORS`], and reserved bytes that are not 0.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES], most_body_bytes: u32) -> Result<Self, ProtocolError> {
        let (magic, rest) = bytes.split_at(4);
        if magic != MAGIC {
            return Err(ProtocolError::Magic);
        }
        let version = le_u16(rest, 0);
        if version != VERSION {
            return Err(ProtocolError::Version { got: version });
        }
        let kind = le_u16(rest, 2);
        let kind = Kind::from_number(kind).ok_or(ProtocolError::Kind { got: kind })?;
        let flags = le_u32(rest, 4);
        let flags = FrameFlags::from_bits(flags).ok_or(ProtocolError::Flags { got: flags })?;
        let body_bytes = le_u32(rest, 8);
        if body_bytes > most_body_bytes {
            return Err(ProtocolError::Length { got: body_bytes, limit: most_body_bytes });
        }
        let sequence = u64::from(le_u32(rest, 12)) | u64::from(le_u32(rest, 16)) << 32;
        let descriptors = le_u16(rest, 20);
        if usize::from(descriptors) > MAX_DESCRIPTORS {
            return Err(ProtocolError::Descriptors { got: descriptors });
        }
        if rest.iter().skip(22).any(|byte| *byte != 0) {
            return Err(ProtocolError::Reserved);
        }
        Ok(Self { kind, flags, body_bytes, sequence, descriptors })
    }
}

fn le_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
