//! Snapshots: the log in short. A manifest names parts, and parts hold the records of segments. `docs/format.md` draws both.
//!
//! Parts are shared by successive manifests. A manifest is created under the number after the last, so there is one history.

use std::sync::Arc;

use super::format::{
    FormatFault, HEAD_BYTES, MANIFEST, PART, RECORD_HEAD_BYTES, Writer, open, record_from, record_into, record_len,
    write_head,
};
use super::id::{SegmentId, Stamp, WriterId};
use super::names::PartName;
use super::record::{SegmentRecord, Shape};

/// Longest part.
pub const MAX_PART_BYTES: usize = 8 << 20;
/// Longest manifest.
pub const MAX_MANIFEST_BYTES: usize = 64 << 20;
/// Bytes of a part beside its segments.
pub const PART_OVERHEAD_BYTES: usize = HEAD_BYTES + 8 * 2 + 4 + 4;

/// Bytes of a manifest beside its lists.
const MANIFEST_OVERHEAD_BYTES: usize = HEAD_BYTES + 8 * 3 + 4 * 4 + 4;
/// Bytes of an entry of a manifest's lists.
const PART_REF_BYTES: usize = 8 + 8 + 8 + 4 + 4 + 8;
const WRITER_BYTES: usize = 8 + 8 + 8;
const SEGMENT_BYTES: usize = 8 + 8 + 8;

/// Records of segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Each with the time of its last use, as far as it was known.
    pub segments: Vec<(Arc<SegmentRecord>, Stamp)>,
}

/// A part as a manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRef {
    /// Who wrote it.
    pub writer: WriterId,
    /// Which of the writer's.
    pub number: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// CRC32 of the object.
    pub crc32: u32,
    /// Segments in it.
    pub segments: u32,
    /// Their blocks.
    pub blocks: u64,
}

/// A snapshot: what the log said up to a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its number: one more than that of the manifest before.
    pub number: u64,
    /// When it was written.
    pub stamp: Stamp,
    /// Log objects with names before this stamp are all in it.
    pub log_from: Stamp,
    /// The parts with the live segments. A segment in a part that is removed below does not live.
    pub parts: Vec<PartRef>,
    /// Per writer: the sequence up to which its log is in the snapshot without a gap, and the newest stamp seen of it.
    pub writers: Vec<(WriterId, u64, Stamp)>,
    /// Segments removed, and when.
    pub removed: Vec<(SegmentId, Stamp)>,
    /// Segments used after their part was written, and when.
    pub used: Vec<(SegmentId, Stamp)>,
}

/// Bytes that a segment takes in a part.
pub fn part_segment_bytes(segment: &SegmentRecord) -> usize {
    record_len(segment) + 8
}

impl PartRef {
    /// The name of the part.
    pub const fn name(&self) -> PartName {
        PartName { writer: self.writer, number: self.number }
    }

    /// Whether these bytes are the part's.
    pub fn check(&self, bytes: &[u8]) -> Result<(), FormatFault> {
        if bytes.len() as u64 != self.bytes {
            return Err(FormatFault::Length);
        }
        if crc32fast::hash(bytes) != self.crc32 {
            return Err(FormatFault::Crc);
        }
        Ok(())
    }
}

impl Part {
    /// The part's bytes under `name`, and what a manifest says of it. Fails if they are more than [`MAX_PART_BYTES`], or a record is
    /// none of this shape.
    pub fn encode(&self, shape: &Shape, name: PartName) -> Result<(Vec<u8>, PartRef), FormatFault> {
        let segments: usize = self.segments.iter().map(|(segment, _)| part_segment_bytes(segment)).sum();
        let length = PART_OVERHEAD_BYTES + segments;
        if length > MAX_PART_BYTES {
            return Err(FormatFault::Length);
        }
        let mut out = Writer::new(length);
        write_head(PART, shape, length as u64, &mut out);
        out.u64(name.writer.0);
        out.u64(name.number);
        out.count(self.segments.len())?;
        for (segment, used) in &self.segments {
            record_into(shape, segment, &mut out)?;
            out.u64(used.0);
        }
        let bytes = out.seal();
        let blocks = self.segments.iter().map(|(segment, _)| u64::from(segment.blocks())).sum();
        let part = PartRef {
            writer: name.writer,
            number: name.number,
            bytes: length as u64,
            crc32: crc32fast::hash(&bytes),
            segments: self.segments.len() as u32,
            blocks,
        };
        Ok((bytes, part))
    }

