//! What a slot is doing, and how that is packed beside its key.

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Holds nothing.
    Free,
    /// Belongs to a block whose bytes are not there yet.
    Writing,
    /// Holds a readable block.
    Ready {
        /// Who reads it now; 0: it may be evicted.
        readers: u32,
    },
    /// Holds no block, and may still be written by an operation that was given up: not handed out.
    Limbo,
}

/// Most readers that one block has at a time.
pub const MAX_READERS: u32 = (1 << 18) - 1;

/// The 30 bits that a table row keeps for a resident block: readers 18, origin 8, and four flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowWord(pub(crate) u32);

const READY: u32 = 1 << 26;
const FRESH: u32 = 1 << 27;
const HAS_CRC: u32 = 1 << 28;
const ORIGIN_SHIFT: u32 = 18;
const ORIGIN: u32 = 0xff << ORIGIN_SHIFT;

impl RowWord {
    /// A block just inserted: writing, not touched since.
    #[inline]
    pub(crate) const fn writing() -> Self {
        Self(FRESH)
    }

    #[inline]
    pub(crate) const fn is_ready(self) -> bool {
        self.0 & READY != 0
    }

    #[inline]
    pub(crate) const fn readers(self) -> u32 {
        self.0 & MAX_READERS
    }

    #[inline]
    pub(crate) const fn is_evictable(self) -> bool {
        self.0 & (READY | MAX_READERS) == READY
    }

    #[inline]
    pub(crate) const fn state(self) -> BlockState {
        if self.is_ready() { BlockState::Ready { readers: self.readers() } } else { BlockState::Writing }
    }

    #[inline]
    pub(crate) const fn published(self) -> Self {
        Self(self.0 | READY)
    }

    #[inline]
    pub(crate) fn with_reader(self) -> Option<Self> {
        (self.is_ready() && self.readers() < MAX_READERS).then_some(Self(self.0 + 1))
    }

    #[inline]
    pub(crate) fn without_reader(self) -> Option<Self> {
        (self.is_ready() && self.readers() > 0).then(|| Self(self.0 - 1))
    }

    /// Whether the block was not touched since it was inserted.
    #[inline]
    pub(crate) const fn is_fresh(self) -> bool {
        self.0 & FRESH != 0
    }

    #[inline]
    pub(crate) const fn touched(self) -> Self {
        Self(self.0 & !FRESH)
    }

    #[inline]
    pub(crate) const fn has_crc(self) -> bool {
        self.0 & HAS_CRC != 0
    }

    #[inline]
    pub(crate) const fn with_crc(self) -> Self {
        Self(self.0 | HAS_CRC)
    }

    #[inline]
    pub(crate) const fn origin(self) -> u8 {
        (self.0 >> ORIGIN_SHIFT) as u8
    }

    #[inline]
    pub(crate) const fn with_origin(self, origin: u8) -> Self {
        Self(self.0 & !ORIGIN | (origin as u32) << ORIGIN_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let full = RowWord::writing().published().with_crc().with_origin(255);
        assert_eq!((full.readers(), full.origin(), full.is_fresh(), full.has_crc()), (0, 255, true, true));
        assert!(full.is_evictable() && full.0 < 1 << 30);
        let mut read = full;
        for _ in 0..MAX_READERS {
            read = read.with_reader().expect("below the most");
        }
        assert_eq!((read.with_reader(), read.readers(), read.origin()), (None, MAX_READERS, 255));
        assert!(!read.is_evictable());
        assert_eq!(full.touched().with_origin(0).origin(), 0);
        assert_eq!((full.without_reader(), RowWord::writing().with_reader()), (None, None));
    }
}
