//! What can be wrong with a frame, and how a refusal is told.

use serde::{Deserialize, Serialize};

/// Bytes that are no valid frame or body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first four bytes are not "TRRC".
    #[error("this is no frame: it does not start with TRRC")]
    Magic,
    /// A version that this side does not speak.
    #[error("protocol version {got}, this side speaks 1: use a client and a server of the same release")]
    Version {
        /// The version in the header.
        got: u16,
    },
    /// A kind that this side does not know, or that the sender may not send.
    #[error("message kind {got} is not known here")]
    Kind {
        /// The kind in the header.
        got: u16,
    },
    /// Flags that make no sense.
    #[error("flags {got:#x} are not valid")]
    Flags {
        /// The flags in the header.
        got: u32,
    },
    /// A body beyond the limit.
    #[error("a body of {got} bytes, at most {limit} are taken: split the message")]
    Length {
        /// Bytes announced.
        got: u32,
        /// The bound.
        limit: u32,
    },
    /// Too many descriptors, or not as many as the header says.
    #[error("{got} descriptors with one frame, at most 2 are taken")]
    Descriptors {
        /// Descriptors announced or received.
        got: u16,
    },
    /// Reserved bytes that are not 0.
    #[error("reserved bytes of the header are not 0")]
    Reserved,
    /// The body is not the MessagePack of its kind.
    #[error("the body is not a valid {what}: {why}")]
    Body {
        /// The message.
        what: &'static str,
        /// What the decoder says.
        why: String,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// The bytes are not what the protocol says. The connection is closed.
    Malformed = 1,
    /// No common version. The connection is closed.
    Version = 2,
    /// This user, or a second session with the same name, is not admitted. The connection is closed.
    NotAdmitted = 3,
    /// The call does not belong to the session's role, or comes out of turn.
    Role = 4,
    /// A limit is reached.
    Limit = 5,
    /// A request, job, lease, slot or key that the session does not have.
    Unknown = 6,
    /// Not now: ask again later.
    Retry = 7,
    /// The server is closing.
    Closing = 8,
    /// Geometry, namespace or another value that cannot be served.
    Invalid = 9,
    /// The server failed.
    Internal = 10,
}

impl ErrorCode {
    /// The code with this number; [`ErrorCode::Internal`] for one that is not known here.
    pub const fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Malformed,
            2 => Self::Version,
            3 => Self::NotAdmitted,
            4 => Self::Role,
            5 => Self::Limit,
            6 => Self::Unknown,
            7 => Self::Retry,
            8 => Self::Closing,
            9 => Self::Invalid,
            _ => Self::Internal,
        }
    }
}

/// The body of a frame with the ERROR flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// An [`ErrorCode`].
    pub code: u16,
    /// For people: names the place, the value and the fix.
    pub message: String,
}

impl ErrorReply {
    /// A refusal.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code: code as u16, message: message.into() }
    }
}
