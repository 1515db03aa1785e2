//! The mapping behind a region.
#![expect(unsafe_code, reason = "shared memory: mapping and advice by address")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};
use rustix::param::page_size;

use super::PageKind;

/// Bytes of a huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A memfd that cannot shrink, mapped shared.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
    pages: PageKind,
}

// SAFETY: the mapping is plain shared memory, owned by this value alone; who may touch which bytes is the block
// table's rule.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A sealed memfd of `bytes` (rounded up to whole pages), mapped and not yet backed. Huge pages are reserved here:
    /// where
    /// too few are free this fails with `NOMEM`.
    pub(super) fn new(bytes: usize, pages: PageKind) -> Result<Self, Errno> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut page_bytes = page_size();
        if pages == PageKind::Huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            page_bytes = HUGE_PAGE_BYTES;
        }
        let bytes = bytes.checked_next_multiple_of(page_bytes).ok_or(Errno::NOMEM)?;
        let fd = memfd_create("terrace-primary", flags)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: the file has exactly this length and can never shrink.
        unsafe { Self::of(fd, bytes, pages) }
    }

    /// Maps the first `bytes` of `fd`.
    ///
    /// # Safety
    /// The file is at least that long and can never shrink: touching a page beyond its end kills the process. `bytes`
    /// is a multiple
    /// of its page size.
    pub(super) unsafe fn of(fd: OwnedFd, bytes: usize, pages: PageKind) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the caller vouches for the file.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &fd, 0) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let mapping = Self { start, bytes, fd, pages };
        // A core file with tens of GiB of KV cache helps nobody, and writing it delays the restart.
        let _ = mapping.advise(0, bytes, Advice::LinuxDontDump);
        Ok(mapping)
    }

    /// Asks for transparent huge pages, which some machines give to shared memory. Refusal only costs speed.
    pub(super) fn prefer_huge(&self) {
        let _ = self.advise(0, self.bytes, Advice::LinuxHugepage);
    }

    /// Takes pages from this NUMA node only. Before anything is backed.
    pub(super) fn bind(&self, node: u32) -> Result<(), Errno> {
        const MPOL_BIND: libc::c_int = 2;
        const MASK_WORDS: usize = 16;
        let mut mask = [0_u64; MASK_WORDS];
        let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
        *word |= 1 << (node % 64);
        // The kernel takes one off the number of bits it is given.
        let bits = MASK_WORDS * 64 + 1;
        // SAFETY: `mbind` reads `MASK_WORDS` words of `mask`, which outlives the call, and sets a policy on a range
        // that is ours.
        let result = unsafe {
            libc::syscall(libc::SYS_mbind, self.start.as_ptr(), self.bytes, MPOL_BIND, mask.as_ptr(), bits, 0_u32)
        };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Backs a page-aligned range. Blocks.
    pub(super) fn populate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        match self.advise(offset, len, Advice::LinuxPopulateWrite) {
            // Linux before 5.14 does not know it.
            Err(Errno::INVAL) => {
                for at in (offset..offset + len).step_by(page_size()) {
                    if let Some(byte) = self.at(at) {
                        // SAFETY: the byte is in the mapping, in a range that nobody has been given yet; it is zero
                        // before and after.
                        unsafe { byte.write_volatile(0) };
                    }
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Locks a page-aligned range in memory.
    pub(super) fn lock(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.at(offset).filter(|_| self.covers(offset, len)).ok_or(Errno::INVAL)?;
        // SAFETY: the range is inside the mapping; locking changes no content.
        unsafe { mlock(start.as_ptr().cast(), len) }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        let start = self.at(offset).filter(|_| self.covers(offset, len)).ok_or(Errno::INVAL)?;
        // SAFETY: the range is inside the mapping; no advice used here discards content.
        unsafe { madvise(start.as_ptr().cast(), len, advice) }
    }

    pub(super) const fn parts(&self) -> (NonNull<u8>, usize) {
        (self.start, self.bytes)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
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

    pub(super) fn covers(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole; whoever was given an address was told that it ends with the region.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
