//! What is not in the configuration file.

use std::path::PathBuf;
use std::sync::Arc;

use super::device::DeviceSource;

/// How a daemon is started beside its configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Listen here; `None`: at `server.socket`.
    pub socket: Option<PathBuf>,
    /// Where the devices are on which it copies for workers, unless `[copy] engine` is `"host"`; `None`: the GPUs of this machine, if the
    /// configuration wants them and they are there.
    pub devices: Option<Arc<dyn DeviceSource>>,
}
