//! Memory that stands for a GPU's.
#![expect(unsafe_code, reason = "mapping memory, and copying from and to it while copy engines hold its address")]

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::engine::CopyError;

const PAGE_BYTES: usize = 4096;

/// Page-aligned zeroed memory at a fixed address, backed from the start (2 MiB pages where the system has them).
///
/// [`Arena::read`] and [`Arena::write`] copy without synchronisation, as a GPU kernel would: the caller keeps them away from
/// blocks that a copy in flight touches. What a violation yields is unspecified bytes.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    mapped_bytes: usize,
}

// SAFETY: the mapping belongs to the arena alone, stays until it is dropped, and is only accessed by raw copies.
unsafe impl Send for Arena {}
// SAFETY: as above; no reference into the memory is ever made.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of `bytes`, at least 1. `Invalid` if the system has no such memory.
    pub fn new(bytes: usize) -> Result<Self, CopyError> {
        let refused = |why: String| CopyError::Invalid(format!("an arena of {bytes} bytes: {why}"));
        let mapped_bytes = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|mapped| *mapped > 0)
            .ok_or_else(|| refused("not a possible size".to_owned()))?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .map_err(|error| refused(error.to_string()))?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(refused("mapped at address zero".to_owned()));
        };
        // Only advice: without huge pages the arena works as well.
        // SAFETY: the range was mapped above.
        let _ = unsafe { madvise(base.as_ptr().cast(), mapped_bytes, Advice::LinuxHugepage) };
        let arena = Self { base, len: bytes, mapped_bytes };
        // First touch costs far more than a copy: pay now, not in the middle of one.
        for offset in (0..mapped_bytes).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping, to which nobody else has the address yet.
            unsafe { arena.base.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(arena)
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: an arena has at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Address of the `len` bytes at `offset`; `None` if they are not all inside.
    pub fn span(&self, offset: usize, len: usize) -> Option<usize> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.address() + offset)
    }

    /// Copies the bytes at `offset` to `out`. `false` and nothing done if they are not all inside.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(address) = self.span(offset, out.len()) else { return false };
        // SAFETY: `span` checked the bounds; `out` is memory of safe code, so it is not in this mapping.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `bytes` to `offset`. `false` and nothing done if they do not fit inside.
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(address) = self.span(offset, bytes.len()) else { return false };
        // SAFETY: `span` checked the bounds; `bytes` is memory of safe code, so it is not in this mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        true
    }

    /// Sets the `len` bytes at `offset` to `value`. `false` and nothing done if they are not all inside.
    #[must_use]
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> bool {
        let Some(address) = self.span(offset, len) else { return false };
        // SAFETY: `span` checked the bounds.
        unsafe { std::ptr::write_bytes(address as *mut u8, value, len) };
        true
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; whoever copies from or to it keeps the arena alive meanwhile.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        let arena = Arena::new(5000).unwrap();
        assert_eq!(arena.address() % PAGE_BYTES, 0);
        assert!(arena.write(4990, &[7; 10]));
        assert!(!arena.write(4991, &[7; 10]));
        assert!(!arena.fill(usize::MAX, 2, 0));
        let mut out = [0; 10];
        assert!(arena.read(4990, &mut out));
        assert_eq!(out, [7; 10]);
        assert!(!arena.read(5000, &mut out));
        assert!(Arena::new(0).is_err());
        assert!(Arena::new(usize::MAX).is_err());
    }
}
