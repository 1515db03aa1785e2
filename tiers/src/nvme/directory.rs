//! Opening a directory: made where it is missing, locked, its format checked, its facilities probed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use terrace_config::Choice;
use terrace_primary::Region;

use super::format::FORMAT_VERSION;
use super::name::{QUARANTINE, TMP};
use super::posix::PosixDevice;
use super::shard::{Shard, ShardOptions};
use super::threaded::ThreadedPort;
use super::uring::UringDevice;
use crate::clock::Clock;
use crate::error::TierError;

/// Held locked by the process that uses the directory.
const LOCK: &str = "LOCK";
/// Names the format of everything below the root.
pub(super) const FORMAT: &str = "FORMAT";
/// What stands in front of the version in `FORMAT`.
const FORMAT_NAME: &str = "terrace block directory ";
/// Length that any sound `FORMAT` stays below.
const FORMAT_BYTES: u64 = 64;

/// One directory of a tier.
pub struct DirectoryOptions {
    /// Name of the tier, for errors.
    pub tier: String,
    /// The directory; made if it is missing.
    pub root: PathBuf,
    /// Which of the tier's directories: names the thread.
    pub index: usize,
    /// O_DIRECT.
    pub direct_io: Choice,
    /// io_uring.
    pub io_uring: Choice,
    /// What the shard is told.
    pub shard: ShardOptions,
    /// The slots.
    pub region: Arc<Region>,
    /// Time of the deadlines.
    pub clock: Arc<dyn Clock>,
}

/// Opens a directory and starts its thread. Touches no slot: the thread registers the region with the kernel as it becomes ready. A
/// directory that cannot be used, is in use, or holds another format is an error that names the fix.
pub fn open_directory(options: DirectoryOptions) -> Result<ThreadedPort, TierError> {
    let DirectoryOptions { tier, root, index, direct_io, io_uring, mut shard, region, clock } = options;
    let problem = |problem: &str, source: io::Error| TierError::Directory {
        path: root.clone(),
        problem: problem.into(),
        source: Some(source),
    };
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    make(&root).map_err(|error| problem("it does not exist and cannot be made: make it, owned by this user", error))?;
    let lock = lock(&root)?;
    check_format(&root)?;
    for name in [TMP, QUARANTINE] {
        make(&root.join(name))
            .map_err(|error| problem("it is not writable: give this user the right to write", error))?;
    }
    let direct = probe_direct_io(&tier, &root, direct_io)?;
    let dir: OwnedFd = File::open(&root).map_err(|error| problem("it cannot be opened", error))?.into();

    shard.label = root.display().to_string();
    let name = format!("nvme-{index}");
    let queue_entries = shard.queue_entries;
    if io_uring != Choice::Off {
        let again = dir.try_clone().map_err(|error| problem("it cannot be opened", error))?;
        let (shard, region, clock) = (shard.clone(), Arc::clone(&region), Arc::clone(&clock));
        let held = lock.try_clone().map_err(|error| problem("its LOCK cannot be kept", error))?;
        let tier_name = tier.clone();
        let opened = ThreadedPort::spawn(&name, queue_entries, move |waker| {
            let device = UringDevice::new(again, direct, shard.queue_depth, waker).map_err(|error| {
                TierError::Required { tier: tier_name, facility: "io_uring", why: error.to_string() }
            })?;
            Ok(Shard::new(device.holding(held), region, clock, shard))
        });
        match opened {
            Err(TierError::Required { why, .. }) if io_uring == Choice::Auto => {
                tracing::warn!(
                    directory = %root.display(),
                    "io_uring does not work here ({why}): blocking calls are used, which are slower; \
                     allow it (sysctl kernel.io_uring_disabled=0, or the container's seccomp profile)"
                );
            }
            opened => return opened,
        }
    }
    ThreadedPort::spawn(&name, queue_entries, move |waker| {
        let device = PosixDevice::new(dir, direct, Some(waker)).holding(lock);
        Ok(Shard::new(device, region, clock, shard))
    })
}

/// Takes the directory's lock, which ends with the process that holds it.
pub(super) fn lock(root: &Path) -> Result<OwnedFd, TierError> {
    let refuse = |problem: &str, source: io::Error| TierError::Directory {
        path: root.into(),
        problem: problem.into(),
        source: Some(source),
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(root.join(LOCK))
        .map_err(|error| refuse("its LOCK file cannot be made: give this user the right to write", error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file.into()),
        Err(errno) if errno == Errno::WOULDBLOCK => Err(refuse(
            "another process uses it (its LOCK is held): stop that one, or give this one a directory of its own",
            errno.into(),
        )),
        Err(errno) => {
            Err(refuse("its LOCK file cannot be locked: use a file system that supports flock", errno.into()))
        }
    }
}

/// Writes `FORMAT` in a new directory; refuses one that this program does not read.
pub(super) fn check_format(root: &Path) -> Result<(), TierError> {
    let path = root.join(FORMAT);
    let refuse = |problem: String, source| TierError::Directory { path: root.into(), problem, source };
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(FORMAT_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let write = || {
                let temp = root.join(format!("{FORMAT}.new"));
                let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
                writeln!(file, "{FORMAT_NAME}{FORMAT_VERSION}")?;
                file.sync_all()?;
                std::fs::rename(&temp, &path)
            };
            return write()
                .map_err(|error| refuse("it is not writable: give this user the right to write".into(), Some(error)));
        }
        Err(error) => return Err(refuse("its FORMAT file cannot be read".into(), Some(error))),
    }
    match text.trim_end().strip_prefix(FORMAT_NAME).and_then(|version| version.parse::<u32>().ok()) {
        Some(FORMAT_VERSION) => Ok(()),
        Some(version) => Err(refuse(
            format!(
                "it holds blocks in format {version} and this program reads format {FORMAT_VERSION}: \
                 use the version of Terrace that wrote it, or another directory"
            ),
            None,
        )),
        None => Err(refuse("its FORMAT file is not Terrace's: this directory is used for something else".into(), None)),
    }
}

/// Whether files are opened with O_DIRECT: tried once, with an aligned write.
fn probe_direct_io(tier: &str, root: &Path, choice: Choice) -> Result<bool, TierError> {
    if choice == Choice::Off {
        return Ok(false);
    }
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let path = root.join(TMP).join("direct-io-probe");
    let probe = || {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).custom_flags(flags).open(&path)?;
        file.write_all(&Page([0; 4096]).0)
    };
    let result = probe();
    let _ = std::fs::remove_file(&path);
    match result {
        Ok(()) => Ok(true),
        // Only these say that O_DIRECT is not taken; a full disk says nothing about it.
        Err(error) if !matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::OPNOTSUPP)) => Ok(true),
        Err(error) if choice == Choice::Require => {
            Err(TierError::Required { tier: tier.into(), facility: "direct_io", why: error.to_string() })
        }
        Err(error) => {
            tracing::warn!(
                directory = %root.display(),
                "O_DIRECT does not work here ({error}): files are buffered by the kernel, which is slower"
            );
            Ok(false)
        }
    }
}
