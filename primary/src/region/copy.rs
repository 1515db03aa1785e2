//! Bytes into a mapping and out of it: from memory, and straight from a file.
#![expect(unsafe_code, reason = "shared memory: copies by address")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::map::Mapping;

impl Mapping {
    /// Copies from `offset` on to `to`. False: beyond the end.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.covers(offset, to.len()) {
            return false;
        }
        let (start, _) = self.parts();
        // SAFETY: the range was checked; `to` is memory of the caller's and cannot overlap a mapping without
        // references.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr().add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies `from` to `offset`. False: beyond the end.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        if !self.covers(offset, from.len()) {
            return false;
        }
        let (start, _) = self.parts();
        // SAFETY: as in `read`; that nobody else uses the slot meanwhile is the caller's rule.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start.as_ptr().add(offset), from.len()) };
        true
    }

    /// Reads `len` bytes of `file`, from `from` on, to `offset`: all of them, or an error. Blocks.
    pub(super) fn fill(&self, offset: usize, file: BorrowedFd<'_>, from: u64, len: usize) -> io::Result<()> {
        self.move_all(offset, from, len, |address, count, at| {
            // SAFETY: `move_all` names `count` bytes of the mapping; the kernel checks them against what is mapped.
            unsafe { libc::pread64(file.as_raw_fd(), address.cast(), count, at) }
        })
    }

    /// Writes `len` bytes from `offset` on to `file` at `to`: all of them, or an error. Blocks.
    pub(super) fn drain(&self, offset: usize, file: BorrowedFd<'_>, to: u64, len: usize) -> io::Result<()> {
        self.move_all(offset, to, len, |address, count, at| {
            // SAFETY: as in `fill`.
            unsafe { libc::pwrite64(file.as_raw_fd(), address.cast_const().cast(), count, at) }
        })
    }

    /// Calls `step` with address, bytes and place in the file until `len` bytes have moved.
    fn move_all(
        &self,
        offset: usize,
        place: u64,
        len: usize,
        step: impl Fn(*mut u8, usize, i64) -> isize,
    ) -> io::Result<()> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !self.covers(offset, len) {
            return Err(invalid("the bytes reach beyond the region"));
        }
        let end = place.checked_add(len as u64).and_then(|end| i64::try_from(end).ok());
        let end = end.ok_or_else(|| invalid("the place in the file is beyond any file's end"))?;
        let (start, _) = self.parts();
        let mut moved = 0;
        while moved < len {
            // SAFETY: `offset + moved` is inside the mapping, by the check above.
            let address = unsafe { start.as_ptr().add(offset + moved) };
            match usize::try_from(step(address, len - moved, end - (len - moved) as i64)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => moved += count,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}
