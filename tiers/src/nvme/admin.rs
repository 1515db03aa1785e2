//! What operators do with block directories: see whose blocks they hold, and remove a namespace. For `terrace tenant`, and for tests.
//!
//! All calls block. What changes a directory needs its lock, so no tier uses it meanwhile.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use terrace_config::{Geometry, Namespace};

use super::directory::{FORMAT, check_format, lock};
use super::name::{QUARANTINE, TMP, namespace_dir, parse_namespace};
use super::tier_open::CATALOG;
use crate::error::TierError;
use crate::tenant::read_label;

/// What the directory of a pool is called, below a path of the configuration: followed by the pool's number.
const POOL: &str = "pool-";
/// Bytes of the unit in which `stat` counts.
const STAT_BLOCK_BYTES: u64 = 512;

/// What there is of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files of every kind.
    pub files: u64,
    /// Bytes that they take on the device.
    pub bytes: u64,
}

/// One block directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDirectory {
    root: PathBuf,
}

/// A block directory that no tier uses until this is dropped.
#[derive(Debug)]
pub struct LockedDirectory {
    directory: BlockDirectory,
    _lock: OwnedFd,
}

impl BlockDirectory {
    /// The block directories at a path of the configuration: itself and those of pools below it, of any number of pools, as they were
    /// used at some time. None, where there is nothing.
    ///
    /// # Errors
    /// [`TierError::Directory`] if it is there and cannot be listed.
    pub fn find(path: &Path) -> Result<Vec<Self>, TierError> {
        let mut roots = vec![path.to_owned()];
        for name in names(path)? {
            if name.strip_prefix(POOL).is_some_and(|number| number.parse::<u32>().is_ok()) {
                roots.push(path.join(name));
            }
        }
        roots.retain(|root| root.join(FORMAT).is_file());
        roots.sort_unstable();
        Ok(roots.into_iter().map(|root| Self { root }).collect())
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Digests of the namespaces that have a directory here, in order.
    ///
    /// # Errors
    /// [`TierError::Directory`].
    pub fn namespaces(&self) -> Result<Vec<[u8; 32]>, TierError> {
        let mut found: Vec<_> = names(&self.root)?.iter().filter_map(|name| parse_namespace(name)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// The fields of a namespace, if its label stands here and is its own.
    pub fn label(&self, namespace: &[u8; 32]) -> Option<(Namespace, Geometry)> {
        read_label(&self.root, namespace)
    }

    /// Counts every file of a namespace, whatever it is.
    ///
    /// # Errors
    /// [`TierError::Directory`].
    pub fn contents(&self, namespace: &[u8; 32], tell: &mut dyn FnMut(u64)) -> Result<Contents, TierError> {
        let mut contents = Contents::default();
        let mut dirs = vec![self.dir(namespace)];
        while let Some(dir) = dirs.pop() {
            let entries = match fs::read_dir(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|error| failed(&dir, "it cannot be listed", error))?,
            };
            for entry in entries {
                let entry = entry.map_err(|error| failed(&dir, "it cannot be listed", error))?;
                // Of the entry itself: a link is not followed.
                match entry.metadata() {
                    Ok(stat) if stat.is_dir() => dirs.push(entry.path()),
                    Ok(stat) => {
                        contents.files += 1;
                        contents.bytes += stat.blocks() * STAT_BLOCK_BYTES;
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(&entry.path(), "it cannot be asked for", error)),
                }
            }
            tell(contents.files);
        }
        Ok(contents)
    }

    /// Takes the directory's lock, which a tier holds while it has the directory open.
    ///
    /// # Errors
    /// [`TierError::Directory`]: a tier has it open, it has another format, or this user may not write to it.
    pub fn lock(self) -> Result<LockedDirectory, TierError> {
        let lock = lock(&self.root)?;
        check_format(&self.root)?;
        Ok(LockedDirectory { directory: self, _lock: lock })
    }

    fn dir(&self, namespace: &[u8; 32]) -> PathBuf {
        self.root.join(namespace_dir(namespace).as_str())
    }
}

impl LockedDirectory {
    /// The directory.
    pub const fn directory(&self) -> &BlockDirectory {
        &self.directory
    }

    /// Removes what may hold blocks or names of any namespace beside its files: files half written, copies kept for a look, and the catalog,
    /// with which only the order of eviction is lost. Before the files themselves: what a crash leaves can be removed again.
    ///
    /// # Errors
    /// [`TierError::Directory`].
    pub fn forget_copies(&self) -> Result<(), TierError> {
        let root = &self.directory.root;
        remove(&root.join(CATALOG))?;
        for name in [TMP, QUARANTINE] {
            let dir = root.join(name);
            for name in names(&dir)? {
                remove(&dir.join(name))?;
            }
        }
        Ok(())
    }

    /// Removes the directory of a namespace, with all that is in it, and waits until the file system has that on its device. The bytes that
    /// stood there are free space, not overwritten.
    ///
    /// # Errors
    /// [`TierError::Directory`]; what was removed until then is.
    pub fn erase(&self, namespace: &[u8; 32], tell: &mut dyn FnMut(u64)) -> Result<(), TierError> {
        let dir = self.directory.dir(namespace);
        let (mut done, children) = (0, names(&dir)?);
        for name in children {
            remove(&dir.join(name))?;
            done += 1;
            tell(done);
        }
        remove(&dir)?;
        let root = &self.directory.root;
        let file = fs::File::open(root).map_err(|error| failed(root, "it cannot be opened", error))?;
        rustix::fs::syncfs(&file).map_err(|errno| failed(root, "it cannot be synchronised", errno.into()))
    }
}

/// Names in a directory that are text; none, if it is not there.
fn names(path: &Path) -> Result<Vec<String>, TierError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| failed(path, "it cannot be listed", error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(path, "it cannot be listed", error))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Removes a file, or a directory with all that is in it. A link is removed, not what it names.
fn remove(path: &Path) -> Result<(), TierError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(stat) if stat.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed(path, "it cannot be removed: give this user the right to write", error))
        }
        _ => Ok(()),
    }
}

fn failed(path: &Path, problem: &str, source: io::Error) -> TierError {
    TierError::Directory { path: path.to_owned(), problem: problem.to_owned(), source: Some(source) }
}
