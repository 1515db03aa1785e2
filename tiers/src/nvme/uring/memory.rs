//! Memory registered with the ring: pinned once, instead of at every operation.
//!
//! Pinning a page that is not backed backs it, which is slow, so the slots are registered piece by piece as they
//! become ready; the
//! buffers of a piece that is not registered yet are used without.

use std::io;

use io_uring::Submitter;

use crate::nvme::device::{Buffer, MemoryRange, Registration};

/// Bytes of a piece of the slots. The thread does nothing else while it registers one: 1 to 5 ms were seen for 64 MiB
/// of 4 KiB pages.
const PIECE_BYTES: usize = 64 << 20;
/// Longest piece that the kernel registers as one buffer.
const LONGEST_PIECE_BYTES: usize = 1 << 30;
/// Most buffers that a ring takes.
const MAX_PIECES: usize = 1 << 14;
/// Where the memory that is backed from the start stands; the pieces of the slots follow.
const BACKED: u16 = 0;

/// `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

/// How pieces get into the ring's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One by one, into a table that stands empty.
    Pieces,
    /// All in one call, once all is ready: kernels before 5.19.
    Whole,
    /// Not at all, or no more.
    Off,
}

/// What is registered, by address.
#[derive(Debug)]
pub(super) struct Registered {
    way: Way,
    backed: MemoryRange,
    backed_is_registered: bool,
    slots: Option<MemoryRange>,
    piece_bytes: usize,
    /// Pieces of the slots, registered or not.
    pieces: usize,
    /// Of those, registered: the first ones.
    registered: usize,
}

impl Registered {
    /// Plans the table for `backed` and `slots`. Registers nothing.
    pub(super) fn plan(backed: MemoryRange, slots: Option<MemoryRange>) -> io::Result<Self> {
        Self::plan_in_pieces(PIECE_BYTES, backed, slots)
    }

    /// With pieces of `most_bytes`, or what is needed to get along with the buffers that a ring takes.
    pub(super) fn plan_in_pieces(
        most_bytes: usize,
        backed: MemoryRange,
        slots: Option<MemoryRange>,
    ) -> io::Result<Self> {
        let (mut piece_bytes, mut pieces) = (most_bytes, 0);
        if let Some(slots) = slots {
            // No slot lies in two pieces.
            let unit = slots.unit_bytes.max(1);
            piece_bytes = (most_bytes / unit).max(1) * unit;
            let least = slots.bytes.div_ceil(MAX_PIECES - 1);
            if piece_bytes < least {
                piece_bytes = least.next_multiple_of(unit);
            }
            if piece_bytes > LONGEST_PIECE_BYTES {
                return Err(io::Error::other(format!(
                    "{} bytes in slots of {unit} are more than a ring takes ({MAX_PIECES} pieces of 1 GiB)",
                    slots.bytes
                )));
            }
            pieces = slots.bytes.div_ceil(piece_bytes);
        }
        Ok(Self { way: Way::Off, backed, backed_is_registered: false, slots, piece_bytes, pieces, registered: 0 })
    }

    /// Makes the ring's table and registers what is backed.
    ///
    /// # Safety
    /// All of the memory stays mapped for as long as the ring lives.
    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    pub(super) unsafe fn start(&mut self, submitter: &Submitter<'_>) -> io::Result<Registration> {
        // A table has 2^14 entries at most.
        if submitter.register_buffers_sparse(1 + self.pieces as u32).is_err() {
            self.way = Way::Whole;
            return Ok(Registration::Waits);
        }
        let backed = IoVec { base: self.backed.start.as_ptr(), len: self.backed.bytes };
        // SAFETY: mapped as long as the ring, by contract.
        unsafe { update(submitter, BACKED.into(), backed)? };
        self.backed_is_registered = true;
        self.way = Way::Pieces;
        Ok(if self.pieces > 0 { Registration::More } else { Registration::Done })
    }