    /// The part of this name.
    pub fn decode(shape: &Shape, name: PartName, bytes: &[u8]) -> Result<Self, FormatFault> {
        if bytes.len() > MAX_PART_BYTES {
            return Err(FormatFault::Length);
        }
        let mut reader = open(PART, shape, bytes)?;
        if (PartName { writer: reader.writer()?, number: reader.u64()? }) != name {
            return Err(FormatFault::Other("name"));
        }
        let segments = reader
            .list(RECORD_HEAD_BYTES + 8, |reader| Ok((Arc::new(record_from(shape, reader)?), reader.stamp()?)))?;
        reader.end()?;
        Ok(Self { segments })
    }
}

impl Manifest {
    /// Bytes of the manifest.
    pub fn encoded_bytes(&self) -> usize {
        MANIFEST_OVERHEAD_BYTES
            + self.parts.len() * PART_REF_BYTES
            + self.writers.len() * WRITER_BYTES
            + (self.removed.len() + self.used.len()) * SEGMENT_BYTES
    }

    /// The manifest's bytes. Fails if they are more than [`MAX_MANIFEST_BYTES`].
    pub fn encode(&self, shape: &Shape) -> Result<Vec<u8>, FormatFault> {
        let length = self.encoded_bytes();
        if length > MAX_MANIFEST_BYTES {
            return Err(FormatFault::Length);
        }
        let mut out = Writer::new(length);
        write_head(MANIFEST, shape, length as u64, &mut out);
        out.u64(self.number);
        out.u64(self.stamp.0);
        out.u64(self.log_from.0);
        out.count(self.parts.len())?;
        for part in &self.parts {
            out.u64(part.writer.0);
            out.u64(part.number);
            out.u64(part.bytes);
            out.u32(part.crc32);
            out.u32(part.segments);
            out.u64(part.blocks);
        }
        out.count(self.writers.len())?;
        for (writer, sequence, stamp) in &self.writers {
            out.u64(writer.0);
            out.u64(*sequence);
            out.u64(stamp.0);
        }
        for list in [&self.removed, &self.used] {
            out.count(list.len())?;
            for (id, at) in list {
                out.segment(*id);
                out.u64(at.0);
            }
        }
        Ok(out.seal())
    }

    /// The manifest of this number.
    pub fn decode(shape: &Shape, number: u64, bytes: &[u8]) -> Result<Self, FormatFault> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(FormatFault::Length);
        }
        let mut reader = open(MANIFEST, shape, bytes)?;
        if reader.u64()? != number {
            return Err(FormatFault::Other("number"));
        }
        let (stamp, log_from) = (reader.stamp()?, reader.stamp()?);
        let parts = reader.list(PART_REF_BYTES, |reader| {
            Ok(PartRef {
                writer: reader.writer()?,
                number: reader.u64()?,
                bytes: reader.u64()?,
                crc32: reader.u32()?,
                segments: reader.u32()?,
                blocks: reader.u64()?,
            })
        })?;
        let writers = reader.list(WRITER_BYTES, |reader| Ok((reader.writer()?, reader.u64()?, reader.stamp()?)))?;
        let removed = reader.list(SEGMENT_BYTES, |reader| Ok((reader.segment()?, reader.stamp()?)))?;
        let used = reader.list(SEGMENT_BYTES, |reader| Ok((reader.segment()?, reader.stamp()?)))?;
        reader.end()?;
        Ok(Self { number, stamp, log_from, parts, writers, removed, used })
    }
}
