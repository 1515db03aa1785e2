//! The table of keys, for `[[tier]]`.

use crate::bounds::MAX_TIER_BYTES;
use crate::draft::{Kind, TierDraft};
use crate::form::Form;
use crate::key::*;
use crate::model::TierKind;
use crate::object_keys::{TIER_OBJECT, bytes};
use crate::value::Value;

/// Name of the array of tables that holds the secondary tiers.
pub(crate) const TIER: &str = "tier";
/// What `[[tier]]` is.
pub(crate) const TIER_DOC: &str =
    "A secondary tier, asked in the order of the file. Stored blocks cascade to all tiers.";
/// Keys of every tier.
static TIER_COMMON: [Key<TierDraft>; 5] = [
    row(
        "type",
        Form::Word(TierKind::WORDS),
        Preset::Required("\"nvme\""),
        |t| Place::Kind(&mut t.kind),
        "\"nvme\" (files on local disks), \"memory\" (process memory: for development and tests) or \"object\" (a bucket, or a directory, \
         that a cluster shares).",
    ),
    row(
        "name",
        Form::Name,
        Preset::Unset("\"nvme\""),
        |t| Place::TextOrUnset(&mut t.name),
        "Name in logs, statistics and events; unique. If left out: the type, then type-2, type-3 for further tiers of it.",
    ),
    row(
        "backfill",
        Form::Flag,
        Preset::Is(Value::Flag(false)),
        |t| Place::Flag(&mut t.backfill),
        "Blocks that are promoted from slower tiers are also stored here.",
    ),
    row(
        "capacity",
        Form::Size { min: 1, max: MAX_TIER_BYTES },
        Preset::Required("\"2TiB\""),
        |t| Place::SizeOrUnset(&mut t.size.capacity_bytes),
        "Bytes that all blocks together may take: with the 4 KiB footer of each on disk, with the header of 256 bytes in an object tier. \
         Either this or `blocks`.",
    ),
    row(
        "blocks",
        BLOCKS,
        Preset::Unset("1000000"),
        |t| Place::CountOrUnset(&mut t.size.blocks),
        "Number of blocks, instead of `capacity`.",
    ),
];

/// Keys of `type = "nvme"` alone.
static TIER_NVME: [Key<TierDraft>; 9] = [
    row(
        "paths",
        Form::Paths,
        Preset::Required("[\"/mnt/nvme0/terrace\"]"),
        |t| Place::Paths(&mut t.nvme.paths),
        "Directories, one per disk; blocks are striped over them by hash. Relative ones start at the working directory.",
    ),
    row(
        "high_watermark",
        Form::Share,
        share(1.0),
        |t| Place::Share(&mut t.nvme.high_watermark),
        "Eviction starts when this share of the capacity is in use.",
    ),
    row(
        "low_watermark",
        Form::Share,
        share(0.99),
        |t| Place::Share(&mut t.nvme.low_watermark),
        "Eviction stops when no more than this share is in use.",
    ),
    row(
        "queue_depth",
        count(1, 4096),
        number(64),
        |t| Place::Count(&mut t.nvme.queue_depth),
        "Operations in flight per directory.",
    ),
    row(
        "queue_entries",
        count(1, MAX_ENTRIES),
        number(65_536),
        |t| Place::Count(&mut t.nvme.queue_entries),
        "Operations that wait per directory before the tier refuses more.",
    ),
    row(
        "direct_io",
        CHOICE,
        word("auto"),
        |t| Place::Choice(&mut t.nvme.direct_io),
        "O_DIRECT: \"auto\" (where the filesystem takes it), \"require\" or \"off\".",
    ),
    row(
        "io_uring",
        CHOICE,
        word("auto"),
        |t| Place::Choice(&mut t.nvme.io_uring),
        "io_uring: \"auto\" (blocking calls on the tier's thread where it is denied), \"require\" or \"off\".",
    ),
    row(
        "catalog",
        CHOICE,
        word("auto"),
        |t| Place::Choice(&mut t.nvme.catalog),
        "RocksDB catalog: \"auto\" (where it is built in), \"require\" or \"off\" (rebuilt from the files at each start).",
    ),
    row(
        "scrub_bytes_per_second",
        Form::Size { min: 0, max: MAX_TIER_BYTES },
        bytes(4 << 20),
        |t| Place::LongSize(&mut t.nvme.scrub_bytes_per_second),
        "Pace at which blocks are read to find copies that went bad, one at a time, when no promotion runs. 0: never. A primary of fewer \
         than 256 slots is not used for it.",
    ),
];

/// The keys of one kind of tier; of all kinds, each name once, if the kind is not known.
pub(crate) fn tier_keys(kind: Option<Kind>) -> impl Iterator<Item = &'static Key<TierDraft>> {
    let (nvme, object): (&[Key<TierDraft>], &[Key<TierDraft>]) = match kind {
        None => (&TIER_NVME, &TIER_OBJECT),
        Some(Kind::Nvme) => (&TIER_NVME, &[]),
        Some(Kind::Memory) => (&[], &[]),
        Some(Kind::Object) => (&[], &TIER_OBJECT),
    };
    let more = object.iter().filter(|key| nvme.iter().all(|other| other.name != key.name));
    TIER_COMMON.iter().chain(nvme).chain(more)
}
