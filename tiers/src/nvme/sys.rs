//! System calls that both real devices share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::device::{Cause, DeviceError, DirEntry, FileStat, Step};
use super::path::RelPath;

/// Mode of files made.
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIR_MODE: Mode = Mode::from_raw_mode(0o700);

pub(super) fn cause_of(errno: Errno) -> Cause {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Cause::Missing,
        Errno::EXIST => Cause::Exists,
        Errno::NOSPC | Errno::DQUOT => Cause::NoSpace,
        Errno::ROFS => Cause::ReadOnly,
        Errno::CANCELED => Cause::Cancelled,
        other => Cause::Errno(other.raw_os_error()),
    }
}

pub(super) fn at(step: Step) -> impl Fn(Errno) -> DeviceError {
    move |errno| DeviceError::new(step, cause_of(errno))
}

/// Flags to open a file for writing.
pub(super) fn write_flags(recycled: bool, direct: bool) -> OFlags {
    let fresh = if recycled { OFlags::empty() } else { OFlags::CREATE | OFlags::TRUNC };
    OFlags::WRONLY | OFlags::CLOEXEC | fresh | direct_flag(direct)
}

/// Flags to open a file for reading.
pub(super) fn read_flags(direct: bool) -> OFlags {
    OFlags::RDONLY | OFlags::CLOEXEC | direct_flag(direct)
}

fn direct_flag(direct: bool) -> OFlags {
    if direct { OFlags::DIRECT } else { OFlags::empty() }
}

pub(super) fn stat(root: BorrowedFd<'_>, path: &RelPath) -> Result<FileStat, Errno> {
    let stat = rustix::fs::statat(root, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileStat {
        len_bytes: stat.st_size as u64,
        allocated_bytes: stat.st_blocks as u64 * 512,
        modified_ns: (stat.st_mtime as u64).saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as u64),
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
    })
}

pub(super) fn make_dir(root: BorrowedFd<'_>, path: &RelPath) -> Result<(), DeviceError> {
    match rustix::fs::mkdirat(root, path.as_c_str(), DIR_MODE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(at(Step::MakeDir)(errno)),
    }
}

/// A directory being listed in pieces.
#[derive(Debug, Default)]
pub(super) struct Listing(Option<Dir>);

impl Listing {
    pub(super) fn start(&mut self, root: BorrowedFd<'_>, path: &RelPath) -> Result<(), DeviceError> {
        self.0 = None;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir: OwnedFd = rustix::fs::openat(root, path.as_c_str(), flags, Mode::empty()).map_err(at(Step::List))?;
        self.0 = Some(Dir::read_from(dir.as_fd()).map_err(at(Step::List))?);
        Ok(())
    }

    pub(super) fn next(&mut self, max: usize, out: &mut Vec<DirEntry>) -> Result<bool, DeviceError> {
        let Some(dir) = &mut self.0 else { return Ok(false) };
        for _ in 0..max {
            let Some(entry) = dir.read() else {
                self.0 = None;
                return Ok(false);
            };
            let entry = entry.map_err(at(Step::List))?;
            // A name that is no text is no block's.
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                out.push(DirEntry { name: name.into(), is_dir: entry.file_type() == FileType::Directory });
            }
        }
        Ok(true)
    }
}
