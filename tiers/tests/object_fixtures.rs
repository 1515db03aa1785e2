//! Objects of the bucket, version 1, written by a program that shares no code with Terrace (`fixtures/object_v1/make.py`): the good ones are
//! read, and written byte for byte alike; every other is refused for its own reason.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_primary::Key;
use terrace_tiers::object::format::{FormatFault, LeaseNote, peek_shape};
use terrace_tiers::object::log::{LogObject, LogRecord};
use terrace_tiers::object::names::{LogName, PartName};
use terrace_tiers::object::segment::{
    HEADER_BYTES, IndexAnswer, TRAILER_BYTES, check_header, decode_index, encode_header, encode_index,
};
use terrace_tiers::object::snapshot::{Manifest, Part};
use terrace_tiers::object::{SegmentId, SegmentRecord, Shape, Stamp, WriterId};

const BLOCKS: u32 = 3;
const WRITER: WriterId = WriterId(0x0123_4567_89ab_cdef);
const OTHER: WriterId = WriterId(0xfedc_ba98_7654_3210);
const SEGMENT: SegmentId = SegmentId { writer: WRITER, number: 0x2a };
const CREATED: u64 = 1_790_000_000_123;
const LOG: LogName = LogName { stamp: Stamp(CREATED + 1), writer: WRITER, sequence: 7 };
const PART: PartName = PartName { writer: WRITER, number: 5 };

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/object_v1").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn shape() -> Shape {
    Shape { namespace: std::array::from_fn(|place| place as u8), block_bytes: 600, key_bytes: 36 }
}

fn key(place: u32) -> Key {
    let hash: [u8; 32] = std::array::from_fn(|i| (place as usize * 16 + i) as u8);
    Key::new(&hash, 3).expect("32 bytes")
}

fn payload(place: u32) -> Vec<u8> {
    (0..600).map(|i| (i * 7 + place * 31 + i / 251) as u8).collect()
}

fn record() -> Arc<SegmentRecord> {
    let keys: Vec<u8> = (0..BLOCKS).flat_map(|place| key(place).as_bytes().to_vec()).collect();
    let crcs = (0..BLOCKS).map(|place| crc32fast::hash(&payload(place))).collect();
    Arc::new(shape().record(SEGMENT, Stamp(CREATED), keys.into(), crcs).expect("three blocks"))
}

fn log() -> LogObject {
    let other = |number| SegmentId { writer: OTHER, number };
    LogObject {
        writer: WRITER,
        sequence: 7,
        stamp: Stamp(CREATED + 1),
        node: "node é".into(),
        records: vec![
            LogRecord::Added(record()),
            LogRecord::Removed { id: other(1), at: Stamp(CREATED + 2) },
            LogRecord::Used { id: other(2), at: Stamp(CREATED + 3) },
        ],
    }
}

fn part() -> Part {
    Part { segments: vec![(record(), Stamp(CREATED + 4))] }
}

fn manifest() -> Manifest {
    let (_, part) = part().encode(&shape(), PART).expect("short");
    Manifest {
        number: 6,
        stamp: Stamp(CREATED + 5),
        log_from: Stamp(CREATED - 1000),
        parts: vec![part],
        writers: vec![(WRITER, 7, Stamp(CREATED + 1)), (OTHER, 0, Stamp(9))],
        removed: vec![(SegmentId { writer: OTHER, number: 1 }, Stamp(CREATED + 2))],
        used: vec![(SEGMENT, Stamp(CREATED + 6))],
    }
}

fn lease() -> LeaseNote {
    LeaseNote { term: 4, writer: WRITER, stamp: Stamp(CREATED + 7), node: "node".into() }
}

/// The record of a segment's index, read as a node reads it: first the trailer, then what it asks for.
fn index_of(segment: &[u8]) -> Result<SegmentRecord, FormatFault> {
    let mut tail = TRAILER_BYTES;
    loop {
        let bytes = &segment[segment.len().saturating_sub(tail)..];
        match decode_index(&shape(), SEGMENT, bytes, segment.len() as u64) {
            Ok(record) => return Ok(record),
            Err(IndexAnswer::Fault(fault)) => return Err(fault),
            Err(IndexAnswer::More(more)) => {
                assert!(more as usize > tail && more <= segment.len() as u64, "{more} bytes after {tail}");
                tail = more as usize;
            }
        }
    }
}

/// Which blocks of a segment check out as the ones that belong there.
fn blocks_of(segment: &[u8]) -> Vec<Result<u32, FormatFault>> {
    let block = |place: u32| {
        let range = shape().blocks_range(place, 1);
        let (header, payload) = segment[range.start as usize..range.end as usize].split_at(HEADER_BYTES);
        let header = header.try_into().expect("256 bytes");
        let crc = check_header(&shape(), SEGMENT, place, &key(place), header)?;
        if crc32fast::hash(payload) == crc { Ok(crc) } else { Err(FormatFault::Crc) }
    };
    (0..BLOCKS).map(block).collect()
}