    /// Registers the next piece, if the first `ready_bytes` of the slots cover it. After an error no more is
    /// registered.
    ///
    /// # Safety
    /// As for [`Registered::start`], which was called on the same ring.
    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    pub(super) unsafe fn next(&mut self, submitter: &Submitter<'_>, ready_bytes: usize) -> io::Result<Registration> {
        let all = if self.way == Way::Whole { self.pieces } else { self.registered + 1 };
        if self.way == Way::Off || self.registered == self.pieces && self.backed_is_registered {
            return Ok(Registration::Done);
        }
        if all > 0 && self.piece(all - 1).is_some_and(|(start, len)| start + len > ready_bytes) {
            return Ok(Registration::Waits);
        }
        // SAFETY: mapped as long as the ring, by contract.
        let done = unsafe {
            match self.way {
                Way::Whole => self.register_whole(submitter),
                _ => self.register_next(submitter),
            }
        };
        if let Err(error) = done {
            self.way = Way::Off;
            return Err(error);
        }
        Ok(if self.registered < self.pieces { Registration::More } else { Registration::Done })
    }

    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    unsafe fn register_next(&mut self, submitter: &Submitter<'_>) -> io::Result<()> {
        if let Some(iovec) = self.iovec(self.registered) {
            // SAFETY: mapped as long as the ring, by the caller's contract.
            unsafe { update(submitter, u32::from(BACKED) + 1 + self.registered as u32, iovec)? };
            self.registered += 1;
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    unsafe fn register_whole(&mut self, submitter: &Submitter<'_>) -> io::Result<()> {
        let mut iovecs = vec![IoVec { base: self.backed.start.as_ptr(), len: self.backed.bytes }];
        iovecs.extend((0..self.pieces).filter_map(|piece| self.iovec(piece)));
        // SAFETY: `IoVec` is `struct iovec`; mapped as long as the ring, by the caller's contract.
        unsafe { submitter.register_buffers(std::slice::from_raw_parts(iovecs.as_ptr().cast(), iovecs.len()))? };
        self.backed_is_registered = true;
        self.registered = self.pieces;
        Ok(())
    }

    /// Where a piece starts in the slots, and its length.
    fn piece(&self, piece: usize) -> Option<(usize, usize)> {
        let start = piece.checked_mul(self.piece_bytes)?;
        let left = self.slots?.bytes.checked_sub(start).filter(|left| *left > 0)?;
        Some((start, left.min(self.piece_bytes)))
    }

    fn iovec(&self, piece: usize) -> Option<IoVec> {
        let (start, len) = self.piece(piece)?;
        Some(IoVec { base: self.slots?.start.as_ptr().wrapping_add(start), len })
    }

    /// Goes the way of kernels that have no empty tables.
    #[cfg(test)]
    pub(super) fn whole(mut self) -> Self {
        self.way = Way::Whole;
        self
    }

    /// Bytes of a piece of the slots, the last one excepted.
    #[cfg(test)]
    pub(super) const fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    #[cfg(test)]
    pub(super) const fn pieces(&self) -> usize {
        self.pieces
    }

    /// Bytes registered.
    pub(super) fn bytes(&self) -> usize {
        let backed = if self.backed_is_registered { self.backed.bytes } else { 0 };
        let slots = self.slots.map_or(0, |slots| slots.bytes);
        backed + slots.min(self.registered * self.piece_bytes)
    }

    /// The registered buffer that holds all of `buffer`.
    pub(super) fn index_of(&self, buffer: &Buffer) -> Option<u16> {
        let (start, len) = (buffer.address().as_ptr() as usize, buffer.len() as usize);
        let within =
            |range: MemoryRange| start.checked_sub(range.start.as_ptr() as usize).filter(|at| *at < range.bytes);
        if let Some(at) = within(self.backed) {
            return (self.backed_is_registered && at + len <= self.backed.bytes).then_some(BACKED);
        }
        let at = within(self.slots?)?;
        let piece = at / self.piece_bytes;
        let (first, piece_bytes) = self.piece(piece).filter(|_| piece < self.registered)?;
        if at + len > first + piece_bytes {
            return None;
        }
        u16::try_from(piece + 1).ok()
    }
}

/// Puts one buffer into the table.
///
/// # Safety
/// It stays mapped for as long as the ring lives.
#[expect(unsafe_code, reason = "the kernel keeps these addresses")]
unsafe fn update(submitter: &Submitter<'_>, at: u32, iovec: IoVec) -> io::Result<()> {
    // SAFETY: `IoVec` is `struct iovec`; the kernel pins what it names, which stays mapped by contract.
    unsafe { submitter.register_buffers_update(at, std::slice::from_raw_parts((&raw const iovec).cast(), 1), None) }
}
