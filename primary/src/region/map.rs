//! The mapping behind a region.
#![expect(unsafe_code, reason = "shared memory: mapping, advice and copies by address")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{PageKind, Progress, RegionOptions};
use crate::error::PrimaryError;

/// A sealed memfd, mapped shared.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
    pages: PageKind,
}

// SAFETY: the mapping is plain shared memory, owned by this value alone; who may touch which bytes is the block table's rule.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

fn system(step: &'static str) -> impl FnOnce(Errno) -> PrimaryError {
    move |errno| PrimaryError::System { step, source: errno.into() }
}

impl Mapping {
    pub(super) fn create(bytes: usize, options: &RegionOptions, progress: Progress<'_>) -> Result<Self, PrimaryError> {
        let _ = options;
        let mapping = Self::map(bytes, PageKind::Normal).map_err(system("mapping its memory"))?;
        progress(bytes as u64, bytes as u64);
        Ok(mapping)
    }

    /// A sealed memfd of `bytes` (rounded up to whole pages), mapped and not yet backed.
    fn map(bytes: usize, pages: PageKind) -> Result<Self, Errno> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut page_bytes = 4096;
        if pages == PageKind::Huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            page_bytes = 2 << 20;
        }
        let bytes = bytes.checked_next_multiple_of(page_bytes).ok_or(Errno::NOMEM)?;
        let fd = memfd_create("terrace-primary", flags)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice over a file of exactly this length that can never shrink.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, bytes, fd, pages })
    }

    pub(super) const fn parts(&self) -> (NonNull<u8>, usize) {
        (self.start, self.bytes)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) const fn pages(&self) -> PageKind {
        self.pages
    }

    /// The address of a byte of the mapping.
    pub(super) fn at(&self, offset: usize) -> Option<NonNull<u8>> {
        // SAFETY: the offset is inside the mapping, which is one allocation of less than `isize::MAX` bytes.
        (offset < self.bytes).then(|| unsafe { self.start.add(offset) })
    }

    pub(super) fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.covers(offset, to.len()) {
            return false;
        }
        // SAFETY: the range was checked; `to` is memory of the caller's and cannot overlap a mapping without references.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    pub(super) fn write(&self, offset: usize, from: &[u8]) -> bool {
        if !self.covers(offset, from.len()) {
            return false;
        }
        // SAFETY: as in `read`; that nobody else uses the slot meanwhile is the caller's rule.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) };
        true
    }

    fn covers(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole; whoever was given an address was told that it ends with the region.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
