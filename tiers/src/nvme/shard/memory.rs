//! The memory that a shard's operations own: slots of the region, and one footer per operation.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use terrace_primary::{Region, SlotId};

use crate::nvme::device::{Buffer, Device, MemoryRange, Registration};
use crate::nvme::format::FOOTER_BYTES;

/// Page-aligned footers, one per operation.
#[derive(Debug)]
struct FooterArena {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory with one owner.
#[expect(unsafe_code, reason = "an owned allocation")]
unsafe impl Send for FooterArena {}

#[expect(unsafe_code, reason = "direct I/O needs page-aligned memory, which no std container gives")]
impl FooterArena {
    fn new(footers: u32) -> Self {
        let bytes = FOOTER_BYTES * footers.max(1) as usize;
        let layout = Layout::from_size_align(bytes, FOOTER_BYTES).unwrap_or(Layout::new::<[u8; FOOTER_BYTES]>());
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, layout },
            None => handle_alloc_error(layout),
        }
    }

    fn address(&self, index: u32) -> Option<NonNull<u8>> {
        let at = (index as usize).checked_mul(FOOTER_BYTES)?;
        // SAFETY: checked to lie inside the allocation.
        (at + FOOTER_BYTES <= self.layout.size()).then(|| unsafe { self.start.add(at) })
    }
}

#[expect(unsafe_code, reason = "see `FooterArena::new`")]
impl Drop for FooterArena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Region and footers, freed only by [`ShardMemory::release`]: dropping this without it leaks them, because an operation that
/// never completed may still write there.
#[derive(Debug)]
pub(super) struct ShardMemory {
    region: ManuallyDrop<Arc<Region>>,
    footers: ManuallyDrop<FooterArena>,
    block_bytes: u32,
}

#[expect(unsafe_code, reason = "slots and footers are shared with the kernel, by address")]
impl ShardMemory {
    pub(super) fn new(region: Arc<Region>, footers: u32) -> Self {
        let block_bytes = region.block_bytes();
        Self { region: ManuallyDrop::new(region), footers: ManuallyDrop::new(FooterArena::new(footers)), block_bytes }
    }

    /// Payload bytes of one block.
    pub(super) const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Announces all of it to `device`. Touches no slot.
    pub(super) fn announce<D: Device>(&self, device: &mut D) -> Registration {
        let footers =
            MemoryRange { start: self.footers.start, bytes: self.footers.layout.size(), unit_bytes: FOOTER_BYTES };
        let unit_bytes = self.region.slot_stride() as usize;
        let slots = self.region.parts().map(|(start, bytes)| MemoryRange { start, bytes, unit_bytes });
        // SAFETY: the shard drops its device before it releases this memory, and leaks both if operations are unfinished.
        unsafe { device.announce(footers, slots) }
    }

    /// Lets `device` register the next piece of the region, if it is ready.
    pub(super) fn register_next<D: Device>(&self, device: &mut D) -> Registration {
        match device.register_next(self.region.ready_bytes()) {
            // It will never be ready: its slots are not used either.
            Registration::Waits if self.region.backing_failure().is_some() => Registration::Done,
            registration => registration,
        }
    }

    /// Buffers of one operation: the slot's payload with its padding, and the footer. `None`: no such slot.
    pub(super) fn buffers(&self, slot: SlotId, op: u32) -> Option<(Buffer, Buffer)> {
        let payload = self.region.slot_ptr(slot)?;
        let footer = self.footers.address(op)?;
        // SAFETY: the slot belongs to the operation until its `Done` (contract of `ShardPort`), the footer to the table entry
        // `op` until its completion; both stay mapped until `release`.
        Some(unsafe {
            (Buffer::new(payload, self.block_bytes.next_multiple_of(4096)), Buffer::new(footer, FOOTER_BYTES as u32))
        })
    }

    /// CRC32 of a slot's payload.
    pub(super) fn payload_crc32(&self, slot: SlotId) -> Option<u32> {
        let payload = self.region.slot_ptr(slot)?;
        // SAFETY: inside the region and mapped. The owner of a store that was given up may write it meanwhile; the sum is then
        // worthless and is thrown away (`AbandonList::is_unchanged`).
        let bytes = unsafe { std::slice::from_raw_parts(payload.as_ptr(), self.block_bytes as usize) };
        Some(crc32fast::hash(bytes))
    }

    /// The footer of table entry `op`, which has no operation in the kernel.
    pub(super) fn footer(&mut self, op: u32) -> Option<&mut [u8; FOOTER_BYTES]> {
        let footer = self.footers.address(op)?;
        // SAFETY: inside the arena; the exclusive borrow and the absence of an operation keep it unaliased.
        Some(unsafe { footer.cast::<[u8; FOOTER_BYTES]>().as_mut() })
    }

    /// Frees everything.
    ///
    /// # Safety
    /// No operation is unfinished and the device that it was registered with is gone. Not used afterwards.
    pub(super) unsafe fn release(&mut self) {
        // SAFETY: by contract called once, and nothing refers to the memory any more.
        unsafe {
            ManuallyDrop::drop(&mut self.region);
            ManuallyDrop::drop(&mut self.footers);
        }
    }
}
