//! What a term of the collector's lease says: who took it. The name alone counts; this is for people.

use super::bytes::cut_node;
use super::{FormatFault, HEAD_BYTES, LEASE, Writer, open, write_head};
use crate::object::id::{Stamp, WriterId};
use crate::object::record::Shape;

/// Content of a lease object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseNote {
    /// The term, as in the name.
    pub term: u64,
    /// Who took it.
    pub writer: WriterId,
    /// When, by the taker's clock.
    pub stamp: Stamp,
    /// Name of the taker's node; cut to 255 bytes when written.
    pub node: String,
}

impl LeaseNote {
    /// The object's bytes.
    pub fn encode(&self, shape: &Shape) -> Vec<u8> {
        let length = HEAD_BYTES + 8 * 3 + 1 + cut_node(&self.node).len() + 4;
        let mut out = Writer::new(length);
        write_head(LEASE, shape, length as u64, &mut out);
        out.u64(self.term);
        out.u64(self.writer.0);
        out.u64(self.stamp.0);
        out.node(&self.node);
        out.seal()
    }

    /// The note in the object of `term`.
    pub fn decode(shape: &Shape, term: u64, bytes: &[u8]) -> Result<Self, FormatFault> {
        let mut reader = open(LEASE, shape, bytes)?;
        let note = Self { term: reader.u64()?, writer: reader.writer()?, stamp: reader.stamp()?, node: reader.node()? };
        reader.end()?;
        if note.term == term { Ok(note) } else { Err(FormatFault::Other("term")) }
    }
}
