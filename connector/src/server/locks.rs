//! The tier directories belong to one daemon from its start on, whether a pool has opened them yet or not.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use terrace_config::{Config, TierKind};

use super::error::ServerError;

/// Held locked by the daemon whose directory it is.
const DAEMON_LOCK: &str = "DAEMON";
/// Held locked by whoever has opened the directory as a tier.
const TIER_LOCK: &str = "LOCK";

/// Locks of all directories of a configuration; they end with the process or this value.
#[derive(Debug)]
pub(super) struct DirectoryLocks(#[expect(dead_code, reason = "kept locked")] Vec<File>);

impl DirectoryLocks {
    /// Fails if another daemon has one of them, or an engine has one open in process.
    pub fn take(config: &Config) -> Result<Self, ServerError> {
        let mut locks = Vec::new();
        for tier in &config.tiers {
            if let TierKind::Nvme(nvme) = &tier.kind {
                for path in &nvme.paths {
                    locks.push(take(path)?);
                }
            }
        }
        Ok(Self(locks))
    }
}

fn take(path: &Path) -> Result<File, ServerError> {
    let refuse = |problem: &str, source: io::Error| ServerError::Directory {
        path: path.to_owned(),
        problem: problem.to_owned(),
        source: Some(source),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| refuse("it does not exist and cannot be made: make it, owned by this user", error))?;
    let open = |name: &str, make: bool| {
        OpenOptions::new().create(make).truncate(false).write(true).mode(0o600).open(path.join(name))
    };
    let daemon = open(DAEMON_LOCK, true)
        .map_err(|error| refuse("its lock file cannot be made: give this user the right to write", error))?;
    flock(&daemon, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
        refuse("another daemon uses it: stop that one, or give this one a directory of its own", errno.into())
    })?;
    // Let go at once: the pool that opens the directory takes it.
    if let Ok(tier) = open(TIER_LOCK, false) {
        flock(&tier, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            refuse(
                "another process uses it (its LOCK is held): stop that one, or give this one a directory of its own",
                errno.into(),
            )
        })?;
    }
    Ok(daemon)
}
