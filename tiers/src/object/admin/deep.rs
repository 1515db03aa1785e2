//! Reads the blocks of a segment and checks every byte.

use std::time::Duration;

use bytes::Bytes;

use crate::object::record::SegmentRecord;
use crate::object::requests::{Body, RequestError};
use crate::object::segment::{HEADER_BYTES, check_header};
use crate::object::shared::Shared;

/// One segment, of up to a gigabyte.
const SEGMENT: Duration = Duration::from_secs(600);
/// Blocks that are named when they are damaged; the rest is counted.
const NAMED: usize = 8;

/// What is wrong with the blocks; nothing, if all is as the record says.
pub(super) async fn check_blocks(shared: &Shared, record: &SegmentRecord) -> Result<Option<String>, RequestError> {
    let range = shared.shape.blocks_range(0, record.blocks());
    let deadline = shared.clock.now().plus(SEGMENT);
    let path = shared.names.segment(record.id);
    let mut bytes = Stream { body: shared.requests.get_range(&path, range, deadline).await?, rest: Bytes::new() };
    let (mut damaged, mut count) = (Vec::new(), 0_u32);
    for position in 0..record.blocks() {
        let mut header = [0; HEADER_BYTES];
        bytes.fill(&mut header).await?;
        let crc = bytes.crc32(shared.shape.block_bytes.into()).await?;
        let key = record.key(position);
        let said = key.and_then(|key| check_header(&shared.shape, record.id, position, &key, &header).ok());
        if said != Some(crc) || record.crc32(position) != Some(crc) {
            count += 1;
            if damaged.len() < NAMED {
                damaged.push(position.to_string());
            }
        }
    }
    Ok((count > 0).then(|| format!("{count} damaged blocks, at positions {}", damaged.join(", "))))
}

/// A body, read by length.
struct Stream {
    body: Body,
    rest: Bytes,
}

impl Stream {
    /// The next bytes, at most `limit`.
    async fn next(&mut self, limit: u64) -> Result<Bytes, RequestError> {
        while self.rest.is_empty() {
            self.rest = self.body.next().await?.ok_or(RequestError::Truncated)?;
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(self.rest.len());
        Ok(self.rest.split_to(limit))
    }

    async fn fill(&mut self, mut to: &mut [u8]) -> Result<(), RequestError> {
        while !to.is_empty() {
            let bytes = self.next(to.len() as u64).await?;
            let (now, later) = to.split_at_mut(bytes.len());
            now.copy_from_slice(&bytes);
            to = later;
        }
        Ok(())
    }

    async fn crc32(&mut self, length: u64) -> Result<u32, RequestError> {
        let mut crc = crc32fast::Hasher::new();
        let mut left = length;
        while left > 0 {
            let bytes = self.next(left).await?;
            crc.update(&bytes);
            left -= bytes.len() as u64;
        }
        Ok(crc.finalize())
    }
}
