//! The bodies. Each is an array of its fields in the order in which they stand here.
//!
//! Names used below: a **lease** keeps the hits of one lookup readable until the session's next `EndStep`; a **job** is one store or
//! load of an engine, named by its scheduler session, ended by those who copy. An **engine** is one scheduler session and its
//! worker sessions, joined by the engine's name.

use serde::{Deserialize, Serialize};

use super::limits::WireLimits;

/// Bit of [`EndStep::want`]: events since the last time.
pub const WANT_EVENTS: u32 = 1;
/// Bit of [`EndStep::want`]: statistics.
pub const WANT_STATS: u32 = 2;

/// The feature of a scheduler session: the pool's block table comes along, as a second descriptor, and what is found in it
/// can be leased by [`Lease`].
pub const SHARED_TABLE: &str = "shared-table";

/// Opens a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest version that the client speaks.
    pub version_min: u16,
    /// Highest version that the client speaks.
    pub version_max: u16,
    /// Optional features that the client can use: [`super::DEVICE_COPIES`], [`SHARED_TABLE`]. Unknown ones are ignored.
    pub features: Vec<String>,
    /// "scheduler", "worker" or "tier".
    pub role: String,
    /// Name of the engine: the same in all its sessions, and in no other engine's.
    pub engine: String,
    /// Worker: its rank. Others: 0.
    pub rank: u32,
    /// Scheduler: how many workers must report a store before it counts. 0: the scheduler reports by itself.
    pub store_workers: u32,
    /// Scheduler: how many workers must report a load before it ends. 0: the scheduler reports by itself.
    pub load_workers: u32,
    /// What makes bytes interchangeable.
    pub namespace: WireNamespace,
    /// Shape of a block.
    pub geometry: WireGeometry,
    /// Tier: the region of the engine, whose descriptor comes with the frame.
    pub foreign: Option<ForeignRegion>,
    /// Name and version of the client, for logs.
    pub client: String,
}

/// The fields of a namespace; the server takes the digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireNamespace {
    /// Model name or path.
    pub model: String,
    /// Model revision or checkpoint digest.
    pub revision: String,
    /// Element type of the KV cache.
    pub dtype: String,
    /// Memory layout of one block.
    pub kv_layout: String,
    /// Quantisation and its scales.
    pub quantisation: String,
    /// RoPE and every other setting that changes KV values.
    pub rope: String,
    /// Parallel layout, or `canonical`.
    pub parallel: String,
    /// Engine name and the version of its KV format.
    pub engine: String,
    /// Tenant.
    pub tenant: String,
}

/// Shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireGeometry {
    /// Payload bytes of a block.
    pub block_bytes: u32,
    /// Tokens of a GPU block.
    pub tokens_per_block: u32,
    /// GPU blocks in an offloaded block.
    pub blocks_per_chunk: u32,
    /// KV-cache groups.
    pub groups: u32,
    /// Length of a block hash; a key is 4 bytes longer.
    pub hash_bytes: u8,
}

/// A region that belongs to the engine: a file on tmpfs, row `i` at `offset_bytes + i * row_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignRegion {
    /// Rows.
    pub rows: u32,
    /// Bytes from one row to the next, at least `block_bytes`.
    pub row_stride: u32,
    /// Where row 0 starts.
    pub offset_bytes: u64,
}

/// The session is open. The descriptor of the pool's region comes with it, except for the role "tier"; and with
/// [`SHARED_TABLE`] that of its block table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version that both speak from here on.
    pub version: u16,
    /// The features that both have.
    pub features: Vec<String>,
    /// Number of the session, for logs.
    pub session: u64,
    /// Names the region: another number is another mapping. Never 0.
    pub region: u64,
    /// Digest of namespace and geometry, 32 bytes.
    #[serde(with = "serde_bytes")]
    pub namespace: Vec<u8>,
    /// Slots of the pool.
    pub slots: u32,
    /// Bytes from one slot to the next.
    pub slot_stride: u32,
    /// Length of the region.
    pub region_bytes: u64,
    /// Secondary tiers, in the order in which they are asked: the bits of a tier filter.
    pub tiers: Vec<TierInfo>,
    /// What the session may do.
    pub limits: WireLimits,
}

/// A secondary tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierInfo {
    /// Its name.
    pub name: String,
    /// 0 CPU, 1 STORAGE.
    pub medium: u8,
    /// 0 LOCAL, 1 REMOTE.
    pub locality: u8,
}

