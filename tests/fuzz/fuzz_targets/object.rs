//! Any bytes as each object of a bucket: header and index of a segment, log object, part and manifest of a snapshot, lease. They are tried as
//! they are, then with magic, version, length and CRC32s put right and under the name that they give themselves, so that what stands
//! between is what is tried. What is taken is spelled in the one way in which it is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_primary::Key;
use terrace_tiers::object::format::{FORMAT_VERSION, FormatFault, HEAD_BYTES, LeaseNote, peek_shape};
use terrace_tiers::object::log::LogObject;
use terrace_tiers::object::names::{LogName, Names, PartName};
use terrace_tiers::object::segment::{
    HEADER_BYTES, IndexAnswer, TRAILER_BYTES, check_header, decode_index, encode_header, encode_index,
};
use terrace_tiers::object::snapshot::{Manifest, Part};
use terrace_tiers::object::{SegmentId, Shape, Stamp, WriterId};

/// Of blocks in a segment, its end, the log, parts, manifests, leases: the order is that of [`check`].
const MAGICS: [[u8; 8]; 6] = [*b"TERRAOBJ", *b"TERRASEG", *b"TERRALOG", *b"TERRAPRT", *b"TERRAMAN", *b"TERRALSE"];

/// The number at `at`; 0 beyond the end.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// The shape that the bytes say, or that of the fixtures.
fn shape_of(head: &[u8]) -> Shape {
    let fixtures = Shape { namespace: std::array::from_fn(|place| place as u8), block_bytes: 600, key_bytes: 36 };
    peek_shape(head).unwrap_or(fixtures)
}

/// Decodes as the kind `which`, under the name that stands behind the head.
fn check(which: usize, bytes: &[u8]) {
    let (first, second) = (number(bytes, HEAD_BYTES), number(bytes, HEAD_BYTES + 8));
    let shape = shape_of(bytes);
    match which {
        0 => check_block(&shape, bytes, SegmentId { writer: WriterId(first), number: second }),
        1 => check_end(bytes),
        2 => {
            let name = LogName { stamp: Stamp(0), writer: WriterId(first), sequence: second };
            if let Ok(log) = LogObject::decode(&shape, &name, bytes) {
                assert_eq!(log.encode(&shape).as_deref(), Ok(bytes));
                let other = LogName { sequence: second ^ 1, ..name };
                assert!(LogObject::decode(&shape, &other, bytes).is_err());
            }
        }
        3 => {
            let name = PartName { writer: WriterId(first), number: second };
            if let Ok(part) = Part::decode(&shape, name, bytes) {
                let (written, entry) = part.encode(&shape, name).expect("what was read can be written");
                assert_eq!(written, bytes);
                assert_eq!((entry.check(bytes), entry.name()), (Ok(()), name));
            }
        }
        4 => {
            if let Ok(manifest) = Manifest::decode(&shape, first, bytes) {
                assert_eq!(manifest.encode(&shape).as_deref(), Ok(bytes));
            }
        }
        _ => {
            if let Ok(note) = LeaseNote::decode(&shape, first, bytes) {
                assert_eq!(note.encode(&shape), bytes);
            }
        }
    }
}

fn check_block(shape: &Shape, bytes: &[u8], id: SegmentId) {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let position = number(bytes, HEAD_BYTES + 16) as u32;
    let from = HEAD_BYTES + 24;
    let key = bytes.get(from..from + usize::from(shape.key_bytes)).and_then(|key| Key::from_bytes(key).ok());
    let Some(key) = key else { return };
    if let Ok(crc32) = check_header(shape, id, position, &key, header) {
        assert_eq!(encode_header(shape, id, position, &key, crc32), *header);
        assert_eq!(check_header(shape, id, position ^ 1, &key, header), Err(FormatFault::Other("position")));
    }
}

/// The bytes as the end of an object that has as many bytes as its trailer says.
fn check_end(bytes: &[u8]) {
    let Some(trailer) = bytes.last_chunk::<TRAILER_BYTES>() else { return };
    let shape = shape_of(trailer);
    let id =
        SegmentId { writer: WriterId(number(trailer, HEAD_BYTES)), number: number(trailer, HEAD_BYTES + 8) };
    let object_bytes = number(trailer, HEAD_BYTES + 24);
    match decode_index(&shape, id, bytes, object_bytes) {
        Ok(record) => {
            let written = encode_index(&shape, &record);
            assert_eq!(bytes.get(bytes.len() - written.len()..), Some(written.as_slice()));
            assert_eq!(record.bytes, object_bytes);
        }
        Err(IndexAnswer::More(more)) => assert!(more > bytes.len() as u64 && more <= object_bytes),
        Err(IndexAnswer::Fault(_)) => {}
    }
}

/// The bytes with a head that is right for the kind, and with right CRC32s.
fn repair(which: usize, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut fixed = bytes.to_vec();
    let total = fixed.len();
    let head = if which == 1 { total.checked_sub(TRAILER_BYTES)? } else { 0 };
    if total < head + HEAD_BYTES + 4 {
        return None;
    }
    if which == 0 {
        fixed.resize(HEADER_BYTES, 0);
    }
    fixed[head..head + 8].copy_from_slice(&MAGICS[which]);
    fixed[head + 8..head + 12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    fixed[head + 57..head + 64].fill(0);
    fixed[head + 56] = fixed[head + 56] % 64 + 5;
    let shape = peek_shape(&fixed[head..]).ok()?;
    let length = match which {
        0 => shape.stride(),
        _ => total as u64,
    };
    fixed[head + 48..head + 56].copy_from_slice(&length.to_le_bytes());
    if which == 1 {
        let index = crc32fast::hash(&fixed[..head]);
        // Behind the segment, the time, the bytes and the number of blocks.
        let at = head + HEAD_BYTES + 36;
        fixed[at..at + 4].copy_from_slice(&index.to_le_bytes());
    }
    let end = fixed.len() - 4;
    let crc = crc32fast::hash(&fixed[..end]);
    fixed[end..].copy_from_slice(&crc.to_le_bytes());
    Some(fixed)
}

/// The name of a namespace's root, as a listing gives it.
fn check_name(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(namespace) = Names::parse_namespace(text)
    {
        let names = Names::new("", &namespace);
        assert!(names.root().as_ref().eq_ignore_ascii_case(text));
    }
}

fuzz_target!(|bytes: &[u8]| {
    check_name(bytes);
    for which in 0..MAGICS.len() {
        check(which, bytes);
        if let Some(fixed) = repair(which, bytes) {
            check(which, &fixed);
        }
    }
});
