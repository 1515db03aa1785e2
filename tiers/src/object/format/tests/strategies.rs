//! Values and damage, made up.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::object::log::{LogObject, LogRecord};
use crate::object::names::{LogName, PartName};
use crate::object::snapshot::{Manifest, Part, PartRef};
use crate::object::{SegmentId, SegmentRecord, Shape, Stamp, WriterId};

pub const LOG_NAME: LogName = LogName { stamp: Stamp(9), writer: WriterId(7), sequence: 8 };
pub const PART_NAME: PartName = PartName { writer: WriterId(7), number: 8 };

pub fn shapes() -> impl Strategy<Value = Shape> {
    (any::<[u8; 32]>(), any::<u32>(), 5..=68_u8).prop_map(|(namespace, block_bytes, key_bytes)| Shape {
        namespace,
        block_bytes,
        key_bytes,
    })
}

pub fn ids() -> impl Strategy<Value = SegmentId> + Clone {
    any::<(u64, u64)>().prop_map(|(writer, number)| SegmentId { writer: WriterId(writer), number })
}

pub fn records(shape: Shape) -> impl Strategy<Value = Arc<SegmentRecord>> {
    let crcs = vec(any::<u32>(), 0..9);
    crcs.prop_flat_map(move |crcs| {
        let keys = vec(any::<u8>(), crcs.len() * usize::from(shape.key_bytes));
        (ids(), any::<u64>(), keys).prop_map(move |(id, created, keys)| {
            let record = shape.record(id, Stamp(created), keys.into(), crcs.clone().into());
            Arc::new(record.expect("keys and CRCs go together"))
        })
    })
}

fn log_records(shape: Shape) -> impl Strategy<Value = LogRecord> {
    let short = (ids(), any::<u64>());
    prop_oneof![
        records(shape).prop_map(LogRecord::Added),
        short.clone().prop_map(|(id, at)| LogRecord::Removed { id, at: Stamp(at) }),
        short.prop_map(|(id, at)| LogRecord::Used { id, at: Stamp(at) }),
    ]
}

pub fn logs(shape: Shape) -> impl Strategy<Value = LogObject> {
    (any::<u64>(), "\\PC{0,20}", vec(log_records(shape), 0..5)).prop_map(|(stamp, node, records)| LogObject {
        writer: LOG_NAME.writer,
        sequence: LOG_NAME.sequence,
        stamp: Stamp(stamp),
        node,
        records,
    })
}

pub fn parts(shape: Shape) -> impl Strategy<Value = Part> {
    vec((records(shape), any::<u64>()), 0..5).prop_map(|segments| Part {
        segments: segments.into_iter().map(|(segment, used)| (segment, Stamp(used))).collect(),
    })
}

pub fn manifests() -> impl Strategy<Value = Manifest> {
    let part = any::<(u64, u64, u64, u32, u32, u64)>().prop_map(|(writer, number, bytes, crc32, segments, blocks)| {
        PartRef { writer: WriterId(writer), number, bytes, crc32, segments, blocks }
    });
    let stamped = || vec((ids(), any::<u64>().prop_map(Stamp)), 0..4);
    let writers = vec(any::<(u64, u64, u64)>().prop_map(|(a, b, c)| (WriterId(a), b, Stamp(c))), 0..4);
    (any::<(u64, u64)>(), vec(part, 0..4), writers, stamped(), stamped()).prop_map(
        |((stamp, log_from), parts, writers, removed, used)| Manifest {
            number: 5,
            stamp: Stamp(stamp),
            log_from: Stamp(log_from),
            parts,
            writers,
            removed,
            used,
        },
    )
}

/// What may happen to bytes.
#[derive(Clone, Debug)]
pub enum Damage {
    Flip(Index, u8),
    Cut(Index),
    Append(Vec<u8>),
    Leave(Index, usize),
    Number(Index, u32),
}

pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let numbers = prop_oneof![Just(0), Just(1), Just(u32::MAX), Just(1 << 31), any::<u32>()];
    let damage = prop_oneof![
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        any::<Index>().prop_map(Damage::Cut),
        vec(any::<u8>(), 1..40).prop_map(Damage::Append),
        (any::<Index>(), 1..40_usize).prop_map(|(at, len)| Damage::Leave(at, len)),
        (any::<Index>(), numbers).prop_map(|(at, number)| Damage::Number(at, number)),
    ];
    vec(damage, 1..4)
}

pub fn harm(bytes: &mut Vec<u8>, damage: &[Damage]) {
    for damage in damage {
        let at = |index: &Index, bytes: &[u8]| index.index(bytes.len().max(1));
        match damage {
            Damage::Flip(index, bit) => {
                let at = at(index, bytes);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
            Damage::Cut(index) => bytes.truncate(at(index, bytes)),
            Damage::Append(more) => bytes.extend(more),
            Damage::Leave(index, len) => {
                let start = at(index, bytes).min(bytes.len());
                bytes.drain(start..(start + len).min(bytes.len()));
            }
            Damage::Number(index, number) => {
                let start = at(index, bytes);
                bytes.iter_mut().skip(start).zip(number.to_le_bytes()).for_each(|(byte, with)| *byte = with);
            }
        }
    }
}
