//! The bytes of a range on their way into slots. Each block's header is checked before a byte of it lands, its payload goes
//! straight into the slot, and its CRC32 is computed on the way.

use terrace_primary::Region;

use super::super::format::FormatFault;
use super::super::port::LoadPlace;
use super::super::record::Shape;
use super::super::segment::{HEADER_BYTES, check_header};
use super::plan::ReadRange;

/// Bytes that are hashed, then copied while they are still in the cache.
const CACHED_BYTES: usize = 128 << 10;

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// Its verified bytes are in the slot; their CRC32.
    Sound(u32),
    /// What came are not the block's bytes. The slot may hold any.
    Wrong,
    /// What came is the block of another segment.
    Foreign,
    /// The bytes do not fit into the slot, or there is none.
    Misfit,
}

/// State of the block that comes now.
#[expect(clippy::large_enum_variant, reason = "there is one a range, and no block costs an allocation")]
enum Block {
    /// Bytes of the header so far.
    Header([u8; HEADER_BYTES]),
    /// The header is sound, and this is the CRC32 of the payload so far.
    Payload(crc32fast::Hasher),
    /// Nothing more of it matters.
    Done(Landed),
    /// Nobody wants it.
    Skipped,
}

/// One range on its way in.
pub(super) struct Landing<'a> {
    shape: &'a Shape,
    region: &'a Region,
    places: &'a [LoadPlace],
    range: &'a ReadRange,
    /// Picks before this one are decided.
    next: usize,
    position: u32,
    /// Bytes of the block at `position` that have come.
    within: usize,
    block: Block,
}

impl<'a> Landing<'a> {
    /// Nothing of `range` has come yet.
    pub fn new(shape: &'a Shape, region: &'a Region, places: &'a [LoadPlace], range: &'a ReadRange) -> Self {
        let block = Block::Header([0; HEADER_BYTES]);
        Self { shape, region, places, range, next: 0, position: range.first(), within: 0, block }
    }

    /// Takes the next bytes of the range, of any length. Calls `landed` for each place that is decided by them, after the last touch of
    /// its slot.
    pub fn take(&mut self, mut bytes: &[u8], mut landed: impl FnMut(u32, Landed)) {
        let stride = HEADER_BYTES + self.shape.block_bytes as usize;
        while !bytes.is_empty() && self.next < self.range.picks().len() {
            let most = match &self.block {
                Block::Header(_) => HEADER_BYTES - self.within,
                Block::Payload(_) => (stride - self.within).min(CACHED_BYTES),
                Block::Done(_) | Block::Skipped => stride - self.within,
            };
            let (piece, rest) = bytes.split_at(most.min(bytes.len()));
            bytes = rest;
            self.feed(piece);
            self.within += piece.len();
            if let Block::Header(header) = &self.block
                && self.within == HEADER_BYTES
            {
                self.block = self.open(header);
            }
            if self.within == stride {
                self.close(&mut landed);
            }
        }
    }

    /// Places that nothing was said of yet.
    pub fn undecided(&self) -> &'a [u32] {
        self.range.picks().get(self.next..).unwrap_or_default()
    }

    /// Places that want the block at hand.
    fn wanting(&self) -> impl Iterator<Item = &'a LoadPlace> + use<'a> {
        let (places, position) = (self.places, self.position);
        let all = self.undecided().iter().filter_map(move |pick| places.get(*pick as usize));
        all.take_while(move |place| place.position == position)
    }

    fn feed(&mut self, piece: &[u8]) {
        match &mut self.block {
            Block::Header(header) => {
                if let Some(to) = header.get_mut(self.within..self.within + piece.len()) {
                    to.copy_from_slice(piece);
                }
            }
            Block::Payload(crc) => {
                crc.update(piece);
                let at = self.within - HEADER_BYTES;
                // A null region holds no bytes: what would land is checked all the same.
                let fits = !self.region.moves_bytes()
                    || self.wanting().all(|place| self.region.write_slot_at(place.slot, at, piece));
                if !fits {
                    self.block = Block::Done(Landed::Misfit);
                }
            }
            Block::Done(_) | Block::Skipped => {}
        }
    }

    /// What the header of the block at hand says of it.
    fn open(&self, header: &[u8; HEADER_BYTES]) -> Block {
        let Some(place) = self.wanting().next() else { return Block::Skipped };
        match check_header(self.shape, place.segment.id, place.position, &place.key, header) {
            Ok(crc) if place.segment.crc32(place.position) == Some(crc) => Block::Payload(crc32fast::Hasher::new()),
            Err(FormatFault::Other("segment" | "namespace")) => Block::Done(Landed::Foreign),
            _ => Block::Done(Landed::Wrong),
        }
    }

    /// The block at hand has come to its end.
    fn close(&mut self, landed: &mut impl FnMut(u32, Landed)) {
        let expected = self.wanting().next().and_then(|place| place.segment.crc32(place.position));
        let outcome = match std::mem::replace(&mut self.block, Block::Skipped) {
            Block::Payload(crc) => match crc.finalize() {
                crc if Some(crc) == expected => Landed::Sound(crc),
                _ => Landed::Wrong,
            },
            Block::Done(outcome) => outcome,
            Block::Header(_) | Block::Skipped => Landed::Wrong,
        };
        let decided = self.wanting().count();
        for pick in self.undecided().iter().take(decided) {
            landed(*pick, outcome);
        }
        self.next += decided;
        self.position = self.position.saturating_add(1);
        self.within = 0;
        self.block = match self.wanting().next() {
            Some(_) => Block::Header([0; HEADER_BYTES]),
            None => Block::Skipped,
        };
    }
}
