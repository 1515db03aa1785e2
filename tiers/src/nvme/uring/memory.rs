//! Memory registered with the ring: pinned once, instead of at every operation.

use std::ptr::NonNull;

use io_uring::Submitter;

use crate::nvme::device::Buffer;

/// Longest piece that the kernel registers as one buffer.
const PIECE_BYTES: usize = 1 << 30;
/// Most buffers that a ring takes.
const MAX_PIECES: usize = 1 << 14;

/// `struct iovec`.
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

/// Pieces registered, by address.
#[derive(Debug, Default)]
pub(super) struct Registered {
    pieces: Vec<(usize, usize)>,
}

impl Registered {
    /// Registers `memory` in pieces; without a word if there is none.
    ///
    /// # Safety
    /// It stays mapped for as long as the ring lives.
    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    pub(super) unsafe fn register(
        &mut self,
        submitter: &Submitter<'_>,
        memory: &[(NonNull<u8>, usize)],
    ) -> std::io::Result<()> {
        let mut iovecs = Vec::new();
        let mut pieces = Vec::new();
        for &(start, len) in memory {
            let mut offset = 0;
            while offset < len {
                let piece = (len - offset).min(PIECE_BYTES);
                // SAFETY: inside the memory that the caller vouches for.
                let base = unsafe { start.as_ptr().add(offset) };
                iovecs.push(IoVec { base, len: piece });
                pieces.push((base as usize, piece));
                offset += piece;
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        if pieces.len() > MAX_PIECES {
            return Err(std::io::Error::other("the region has too many pieces"));
        }
        // SAFETY: `IoVec` is `struct iovec`; the kernel pins what they name, which stays mapped by contract.
        unsafe { submitter.register_buffers(std::slice::from_raw_parts(iovecs.as_ptr().cast(), iovecs.len()))? };
        self.pieces = pieces;
        Ok(())
    }

    /// The registered buffer that holds all of `buffer`.
    pub(super) fn index_of(&self, buffer: &Buffer) -> Option<u16> {
        let (start, len) = (buffer.address().as_ptr() as usize, buffer.len() as usize);
        let found = self.pieces.iter().position(|&(base, piece)| start >= base && start + len <= base + piece)?;
        u16::try_from(found).ok()
    }
}
