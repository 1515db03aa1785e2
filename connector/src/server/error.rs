//! Why the daemon cannot start.

use std::io;
use std::path::PathBuf;

use terrace_kernels::CopyError;

/// What can go wrong at start. Each text names the place, the value and the fix. What goes wrong later ends with the
/// session that it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The socket cannot be had.
    #[error("socket {}: {problem}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },
    /// A directory of a tier is in use.
    #[error("tier directory {}: {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },
    /// A user or group that this machine does not know.
    #[error("[server] {key}: {name:?} is not known here: write its number, or another name")]
    Unknown {
        /// The key of the configuration.
        key: &'static str,
        /// What stands there.
        name: String,
    },
    /// Copies on a GPU are asked for and cannot be had.
    #[error("[copy] engine = \"cuda\": {source}")]
    Device {
        /// What is missing.
        source: CopyError,
    },
    /// The operating system refused a step.
    #[error("the daemon: {step} failed")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ServerError {
    /// Whether what the user gave is the cause: a path, a name, a second daemon.
    pub const fn is_bad_input(&self) -> bool {
        !matches!(self, Self::System { .. })
    }

    pub(super) fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { step, source: error.into() }
    }
}
