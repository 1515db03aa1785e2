//! The region: the shared memory that holds the slots.

mod attach;
mod backing;
mod copy;
mod limits;
mod map;
mod start;
mod sync;
mod tally;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use terrace_config::Choice;

use crate::error::PrimaryError;
use crate::slot::SlotId;
use backing::Behind;
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

/// Shared memory that holds the slots of the primary tier: a memfd that cannot shrink, unmapped on drop. The bytes of
/// a slot are
/// not synchronised by anything here: whoever owns the slot by the block table's rules may touch them.
///
/// Its slots are there from the start; those from [`Region::ready_slots`] on are not backed yet, and whoever touches
/// one waits for the
/// machine to find a page, or is killed where it has none. The block table must not hand them out
/// ([`Primary::set_usable`](crate::Primary::set_usable)).
#[derive(Debug)]
pub struct Region {
    /// What backs the rest; stopped before the mapping goes. `None`: all is backed, or another process sees to it.
    behind: Option<Behind>,
    mapping: Option<Arc<Mapping>>,
    slots: u32,
    slot_stride: u32,
    block_bytes: u32,
}

impl Region {
    /// Makes a region, all of it ready. Blocks until every page is backed: seconds for tens of GiB, minutes on some
    /// virtual machines.
    /// `progress` is called now and then, by one thread at a time.
    pub fn create(options: &RegionOptions, progress: Progress<'_>) -> Result<Arc<Self>, PrimaryError> {
        let (mapping, backing) = start::start(Self::bytes_of(options)?, options)?;
        backing.run(options.prefault_threads, progress)?;
        Ok(Arc::new(Self::over(options, Some(mapping), None)))
    }

    /// Makes a region of which nothing is ready, and returns at once. Threads named `terrace-prefault` back (and lock,
    /// where that is asked
    /// for) its pages from the start upwards, at low priority; [`Region::ready_slots`] grows with them. Dropping the
    /// region stops
    /// and joins them.
    pub fn start_behind(options: &RegionOptions) -> Result<Self, PrimaryError> {
        let (mapping, backing) = start::start(Self::bytes_of(options)?, options)?;
        let behind = Behind::start(backing, options.prefault_threads)?;
        Ok(Self::over(options, Some(mapping), Some(behind)))
    }

    /// Maps a region that another process made and backs: `fd` is its [`Region::fd`]. Touches no page; all slots count
    /// as ready, and which
    /// of them may be touched is the other's to say. Refused unless the file holds all slots and is sealed against
    /// shrinking (`F_SEAL_SHRINK`): touching a page that was cut off kills the process.
    pub fn from_fd(fd: OwnedFd, slots: u32, slot_stride: u32, block_bytes: u32) -> Result<Self, PrimaryError> {
        let bytes = shape(slots, slot_stride, block_bytes)?;
        let mapping = Some(Arc::new(attach::attach(fd, bytes)?));
        Ok(Self { behind: None, mapping, slots, slot_stride, block_bytes })
    }

    fn bytes_of(options: &RegionOptions) -> Result<usize, PrimaryError> {
        shape(options.slots, options.slot_stride, options.block_bytes)
    }

    fn over(options: &RegionOptions, mapping: Option<Arc<Mapping>>, behind: Option<Behind>) -> Self {
        let RegionOptions { slots, slot_stride, block_bytes, .. } = *options;
        Self { behind, mapping, slots, slot_stride, block_bytes }
    }

    /// A region that holds no bytes at all, for policy studies.
    pub fn null(slots: u32, slot_stride: u32, block_bytes: u32) -> Arc<Self> {
        Arc::new(Self { behind: None, mapping: None, slots, slot_stride, block_bytes })
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

    /// Slots from the first on that are wholly backed. Only grows; [`Region::slots`] once all is done.
    pub fn ready_slots(&self) -> u32 {
        match &self.behind {
            None => self.slots,
            // Below `slots` it fits a `u32`.
            Some(behind) => {
                (behind.backing().ready_bytes() / u64::from(self.slot_stride)).min(u64::from(self.slots)) as u32
            }
        }
    }

    /// Bytes of [`Region::parts`] from the start on that are backed. Only grows. 0 for a null region.
    pub fn ready_bytes(&self) -> u64 {
        match (&self.behind, &self.mapping) {
            (Some(behind), _) => behind.backing().ready_bytes(),
            (None, Some(mapping)) => mapping.bytes() as u64,
            (None, None) => 0,
        }
    }

    /// Why the slots that are not ready never will be (no memory left, the limit on locked memory): the limit and the
    /// fix. `None` while
    /// they may come, and when all are ready.
    pub fn backing_failure(&self) -> Option<String> {
        self.behind.as_ref().and_then(|behind| behind.backing().failure())
    }

    /// Where the `slot_stride` bytes of `slot` start, 4096-aligned. `None`: out of range, or a null region.
    pub fn slot_ptr(&self, slot: SlotId) -> Option<NonNull<u8>> {
        self.mapping.as_deref()?.at(self.slot_offset(slot)?)
    }

    /// Where the region starts and how long it is; it may be longer than its slots, to end with a page.
    pub fn parts(&self) -> Option<(NonNull<u8>, usize)> {
        self.mapping.as_deref().map(Mapping::parts)
    }

    /// The region as a file, to hand to another process: slot `i` is at `i * slot_stride`.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.as_deref().map(Mapping::fd)
    }

