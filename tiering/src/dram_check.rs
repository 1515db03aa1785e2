//! The check of blocks in DRAM before they are loaded (`primary.check_on_load`).
//!
//! A block has a CRC32 as soon as one tier has stored it or brought it. With the check on, its bytes are compared with that before
//! it counts as readable in a lookup and before it is loaded, unless they were in the last [`GOOD_FOR_S`] seconds. A lookup reads a bounded
//! number of bytes and answers `Retry` for the blocks beyond: the next one goes on behind them. A block that is not what it was is removed
//! from the primary; its copies below are sound, for each has a CRC32 of its own.

use std::sync::Arc;

use terrace_primary::{BlockState, Region, SlotId};
use terrace_tiers::Time;

use crate::classify::{Class, Scope};
use crate::manager::TieringOffloadingManager;

/// How long a block that was compared counts as compared.
const GOOD_FOR_S: u32 = 10;
/// Bytes that one lookup reads: some 3 ms of a core that sums 10 GB a second.
const LOOKUP_BYTES: u64 = 32 << 20;
/// Bytes copied out of the region at a time, so that they are summed from the cache.
const PIECE_BYTES: usize = 32 << 10;

pub(crate) struct DramCheck {
    region: Arc<Region>,
    /// When each slot was compared last, and its generation then.
    compared: Vec<Compared>,
    /// Bytes that the running lookup may still read.
    left: u64,
    piece: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Compared {
    generation: u32,
    /// Seconds of the clock, rounded up; 0: never.
    at: u32,
}

impl DramCheck {
    fn new(region: Arc<Region>) -> Self {
        let compared = vec![Compared::default(); region.slots() as usize];
        Self { region, compared, left: LOOKUP_BYTES, piece: vec![0; PIECE_BYTES] }
    }

    fn crc32(&mut self, slot: SlotId) -> Option<u32> {
        let bytes = self.region.block_bytes() as usize;
        let mut crc32 = crc32fast::Hasher::new();
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut self.piece[..PIECE_BYTES.min(bytes - at)];
            if !self.region.read_slot_at(slot, at, piece) {
                return None;
            }
            crc32.update(piece);
        }
        Some(crc32.finalize())
    }
}

fn seconds(time: Time) -> u32 {
    u32::try_from(time.0 / 1_000_000_000 + 1).unwrap_or(u32::MAX)
}

impl TieringOffloadingManager {
    /// From here on blocks in `region`, the one whose slots this manager gives out, are compared with their CRC32 before they
    /// are loaded. Lookups and `prepare_load` read them then, in the caller's thread. Without effect on a null region.
    pub fn check_loads(&mut self, region: Arc<Region>) {
        self.dram = region.moves_bytes().then(|| DramCheck::new(region));
    }

    /// A lookup begins: it may read so much.
    pub(crate) fn start_dram_check(&mut self) {
        if let Some(dram) = &mut self.dram {
            dram.left = LOOKUP_BYTES;
        }
    }

    /// Looks at those of `classes` that are `Ready`. What is not sound, or not read any more by this lookup, is `Unknown`, or
    /// `Absent` if the request waits no longer.
    #[inline]
    pub(crate) fn check_ready(&mut self, classes: &mut [Class], scope: Scope) {
        if self.dram.is_some() {
            self.compare_ready(classes, scope);
        }
    }

    fn compare_ready(&mut self, classes: &mut [Class], scope: Scope) {
        for class in classes {
            let Class::Ready(slot) = *class else { continue };
            if self.is_compared(slot, scope.now) {
                continue;
            }
            let Some(dram) = &mut self.dram else { return };
            let bytes = u64::from(dram.region.block_bytes());
            // One block is always read: the lookup goes on.
            let is_first = dram.left == LOOKUP_BYTES;
            let removed = if dram.left >= bytes || is_first {
                dram.left = dram.left.saturating_sub(bytes);
                if self.is_sound(slot, scope.now) {
                    continue;
                }
                self.forget_damaged(slot)
            } else {
                self.counts.checks_deferred += 1;
                true
            };
            *class = if removed && scope.below { Class::Unknown } else { Class::Absent };
        }
    }

    /// The first of these slots, about to be loaded, whose block is not what it was.
    pub(crate) fn first_damaged(&mut self, slots: &[SlotId]) -> Option<SlotId> {
        self.dram.as_ref()?;
        let now = self.now();
        slots.iter().copied().find(|slot| !self.is_compared(*slot, now) && !self.is_sound(*slot, now))
    }

    /// Its bytes have just been compared by someone else: a tier that brought it.
    pub(crate) fn was_compared(&mut self, slot: SlotId, now: Time) {
        let generation = self.primary.generation(slot);
        if let Some(dram) = &mut self.dram
            && let Some(compared) = dram.compared.get_mut(slot.index())
        {
            *compared = Compared { generation, at: seconds(now) };
        }
    }

    /// Compared a short while ago, or there is nothing to compare with yet.
    fn is_compared(&self, slot: SlotId, now: Time) -> bool {
        let Some(compared) = self.dram.as_ref().and_then(|dram| dram.compared.get(slot.index())) else { return true };
        let fresh = compared.at != 0 && seconds(now).saturating_sub(compared.at) < GOOD_FOR_S;
        fresh && compared.generation == self.primary.generation(slot) || self.primary.crc32(slot).is_none()
    }

    fn is_sound(&mut self, slot: SlotId, now: Time) -> bool {
        let known = self.primary.crc32(slot);
        let Some(dram) = &mut self.dram else { return true };
        self.counts.checks += 1;
        if dram.crc32(slot) != known {
            return false;
        }
        self.was_compared(slot, now);
        true
    }

    /// True: it is gone. False: somebody reads it; it goes when it is found again after that.
    pub(crate) fn forget_damaged(&mut self, slot: SlotId) -> bool {
        self.counts.checks_failed += 1;
        let key = self.primary.key(slot);
        tracing::error!(
            slot = slot.0,
            key = key.map(tracing::field::display),
            "a block in DRAM is not what it was: it is not served; this machine's memory, or a process that writes where it may not, is to blame"
        );
        let is_free = self.primary.state(slot) == (BlockState::Ready { readers: 0 });
        let is_gone = is_free && self.primary.remove(slot);
        if let Some(key) = key.filter(|_| is_gone) {
            self.events.removed_from_primary(key);
        }
        is_gone
    }
}
