//! Regions that belong to engines: files that are read and written, never mapped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{Shutdown, shutdown};

use super::peer::is_hung_up;
use super::refusal::Refusal;
use crate::protocol::ForeignRegion;

/// What `statfs` says of a tmpfs file. On other file systems a read may block for as long as a device or a server
/// likes.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The region of a session of role "tier".
#[derive(Debug)]
pub(super) struct Foreign {
    file: OwnedFd,
    rows: u32,
    row_stride: u32,
    offset_bytes: u64,
    /// Whether its session is open: when it is not, the engine may use its rows for other things.
    open: AtomicBool,
    /// Once more the session's socket: its end shows here before the pool's thread has seen it.
    socket: OwnedFd,
}

impl Foreign {
    /// Checks what can be checked. The file may be cut off later: that fails copies and nothing else.
    pub fn new(file: OwnedFd, shape: ForeignRegion, block_bytes: u32, socket: impl AsFd) -> Result<Self, Refusal> {
        let unusable = |errno| Refusal::invalid(format!("the region's descriptor cannot be looked at: {errno}"));
        let stat = fstat(&file).map_err(unusable)?;
        let statfs = fstatfs(&file).map_err(unusable)?;
        // The magic number is the low half of a field of either sign.
        let is_tmpfs = statfs.f_type as u64 & 0xffff_ffff == TMPFS_MAGIC;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_tmpfs {
            return Err(Refusal::invalid("the region's descriptor must be a regular file on tmpfs (/dev/shm)"));
        }
        let flags = fcntl_getfl(&file).map_err(unusable)?;
        if flags.intersection(OFlags::ACCMODE) != OFlags::RDWR || flags.contains(OFlags::APPEND) {
            return Err(Refusal::invalid("the region's descriptor must be open for reading and writing (O_RDWR)"));
        }
        let ForeignRegion { rows, row_stride, offset_bytes } = shape;
        if rows == 0 || row_stride < block_bytes {
            return Err(Refusal::invalid(format!(
                "a region of {rows} rows of {row_stride} bytes: give at least one row of at least \
                 {block_bytes} bytes (block_bytes)"
            )));
        }
        let end = (u64::from(rows) * u64::from(row_stride)).checked_add(offset_bytes);
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if end.is_none_or(|end| end > file_bytes) {
            return Err(Refusal::invalid(format!(
                "{rows} rows of {row_stride} bytes from byte {offset_bytes} on do not fit a file of {file_bytes} bytes"
            )));
        }
        let socket = fcntl_dupfd_cloexec(socket, 0).map_err(unusable)?;
        Ok(Self { file, rows, row_stride, offset_bytes, open: AtomicBool::new(true), socket })
    }

    /// No row is read or written any more, but for those that a thread is at.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
        // The other side sees the end now, and not when the last copy has let go of this.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Whether the engine still leaves its rows to the daemon.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) && !is_hung_up(&self.socket)
    }

    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// Where a row starts.
    pub fn offset(&self, row: u32) -> u64 {
        self.offset_bytes + u64::from(row) * u64::from(self.row_stride)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
