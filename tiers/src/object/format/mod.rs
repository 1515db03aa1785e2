//! What all objects share: how numbers are read and written, the head that each begins with, why bytes are refused.
//!
//! Every decoder takes any bytes: it answers a value or a [`FormatFault`], and it takes no memory that the bytes given do not
//! account for. What decodes is spelled in the one way in which it is written: encoding it again gives the same bytes.

mod bytes;
mod lease_note;

pub(super) use bytes::{
    RECORD_HEAD_BYTES, Reader, Writer, check_record, cut_node, record_body, record_from, record_into, record_len,
};
pub use lease_note::LeaseNote;

use super::record::Shape;

/// Version of every object in a bucket. `docs/format.md` has the rule for changing it.
pub const FORMAT_VERSION: u32 = 1;
/// Length of the head: magic, version, block bytes, namespace, length, key bytes.
pub const HEAD_BYTES: usize = 64;
/// Most blocks of one segment: its record fits into a log object and into a part with keys of any length.
pub const MAX_SEGMENT_BLOCKS: u32 = 65_536;
/// Longest name of a node in an object, in bytes; longer ones are cut.
pub const MAX_NODE_BYTES: usize = 255;

/// Why bytes are not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatFault {
    /// Not an object of this kind at all.
    #[error("it is no {0}")]
    Magic(&'static str),
    /// Written by another version of Terrace.
    #[error("format version {0}, this program reads {FORMAT_VERSION}")]
    Version(u32),
    /// More or fewer bytes than it says it has.
    #[error("its length is not what it says")]
    Length,
    /// Its own checksum does not match.
    #[error("its own CRC32 does not match")]
    Crc,
    /// A field makes no sense.
    #[error("{0} is out of bounds")]
    Field(&'static str),
    /// Sound, but something else than what was asked for.
    #[error("it is another's: its {0} differs")]
    Other(&'static str),
}

/// What kind of bytes begins here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub magic: [u8; 8],
    pub name: &'static str,
}

/// Shape and length from a head. Magic and version are checked first, before anything that a version may move.
fn read_head(kind: Kind, bytes: &[u8]) -> Result<(Shape, u64), FormatFault> {
    let mut reader = Reader::new(bytes);
    if reader.array::<8>()? != kind.magic {
        return Err(FormatFault::Magic(kind.name));
    }
    let version = reader.u32()?;
    if version != FORMAT_VERSION {
        return Err(FormatFault::Version(version));
    }
    let block_bytes = reader.u32()?;
    let namespace = reader.array()?;
    let length = reader.u64()?;
    let key_bytes = reader.u8()?;
    reader.zeros(7)?;
    Ok((Shape { namespace, block_bytes, key_bytes }, length))
}

/// The head of `length` bytes of `kind`.
pub(super) fn write_head(kind: Kind, shape: &Shape, length: u64, out: &mut Writer) {
    out.bytes(&kind.magic);
    out.u32(FORMAT_VERSION);
    out.u32(shape.block_bytes);
    out.bytes(&shape.namespace);
    out.u64(length);
    out.u8(shape.key_bytes);
    out.zeros(7);
}

/// Opens an object that ends with its own CRC32: what stands between head and CRC32, if all of it checks out.
pub(super) fn open<'a>(kind: Kind, shape: &Shape, bytes: &'a [u8]) -> Result<Reader<'a>, FormatFault> {
    open_part(kind, shape, bytes.len() as u64, bytes)
}

/// As [`open`], for bytes whose head says the length of something larger.
pub(super) fn open_part<'a>(
    kind: Kind,
    shape: &Shape,
    length: u64,
    bytes: &'a [u8],
) -> Result<Reader<'a>, FormatFault> {
    let (found, reader) = open_any(kind, shape, bytes)?;
    if found == length { Ok(reader) } else { Err(FormatFault::Length) }
}

/// As [`open`], with the length that the head says: to be checked by the caller.
pub(super) fn open_any<'a>(kind: Kind, shape: &Shape, bytes: &'a [u8]) -> Result<(u64, Reader<'a>), FormatFault> {
    let (found, length) = read_head(kind, bytes)?;
    let (content, crc) = bytes.split_last_chunk::<4>().ok_or(FormatFault::Length)?;
    if crc32fast::hash(content) != u32::from_le_bytes(*crc) {
        return Err(FormatFault::Crc);
    }
    if found.namespace != shape.namespace {
        return Err(FormatFault::Other("namespace"));
    }
    if found != *shape {
        return Err(FormatFault::Other("shape of blocks"));
    }
    Ok((length, content.get(HEAD_BYTES..).map(Reader::new).ok_or(FormatFault::Length)?))
}

/// The shape that any object of this version, or the header of a block, says it has: for tools that find a namespace and do not
/// know it. Nothing is checked but the head: only what then decodes with this shape is to be believed.
pub fn peek_shape(bytes: &[u8]) -> Result<Shape, FormatFault> {
    let magic = *bytes.first_chunk::<8>().ok_or(FormatFault::Length)?;
    let kind = KINDS.into_iter().find(|kind| kind.magic == magic).ok_or(FormatFault::Magic("object of Terrace"))?;
    let (shape, _) = read_head(kind, bytes)?;
    if usize::from(shape.key_bytes) <= 4 || usize::from(shape.key_bytes) > terrace_primary::MAX_KEY_BYTES {
        return Err(FormatFault::Field("the length of keys"));
    }
    Ok(shape)
}

/// Header of a block in a segment.
pub(super) const BLOCK: Kind = Kind { magic: *b"TERRAOBJ", name: "header of a block" };
/// End of a segment.
pub(super) const TRAILER: Kind = Kind { magic: *b"TERRASEG", name: "end of a segment" };
/// Object of the log.
pub(super) const LOG: Kind = Kind { magic: *b"TERRALOG", name: "log object" };
/// Part of snapshots.
pub(super) const PART: Kind = Kind { magic: *b"TERRAPRT", name: "part of a snapshot" };
/// Manifest of a snapshot.
pub(super) const MANIFEST: Kind = Kind { magic: *b"TERRAMAN", name: "manifest" };
/// Term of the lease.
pub(super) const LEASE: Kind = Kind { magic: *b"TERRALSE", name: "lease" };
const KINDS: [Kind; 6] = [BLOCK, TRAILER, LOG, PART, MANIFEST, LEASE];

#[cfg(test)]
mod tests;