/// Where is what a request wants? One message for the whole request. Opens the request if it is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// The request; numbers are the session's own.
    pub request: u64,
    /// Tiers that may be asked: bit `i` is tier `i`. Taken when the request is opened.
    pub tiers: u32,
    /// Whether hits are to be leased. Without, an answer says what was true once.
    pub lease: bool,
    /// What to look up, group by group.
    pub queries: Vec<Query>,
}

/// Keys of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// A [`Scan`].
    pub scan: u8,
    /// The keys, one after the other, in the order of their positions.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// How far a query goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scan {
    /// Up to the first miss: full attention.
    Prefix = 0,
    /// Each key: sliding windows, and whoever wants to know.
    Each = 1,
}

impl Scan {
    /// The scan with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Prefix),
            1 => Some(Self::Each),
            _ => None,
        }
    }
}

/// Answers to a [`Lookup`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupReply {
    /// Names the lease until the next `EndStep`: the sequence of the lookup. 0: nothing is leased.
    pub lease: u64,
    /// One [`Answer`] byte for each key, query after query. A `Prefix` query has fewer where it ended: the rest is `Miss`, and its answers
    /// end with one `Miss` byte then.
    #[serde(with = "serde_bytes")]
    pub answers: Vec<u8>,
    /// For each `Hit`, in order, its slot as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub slots: Vec<u8>,
}

/// Blocks that the client has found in the shared block table, to be loaded. Opens the request if it is not open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The request; numbers are the session's own.
    pub request: u64,
    /// As in [`Lookup`].
    pub tiers: u32,
    /// The last change when the table was read.
    pub seen: u64,
    /// Where they were found, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub slots: Vec<u8>,
}

/// Answers a [`Lease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReply {
    /// Names the lease, as in [`LookupReply`]: of a lookup whose keys were these and were all hits. 0: one of the slots has changed, or something
    /// else forbids it; ask with a [`Lookup`].
    pub lease: u64,
}

/// What is known of a key, in one byte: the low three bits say which, the high five where from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// 0. Not to be had.
    Miss,
    /// 1. Readable in its slot, and leased if a lease was asked for. Origin 0: an engine stored it; `t + 1`: tier `t` brought it.
    Hit {
        /// See above.
        origin: u8,
    },
    /// 2. On its way to the primary.
    Pending,
    /// 3. In tier `tier`: it is brought if the request says in its `EndStep` that it waits for it.
    Found {
        /// Index of the tier.
        tier: u8,
    },
    /// 4. Not known yet: ask again in a later step.
    Retry,
}

impl Answer {
    /// As a byte.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Miss => 0,
            Self::Hit { origin } => 1 | origin << 3,
            Self::Pending => 2,
            Self::Found { tier } => 3 | tier << 3,
            Self::Retry => 4,
        }
    }

    /// From a byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let rest = byte >> 3;
        match byte & 7 {
            0 if rest == 0 => Some(Self::Miss),
            1 => Some(Self::Hit { origin: rest }),
            2 if rest == 0 => Some(Self::Pending),
            3 => Some(Self::Found { tier: rest }),
            4 if rest == 0 => Some(Self::Retry),
            _ => None,
        }
    }
}

/// Whether an answer's byte is [`Answer::Hit`]. As [`Answer::from_byte`], for many in a row.
pub(crate) const fn is_hit(byte: u8) -> bool {
    byte & 7 == 1
}

/// Whether a byte is an [`Answer`]. As [`Answer::from_byte`], for many in a row.
pub(crate) const fn is_answer(byte: u8) -> bool {
    // No early end: the compiler looks at many bytes at once.
    (byte & 5 == 1) | (byte == 0) | (byte == 2) | (byte == 4)
}

/// Reserves slots for what is to be stored. Opens the request if it is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareStore {
    /// The request.
    pub request: u64,
    /// Name of the job: not 0, not in use in this session.
    pub job: u64,
    /// Whether the leading part that fits is enough.
    pub allow_partial: bool,
    /// The keys, in prefix order.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// What is to be stored where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareStoreReply {
    /// False: no room, and nothing was done. The job exists only if `slots` is not empty.
    pub room: bool,
    /// Indices of the keys to store, ascending, as little-endian `u32`; the others are there already.
    #[serde(with = "serde_bytes")]
    pub store: Vec<u8>,
    /// One slot for each of them, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub slots: Vec<u8>,
}

