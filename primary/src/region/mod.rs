//! The region: the shared memory that holds the slots.

mod limits;
mod map;
mod prefault;
mod start;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use terrace_config::Choice;

use crate::error::PrimaryError;
use crate::slot::SlotId;
use map::Mapping;

/// What a region is made of.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Slots.
    pub slots: u32,
    /// Bytes from one slot to the next: a multiple of 4096, at least `block_bytes`.
    pub slot_stride: u32,
    /// Payload bytes of a slot.
    pub block_bytes: u32,
    /// 2 MiB pages.
    pub huge_pages: Choice,
    /// Lock the region in memory.
    pub lock_memory: bool,
    /// Bind the region to this NUMA node.
    pub numa_node: Option<u32>,
    /// Threads that back the pages; 0: one per CPU, eight at most.
    pub prefault_threads: u32,
}

/// Pages that a region got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// 2 MiB, reserved.
    Huge,
    /// 4 KiB.
    Normal,
    /// The region holds no bytes.
    None,
}

/// Progress of a region's start: bytes backed so far, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Shared memory that holds the slots of the primary tier: a sealed memfd, backed in full before it is handed out, unmapped on
/// drop. The bytes of a slot are not synchronised by anything here: whoever owns the slot by the block table's rules
/// may touch them.
#[derive(Debug)]
pub struct Region {
    mapping: Option<Mapping>,
    slots: u32,
    slot_stride: u32,
    block_bytes: u32,
}

impl Region {
    /// Makes a region. Blocks until every page is backed: seconds for tens of GiB. `progress` is called now and then, by one thread at
    /// a time.
    pub fn create(options: &RegionOptions, progress: Progress<'_>) -> Result<Arc<Self>, PrimaryError> {
        let RegionOptions { slots, slot_stride, block_bytes, .. } = *options;
        let shape = |why| PrimaryError::Shape { slots, slot_stride, block_bytes, why };
        if slots == 0 {
            return Err(shape("no slots"));
        }
        if slot_stride == 0 || !slot_stride.is_multiple_of(4096) {
            return Err(shape("the stride is no multiple of 4096"));
        }
        if block_bytes == 0 || block_bytes > slot_stride {
            return Err(shape("a block does not fit its slot"));
        }
        let bytes = (slots as usize).checked_mul(slot_stride as usize).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| shape("more bytes than can be addressed"))?;
        let mapping = start::start(bytes, options, progress)?;
        Ok(Arc::new(Self { mapping: Some(mapping), slots, slot_stride, block_bytes }))
    }

    /// A region that holds no bytes at all, for policy studies.
    pub fn null(slots: u32, slot_stride: u32, block_bytes: u32) -> Arc<Self> {
        Arc::new(Self { mapping: None, slots, slot_stride, block_bytes })
    }

    /// Whether slots hold bytes. False for a null region.
    pub const fn moves_bytes(&self) -> bool {
        self.mapping.is_some()
    }

    /// Slots.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes from one slot to the next.
    pub const fn slot_stride(&self) -> u32 {
        self.slot_stride
    }

    /// Payload bytes of a slot.
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Where the `slot_stride` bytes of `slot` start, 4096-aligned. `None`: out of range, or a null region.
    pub fn slot_ptr(&self, slot: SlotId) -> Option<NonNull<u8>> {
        self.mapping.as_ref()?.at(self.slot_offset(slot)?)
    }

    /// Where the region starts and how long it is; it may be longer than its slots, to end with a page.
    pub fn parts(&self) -> Option<(NonNull<u8>, usize)> {
        self.mapping.as_ref().map(Mapping::parts)
    }

    /// The region as a file, to hand to another process: slot `i` is at `i * slot_stride`.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.as_ref().map(Mapping::fd)
    }

    /// Pages that the region got.
    pub fn pages(&self) -> PageKind {
        self.mapping.as_ref().map_or(PageKind::None, Mapping::pages)
    }

    /// Copies the start of `slot` to `to`. False if the slot or its stride is too small, or the region is null. Not
    /// synchronised: bytes that others write meanwhile may come torn.
    pub fn read_slot(&self, slot: SlotId, to: &mut [u8]) -> bool {
        self.fitting(slot, to.len()).is_some_and(|(mapping, offset)| mapping.read(offset, to))
    }

    /// Copies `from` to the start of `slot`. False as for [`Region::read_slot`]. Not synchronised: for tests and for the one that owns
    /// the slot.
    pub fn write_slot(&self, slot: SlotId, from: &[u8]) -> bool {
        self.fitting(slot, from.len()).is_some_and(|(mapping, offset)| mapping.write(offset, from))
    }

    fn slot_offset(&self, slot: SlotId) -> Option<usize> {
        (slot.0 < self.slots).then(|| slot.index() * self.slot_stride as usize)
    }

    fn fitting(&self, slot: SlotId, len: usize) -> Option<(&Mapping, usize)> {
        let offset = self.slot_offset(slot).filter(|_| len <= self.slot_stride as usize)?;
        Some((self.mapping.as_ref()?, offset))
    }
}
