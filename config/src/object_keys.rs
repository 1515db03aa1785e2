//! The table of keys, for `[[tier]]` of `type = "object"` alone.

use std::time::Duration;

use crate::bounds::MAX_TIER_BYTES;
use crate::draft::TierDraft;
use crate::form::Form;
use crate::key::*;
use crate::model::{Collector, Credentials, ObjectConfig};
use crate::value::Value;

/// A time that may outlast everything: ten years at most.
const fn age(min_secs: u64) -> Form {
    Form::TimeFrom { min_secs, max_secs: 3650 * 86_400 }
}

/// A size that a `u32` holds.
const fn piece(min: u64) -> Form {
    Form::Size { min, max: 1 << 30 }
}

pub(crate) const fn bytes(bytes: u64) -> Preset {
    Preset::Is(Value::Size(bytes))
}

const fn millis(millis: u64) -> Preset {
    Preset::Is(Value::Time(Duration::from_millis(millis)))
}

const fn plain(text: &'static str) -> Preset {
    Preset::Is(Value::PlainText(text))
}

/// Keys of `type = "object"` alone.
pub(crate) static TIER_OBJECT: [Key<TierDraft>; 34] = [
    row(
        "url",
        Form::Text,
        Preset::Required("\"s3://bucket/terrace\""),
        |t| Place::Text(&mut t.object.url),
        "Where the objects are: s3://BUCKET/PREFIX (the prefix may be left out) or file:///DIRECTORY, a directory that all nodes share.",
    ),
    row(
        "endpoint",
        Form::Text,
        Preset::Unset("\"http://127.0.0.1:8333\""),
        |t| Place::TextOrUnset(&mut t.object.endpoint),
        "Server of the bucket, http:// or https://. If left out: AWS, in `region`.",
    ),
    row(
        "region",
        Form::Label,
        plain("us-east-1"),
        |t| Place::Text(&mut t.object.region),
        "Region that requests are signed for.",
    ),
    row(
        "path_style",
        Form::Flag,
        Preset::Is(Value::Flag(true)),
        |t| Place::Flag(&mut t.object.path_style),
        "The bucket stands in the path of a request (true) or in its host (false).",
    ),
    row(
        "ca_file",
        Form::Path,
        Preset::Unset("\"/etc/terrace/ca.pem\""),
        |t| Place::PathOrUnset(&mut t.object.ca_file),
        "PEM file of certificates that are trusted beside the system's.",
    ),
    row(
        "credentials",
        Form::Word(Credentials::WORDS),
        word("chain"),
        |t| Place::Credentials(&mut t.object.credentials),
        "\"chain\" (the environment, then credentials_file or ~/.aws/credentials, then web identity, container and instance), \
         \"environment\", \"file\", or \"none\" (requests are not signed).",
    ),
    row(
        "env_prefix",
        Form::Label,
        plain("AWS_"),
        |t| Place::Text(&mut t.object.env_prefix),
        "The environment's credentials are <env_prefix>ACCESS_KEY_ID, SECRET_ACCESS_KEY and SESSION_TOKEN; a prefix for each tier keeps them apart.",
    ),
    row(
        "credentials_file",
        Form::Path,
        Preset::Unset("\"/etc/terrace/credentials\""),
        |t| Place::PathOrUnset(&mut t.object.credentials_file),
        "File of credentials in the AWS shared format.",
    ),
    row(
        "credentials_profile",
        Form::Label,
        plain("default"),
        |t| Place::Text(&mut t.object.credentials_profile),
        "Section of the file of credentials.",
    ),
    row(
        "sign_payload",
        Form::Flag,
        Preset::Is(Value::Flag(false)),
        |t| Place::Flag(&mut t.object.sign_payload),
        "Signatures cover the payload too. Costs a SHA-256 of every byte that is written; blocks have a CRC of their own.",
    ),
    row(
        "node",
        Form::Label,
        Preset::Unset("\"node-1\""),
        |t| Place::TextOrUnset(&mut t.object.node),
        "Name of this node in the log, for people. If left out: the host's.",
    ),
    row(
        "high_watermark",
        Form::Share,
        share(0.95),
        |t| Place::Share(&mut t.object.high_watermark),
        "The collector starts to evict when this share of the capacity is in use.",
    ),
    row(
        "low_watermark",
        Form::Share,
        share(0.9),
        |t| Place::Share(&mut t.object.low_watermark),
        "The collector stops when no more than this share is in use.",
    ),
    row(
        "max_age",
        age(1),
        Preset::Unset("\"30d\""),
        |t| Place::TimeOrUnset(&mut t.object.max_age),
        "Segments that nobody used for so long are removed. If left out: no limit.",
    ),
    row(
        "segment_bytes",
        piece(1 << 20),
        bytes(4 << 20),
        |t| Place::Size(&mut t.object.segment_bytes),
        "Largest segment: the object in which blocks are stored together. A larger block is a segment of its own. Larger \
         segments are fewer PUTs, for a store that charges for them.",
    ),
    row(
        "part_bytes",
        piece(5 << 20),
        bytes(16 << 20),
        |t| Place::Size(&mut t.object.part_bytes),
        "Segments larger than this go up in parts of this size.",
    ),
    row(
        "range_bytes",
        piece(64 << 10),
        bytes(8 << 20),
        |t| Place::Size(&mut t.object.range_bytes),
        "Longest ranged GET. Longer runs of blocks are split and read in parallel.",
    ),
    row(
        "linger",
        Form::Time,
        millis(100),
        |t| Place::Time(&mut t.object.linger),
        "How long a segment waits for more blocks before it goes up.",
    ),
    row(
        "staging_bytes",
        Form::Size { min: 1 << 20, max: MAX_TIER_BYTES },
        bytes(512 << 20),
        |t| Place::LongSize(&mut t.object.staging_bytes),
        "Memory for segments on their way up, of each pool. At least segment_bytes, and one block.",
    ),
    row(
        "connections",
        count(1, 1024),
        number(32),
        |t| Place::Count(&mut t.object.connections),
        "Requests at once, of each pool.",
    ),
    row(
        "queue_entries",
        count(1, MAX_ENTRIES),
        number(65_536),
        |t| Place::Count(&mut t.object.queue_entries),
        "Blocks accepted and not done before the tier refuses more.",
    ),
    row(
        "publish_interval",
        Form::Time,
        millis(200),
        |t| Place::Time(&mut t.object.publish_interval),
        "Shortest time between two log objects of this node: how long other nodes wait to see its blocks, and what PUTs cost.",
    ),
    row(
        "fold_interval",
        Form::Time,
        millis(500),
        |t| Place::Time(&mut t.object.fold_interval),
        "Shortest time between two listings of the log, in which this node sees the blocks of others.",
    ),
    row(
        "fold_interval_max",
        Form::Time,
        secs(30),
        |t| Place::Time(&mut t.object.fold_interval_max),
        "Longest time between two listings, when nothing is asked and nothing new comes.",
    ),
    row(
        "hedge_share",
        Form::Share,
        share(0.05),
        |t| Place::Share(&mut t.object.hedge_share),
        "Share of GETs that may be sent a second time when they are slow. 0.0: none.",
    ),
    row(
        "read_requests_per_second",
        count(0, u32::MAX as u64),
        number(0),
        |t| Place::Count(&mut t.object.read_requests_per_second),
        "Reading requests a second, of all pools together. 0: no limit.",
    ),
    row(
        "write_requests_per_second",
        count(0, u32::MAX as u64),
        number(0),
        |t| Place::Count(&mut t.object.write_requests_per_second),
        "Writing requests a second, of all pools together. 0: no limit.",
    ),
    row(
        "read_bytes_per_day",
        Form::Size { min: 1, max: MAX_TIER_BYTES },
        Preset::Unset("\"10TiB\""),
        |t| Place::SizeOrUnset(&mut t.object.read_bytes_per_day),
        "Bytes read a day, of all pools together. If left out: no limit.",
    ),
    row(
        "write_bytes_per_day",
        Form::Size { min: 1, max: MAX_TIER_BYTES },
        Preset::Unset("\"10TiB\""),
        |t| Place::SizeOrUnset(&mut t.object.write_bytes_per_day),
        "Bytes written a day, of all pools together. If left out: no limit.",
    ),
    row(
        "collector",
        Form::Word(Collector::WORDS),
        word("auto"),
        |t| Place::Collector(&mut t.object.collector),
        "Collects garbage and compacts the log: \"auto\" (one node at a time, under a lease), \"always\" (this node, without a lease: \
         no other may be told the same) or \"never\" (not this node).",
    ),
    row(
        "lease",
        Form::TimeFrom { min_secs: 3, max_secs: 86_400 },
        secs(30),
        |t| Place::Time(&mut t.object.lease),
        "How long a collector's lease holds without being renewed; another node takes over after that.",
    ),
    row(
        "compaction_interval",
        Form::Time,
        secs(60),
        |t| Place::Time(&mut t.object.compaction_interval),
        "Time between two compactions of the log.",
    ),
    row(
        "orphan_age",
        age(600),
        secs(3600),
        |t| Place::Time(&mut t.object.orphan_age),
        "A segment that no log names is removed when it is older than this. Longer than any upload takes.",
    ),
    row(
        "log_retention",
        age(60),
        secs(3600),
        |t| Place::Time(&mut t.object.log_retention),
        "Log objects that a snapshot covers are kept so long, for nodes that lag. At least twice fold_interval_max.",
    ),
];

impl ObjectConfig {
    /// A tier at `url` of `capacity_bytes`, every other key with its default. Nothing is checked.
    pub fn new(url: impl Into<String>, capacity_bytes: u64) -> Self {
        let mut tier = TierDraft::blank();
        TIER_OBJECT.iter().for_each(|key| key.put_default(&mut tier));
        Self { url: url.into(), capacity_bytes, ..tier.object }
    }
}
