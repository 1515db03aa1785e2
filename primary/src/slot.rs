//! Places of the primary region.

/// One block-sized place of the primary region, `0..blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The slot's place in arrays that have one element a slot.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
