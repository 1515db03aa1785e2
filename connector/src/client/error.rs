//! Why a session could not be opened.

use std::io;
use std::path::PathBuf;

use terrace_kernels::CopyError;
use terrace_primary::PrimaryError;

use crate::protocol::{Kind, ProtocolError};

/// Why there is no session. None of it ends an engine: until there is one everything is a miss.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot reach a daemon at {}: {error}; is `terrace serve` running?", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the machine says.
        error: io::Error,
    },
    /// The connection failed or was closed while it was being opened.
    #[error("the daemon closed the connection before the session was open: {0}")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the daemon at {} did not answer within {within_ms} ms", socket.display())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        within_ms: u64,
    },
    /// What came is not the protocol.
    #[error("what the daemon sent is not valid: {0}")]
    Protocol(#[from] ProtocolError),
    /// The daemon does not want this session.
    #[error("the daemon refused the session ({code}): {message}")]
    Refused {
        /// [`ErrorCode`](crate::protocol::ErrorCode) as a number.
        code: u16,
        /// Why.
        message: String,
    },
    /// The answer contradicts what was asked for.
    #[error("the daemon's answer does not fit: {0}")]
    Unfit(String),
    /// The device of this process does not do what is needed.
    #[error("the device: {0}")]
    Device(#[from] CopyError),
    /// The daemon does not copy what it was asked to.
    #[error("the daemon refused {kind:?} ({code}): {message}")]
    Copies {
        /// What was asked for.
        kind: Kind,
        /// [`ErrorCode`](crate::protocol::ErrorCode) as a number.
        code: u16,
        /// Why.
        message: String,
    },
    /// The region cannot be mapped.
    #[error("the daemon's region cannot be used: {0}")]
    Region(#[from] PrimaryError),
    /// No thread could be started.
    #[error("no thread for the connection: {0}")]
    Thread(io::Error),
}
