//! Why a frame was refused, and what that does to its connection.

use crate::protocol::{ErrorCode, ErrorReply, ProtocolError};

/// A refusal of one frame.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Malformed, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }

    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Limit, message)
    }

    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unknown, message)
    }

    pub fn role(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Role, message)
    }

    /// Whether the connection ends with it.
    pub const fn closes(&self) -> bool {
        matches!(self.code, ErrorCode::Malformed | ErrorCode::Version | ErrorCode::NotAdmitted)
    }

    /// Whether it is a fault of the client that counts.
    pub const fn is_strike(&self) -> bool {
        !matches!(self.code, ErrorCode::Retry | ErrorCode::Closing | ErrorCode::Internal)
    }

    pub fn reply(&self) -> ErrorReply {
        ErrorReply::new(self.code, self.message.clone())
    }
}

impl From<ProtocolError> for Refusal {
    fn from(error: ProtocolError) -> Self {
        let code = match error {
            ProtocolError::Version { .. } => ErrorCode::Version,
            _ => ErrorCode::Malformed,
        };
        Self::new(code, error.to_string())
    }
}
