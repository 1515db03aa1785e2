//! Bounds that hold before and after a session is open.

use serde::{Deserialize, Serialize};

/// Longest body of a [`super::Hello`] and of its reply.
pub const MAX_HELLO_BYTES: u32 = 64 << 10;
/// Descriptors that may come with one frame.
pub const MAX_DESCRIPTORS: usize = 2;

/// What the server allows a session; told in [`super::HelloReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireLimits {
    /// Longest body, in bytes, either way.
    pub message_bytes: u32,
    /// Keys in one message.
    pub keys_per_message: u32,
    /// Requests open at once.
    pub requests: u32,
    /// Jobs and leases that have not ended.
    pub jobs: u32,
    /// Slots that the session may have leased, loading or being stored at once.
    pub slots: u32,
}
