//! The validated configuration: plain values, every bound already checked.
//!
//! Sizes are bytes, times are [`Duration`]s, shares are fractions of the primary's slots in `0.0..=1.0`.

use std::path::PathBuf;
use std::time::Duration;

pub use crate::copy::{CopyChoice, CopyConfig, CopyPath};
pub use crate::geometry::Geometry;
use crate::namespace::Namespace;
pub use crate::object::{Collector, Credentials, ObjectConfig};

/// Everything that Terrace is told by its user.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The DRAM tier.
    pub primary: PrimaryConfig,
    /// Shape of a block.
    pub geometry: Geometry,
    /// What makes bytes interchangeable.
    pub namespace: Namespace,
    /// Which blocks are worth storing.
    pub admission: AdmissionConfig,
    /// Bounds of queues and shares.
    pub limits: Limits,
    /// How long each class of operation may take.
    pub deadlines: Deadlines,
    /// When a failing tier is switched off.
    pub breaker: BreakerConfig,
    /// How bytes go between the engine's memory and the region.
    pub copy: CopyConfig,
    /// Secondary tiers, asked in this order.
    pub tiers: Vec<TierConfig>,
    /// What holds for the namespaces of some tenants.
    pub tenants: Vec<TenantConfig>,
    /// The daemon. Not used in process.
    pub server: ServerConfig,
}

/// The DRAM tier.
#[derive(Clone, Debug, PartialEq)]
pub struct PrimaryConfig {
    /// Number of slots, `1..=MAX_BLOCKS`. From `blocks`, or `capacity / slot_stride` rounded down.
    pub blocks: u32,
    /// Eviction policy.
    pub policy: Policy,
    /// Whether to ask for 2 MiB pages.
    pub huge_pages: Choice,
    /// Lock the region in memory (`mlock`), so that it is never swapped out.
    pub lock_memory: bool,
    /// Bind the region to this NUMA node.
    pub numa_node: Option<u32>,
    /// Threads that touch the region's pages at start; 0: one per CPU, eight at most.
    pub prefault_threads: u32,
    /// Compare a block's bytes with its CRC32 before it is loaded. The daemon's block table is not shared then.
    pub check_on_load: bool,
}

/// Eviction policies of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Least recently used.
    Lru,
    /// Adaptive replacement cache (Megiddo and Modha, FAST '03).
    Arc,
}

/// A facility that may be missing on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Use it where it works, do without elsewhere, and say so in the log.
    Auto,
    /// Fail at start where it does not work.
    Require,
    /// Never use it.
    Off,
}

/// Which blocks are worth storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// A block is stored once it has been offered this many times; 1 stores at once.
    pub store_threshold: u32,
    /// Blocks whose offers are remembered while they are below the threshold.
    pub tracker_entries: u32,
}

/// Bounds of queues and shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Share of the primary that promotions and the blocks held for their requests may fill.
    pub promotion_share: f64,
    /// Share of the primary that the running cascade jobs of one tier may hold readers on.
    pub cascade_share: f64,
    /// Cascades that wait for a tier, holding their blocks weakly; beyond, the oldest is dropped and counted.
    pub queued_cascades: u32,
    /// Share of the primary that `pin` may hold.
    pub pin_share: f64,
    /// Requests open at once.
    pub requests: u32,
    /// Keys in one call.
    pub keys_per_call: u32,
    /// Events kept until they are taken; beyond, the oldest is dropped and counted.
    pub events: u32,
}

/// How long each class of operation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// `Pending` or `Retry` becomes `Miss` after this long.
    pub lookup: Duration,
    /// A promotion is abandoned after this long.
    pub promotion: Duration,
    /// A cascade job is abandoned after this long.
    pub cascade: Duration,
    /// A block found by a lookup is held for its request at most this long.
    pub hold: Duration,
    /// The longest `pin`.
    pub pin: Duration,
    /// `drain` and `shutdown` give up after this long.
    pub drain: Duration,
}

