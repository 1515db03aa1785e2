//! What is not in the configuration file.

use std::path::PathBuf;

/// How a daemon is started beside its configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Listen here; `None`: at `server.socket`.
    pub socket: Option<PathBuf>,
}
