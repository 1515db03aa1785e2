//! A segment that takes no more blocks: its bytes, ready to be sent.

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutPayload;
use terrace_primary::Key;

use super::super::id::{SegmentId, Stamp};
use super::super::record::{SegmentRecord, Shape};
use super::super::segment::{HEADER_BYTES, encode_header, encode_index};
use super::pool::Buffer;
use crate::clock::Time;

/// Parts of an upload have at least this many bytes, but for the last: S3 takes none that are smaller.
const LEAST_PART_BYTES: u64 = 5 << 20;

/// A block in its staging buffer: room for its header, then the payload.
#[derive(Debug)]
pub(super) struct Staged {
    pub key: Key,
    /// CRC32 of the payload.
    pub crc32: u32,
    pub buffer: Buffer,
}

/// A segment to send. Its staging memory is free again when its bytes are dropped.
#[derive(Debug)]
pub(super) struct Sealed {
    pub record: Arc<SegmentRecord>,
    /// When its upload must be done.
    pub deadline: Time,
    bytes: Vec<Bytes>,
}

impl Sealed {
    /// A segment of these blocks, in this order. `None`: their keys are not of the namespace's length, or they are too many.
    pub fn new(shape: &Shape, id: SegmentId, created: Stamp, blocks: Vec<Staged>, deadline: Time) -> Option<Self> {
        let keys = blocks.iter().flat_map(|block| block.key.as_bytes()).copied().collect();
        let crcs = blocks.iter().map(|block| block.crc32).collect();
        let record = shape.record(id, created, keys, crcs)?;
        let mut bytes = Vec::with_capacity(blocks.len() + 1);
        for (position, Staged { key, crc32, mut buffer }) in (0..).zip(blocks) {
            let header = encode_header(shape, id, position, &key, crc32);
            *buffer.as_mut().first_chunk_mut::<HEADER_BYTES>()? = header;
            bytes.push(Bytes::from_owner(buffer));
        }
        bytes.push(encode_index(shape, &record).into());
        Some(Self { record: Arc::new(record), deadline, bytes })
    }

    /// Its bytes in parts of about `part_bytes`, all of one size but the last; one part if it has not much more. Copies nothing.
    pub fn into_parts(self, part_bytes: u64) -> Vec<PutPayload> {
        // A rest of less than a quarter is not worth a request of its own, nor what an upload of several parts costs beside.
        let parts = self.record.bytes.saturating_sub(part_bytes / 4).div_ceil(part_bytes.max(1)).max(1);
        if parts == 1 {
            return vec![PutPayload::from_iter(self.bytes)];
        }
        let size = self.record.bytes.div_ceil(parts).max(LEAST_PART_BYTES);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), size);
        for mut bytes in self.bytes {
            while bytes.len() >= room {
                part.push(bytes.split_to(room));
                parts.push(PutPayload::from_iter(std::mem::take(&mut part)));
                room = size;
            }
            room -= bytes.len();
            if !bytes.is_empty() {
                part.push(bytes);
            }
        }
        if !part.is_empty() {
            parts.push(PutPayload::from_iter(part));
        }
        parts
    }
}