/// When a failing tier is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failed jobs in a row that open the breaker.
    pub failures: u32,
    /// How long it stays open before a probe is let through, and then one more at a time with each that is good; twice as long after each that
    /// failed, eight times at most.
    pub cooldown: Duration,
    /// Loads that take so many times as long as the tier's own usual are slow; nothing but such loads for `stall` opens it. 0: none is.
    pub slow_factor: u32,
    /// How long a tier may answer nothing at all while it loads. Zero: as long as deadlines let it.
    pub stall: Duration,
}

/// One secondary tier.
#[derive(Clone, Debug, PartialEq)]
pub struct TierConfig {
    /// Name in logs, statistics and events; unique.
    pub name: String,
    /// Promotions from slower tiers are also stored here.
    pub backfill: bool,
    /// What kind of tier, with its own keys.
    pub kind: TierKind,
}

/// What holds for one tenant's namespaces.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantConfig {
    /// The tenant, as it stands in [`Namespace::tenant`]; `*`: every tenant that has no share of its own.
    pub name: String,
    /// Part of each capacity that its namespace in a daemon can have at any time. 0.0: no part of its own.
    pub guaranteed: f64,
    /// The most that it can have while others leave it idle.
    pub maximum: f64,
    /// Files with a secret each: the first is written with, all are read with.
    pub key_files: Vec<String>,
    /// Lines for the shell that print a secret each, instead.
    pub key_commands: Vec<String>,
    /// Blocks below the primary are sealed.
    pub encrypt: bool,
}

impl Default for TenantConfig {
    fn default() -> Self {
        let (key_files, key_commands) = (Vec::new(), Vec::new());
        Self { name: String::new(), guaranteed: 0.0, maximum: 1.0, key_files, key_commands, encrypt: false }
    }
}

/// Kinds of secondary tiers.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there are at most 16 tiers")]
pub enum TierKind {
    /// Files on local disks.
    Nvme(NvmeConfig),
    /// Process memory: for development and tests.
    Memory(MemoryConfig),
    /// An object store, or a directory, that a cluster shares.
    Object(ObjectConfig),
}

/// Files on local disks.
#[derive(Clone, Debug, PartialEq)]
pub struct NvmeConfig {
    /// Directories; blocks are striped over them by hash.
    pub paths: Vec<PathBuf>,
    /// Bytes that all directories together may allocate, footers included.
    pub capacity_bytes: u64,
    /// Eviction starts when this share of the capacity is in use.
    pub high_watermark: f64,
    /// Eviction stops when no more than this share is in use.
    pub low_watermark: f64,
    /// Operations in flight per directory.
    pub queue_depth: u32,
    /// Operations that wait per directory before the tier refuses more.
    pub queue_entries: u32,
    /// O_DIRECT.
    pub direct_io: Choice,
    /// io_uring; without it the ring thread does blocking calls.
    pub io_uring: Choice,
    /// RocksDB catalog; without it the catalog is rebuilt from the files at each start.
    pub catalog: Choice,
    /// Bytes that the scrubber reads a second. 0: nothing is scrubbed.
    pub scrub_bytes_per_second: u64,
}

/// The daemon that `terrace serve` runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The Unix socket that it listens on.
    pub socket: PathBuf,
    /// Group (name or number) that may connect beside the owner. `None`: mode 0600.
    pub group: Option<String>,
    /// Users (names or numbers) that are admitted beside root and the daemon's own.
    pub allow_users: Vec<String>,
    /// Namespaces that can be open at once; each has an equal part of every capacity.
    pub pools: u32,
    /// Sessions open at once.
    pub sessions: u32,
    /// Longest message, in bytes.
    pub message_bytes: u32,
    /// Keys in one message.
    pub keys_per_message: u32,
    /// Jobs and leases of one session that have not ended.
    pub jobs_per_session: u32,
    /// Share of a pool's slots that one session may have leased, loading or being stored.
    pub session_share: f64,
    /// How lines of the log are written.
    pub log_format: LogFormat,
    /// Loopback address of the Prometheus endpoint, such as `127.0.0.1:9464`. `None`: there is none.
    pub metrics: Option<String>,
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Process memory as a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Bytes of payload that it may keep.
    pub capacity_bytes: u64,
}