/// The end of an engine step: everything that needs no answer before the next one. Ends all leases of the session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStep {
    /// What becomes of the session's leases; one that is not named simply ends.
    pub leases: Vec<LeaseEnd>,
    /// Jobs that ended, where the scheduler copies by itself.
    pub completed: Vec<CompletedJob>,
    /// Requests that ended.
    pub finished: Vec<u64>,
    /// Keys that were used: first the most recent.
    #[serde(with = "serde_bytes")]
    pub touched: Vec<u8>,
    /// `WANT_EVENTS`, `WANT_STATS`.
    pub want: u32,
}

/// What becomes of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEnd {
    /// The lease.
    pub lease: u64,
    /// Name of the load that starts from it; 0 for none.
    pub job: u64,
    /// Keys that are loaded: indices into the lookup's keys, all queries together, as little-endian `u32`. All were `Hit`.
    #[serde(with = "serde_bytes")]
    pub load: Vec<u8>,
    /// Keys that the request waits for and wants brought: indices likewise, hits among them are held.
    #[serde(with = "serde_bytes")]
    pub wait: Vec<u8>,
}

/// A job that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedJob {
    /// The job.
    pub job: u64,
    /// Whether all bytes were copied.
    pub ok: bool,
}

/// What happened since the last `EndStep`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndStepReply {
    /// What will not be brought although it was waited for: no room.
    pub refused: Vec<Refusal>,
    /// Workers of the engine that are attached. Below what the scheduler announced everything is a miss and nothing is stored.
    pub workers: u32,
    /// `StoreRows` and `LoadRows` that ended.
    pub rows: Vec<RowsDone>,
    /// If wanted: what became readable or unreadable where.
    pub events: Vec<EventBatch>,
    /// Events that this session lost since it opened: it did not ask for them in time.
    pub events_lost: u64,
    /// If wanted: name and value, as in [`StatsReply`].
    pub stats: Vec<(String, f64)>,
    /// Jobs that ended and whose outcome the scheduler may want to count.
    pub jobs: Vec<JobOutcome>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// The job.
    pub job: u64,
    /// Store: the blocks are readable. Load: all workers have the bytes.
    pub ok: bool,
}

/// Keys of a lease that will not be brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The lease that named them.
    pub lease: u64,
    /// Their indices, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// Rows that were copied between the engine's region and the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsDone {
    /// The job.
    pub job: u64,
    /// One byte for each key: 1 done, 0 not. A store that found the block there already is done.
    #[serde(with = "serde_bytes")]
    pub ok: Vec<u8>,
    /// Microseconds from its arrival to its end.
    pub micros: u64,
}

/// Events of one kind in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatch {
    /// 0 stored, 1 removed, 2 all blocks of the primary cleared (no keys).
    pub what: u8,
    /// 0 CPU, 1 STORAGE.
    pub medium: u8,
    /// 0 LOCAL, 1 REMOTE.
    pub locality: u8,
    /// The keys.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// From those who copy: jobs of their engine that ended for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// The jobs.
    pub jobs: Vec<CompletedJob>,
}

/// Keeps blocks in the primary for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The request; it must be open.
    pub request: u64,
    /// How long, in milliseconds.
    pub ttl_ms: u32,
    /// The keys.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// How many blocks are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinReply {
    /// Of the keys given.
    pub pinned: u32,
}

/// Ends pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpin {
    /// The request.
    pub request: u64,
    /// The keys.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
}

/// Role "tier": copy rows of the engine's region into the pool, and on to all tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRows {
    /// The request; opened if it is not open.
    pub request: u64,
    /// Name of the job.
    pub job: u64,
    /// The keys.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
    /// One row for each, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub rows: Vec<u8>,
}

/// Role "tier": bring blocks into rows of the engine's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadRows {
    /// The request; opened if it is not open.
    pub request: u64,
    /// Name of the job.
    pub job: u64,
    /// The keys.
    #[serde(with = "serde_bytes")]
    pub keys: Vec<u8>,
    /// One row for each, as little-endian `u32`.
    #[serde(with = "serde_bytes")]
    pub rows: Vec<u8>,
}

/// Statistics of the pool: names as in `docs/metrics.md`, labels in braces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatsReply {
    /// Name and value.
    pub values: Vec<(String, f64)>,
}

/// The server is about to close this connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// Why.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_what_answers_say() {
        for byte in 0..=u8::MAX {
            let answer = Answer::from_byte(byte);
            assert_eq!(is_answer(byte), answer.is_some(), "{byte}");
            assert_eq!(is_hit(byte), matches!(answer, Some(Answer::Hit { .. })), "{byte}");
        }
    }
}
