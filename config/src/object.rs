//! The keys of an object tier: a bucket, or a directory, that a cluster shares.

use std::path::PathBuf;
use std::time::Duration;

/// An S3-compatible object store, or a directory, shared by a cluster.
///
/// There is no key for a secret: credentials come from where [`Credentials`] says.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectConfig {
    /// `s3://bucket/prefix` (the prefix may be empty) or `file:///directory`. [`Self::location`] takes it apart.
    pub url: String,
    /// Bytes of all segments of the namespace, whoever wrote them.
    pub capacity_bytes: u64,
    /// `http://host:port` or `https://host:port`. `None`: AWS, in `region`.
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: String,
    /// The bucket stands in the path of a request, not in its host.
    pub path_style: bool,
    /// PEM file of certificates that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Where credentials come from.
    pub credentials: Credentials,
    /// What the names of the environment's variables start with: `<prefix>ACCESS_KEY_ID`, `<prefix>SECRET_ACCESS_KEY`,
    /// `<prefix>SESSION_TOKEN`.
    pub env_prefix: String,
    /// File of credentials in the AWS shared format.
    pub credentials_file: Option<PathBuf>,
    /// Section of that file.
    pub credentials_profile: String,
    /// Whether signatures cover the payload. Blocks have a CRC of their own.
    pub sign_payload: bool,
    /// Name of this node in the log, for people. `None`: the host's.
    pub node: Option<String>,
    /// The collector starts to evict when this share of the capacity is in use.
    pub high_watermark: f64,
    /// The collector stops when no more than this share is in use.
    pub low_watermark: f64,
    /// Segments that nobody used for so long are removed. `None`: no limit.
    pub max_age: Option<Duration>,
    /// Largest segment, in bytes. A block that does not fit is a segment of its own.
    pub segment_bytes: u32,
    /// Segments larger than this go up in parts of this size.
    pub part_bytes: u32,
    /// Longest ranged GET; longer runs are split and read in parallel.
    pub range_bytes: u32,
    /// How long a segment waits for more blocks.
    pub linger: Duration,
    /// Memory for segments on their way up, in bytes; at least `segment_bytes`, and one block.
    pub staging_bytes: u64,
    /// Requests at once.
    pub connections: u32,
    /// Blocks accepted and not done; beyond, the tier refuses more.
    pub queue_entries: u32,
    /// Shortest time between two log objects of this node.
    pub publish_interval: Duration,
    /// Shortest time between two listings of the log.
    pub fold_interval: Duration,
    /// Longest time between two listings, when nothing is asked and nothing new comes.
    pub fold_interval_max: Duration,
    /// Share of GETs that may be sent twice; 0.0: none.
    pub hedge_share: f64,
    /// Reading requests a second; 0: no limit.
    pub read_requests_per_second: u32,
    /// Writing requests a second; 0: no limit.
    pub write_requests_per_second: u32,
    /// Bytes read a day. `None`: no limit.
    pub read_bytes_per_day: Option<u64>,
    /// Bytes written a day. `None`: no limit.
    pub write_bytes_per_day: Option<u64>,
    /// Whether this node collects garbage and compacts the log.
    pub collector: Collector,
    /// How long a collector's lease holds without being renewed.
    pub lease: Duration,
    /// Time between two compactions of the log.
    pub compaction_interval: Duration,
    /// A segment that no log names is removed when it is older than this.
    pub orphan_age: Duration,
    /// Log objects that a snapshot covers are kept so long, for nodes that lag.
    pub log_retention: Duration,
}

/// Which node collects garbage and compacts the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// The node that holds the lease, this one or another.
    Auto,
    /// This node, without a lease: no other may be told the same.
    Always,
    /// Not this node.
    Never,
}

/// Where credentials come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The first that has any: the environment, `credentials_file` or `~/.aws/credentials`, a web identity, the container, the instance.
    Chain,
    /// Variables of the environment alone.
    Environment,
    /// `credentials_file` alone.
    File,
    /// None: requests are not signed.
    None,
}
