//! All objects alike: what is written is read back, and whatever else is read is refused or spelled the same way.

mod strategies;

use std::fmt::Debug;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use terrace_primary::Key;

use super::*;
use crate::object::log::{LogObject, LogRecord, MAX_LOG_BYTES, record_bytes};
use crate::object::names::{LogName, PartName};
use crate::object::segment::{
    HEADER_BYTES, IndexAnswer, TRAILER_BYTES, check_header, decode_index, encode_header, encode_index,
};
use crate::object::snapshot::{Manifest, Part, part_segment_bytes};
use crate::object::{SegmentId, SegmentRecord, Stamp, WriterId};
use strategies::{Damage, LOG_NAME, PART_NAME, damages, harm, ids, logs, manifests, parts, records, shapes};

/// Makes length and CRC32 fit again: what a program with a fault, or an enemy, might write.
fn reseal(bytes: &mut [u8]) {
    let len = bytes.len() as u64;
    bytes.iter_mut().skip(48).take(8).zip(len.to_le_bytes()).for_each(|(byte, with)| *byte = with);
    if let Some((content, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32fast::hash(content).to_le_bytes();
    }
}

/// The properties of every object.
fn check<T: PartialEq + Debug>(
    value: &T,
    damage: &[Damage],
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<(), TestCaseError> {
    let good = encode(value);
    let back = decode(&good);
    prop_assert_eq!(back.as_ref(), Some(value));
    let mut bytes = good.clone();
    harm(&mut bytes, damage);
    if let Some(other) = decode(&bytes) {
        prop_assert_eq!(&bytes, &good, "damage was taken for {:?}", other);
    }
    reseal(&mut bytes);
    if let Some(other) = decode(&bytes) {
        prop_assert_eq!(encode(&other), bytes, "two spellings of {:?}", other);
    }
    Ok(())
}

proptest! {
    #[test]
    fn logs_keep_what_they_say((shape, log) in shapes().prop_flat_map(|s| (Just(s), logs(s))), damage in damages()) {
        let bytes = |log: &LogObject| log.encode(&shape).expect("short");
        prop_assert_eq!(bytes(&log).len(), log.encoded_bytes());
        check(&log, &damage, bytes, |bytes| LogObject::decode(&shape, &LOG_NAME, bytes).ok())?;
    }

    #[test]
    fn parts_keep_what_they_say((shape, part) in shapes().prop_flat_map(|s| (Just(s), parts(s))), damage in damages()) {
        let encode = |part: &Part| part.encode(&shape, PART_NAME).expect("short");
        let (bytes, entry) = encode(&part);
        prop_assert_eq!(entry.check(&bytes), Ok(()));
        prop_assert_eq!((entry.name(), entry.segments as usize), (PART_NAME, part.segments.len()));
        prop_assert_eq!(entry.blocks, part.segments.iter().map(|(segment, _)| u64::from(segment.blocks())).sum::<u64>());
        check(&part, &damage, |part| encode(part).0, |bytes| Part::decode(&shape, PART_NAME, bytes).ok())?;
    }

    #[test]
    fn manifests_keep_what_they_say(shape in shapes(), manifest in manifests(), damage in damages()) {
        let bytes = |manifest: &Manifest| manifest.encode(&shape).expect("short");
        prop_assert_eq!(bytes(&manifest).len(), manifest.encoded_bytes());
        check(&manifest, &damage, bytes, |bytes| Manifest::decode(&shape, 5, bytes).ok())?;
    }

    #[test]
    fn leases_keep_what_they_say(shape in shapes(), writer: u64, stamp: u64, node in "\\PC{0,20}", damage in damages()) {
        let note = LeaseNote { term: 3, writer: WriterId(writer), stamp: Stamp(stamp), node };
        check(&note, &damage, |note| note.encode(&shape), |bytes| LeaseNote::decode(&shape, 3, bytes).ok())?;
    }

    #[test]
    fn indexes_keep_what_they_say(
        (shape, record) in shapes().prop_flat_map(|s| (Just(s), records(s))),
        before in vec(any::<u8>(), 0..300),
        damage in damages(),
    ) {
        let bytes = |record: &SegmentRecord| encode_index(&shape, record);
        prop_assert_eq!(bytes(&record).len() as u64, shape.index_bytes(record.blocks()));
        let decode = |bytes: &[u8]| decode_index(&shape, record.id, bytes, record.bytes).ok();
        // The blocks before the index, as far as they are read with it, change nothing.
        let longer = [before, bytes(&record)].concat();
        prop_assert_eq!(decode(&longer), Some(SegmentRecord::clone(&record)));
        let mut harmed = longer.clone();
        harm(&mut harmed, &damage);
        prop_assert!(decode(&harmed).is_none_or(|other| other == *record));
        let mut short = bytes(&record);
        harm(&mut short, &damage);
        reseal(&mut short);
        prop_assert!(decode(&short).is_none_or(|other| short.ends_with(&bytes(&other))));
    }

    #[test]
    fn indexes_say_how_much_they_need((shape, record) in shapes().prop_flat_map(|s| (Just(s), records(s))), cut: Index) {
        let bytes = encode_index(&shape, &record);
        let have = cut.index(bytes.len());
        let wanted = if have < TRAILER_BYTES { TRAILER_BYTES } else { bytes.len() };
        let answer = decode_index(&shape, record.id, &bytes[bytes.len() - have..], record.bytes);
        prop_assert_eq!(answer, Err(IndexAnswer::More(wanted as u64)));
    }

    #[test]
    fn headers_name_one_block(shape in shapes(), id in ids(), position: u32, crc: u32, key: [u8; 68], bit in 0..HEADER_BYTES * 8) {
        let key = Key::from_bytes(&key[..usize::from(shape.key_bytes)]).expect("5 to 68 bytes");
        let header = encode_header(&shape, id, position, &key, crc);
        prop_assert_eq!(check_header(&shape, id, position, &key, &header), Ok(crc));
        prop_assert_eq!(peek_shape(&header), Ok(shape));
        let mut damaged = header;
        damaged[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(check_header(&shape, id, position, &key, &damaged).is_err());
        let mut hash = key.as_bytes().to_vec();
        hash[0] ^= 1;
        let other = Key::from_bytes(&hash).expect("as long");
        let next = SegmentId { number: id.number ^ 1, ..id };
        prop_assert_eq!(check_header(&shape, id, position, &other, &header), Err(FormatFault::Other("key")));
        prop_assert_eq!(check_header(&shape, id, position ^ 1, &key, &header), Err(FormatFault::Other("position")));
        prop_assert_eq!(check_header(&shape, next, position, &key, &header), Err(FormatFault::Other("segment")));
        let mut foreign = shape;
        foreign.namespace[0] ^= 1;
        prop_assert_eq!(check_header(&foreign, id, position, &key, &header), Err(FormatFault::Other("namespace")));
    }

    #[test]
    fn any_bytes_are_taken(shape in shapes(), magic in 0..KINDS.len(), mut bytes in vec(any::<u8>(), 0..400), length: bool) {
        if let Some(start) = bytes.first_chunk_mut::<8>() {
            *start = KINDS[magic].magic;
        }
        bytes.iter_mut().skip(8).zip(FORMAT_VERSION.to_le_bytes()).for_each(|(byte, with)| *byte = with);
        if length {
            reseal(&mut bytes);
        }
        let _ = peek_shape(&bytes);
        let id = SegmentId { writer: WriterId(1), number: 1 };
        let nothing = LogObject::decode(&shape, &LOG_NAME, &bytes).is_err()
            && Part::decode(&shape, PART_NAME, &bytes).is_err()
            && Manifest::decode(&shape, 5, &bytes).is_err()
            && LeaseNote::decode(&shape, 3, &bytes).is_err()
            && decode_index(&shape, id, &bytes, bytes.len() as u64).is_err();
        prop_assert!(nothing);
    }
}

fn shape() -> Shape {
    Shape { namespace: [7; 32], block_bytes: 4096, key_bytes: 36 }
}

fn record(number: u64, blocks: u32) -> Arc<SegmentRecord> {
    let keys = vec![0; blocks as usize * 36];
    let id = SegmentId { writer: WriterId(1), number };
    Arc::new(shape().record(id, Stamp(2), keys.into(), vec![0; blocks as usize].into()).expect("within limits"))
}

#[test]
fn objects_of_other_namespaces_shapes_and_names_are_refused() {
    let log = LogObject { writer: WriterId(7), sequence: 8, stamp: Stamp(9), node: "n".into(), records: vec![] };
    let bytes = log.encode(&shape()).expect("short");
    let decode = |shape: &Shape, name: &LogName| LogObject::decode(shape, name, &bytes);
    assert_eq!(decode(&shape(), &LOG_NAME), Ok(log));
    assert!(decode(&shape(), &LogName { stamp: Stamp(10), ..LOG_NAME }).is_ok(), "a copy written later");
    let other = FormatFault::Other;
    assert_eq!(decode(&shape(), &LogName { sequence: 9, ..LOG_NAME }), Err(other("writer or sequence")));
    assert_eq!(decode(&shape(), &LogName { writer: WriterId(8), ..LOG_NAME }), Err(other("writer or sequence")));
    assert_eq!(decode(&Shape { namespace: [8; 32], ..shape() }, &LOG_NAME), Err(other("namespace")));
    assert_eq!(decode(&Shape { block_bytes: 4097, ..shape() }, &LOG_NAME), Err(other("shape of blocks")));
    assert_eq!(decode(&Shape { key_bytes: 37, ..shape() }, &LOG_NAME), Err(other("shape of blocks")));
    assert_eq!(Part::decode(&shape(), PART_NAME, &bytes), Err(FormatFault::Magic("part of a snapshot")));
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert_eq!(LogObject::decode(&shape(), &LOG_NAME, &newer), Err(FormatFault::Version(2)));

    let (part, entry) = Part::default().encode(&shape(), PART_NAME).expect("empty");
    let elsewhere = PartName { number: 9, ..PART_NAME };
    assert_eq!(Part::decode(&shape(), elsewhere, &part), Err(other("name")));
    assert_eq!(entry.check(&part[1..]), Err(FormatFault::Length));
    assert_eq!(entry.check(&[&part[..part.len() - 1], &[0]].concat()), Err(FormatFault::Crc));
    let manifest = Manifest::default().encode(&shape()).expect("empty");
    assert_eq!(Manifest::decode(&shape(), 1, &manifest), Err(other("number")));
    assert_eq!(
        decode_index(&shape(), record(2, 1).id, &encode_index(&shape(), &record(1, 1)), record(1, 1).bytes),
        Err(other("segment").into())
    );
    assert_eq!(
        decode_index(&shape(), record(1, 1).id, &encode_index(&shape(), &record(1, 1)), 5000),
        Err(FormatFault::Length.into())
    );
    assert_eq!(decode_index(&shape(), record(1, 1).id, &[], 127), Err(FormatFault::Length.into()));
}

#[test]
fn what_is_too_much_is_refused_before_memory_is_taken() {
    let shape = shape();
    // A number of entries that the bytes do not hold, with a CRC32 that fits.
    let log = LogObject { writer: WriterId(7), sequence: 8, stamp: Stamp(9), node: String::new(), records: vec![] };
    let mut bytes = log.encode(&shape).expect("short");
    let count = bytes.len() - 8;
    bytes[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    reseal(&mut bytes);
    assert_eq!(LogObject::decode(&shape, &LOG_NAME, &bytes), Err(FormatFault::Length));

    // The largest segment fits into a log object and a part, with the longest keys; one block more is no segment.
    let widest = Shape { key_bytes: 68, ..shape };
    let blocks = MAX_SEGMENT_BLOCKS as usize;
    let id = SegmentId { writer: WriterId(1), number: 1 };
    let largest = widest.record(id, Stamp(0), vec![0; blocks * 68].into(), vec![0; blocks].into()).map(Arc::new);
    let largest = largest.expect("the largest");
    assert!(record_bytes(&LogRecord::Added(Arc::clone(&largest))) * 3 / 2 < MAX_LOG_BYTES);
    let part = Part { segments: vec![(Arc::clone(&largest), Stamp(0))] };
    assert!(part.encode(&widest, PART_NAME).is_ok() && part_segment_bytes(&largest) < 8 << 20);
    assert_eq!(widest.record(id, Stamp(0), vec![0; (blocks + 1) * 68].into(), vec![0; blocks + 1].into()), None);
    let twice = LogObject { records: vec![LogRecord::Added(largest); 2], ..log };
    assert_eq!(twice.encode(&widest), Err(FormatFault::Length));

    // A record of another shape would be written and never be read.
    let foreign = Part { segments: vec![(record(1, 1), Stamp(0))] };
    assert_eq!(foreign.encode(&widest, PART_NAME), Err(FormatFault::Other("length of keys")));
    let wide_blocks = Shape { block_bytes: 8192, ..shape };
    assert_eq!(foreign.encode(&wide_blocks, PART_NAME), Err(FormatFault::Field("the length of the segment")));
}

#[test]
fn segments_are_sealed_in_time() {
    let shape = shape();
    for segment_bytes in [0, 1, 4480, 4519, 4520, 10_000, 1 << 20, 1 << 30, u64::MAX] {
        let blocks = shape.blocks_within(segment_bytes);
        assert!((1..=MAX_SEGMENT_BLOCKS).contains(&blocks));
        assert!(blocks == 1 || shape.object_bytes(blocks) <= segment_bytes);
        assert!(blocks == MAX_SEGMENT_BLOCKS || shape.object_bytes(blocks + 1) > segment_bytes, "{segment_bytes}");
    }
    assert_eq!(shape.blocks_range(3, 2), 3 * 4352..5 * 4352);
    let huge = Shape { block_bytes: u32::MAX, ..shape };
    assert_eq!(huge.object_bytes(u32::MAX), u64::MAX, "stops at the end of numbers");
}

#[test]
fn long_names_of_nodes_are_cut_between_characters() {
    let node = "é".repeat(200);
    let log = LogObject { writer: WriterId(7), sequence: 8, stamp: Stamp(9), node, records: vec![] };
    let bytes = log.encode(&shape()).expect("short");
    assert_eq!(bytes.len(), log.encoded_bytes());
    assert_eq!(LogObject::decode(&shape(), &LOG_NAME, &bytes).expect("whole").node, "é".repeat(127));
}