#[test]
fn good_fixtures_are_read_and_written_alike() {
    let segment = fixture("good.seg");
    assert_eq!(index_of(&segment).as_ref(), Ok(&*record()));
    assert_eq!(blocks_of(&segment), record().crcs().iter().copied().map(Ok).collect::<Vec<_>>());
    let mut written = Vec::new();
    for place in 0..BLOCKS {
        written.extend(encode_header(&shape(), SEGMENT, place, &key(place), crc32fast::hash(&payload(place))));
        written.extend(payload(place));
    }
    written.extend(encode_index(&shape(), &record()));
    assert!(written == segment, "the segment is written differently");
    assert_eq!(shape().object_bytes(BLOCKS), segment.len() as u64);

    assert_eq!(LogObject::decode(&shape(), &LOG, &fixture("good.log")), Ok(log()));
    assert_eq!(log().encode(&shape()), Ok(fixture("good.log")));
    assert_eq!(Part::decode(&shape(), PART, &fixture("good.part")), Ok(part()));
    assert_eq!(part().encode(&shape(), PART).map(|(bytes, _)| bytes), Ok(fixture("good.part")));
    assert_eq!(Manifest::decode(&shape(), 6, &fixture("good.manifest")), Ok(manifest()));
    assert_eq!(manifest().encode(&shape()), Ok(fixture("good.manifest")));
    assert_eq!(LeaseNote::decode(&shape(), 4, &fixture("good.lease")), Ok(lease()));
    assert_eq!(lease().encode(&shape()), fixture("good.lease"));
    for name in ["good.seg", "good.log", "good.part", "good.manifest", "good.lease"] {
        assert_eq!(peek_shape(&fixture(name)), Ok(shape()), "{name}");
    }
}

#[test]
fn damaged_blocks_are_told_from_sound_ones() {
    let crcs: Vec<_> = record().crcs().to_vec();
    let (sound, other) = (|place: usize| Ok(crcs[place]), |what| Err(FormatFault::Other(what)));
    let cases = [
        ("exchanged.seg", vec![other("position"), other("position"), sound(2)]),
        ("other_writer.seg", vec![other("segment"); 3]),
        ("other_position.seg", vec![other("position"); 3]),
        ("payload_bit.seg", vec![Err(FormatFault::Crc), sound(1), sound(2)]),
        ("header_bit.seg", vec![Err(FormatFault::Crc), sound(1), sound(2)]),
    ];
    for (name, wanted) in cases {
        assert_eq!(blocks_of(&fixture(name)), wanted, "{name}");
        assert_eq!(index_of(&fixture(name)).as_ref(), Ok(&*record()), "{name}: its index is sound");
    }
}

#[test]
fn damaged_objects_are_refused_each_for_its_reason() {
    use FormatFault::{Crc, Field, Length, Other, Version};
    let decode = |name: &str| {
        let bytes = fixture(name);
        match name.rsplit('.').next() {
            Some("seg") => index_of(&bytes).map(drop),
            Some("log") => LogObject::decode(&shape(), &LOG, &bytes).map(drop),
            Some("part") => Part::decode(&shape(), PART, &bytes).map(drop),
            Some("manifest") => Manifest::decode(&shape(), 6, &bytes).map(drop),
            _ => LeaseNote::decode(&shape(), 4, &bytes).map(drop),
        }
    };
    let cases = [
        ("other_length.seg", Field("the length of the segment")),
        ("other_blocks.seg", Field("the length of the segment")),
        ("index_bit.seg", Crc),
        ("trailer_bit.seg", Crc),
        ("truncated.seg", FormatFault::Magic("end of a segment")),
        ("count.log", Length),
        ("count_huge.log", Length),
        ("kind.log", Field("the kind of a record")),
        ("blocks_huge.log", Field("the number of blocks")),
        ("length.log", Length),
        ("pad.log", Field("a byte without use")),
        ("writers_huge.manifest", Length),
    ];
    for (name, wanted) in cases {
        assert_eq!(decode(name), Err(wanted), "{name}");
    }
    for kind in ["seg", "log", "part", "manifest", "lease"] {
        assert_eq!(decode(&format!("good.{kind}")), Ok(()));
        assert_eq!(decode(&format!("version_2.{kind}")), Err(Version(2)), "{kind}");
        assert_eq!(decode(&format!("other_namespace.{kind}")), Err(Other("namespace")), "{kind}");
        assert_eq!(decode(&format!("other_block_bytes.{kind}")), Err(Other("shape of blocks")), "{kind}");
    }
    for kind in ["log", "part", "manifest", "lease"] {
        assert_eq!(decode(&format!("bit.{kind}")), Err(Crc), "{kind}");
        // Without its last byte, or with one more, neither the length nor the CRC32 fits.
        assert_eq!(decode(&format!("truncated.{kind}")), Err(Crc), "{kind}");
        assert_eq!(decode(&format!("longer.{kind}")), Err(Crc), "{kind}");
    }
}
