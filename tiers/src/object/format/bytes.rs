//! Reading and writing numbers, names and records. Little-endian.

use super::{FormatFault, MAX_NODE_BYTES, MAX_SEGMENT_BLOCKS};
use crate::object::id::{SegmentId, Stamp, WriterId};
use crate::object::record::{SegmentRecord, Shape};

/// Takes bytes from the front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FormatFault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(FormatFault::Length)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatFault> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(FormatFault::Length)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, FormatFault> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, FormatFault> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, FormatFault> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn stamp(&mut self) -> Result<Stamp, FormatFault> {
        self.u64().map(Stamp)
    }

    pub fn writer(&mut self) -> Result<WriterId, FormatFault> {
        self.u64().map(WriterId)
    }

    pub fn segment(&mut self) -> Result<SegmentId, FormatFault> {
        Ok(SegmentId { writer: self.writer()?, number: self.u64()? })
    }

    /// Bytes that this version does not use: zero.
    pub fn zeros(&mut self, len: usize) -> Result<(), FormatFault> {
        match self.take(len)?.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(FormatFault::Field("a byte without use")),
        }
    }

    /// A number, then so many entries of at least `entry_bytes` each: more than there can be are refused before memory is taken.
    pub fn list<T>(
        &mut self,
        entry_bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, FormatFault>,
    ) -> Result<Vec<T>, FormatFault> {
        let count = self.u32()? as usize;
        if count.checked_mul(entry_bytes).is_none_or(|bytes| bytes > self.left()) {
            return Err(FormatFault::Length);
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(entry(self)?);
        }
        Ok(entries)
    }

    /// A name of a node.
    pub fn node(&mut self) -> Result<String, FormatFault> {
        let len = usize::from(self.u8()?);
        let name = std::str::from_utf8(self.take(len)?).map_err(|_| FormatFault::Field("the name of the node"))?;
        Ok(name.to_owned())
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), FormatFault> {
        if self.rest.is_empty() { Ok(()) } else { Err(FormatFault::Length) }
    }
}

/// Appends bytes.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Bytes that will be about `capacity` long.
    pub fn new(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn segment(&mut self, id: SegmentId) {
        self.u64(id.writer.0);
        self.u64(id.number);
    }

    pub fn zeros(&mut self, len: usize) {
        self.0.resize(self.0.len() + len, 0);
    }

    /// A number of entries.
    pub fn count(&mut self, count: usize) -> Result<(), FormatFault> {
        self.u32(u32::try_from(count).map_err(|_| FormatFault::Field("a number of entries"))?);
        Ok(())
    }

    /// A name of a node, cut where it is too long.
    pub fn node(&mut self, node: &str) {
        let node = cut_node(node);
        self.u8(node.len() as u8);
        self.bytes(node.as_bytes());
    }

    /// The bytes so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The bytes with their CRC32 behind them.
    pub fn seal(mut self) -> Vec<u8> {
        let crc = crc32fast::hash(&self.0);
        self.u32(crc);
        self.0
    }
}

/// As much of a node's name as an object holds, whole characters.
pub fn cut_node(node: &str) -> &str {
    let end = (0..=node.len().min(MAX_NODE_BYTES)).rev().find(|end| node.is_char_boundary(*end)).unwrap_or(0);
    node.get(..end).unwrap_or("")
}

/// Bytes of a record without keys and CRCs: id, created, bytes, blocks.
pub const RECORD_HEAD_BYTES: usize = 8 + 8 + 8 + 8 + 4;

/// Bytes of a record.
pub fn record_len(record: &SegmentRecord) -> usize {
    RECORD_HEAD_BYTES + record.keys().len() + size_of_val(record.crcs())
}

/// Writes a record. Fails for one that [`record_from`] would refuse.
pub fn record_into(shape: &Shape, record: &SegmentRecord, out: &mut Writer) -> Result<(), FormatFault> {
    check_record(shape, record.bytes, record.blocks(), record.key_bytes())?;
    out.segment(record.id);
    out.u64(record.created.0);
    out.u64(record.bytes);
    out.u32(record.blocks());
    out.bytes(record.keys());
    for crc in record.crcs() {
        out.u32(*crc);
    }
    Ok(())
}

/// Reads a record.
pub fn record_from(shape: &Shape, reader: &mut Reader<'_>) -> Result<SegmentRecord, FormatFault> {
    let (id, created, bytes, blocks) = (reader.segment()?, reader.stamp()?, reader.u64()?, reader.u32()?);
    check_record(shape, bytes, blocks, shape.key_bytes)?;
    record_body(shape, id, created, bytes, blocks, reader)
}

/// The keys and CRC32s of a record of which the rest is known and checked.
pub fn record_body(
    shape: &Shape,
    id: SegmentId,
    created: Stamp,
    bytes: u64,
    blocks: u32,
    reader: &mut Reader<'_>,
) -> Result<SegmentRecord, FormatFault> {
    let keys = reader.take(blocks as usize * usize::from(shape.key_bytes))?;
    let crcs = reader.take(blocks as usize * 4)?.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc));
    SegmentRecord::new(id, created, bytes, shape.key_bytes, keys.into(), crcs.collect())
        .ok_or(FormatFault::Field("the length of keys"))
}

/// Whether a record can be one of a segment of this shape.
pub fn check_record(shape: &Shape, bytes: u64, blocks: u32, key_bytes: u8) -> Result<(), FormatFault> {
    if key_bytes != shape.key_bytes {
        return Err(FormatFault::Other("length of keys"));
    }
    if blocks > MAX_SEGMENT_BLOCKS {
        return Err(FormatFault::Field("the number of blocks"));
    }
    if bytes != shape.object_bytes(blocks) {
        return Err(FormatFault::Field("the length of the segment"));
    }
    Ok(())
}
