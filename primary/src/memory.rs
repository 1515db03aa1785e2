//! Memory of the tables: zeroed pages taken once, prefetch hints, and the compare of one index line.
#![expect(unsafe_code, reason = "anonymous mappings, prefetch and SIMD loads; all behind safe functions")]

use std::alloc::{Layout, handle_alloc_error};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Cells in one line of an index: one cache line.
pub(crate) const LINE_CELLS: usize = 16;

/// Smallest mapping for which 2 MiB pages are asked.
const HUGE_FROM_BYTES: usize = 4 << 20;

/// Words that a table is read from.
pub(crate) trait Memory {
    /// The word at `at`. Panics beyond the end.
    fn word(&self, at: usize) -> u32;

    /// Ten words, `row` times ten from the start; `None` beyond the end.
    fn ten(&self, row: u32) -> Option<[u32; 10]>;

    /// One bit for each cell of `line` that equals `want` in the bits of `mask`. Panics beyond the end.
    fn matches(&self, line: u32, want: u32, mask: u32) -> u32;

    /// Asks the processor for the cache line of the word at `at`; nothing happens when that is beyond the end.
    fn prefetch(&self, at: usize);
}

/// A fixed array of `u32`, zeroed, aligned to a page. Its pages are backed when they are first touched, with 2 MiB pages
/// where the kernel gives them: a table of millions of rows is probed at random, and small pages cost a page walk a probe.
pub(crate) struct Words {
    start: NonNull<u32>,
    words: usize,
    mapped_bytes: usize,
}

// SAFETY: `Words` owns its mapping alone and hands it out only through `&self` and `&mut self`.
unsafe impl Send for Words {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Words {}

impl Words {
    /// `words` zeros. Ends the process when there is no address space for them, as every collection of `std` does.
    pub(crate) fn zeroed(words: usize) -> Self {
        let layout = Layout::array::<u32>(words.max(1)).unwrap_or(Layout::new::<u32>());
        let Some(mapped_bytes) = words.max(1).checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(4096))
        else {
            handle_alloc_error(layout);
        };
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice; no existing mapping is touched.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let Some(start) = mapped.ok().and_then(|start| NonNull::new(start.cast::<u32>())) else {
            handle_alloc_error(layout);
        };
        if mapped_bytes >= HUGE_FROM_BYTES {
            // SAFETY: the range is the mapping just made; the advice changes no content. Refusal only costs speed.
            let _ = unsafe { madvise(start.as_ptr().cast(), mapped_bytes, Advice::LinuxHugepage) };
        }
        Self { start, words, mapped_bytes }
    }

    /// `words` words of a file that others may read. Its pages are its own.
    ///
    /// # Safety
    /// The file reaches that far from `offset` (of whole pages) on, cannot shrink, and nobody else writes there.
    pub(crate) unsafe fn of_file(fd: BorrowedFd<'_>, offset: u64, words: usize) -> Result<Self, Errno> {
        let mapped_bytes = words.max(1).checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(4096));
        let mapped_bytes = mapped_bytes.ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the caller vouches for the file.
        let start = unsafe { mmap(std::ptr::null_mut(), mapped_bytes, protection, MapFlags::SHARED, fd, offset) }?;
        let start = NonNull::new(start.cast::<u32>()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, words, mapped_bytes })
    }

    /// Bytes that the mapping takes.
    pub(crate) const fn mapped_bytes(&self) -> usize {
        self.mapped_bytes
    }

    /// The first word.
    pub(crate) const fn start(&self) -> NonNull<u32> {
        self.start
    }

    #[inline(always)]
    pub(crate) const fn as_slice(&self) -> &[u32] {
        // SAFETY: `start` is valid for `words` initialised (zeroed) words as long as `self` lives; `&self` forbids writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    #[inline(always)]
    pub(crate) const fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Memory for Words {
    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        self.as_slice()[at]
    }

    #[inline(always)]
    fn ten(&self, row: u32) -> Option<[u32; 10]> {
        self.as_slice().as_chunks().0.get(row as usize).copied()
    }

    #[inline(always)]
    fn matches(&self, line: u32, want: u32, mask: u32) -> u32 {
        matches(&self.as_slice().as_chunks().0[line as usize], want, mask)
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        prefetch(self.as_slice(), at);
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Asks the processor for the cache line at `words[at]`; nothing happens when that is outside.
#[inline(always)]
fn prefetch(words: &[u32], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if at < words.len() {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address lies inside `words`; a prefetch reads nothing into registers and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(words.as_ptr().add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (words, at);
}

/// One bit for each cell of `line` that equals `want` in the bits of `mask`.
#[inline(always)]
fn matches(line: &[u32; LINE_CELLS], want: u32, mask: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128};
        let at = line.as_ptr().cast::<__m128i>();
        // SAFETY: SSE2 is part of x86_64; the four loads cover exactly the 64 bytes of `line`, at any alignment.
        compare(std::array::from_fn(|i| unsafe { _mm_loadu_si128(at.add(i)) }), want, mask)
    }
    #[cfg(not(target_arch = "x86_64"))]
    compare(*line, want, mask)
}

/// A line in registers.
#[cfg(target_arch = "x86_64")]
pub(crate) type Line = [std::arch::x86_64::__m128i; 4];
/// A line.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Line = [u32; LINE_CELLS];

/// One bit for each cell of `line` that equals `want` in the bits of `mask`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn compare(line: Line, want: u32, mask: u32) -> u32 {
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi32,
    };
    // SAFETY: SSE2 is part of x86_64, and nothing here touches memory.
    unsafe {
        let want = _mm_set1_epi32(want.cast_signed());
        let mask = _mm_set1_epi32(mask.cast_signed());
        let quarter = |i: usize| _mm_cmpeq_epi32(_mm_and_si128(line[i], mask), want);
        let low = _mm_packs_epi32(quarter(0), quarter(1));
        let high = _mm_packs_epi32(quarter(2), quarter(3));
        _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
    }
}

/// One bit for each cell of `line` that equals `want` in the bits of `mask`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn compare(line: Line, want: u32, mask: u32) -> u32 {
    line.iter().enumerate().fold(0, |bits, (i, cell)| bits | (u32::from(cell & mask == want) << i))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_as_zeros_and_keep_what_is_written() {
        let mut words = Words::zeroed(3 << 20);
        assert!(words.as_slice().iter().all(|word| *word == 0));
        words.as_mut_slice()[(3 << 20) - 1] = 7;
        assert_eq!(words.as_slice().last(), Some(&7));
        assert_eq!(words.mapped_bytes(), 12 << 20);
        prefetch(words.as_slice(), 5 << 20);
    }

    #[test]
    fn matches_names_every_equal_cell_and_no_other() {
        let mut line = [0xff00_0001_u32; LINE_CELLS];
        for at in 0..LINE_CELLS {
            line[at] = 0x1200_0000 + at as u32;
            assert_eq!(matches(&line, 0x1200_0000, 0xff00_0000), (2 << at) - 1);
        }
        assert_eq!(matches(&line, 0x1200_0003, u32::MAX), 1 << 3);
    }
}
