//! Memory of a shared table: the file, and how a reader looks at what another process writes.
#![expect(unsafe_code, reason = "shared memory: mapping, and reads of what another process writes")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{CHANGES_AT, PAGE_BYTES};
use crate::memory::{LINE_CELLS, Line, Memory, Words, compare};

/// A memfd of `bytes` zeros that keeps its length. [`seal`] it once it is mapped.
pub(super) fn file(bytes: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create("terrace-table", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// From here on nobody can map it to write, but for who has.
pub(super) fn seal(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// The words of a file of [`file`], which this process alone writes.
pub(super) fn words(fd: BorrowedFd<'_>, offset: u64, words: usize) -> Result<Words, Errno> {
    // SAFETY: the file was made of the length of all its parts, sealed against shrinking, and handed to nobody yet.
    unsafe { Words::of_file(fd, offset, words) }
}

/// The header of a table that this process owns, written.
pub(super) struct Head(Words);

impl Head {
    /// `None`: too short to be one.
    pub fn new(words: Words) -> Option<Self> {
        if words.as_slice().len() < CHANGES_AT + 2 { None } else { Some(Self(words)) }
    }

    /// The number of the last change.
    pub fn changes(&self) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned to 64 bytes, and valid for any bits; from here on nobody uses it but as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.start().as_ptr().add(CHANGES_AT).cast()) }
    }
}

/// Words of a file that another process writes.
#[derive(Debug)]
pub(super) struct View {
    start: NonNull<u32>,
    words: usize,
    mapped_bytes: usize,
}

// SAFETY: plain shared memory, only read, and only by volatile reads and one atomic.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps `words` words of `fd` to be read.
    ///
    /// # Safety
    /// The file reaches that far from `offset` (of whole pages) on, and cannot shrink: a page beyond its end kills the
    /// process.
    pub unsafe fn of(fd: &impl AsFd, offset: u64, words: usize) -> Result<Self, Errno> {
        let mapped_bytes = words.max(1).checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let mapped_bytes = mapped_bytes.ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice; the caller vouches for the file.
        let start = unsafe { mmap(std::ptr::null_mut(), mapped_bytes, ProtFlags::READ, MapFlags::SHARED, fd, offset) }?;
        Ok(Self { start: NonNull::new(start.cast::<u32>()).ok_or(Errno::NOMEM)?, words, mapped_bytes })
    }

    /// The counter of changes in a header.
    pub fn changes(&self) -> &AtomicU64 {
        assert!(self.words >= CHANGES_AT + 2, "no header");
        // SAFETY: inside the mapping, aligned to 64 bytes, and valid for any bits; nobody reads it but as an atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(CHANGES_AT).cast()) }
    }

    #[inline(always)]
    fn at(&self, at: usize, words: usize) -> Option<NonNull<u32>> {
        // SAFETY: the words are inside the mapping.
        at.checked_add(words).is_some_and(|end| end <= self.words).then(|| unsafe { self.start.add(at) })
    }
}

// Volatile: each read happens once, and what was read does not change afterwards, whatever the other process does.
impl Memory for View {
    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        let Some(place) = self.at(at, 1) else { panic!("word {at} of {}", self.words) };
        // SAFETY: inside the mapping and aligned.
        unsafe { place.read_volatile() }
    }

    #[inline(always)]
    fn ten(&self, row: u32) -> Option<[u32; 10]> {
        let place = self.at((row as usize).checked_mul(10)?, 10)?;
        // SAFETY: ten words inside the mapping, aligned to four bytes, which is what they ask for.
        Some(unsafe { place.cast::<[u32; 10]>().read_volatile() })
    }

    #[inline(always)]
    fn matches(&self, line: u32, want: u32, mask: u32) -> u32 {
        let Some(place) = self.at(line as usize * LINE_CELLS, LINE_CELLS) else { panic!("line {line}") };
        // SAFETY: a line inside the mapping, which begins with a page: aligned to 64 bytes.
        compare(unsafe { place.cast::<Line>().read_volatile() }, want, mask)
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(place) = self.at(at, 1) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: inside the mapping; a prefetch reads nothing into registers and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}
