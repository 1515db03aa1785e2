//! A configuration on its way: sizes still as they were written, relations between keys not yet checked.

use std::path::PathBuf;
use std::time::Duration;

use crate::model::*;
use crate::namespace::Namespace;

/// All sections. `config` holds what needs no second look; its `tiers` stay empty.
#[derive(Clone)]
pub(crate) struct Draft {
    pub config: Config,
    pub primary_size: SizeDraft,
    pub tiers: Vec<TierDraft>,
}

/// A size as it was written.
#[derive(Clone, Default)]
pub(crate) struct SizeDraft {
    pub capacity_bytes: Option<u64>,
    pub blocks: Option<u32>,
}

/// Kinds of tiers, without their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nvme,
    Memory,
    Object,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Nvme, Self::Memory, Self::Object];

    pub fn word(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::Memory => "memory",
            Self::Object => "object",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Bytes that one block takes of a tier's capacity.
    pub fn bytes_per_block(self, geometry: &Geometry) -> u64 {
        match self {
            Self::Nvme => geometry.file_bytes(),
            Self::Memory => u64::from(geometry.block_bytes),
            Self::Object => geometry.object_bytes(),
        }
    }
}

/// One `[[tier]]` with the keys of all kinds.
#[derive(Clone)]
pub(crate) struct TierDraft {
    pub kind: Option<Kind>,
    pub name: Option<String>,
    pub backfill: bool,
    pub size: SizeDraft,
    pub nvme: NvmeConfig,
    pub object: ObjectConfig,
}

impl Draft {
    /// A draft in which no key has been set, not even to its default.
    pub fn blank() -> Self {
        let config = Config {
            primary: PrimaryConfig {
                blocks: 0,
                policy: Policy::Lru,
                huge_pages: Choice::Auto,
                lock_memory: false,
                numa_node: None,
                prefault_threads: 0,
                check_on_load: false,
            },
            geometry: Geometry { block_bytes: 0, tokens_per_block: 0, blocks_per_chunk: 0, groups: 0, hash_bytes: 0 },
            namespace: Namespace::default(),
            admission: AdmissionConfig { store_threshold: 0, tracker_entries: 0 },
            limits: Limits {
                promotion_share: 0.0,
                cascade_share: 0.0,
                queued_cascades: 0,
                pin_share: 0.0,
                requests: 0,
                keys_per_call: 0,
                events: 0,
            },
            deadlines: Deadlines {
                lookup: Duration::ZERO,
                promotion: Duration::ZERO,
                cascade: Duration::ZERO,
                hold: Duration::ZERO,
                pin: Duration::ZERO,
                drain: Duration::ZERO,
            },
            breaker: BreakerConfig { failures: 0, cooldown: Duration::ZERO, slow_factor: 0, stall: Duration::ZERO },
            copy: CopyConfig {
                engine: CopyChoice::Auto,
                devices: Vec::new(),
                path: CopyPath::Auto,
                kernel_blocks: 0,
                queue_entries: 0,
                piece_bytes: 0,
                register_threads: 0,
                nvrtc: None,
                cache_dir: None,
            },
            tiers: Vec::new(),
            tenants: Vec::new(),
            server: ServerConfig {
                socket: PathBuf::new(),
                group: None,
                allow_users: Vec::new(),
                pools: 0,
                sessions: 0,
                message_bytes: 0,
                keys_per_message: 0,
                jobs_per_session: 0,
                session_share: 0.0,
                log_format: LogFormat::Text,
                metrics: None,
            },
        };
        Self { config, primary_size: SizeDraft::default(), tiers: Vec::new() }
    }

    /// The draft that a validated configuration would come from, with every key set.
    pub fn of(config: &Config) -> Self {
        let primary_size = SizeDraft { capacity_bytes: None, blocks: Some(config.primary.blocks) };
        let tiers = config.tiers.iter().map(TierDraft::of).collect();
        Self { config: Config { tiers: Vec::new(), ..config.clone() }, primary_size, tiers }
    }

