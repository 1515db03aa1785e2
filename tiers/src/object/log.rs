//! An object of the index log: what one writer added and removed. Immutable; `docs/format.md` draws it.

use std::sync::Arc;

use super::format::{
    FormatFault, HEAD_BYTES, LOG, MAX_NODE_BYTES, Reader, Writer, cut_node, open, record_from, record_into, record_len,
    write_head,
};
use super::id::{SegmentId, Stamp, WriterId};
use super::names::LogName;
use super::record::{SegmentRecord, Shape};

/// Longest log object.
pub const MAX_LOG_BYTES: usize = 8 << 20;
/// Bytes of a log object beside its records, at most.
pub const LOG_OVERHEAD_BYTES: usize = HEAD_BYTES + 8 * 3 + 1 + MAX_NODE_BYTES + 4 + 4;

const ADDED: u8 = 1;
const REMOVED: u8 = 2;
const USED: u8 = 3;
/// Bytes of a record that names a segment and a time.
const SHORT_BYTES: usize = 1 + 8 + 8 + 8;

/// What a writer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord {
    /// The segment is whole in the store.
    Added(Arc<SegmentRecord>),
    /// The segment is given up; its object goes a while later.
    Removed {
        /// Which.
        id: SegmentId,
        /// Since when.
        at: Stamp,
    },
    /// Blocks of the segment were wanted.
    Used {
        /// Which.
        id: SegmentId,
        /// When.
        at: Stamp,
    },
}

/// One object of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogObject {
    /// Who wrote it.
    pub writer: WriterId,
    /// Which of the writer's: 1, 2, 3...
    pub sequence: u64,
    /// When it was first written. A copy that was written again has a later stamp in its name and the same bytes.
    pub stamp: Stamp,
    /// Name of the writer's node, for people; cut to 255 bytes when written.
    pub node: String,
    /// What it says, in order.
    pub records: Vec<LogRecord>,
}

/// Bytes that a record takes in a log object.
pub fn record_bytes(record: &LogRecord) -> usize {
    match record {
        LogRecord::Added(segment) => 1 + record_len(segment),
        LogRecord::Removed { .. } | LogRecord::Used { .. } => SHORT_BYTES,
    }
}

impl LogObject {
    /// Bytes of the object.
    pub fn encoded_bytes(&self) -> usize {
        let records: usize = self.records.iter().map(record_bytes).sum();
        LOG_OVERHEAD_BYTES - MAX_NODE_BYTES + cut_node(&self.node).len() + records
    }

    /// The object's bytes. Fails if they are more than [`MAX_LOG_BYTES`], or a record is none of this shape.
    pub fn encode(&self, shape: &Shape) -> Result<Vec<u8>, FormatFault> {
        let length = self.encoded_bytes();
        if length > MAX_LOG_BYTES {
            return Err(FormatFault::Length);
        }
        let mut out = Writer::new(length);
        write_head(LOG, shape, length as u64, &mut out);
        out.u64(self.writer.0);
        out.u64(self.sequence);
        out.u64(self.stamp.0);
        out.node(&self.node);
        out.count(self.records.len())?;
        for record in &self.records {
            match record {
                LogRecord::Added(segment) => {
                    out.u8(ADDED);
                    record_into(shape, segment, &mut out)?;
                }
                LogRecord::Removed { id, at } => short(REMOVED, *id, *at, &mut out),
                LogRecord::Used { id, at } => short(USED, *id, *at, &mut out),
            }
        }
        Ok(out.seal())
    }

    /// The object of this name: writer and sequence must be the name's, its stamp may differ.
    pub fn decode(shape: &Shape, name: &LogName, bytes: &[u8]) -> Result<Self, FormatFault> {
        if bytes.len() > MAX_LOG_BYTES {
            return Err(FormatFault::Length);
        }
        let mut reader = open(LOG, shape, bytes)?;
        let (writer, sequence, stamp, node) = (reader.writer()?, reader.u64()?, reader.stamp()?, reader.node()?);
        let records = reader.list(SHORT_BYTES, |reader| record(shape, reader))?;
        reader.end()?;
        if (writer, sequence) != (name.writer, name.sequence) {
            return Err(FormatFault::Other("writer or sequence"));
        }
        Ok(Self { writer, sequence, stamp, node, records })
    }
}

fn short(kind: u8, id: SegmentId, at: Stamp, out: &mut Writer) {
    out.u8(kind);
    out.segment(id);
    out.u64(at.0);
}

fn record(shape: &Shape, reader: &mut Reader<'_>) -> Result<LogRecord, FormatFault> {
    Ok(match reader.u8()? {
        ADDED => LogRecord::Added(Arc::new(record_from(shape, reader)?)),
        REMOVED => LogRecord::Removed { id: reader.segment()?, at: reader.stamp()? },
        USED => LogRecord::Used { id: reader.segment()?, at: reader.stamp()? },
        _ => return Err(FormatFault::Field("the kind of a record")),
    })
}