    /// Pages that the region got.
    pub fn pages(&self) -> PageKind {
        self.mapping.as_deref().map_or(PageKind::None, Mapping::pages)
    }

    /// Copies the start of `slot` to `to`. False if the slot or its stride is too small, or the region is null. Not
    /// synchronised: bytes that others write meanwhile may come torn.
    pub fn read_slot(&self, slot: SlotId, to: &mut [u8]) -> bool {
        self.fitting(slot, to.len()).is_some_and(|(mapping, offset)| mapping.read(offset, to))
    }

    /// Copies bytes of `slot`, from byte `at` of it on, to `to`. False as for [`Region::read_slot`], or if it would reach beyond the slot.
    pub fn read_slot_at(&self, slot: SlotId, at: usize, to: &mut [u8]) -> bool {
        let Some(end) = at.checked_add(to.len()) else { return false };
        self.fitting(slot, end).is_some_and(|(mapping, offset)| mapping.read(offset + at, to))
    }

    /// Copies `from` to the start of `slot`. False as for [`Region::read_slot`]. Not synchronised: for tests and for
    /// the one that owns
    /// the slot.
    pub fn write_slot(&self, slot: SlotId, from: &[u8]) -> bool {
        self.fitting(slot, from.len()).is_some_and(|(mapping, offset)| mapping.write(offset, from))
    }

    /// Copies `from` into `slot`, from byte `at` of it on. False as for [`Region::read_slot`], or if it would reach beyond the slot. For the
    /// one that owns the slot.
    pub fn write_slot_at(&self, slot: SlotId, at: usize, from: &[u8]) -> bool {
        let Some(end) = at.checked_add(from.len()) else { return false };
        self.fitting(slot, end).is_some_and(|(mapping, offset)| mapping.write(offset + at, from))
    }

    /// Reads `len` bytes of the file `fd`, from `offset` on, straight to the start of `slot`: all of them, or an
    /// error, after which the
    /// slot holds anything. A file that ends before is `UnexpectedEof`; a slot that is not there or too small is
    /// `InvalidInput`. Blocks
    /// for as long as the file does. For the one that owns the slot.
    pub fn fill_slot_from(&self, slot: SlotId, fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<()> {
        let (mapping, at) = self.fitting(slot, len).ok_or_else(|| self.misfit(slot, len))?;
        mapping.fill(at, fd, offset, len)
    }

    /// Writes the first `len` bytes of `slot` straight to the file `fd` at `offset`: all of them, or an error, after
    /// which that part of
    /// the file holds anything. The file is not made longer: one that ends before is `UnexpectedEof`. Else as
    /// [`Region::fill_slot_from`].
    pub fn drain_slot_to(&self, slot: SlotId, fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<()> {
        let (mapping, at) = self.fitting(slot, len).ok_or_else(|| self.misfit(slot, len))?;
        let file_bytes = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if offset.checked_add(len as u64).is_none_or(|end| end > file_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        mapping.drain(at, fd, offset, len)
    }

    fn misfit(&self, slot: SlotId, len: usize) -> io::Error {
        let text = if self.moves_bytes() {
            let (slots, stride) = (self.slots, self.slot_stride);
            format!("slot {} of a region of {slots} slots of {stride} bytes cannot hold {len} bytes", slot.0)
        } else {
            "the region holds no bytes".to_owned()
        };
        io::Error::new(io::ErrorKind::InvalidInput, text)
    }

    fn slot_offset(&self, slot: SlotId) -> Option<usize> {
        (slot.0 < self.slots).then(|| slot.index() * self.slot_stride as usize)
    }

    fn fitting(&self, slot: SlotId, len: usize) -> Option<(&Mapping, usize)> {
        let offset = self.slot_offset(slot).filter(|_| len <= self.slot_stride as usize)?;
        Some((self.mapping.as_deref()?, offset))
    }
}

/// Bytes of all slots together.
fn shape(slots: u32, slot_stride: u32, block_bytes: u32) -> Result<usize, PrimaryError> {
    let wrong = |why| PrimaryError::Shape { slots, slot_stride, block_bytes, why };
    if slots == 0 {
        return Err(wrong("no slots"));
    }
    if slot_stride == 0 || !slot_stride.is_multiple_of(4096) {
        return Err(wrong("the stride is no multiple of 4096"));
    }
    if block_bytes == 0 || block_bytes > slot_stride {
        return Err(wrong("a block does not fit its slot"));
    }
    let bytes = (slots as usize).checked_mul(slot_stride as usize).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| wrong("more bytes than can be addressed"))
}
