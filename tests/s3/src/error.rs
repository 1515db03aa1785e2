//! What can go wrong in a test's own parts.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A test's own parts do not work. Each ends the test: none of these is a fault made on purpose.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The script that installs and starts the server failed; what it said is there.
    #[error("{script} failed: {said}")]
    Start {
        /// The script.
        script: PathBuf,
        /// Its standard error.
        said: String,
    },
    /// No block of ports is free.
    #[error("no {count} ports in a row are free in {first}..{last}")]
    Ports {
        /// Ports wanted in a row.
        count: u16,
        /// First port that was tried.
        first: u16,
        /// End of the ports that were tried.
        last: u16,
    },
    /// The server did not do what was asked for.
    #[error("the server at {address} answered {status} to {what}: {body}")]
    Refused {
        /// The server.
        address: SocketAddr,
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
        /// Its answer.
        body: String,
    },
    /// No answer.
    #[error("no answer from the server at {address} to {what}: {source}")]
    NoAnswer {
        /// The server.
        address: SocketAddr,
        /// What was asked for.
        what: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A client of `object_store` cannot be made for this address and bucket.
    #[error("no client: {0}")]
    Client(#[from] object_store::Error),
    /// A call of the operating system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it gave.
        source: io::Error,
    },
}

/// For `map_err`: the call of the operating system that failed.
pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { what, source: source.into() }
}
