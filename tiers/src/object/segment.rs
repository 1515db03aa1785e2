//! A segment: blocks one behind the other, each with its header, then an index of all. `docs/format.md` draws it.
//!
//! Block `i` stands at `i * stride`, so that a block is found by its position alone and neighbours are read at once.

use std::ops::Range;

use terrace_primary::{Key, MAX_KEY_BYTES};

use super::format::{
    BLOCK, FormatFault, HEAD_BYTES, MAX_SEGMENT_BLOCKS, Reader, TRAILER, Writer, check_record, open_any, open_part,
    record_body, write_head,
};
use super::id::{SegmentId, Stamp};
use super::record::{SegmentRecord, Shape};

/// Length of the header in front of each payload.
pub const HEADER_BYTES: usize = 256;
/// Length of the trailer at the end of a segment.
pub const TRAILER_BYTES: usize = 128;

// Offsets in a header and in a trailer, behind the head.
const KEY_PLACE: usize = HEADER_BYTES - HEAD_BYTES - 8 - 8 - 4 - 4 - 4;
const _: () = assert!(KEY_PLACE >= MAX_KEY_BYTES);
const TRAILER_PAD: usize = TRAILER_BYTES - HEAD_BYTES - 8 - 8 - 8 - 8 - 4 - 4 - 4;

impl Shape {
    /// Bytes from one block to the next: header and payload.
    pub const fn stride(&self) -> u64 {
        HEADER_BYTES as u64 + self.block_bytes as u64
    }

    /// Where `count` blocks from position `first` on stand in the object, headers included.
    pub const fn blocks_range(&self, first: u32, count: u32) -> Range<u64> {
        let start = self.stride().saturating_mul(first as u64);
        start..start.saturating_add(self.stride().saturating_mul(count as u64))
    }

    /// Bytes behind the blocks of a segment: index and trailer.
    pub const fn index_bytes(&self, blocks: u32) -> u64 {
        (self.key_bytes as u64 + 4) * blocks as u64 + TRAILER_BYTES as u64
    }

    /// Bytes of a segment of so many blocks.
    pub const fn object_bytes(&self, blocks: u32) -> u64 {
        self.blocks_range(0, blocks).end.saturating_add(self.index_bytes(blocks))
    }

    /// Most blocks of a segment of at most `segment_bytes`: 1 to [`MAX_SEGMENT_BLOCKS`], so one large block always fits.
    pub const fn blocks_within(&self, segment_bytes: u64) -> u32 {
        let each = self.stride() + self.key_bytes as u64 + 4;
        let blocks = segment_bytes.saturating_sub(TRAILER_BYTES as u64) / each;
        if blocks == 0 {
            1
        } else if blocks > MAX_SEGMENT_BLOCKS as u64 {
            MAX_SEGMENT_BLOCKS
        } else {
            blocks as u32
        }
    }

    /// The record of a new segment: its length follows from its blocks. `None` where keys and CRC32s do not go together, or there
    /// are more than [`MAX_SEGMENT_BLOCKS`].
    pub fn record(&self, id: SegmentId, created: Stamp, keys: Box<[u8]>, crcs: Box<[u32]>) -> Option<SegmentRecord> {
        let blocks = u32::try_from(crcs.len()).ok().filter(|blocks| *blocks <= MAX_SEGMENT_BLOCKS)?;
        SegmentRecord::new(id, created, self.object_bytes(blocks), self.key_bytes, keys, crcs)
    }
}

/// The header in front of the payload with this CRC32.
pub fn encode_header(shape: &Shape, id: SegmentId, position: u32, key: &Key, crc32: u32) -> [u8; HEADER_BYTES] {
    let mut out = Writer::new(HEADER_BYTES);
    write_head(BLOCK, shape, shape.stride(), &mut out);
    out.segment(id);
    out.u32(position);
    out.u32(crc32);
    out.bytes(key.as_bytes());
    out.zeros(KEY_PLACE - key.as_bytes().len());
    let mut header = [0; HEADER_BYTES];
    for (to, from) in header.iter_mut().zip(out.seal()) {
        *to = from;
    }
    header
}

/// Whether this is the header of the block `key` at this position of this segment. Answers the CRC32 that its payload must have.
pub fn check_header(
    shape: &Shape,
    id: SegmentId,
    position: u32,
    key: &Key,
    header: &[u8; HEADER_BYTES],
) -> Result<u32, FormatFault> {
    let mut reader = open_part(BLOCK, shape, shape.stride(), header)?;
    if reader.segment()? != id {
        return Err(FormatFault::Other("segment"));
    }
    if reader.u32()? != position {
        return Err(FormatFault::Other("position"));
    }
    let crc32 = reader.u32()?;
    if reader.take(usize::from(shape.key_bytes))? != key.as_bytes() {
        return Err(FormatFault::Other("key"));
    }
    reader.zeros(reader.left())?;
    Ok(crc32)
}

/// Index and trailer: what stands behind the blocks.
pub fn encode_index(shape: &Shape, record: &SegmentRecord) -> Vec<u8> {
    let length = shape.index_bytes(record.blocks());
    let mut out = Writer::new(length as usize);
    out.bytes(record.keys());
    for crc in record.crcs() {
        out.u32(*crc);
    }
    let mut trailer = Writer::new(TRAILER_BYTES);
    write_head(TRAILER, shape, length, &mut trailer);
    trailer.segment(record.id);
    trailer.u64(record.created.0);
    trailer.u64(record.bytes);
    trailer.u32(record.blocks());
    trailer.u32(crc32fast::hash(out.as_slice()));
    trailer.zeros(TRAILER_PAD);
    out.bytes(&trailer.seal());
    out.finish()
}

/// Why the end of an object gave no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexAnswer {
    /// The bytes given are too few: this many from the end are needed. Never more than the object has.
    #[error("the last {0} bytes of the object are needed")]
    More(u64),
    /// It is no whole segment of this name.
    #[error(transparent)]
    Fault(#[from] FormatFault),
}

/// The record of segment `id` from `tail`, the last bytes of its object of `object_bytes`. At first, [`TRAILER_BYTES`] are enough to learn
/// how many are needed.
pub fn decode_index(
    shape: &Shape,
    id: SegmentId,
    tail: &[u8],
    object_bytes: u64,
) -> Result<SegmentRecord, IndexAnswer> {
    if object_bytes < TRAILER_BYTES as u64 {
        return Err(FormatFault::Length.into());
    }
    let Some((before, trailer)) = tail.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(IndexAnswer::More(TRAILER_BYTES as u64));
    };
    let (length, mut reader) = open_any(TRAILER, shape, trailer)?;
    if reader.segment()? != id {
        return Err(FormatFault::Other("segment").into());
    }
    let (created, bytes, blocks, crc) = (reader.stamp()?, reader.u64()?, reader.u32()?, reader.u32()?);
    reader.zeros(TRAILER_PAD)?;
    check_record(shape, bytes, blocks, shape.key_bytes)?;
    if bytes != object_bytes || length != shape.index_bytes(blocks) {
        return Err(FormatFault::Length.into());
    }
    let entries = length - TRAILER_BYTES as u64;
    let Some(start) = (before.len() as u64).checked_sub(entries) else {
        return Err(IndexAnswer::More(length));
    };
    let index = before.get(start as usize..).unwrap_or_default();
    if crc32fast::hash(index) != crc {
        return Err(FormatFault::Crc.into());
    }
    Ok(record_body(shape, id, created, bytes, blocks, &mut Reader::new(index))?)
}
