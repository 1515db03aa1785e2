//! The table of all keys: the one source of the parser's names, bounds and defaults, of the effective configuration, of
//! the JSON Schema and of the example file. Keys of `[copy]` stand in `copy_keys.rs`,
//! those of `[[tier]]` in `tier_keys.rs`.

use crate::bounds::{MAX_BLOCK_BYTES, MAX_PRIMARY_BYTES};
use crate::copy_keys::COPY;
use crate::draft::Draft;
use crate::form::Form;
use crate::key::*;
use crate::model::{LogFormat, Policy, ServerConfig};
use crate::value::Value;

/// Where engines look for the daemon if nobody tells them otherwise.
const DEFAULT_SOCKET: &str = "/run/terrace/terrace.sock";

/// One table of the file.
pub(crate) struct Section {
    pub name: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key<Draft>],
}

const fn text(name: &'static str, place: for<'a> fn(&'a mut Draft) -> Place<'a>, doc: &'static str) -> Key<Draft> {
    row(name, Form::Text, Preset::Is(Value::Text(String::new())), place, doc)
}

/// All tables of the file but `[[tier]]`, in the order in which they are written.
pub(crate) static SECTIONS: [Section; 9] = [
    Section { name: "primary", doc: "The DRAM tier: the shared region that GPU copies fill.", keys: &PRIMARY },
    Section { name: "geometry", doc: "Shape of a block. Part of the namespace.", keys: &GEOMETRY },
    Section {
        name: "namespace",
        doc: "What makes the bytes of two blocks interchangeable: engines share blocks only if all of it is equal.",
        keys: &NAMESPACE,
    },
    Section { name: "admission", doc: "Which blocks are worth storing.", keys: &ADMISSION },
    Section {
        name: "limits",
        doc: "Bounds of queues and shares. A share is a fraction of the primary's blocks.",
        keys: &LIMITS,
    },
    Section { name: "deadlines", doc: "How long each class of operation may take.", keys: &DEADLINES },
    Section { name: "breaker", doc: "When a failing tier is switched off.", keys: &BREAKER },
    Section { name: "copy", doc: "How bytes go between the memory of an engine and the region.", keys: &COPY },
    Section { name: "server", doc: "The daemon, `terrace serve`. Not used in process.", keys: &SERVER },
];

static PRIMARY: [Key<Draft>; 8] = [
    row(
        "capacity",
        Form::Size { min: 1, max: MAX_PRIMARY_BYTES },
        Preset::Required("\"64GiB\""),
        |d| Place::SizeOrUnset(&mut d.primary_size.capacity_bytes),
        "Bytes of DRAM, rounded down to whole blocks. Either this or `blocks`.",
    ),
    row(
        "blocks",
        BLOCKS,
        Preset::Unset("32768"),
        |d| Place::CountOrUnset(&mut d.primary_size.blocks),
        "Number of blocks, instead of `capacity`.",
    ),
    row(
        "policy",
        Form::Word(Policy::WORDS),
        word("lru"),
        |d| Place::Policy(&mut d.config.primary.policy),
        "Eviction: \"lru\" (least recently used) or \"arc\" (adaptive replacement cache).",
    ),
    row(
        "huge_pages",
        CHOICE,
        word("auto"),
        |d| Place::Choice(&mut d.config.primary.huge_pages),
        "2 MiB pages: \"auto\" (where the machine has them), \"require\" (fail at start without) or \"off\".",
    ),
    row(
        "lock_memory",
        Form::Flag,
        Preset::Is(Value::Flag(false)),
        |d| Place::Flag(&mut d.config.primary.lock_memory),
        "Lock the region in memory, so that it is never swapped out. Needs a memlock limit of that size.",
    ),
    row(
        "numa_node",
        count(0, 1023),
        Preset::Unset("0"),
        |d| Place::CountOrUnset(&mut d.config.primary.numa_node),
        "Bind the region to this NUMA node. Not bound if left out.",
    ),
    row(
        "prefault_threads",
        count(0, 256),
        number(0),
        |d| Place::Count(&mut d.config.primary.prefault_threads),
        "Threads that touch the region's pages at start. 0: one per CPU, eight at most.",
    ),
    row(
        "check_on_load",
        Form::Flag,
        Preset::Is(Value::Flag(false)),
        |d| Place::Flag(&mut d.config.primary.check_on_load),
        "Compare a block with its CRC32 before it is loaded, if that was not done in the last ten seconds: for memory that is not trusted. Costs a read of the block, and clients of the daemon ask it for each lookup.",
    ),
];

static GEOMETRY: [Key<Draft>; 5] = [
    row(
        "block_bytes",
        Form::Size { min: 1, max: MAX_BLOCK_BYTES as u64 },
        Preset::Is(Value::Size(2 << 20)),
        |d| Place::Size(&mut d.config.geometry.block_bytes),
        "Payload of one offloaded block: `blocks_per_chunk` GPU blocks of one KV-cache group, all its layers.",
    ),
    row(
        "tokens_per_block",
        count(1, 65_536),
        number(16),
        |d| Place::Count(&mut d.config.geometry.tokens_per_block),
        "Tokens in one GPU block.",
    ),
    row(
        "blocks_per_chunk",
        count(1, 4096),
        number(1),
        |d| Place::Count(&mut d.config.geometry.blocks_per_chunk),
        "GPU blocks in one offloaded block.",
    ),
    row(
        "groups",
        count(1, 1024),
        number(1),
        |d| Place::Count(&mut d.config.geometry.groups),
        "KV-cache groups of the model.",
    ),
    row(
        "hash_bytes",
        count(1, 64),
        number(32),
        |d| Place::Byte(&mut d.config.geometry.hash_bytes),
        "Length of the engine's block hashes.",
    ),
];

static NAMESPACE: [Key<Draft>; 9] = [
    text("model", |d| Place::Text(&mut d.config.namespace.model), "Model name or path."),
    text("revision", |d| Place::Text(&mut d.config.namespace.revision), "Model revision or checkpoint digest."),
    text("dtype", |d| Place::Text(&mut d.config.namespace.dtype), "Element type of the KV cache, such as bfloat16."),
    text("kv_layout", |d| Place::Text(&mut d.config.namespace.kv_layout), "Memory layout of one block, such as HND."),
    text("quantisation", |d| Place::Text(&mut d.config.namespace.quantisation), "Quantisation and its scales."),
    text("rope", |d| Place::Text(&mut d.config.namespace.rope), "RoPE and every other setting that changes KV values."),
    text("parallel", |d| Place::Text(&mut d.config.namespace.parallel), "Parallel layout and rank, or canonical."),
    text("engine", |d| Place::Text(&mut d.config.namespace.engine), "Engine name and the version of its KV format."),
    text("tenant", |d| Place::Text(&mut d.config.namespace.tenant), "Tenant: tenants never read each other's blocks."),
];

static ADMISSION: [Key<Draft>; 2] = [
    row(
        "store_threshold",
        count(1, 1_000_000),
        number(1),
        |d| Place::Count(&mut d.config.admission.store_threshold),
        "A block is stored once it has been offered this many times. 1 stores at once.",
    ),
    row(
        "tracker_entries",
        count(1, MAX_ENTRIES),
        number(65_536),
        |d| Place::Count(&mut d.config.admission.tracker_entries),
        "Blocks whose offers are remembered while they are below the threshold.",
    ),
];

static LIMITS: [Key<Draft>; 7] = [
    row(
        "promotion_share",
        Form::Share,
        share(0.5),
        |d| Place::Share(&mut d.config.limits.promotion_share),
        "Share that promotions and the blocks held for their requests may fill.",
    ),
    row(
        "cascade_share",
        Form::Share,
        share(0.25),
        |d| Place::Share(&mut d.config.limits.cascade_share),
        "Share that the running cascade jobs of one tier may hold.",
    ),
    row(
        "queued_cascades",
        count(1, MAX_ENTRIES),
        number(65_536),
        |d| Place::Count(&mut d.config.limits.queued_cascades),
        "Cascades that wait for one tier. Beyond, the oldest is dropped and counted.",
    ),
    row(
        "pin_share",
        Form::Share,
        share(0.25),
        |d| Place::Share(&mut d.config.limits.pin_share),
        "Share that pinned blocks may hold.",
    ),
    row(
        "requests",
        count(1, MAX_ENTRIES),
        number(65_536),
        |d| Place::Count(&mut d.config.limits.requests),
        "Requests open at once.",
    ),
    row(
        "keys_per_call",
        count(1, MAX_ENTRIES),
        number(1_048_576),
        |d| Place::Count(&mut d.config.limits.keys_per_call),
        "Keys in one call.",
    ),
    row(
        "events",
        count(1, MAX_ENTRIES),
        number(65_536),
        |d| Place::Count(&mut d.config.limits.events),
        "Events kept until they are taken. Beyond, the oldest is dropped and counted.",
    ),
];

static DEADLINES: [Key<Draft>; 6] = [
    row(
        "lookup",
        Form::Time,
        secs(5),
        |d| Place::Time(&mut d.config.deadlines.lookup),
        "A lookup that is still waiting for a tier becomes a miss after this long.",
    ),
    row(
        "promotion",
        Form::Time,
        secs(10),
        |d| Place::Time(&mut d.config.deadlines.promotion),
        "A promotion is abandoned after this long.",
    ),
    row(
        "cascade",
        Form::Time,
        secs(30),
        |d| Place::Time(&mut d.config.deadlines.cascade),
        "A cascade job is abandoned after this long.",
    ),
    row(
        "hold",
        Form::Time,
        secs(10),
        |d| Place::Time(&mut d.config.deadlines.hold),
        "A block found by a lookup is held for its request at most this long.",
    ),
    row("pin", Form::Time, secs(300), |d| Place::Time(&mut d.config.deadlines.pin), "The longest pin."),
    row(
        "drain",
        Form::Time,
        secs(30),
        |d| Place::Time(&mut d.config.deadlines.drain),
        "Draining and shutting down give up after this long.",
    ),
];

static BREAKER: [Key<Draft>; 4] = [
    row(
        "failures",
        count(1, 1_000_000),
        number(5),
        |d| Place::Count(&mut d.config.breaker.failures),
        "Failed jobs in a row that switch a tier off.",
    ),
    row(
        "cooldown",
        Form::Time,
        secs(5),
        |d| Place::Time(&mut d.config.breaker.cooldown),
        "How long it stays off before jobs are let through to try it, one at first. Twice as long after each that failed, eight times at most.",
    ),
    row(
        "slow_factor",
        count(0, 1_000_000),
        number(10),
        |d| Place::Count(&mut d.config.breaker.slow_factor),
        "A tier whose loads all take this many times as long as they used to, for `stall`, is switched off too. 0: never.",
    ),
    row(
        "stall",
        Form::Time,
        secs(2),
        |d| Place::Time(&mut d.config.breaker.stall),
        "A tier that answers nothing for this long while it loads hangs, and is switched off. 0s: only [deadlines] end its loads.",
    ),
];

static SERVER: [Key<Draft>; 11] = [
    row(
        "socket",
        Form::Path,
        Preset::Is(Value::PlainPath(DEFAULT_SOCKET)),
        |d| Place::Path(&mut d.config.server.socket),
        "The Unix socket to listen on.",
    ),
    row(
        "group",
        Form::Text,
        Preset::Unset("\"vllm\""),
        |d| Place::TextOrUnset(&mut d.config.server.group),
        "Group (name or number) that may connect, beside the owner. If left out: nobody else (mode 0600).",
    ),
    row(
        "allow_users",
        Form::Texts,
        Preset::Is(Value::Texts(Vec::new())),
        |d| Place::Texts(&mut d.config.server.allow_users),
        "Users (names or numbers) that are admitted, beside root and the daemon's own.",
    ),
    row(
        "pools",
        count(1, 64),
        number(1),
        |d| Place::Count(&mut d.config.server.pools),
        "Namespaces (models) that can be open at once; each has an equal part of every capacity.",
    ),
    row(
        "sessions",
        count(1, 65_536),
        number(256),
        |d| Place::Count(&mut d.config.server.sessions),
        "Sessions open at once: a vLLM engine has one, and one for each of its workers.",
    ),
    row(
        "message_bytes",
        Form::Size { min: 64 << 10, max: 1 << 30 },
        Preset::Is(Value::Size(16 << 20)),
        |d| Place::Size(&mut d.config.server.message_bytes),
        "Longest message.",
    ),
    row(
        "keys_per_message",
        count(1, 1 << 24),
        number(131_072),
        |d| Place::Count(&mut d.config.server.keys_per_message),
        "Keys in one message.",
    ),
    row(
        "jobs_per_session",
        count(1, 1 << 24),
        number(65_536),
        |d| Place::Count(&mut d.config.server.jobs_per_session),
        "Jobs and leases of one session that have not ended.",
    ),
    row(
        "session_share",
        Form::Share,
        share(0.5),
        |d| Place::Share(&mut d.config.server.session_share),
        "Share of a pool's slots that one session may have leased, loading or being stored.",
    ),
    row(
        "log_format",
        Form::Word(LogFormat::WORDS),
        word("text"),
        |d| Place::LogFormat(&mut d.config.server.log_format),
        "\"text\" for people, \"json\" for one object a line.",
    ),
    row(
        "metrics",
        Form::Text,
        Preset::Unset("\"127.0.0.1:9464\""),
        |d| Place::TextOrUnset(&mut d.config.server.metrics),
        "Loopback address of the Prometheus endpoint. If left out: none.",
    ),
];

impl Default for ServerConfig {
    /// The section `[server]` with no key written.
    fn default() -> Self {
        let mut draft = Draft::blank();
        SERVER.iter().for_each(|key| key.put_default(&mut draft));
        draft.config.server
    }
}