    /// The configuration. The caller has found no fault; what a fault would have left unset becomes zero or is left out.
    pub fn finish(self) -> Config {
        let Self { mut config, primary_size, tiers } = self;
        let geometry = config.geometry;
        config.primary.blocks = primary_size.blocks.unwrap_or_else(|| {
            let slots = primary_size.capacity_bytes.unwrap_or(0) / u64::from(geometry.slot_stride()).max(1);
            u32::try_from(slots).unwrap_or(u32::MAX)
        });
        config.tiers = tiers.into_iter().filter_map(|tier| tier.finish(&geometry)).collect();
        config
    }
}

impl ObjectConfig {
    /// The keys of an object tier, none of them set.
    pub(crate) fn blank() -> Self {
        Self {
            url: String::new(),
            capacity_bytes: 0,
            endpoint: None,
            region: String::new(),
            path_style: false,
            ca_file: None,
            credentials: Credentials::Chain,
            env_prefix: String::new(),
            credentials_file: None,
            credentials_profile: String::new(),
            sign_payload: false,
            node: None,
            high_watermark: 0.0,
            low_watermark: 0.0,
            max_age: None,
            segment_bytes: 0,
            part_bytes: 0,
            range_bytes: 0,
            linger: Duration::ZERO,
            staging_bytes: 0,
            connections: 0,
            queue_entries: 0,
            publish_interval: Duration::ZERO,
            fold_interval: Duration::ZERO,
            fold_interval_max: Duration::ZERO,
            hedge_share: 0.0,
            read_requests_per_second: 0,
            write_requests_per_second: 0,
            read_bytes_per_day: None,
            write_bytes_per_day: None,
            collector: Collector::Auto,
            lease: Duration::ZERO,
            compaction_interval: Duration::ZERO,
            orphan_age: Duration::ZERO,
            log_retention: Duration::ZERO,
        }
    }
}

impl TierDraft {
    /// A tier in which no key has been set.
    pub fn blank() -> Self {
        let nvme = NvmeConfig {
            paths: Vec::<PathBuf>::new(),
            capacity_bytes: 0,
            high_watermark: 0.0,
            low_watermark: 0.0,
            queue_depth: 0,
            queue_entries: 0,
            direct_io: Choice::Auto,
            io_uring: Choice::Auto,
            catalog: Choice::Auto,
            scrub_bytes_per_second: 0,
        };
        Self {
            kind: None,
            name: None,
            backfill: false,
            size: SizeDraft::default(),
            nvme,
            object: ObjectConfig::blank(),
        }
    }

    fn of(tier: &TierConfig) -> Self {
        let Self { nvme, object, .. } = Self::blank();
        let (kind, capacity_bytes, nvme, object) = match &tier.kind {
            TierKind::Nvme(nvme) => (Kind::Nvme, nvme.capacity_bytes, nvme.clone(), object),
            TierKind::Memory(memory) => (Kind::Memory, memory.capacity_bytes, nvme, object),
            TierKind::Object(object) => (Kind::Object, object.capacity_bytes, nvme, object.clone()),
        };
        let size = SizeDraft { capacity_bytes: Some(capacity_bytes), blocks: None };
        Self { kind: Some(kind), name: Some(tier.name.clone()), backfill: tier.backfill, size, nvme, object }
    }

    /// Bytes of the tier; `None` if no size was written or its blocks overflow.
    pub fn capacity_bytes(&self, geometry: &Geometry) -> Option<u64> {
        match self.size.blocks {
            Some(blocks) => self.kind?.bytes_per_block(geometry).checked_mul(u64::from(blocks)),
            None => self.size.capacity_bytes,
        }
    }

    fn finish(self, geometry: &Geometry) -> Option<TierConfig> {
        let capacity_bytes = self.capacity_bytes(geometry)?;
        let kind = match self.kind? {
            Kind::Nvme => TierKind::Nvme(NvmeConfig { capacity_bytes, ..self.nvme }),
            Kind::Memory => TierKind::Memory(MemoryConfig { capacity_bytes }),
            Kind::Object => TierKind::Object(ObjectConfig { capacity_bytes, ..self.object }),
        };
        Some(TierConfig { name: self.name?, backfill: self.backfill, kind })
    }
}
