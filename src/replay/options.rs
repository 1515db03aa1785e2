//! What a replay is told on the command line, and the configuration that follows from it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use terrace_config::{Choice, Config, CopyChoice, NvmeConfig, Policy, TierConfig, TierKind};

use super::generate::TOKENS_PER_BLOCK;
use super::keys::HASH_BYTES;
use super::part::Part;
use crate::failure::BadInput;

/// Requests of a replay of generated traffic, unless the user says otherwise.
const GENERATED_REQUESTS: u64 = 3_000;
/// Defaults of sizes, blocks.
const PRIMARY_BLOCKS: u32 = 2_048;
const NVME_BLOCKS: u32 = 65_536;
const BLOCK_BYTES: u32 = 64 << 10;
/// Too few for the generated sessions, as in real life.
const GPU_BLOCKS_GENERATED: u32 = 512;
const GPU_BLOCKS: u32 = 2_048;
const GPU_BLOCKS_WITHOUT_BYTES: u32 = 65_536;

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// A fault made on purpose in the NVMe tier, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TierFault {
    /// Takes jobs and never answers.
    Hang,
    /// A tenth of all operations fails, by seed.
    Faulty,
    /// Every job starts 20 ms late.
    Slow,
}

/// Which copy engine, over the configuration's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Copies {
    /// A GPU's where the driver loads, else the host's.
    Auto,
    /// Memory to memory: host memory stands for the GPU's.
    Host,
    /// A GPU's.
    Cuda,
    /// A GPU's, on a device that exists only in host memory: for tests.
    #[value(hide = true)]
    Scripted,
}

/// Options of `terrace replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayOptions {
    /// Trace in the Mooncake format (JSON lines, plain or zstd); without it traffic of realistic shape is generated
    #[arg(long)]
    pub trace: Option<PathBuf>,
    /// Configuration file; options given here win over it
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Replay through the daemon that listens on this socket: its tiers keep the blocks; namespace and geometry are
    /// those given here
    #[arg(long, value_name = "SOCKET")]
    pub connect: Option<PathBuf>,
    /// The longest that a call waits for the daemon, in milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60_000), requires = "connect")]
    pub call_budget_ms: u64,
    /// Tenant of the blocks' namespace [default: the configuration's]
    #[arg(long)]
    pub tenant: Option<String>,
    /// Slots of the primary tier [default: 2048]
    #[arg(long, conflicts_with = "primary_bytes")]
    pub primary_blocks: Option<u32>,
    /// Bytes of the primary tier, instead of blocks
    #[arg(long)]
    pub primary_bytes: Option<u64>,
    /// Blocks that the NVMe tier holds; 0: no NVMe tier [default: 65536]
    #[arg(long, conflicts_with = "nvme_bytes")]
    pub nvme_blocks: Option<u32>,
    /// Bytes of the NVMe tier, instead of blocks
    #[arg(long)]
    pub nvme_bytes: Option<u64>,
    /// Directory of the NVMe tier, kept at the end; without it a temporary one is used and removed
    #[arg(long)]
    pub nvme_dir: Option<PathBuf>,
    /// Payload bytes of an offloaded block [default: 65536]
    #[arg(long)]
    pub block_bytes: Option<u32>,
    /// Eviction policy of the primary tier: lru or arc
    #[arg(long)]
    pub policy: Option<Policy>,
    /// Blocks are stored once they have been offered so many times
    #[arg(long)]
    pub store_threshold: Option<u32>,
    /// Share of the primary tier that promotions may fill, 0 to 1
    #[arg(long)]
    pub promotion_share: Option<f64>,
    /// GPU blocks of the modelled engine [default: 512 for generated traffic, 2048 for a
    /// trace, 65536 without bytes]
    #[arg(long)]
    pub gpu_blocks: Option<u32>,
    /// The engine's own prefix cache in the GPU
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub gpu_prefix_cache: Switch,
    /// Requests in the engine at once
    #[arg(long, default_value_t = 8)]
    pub concurrency: u32,
    /// Stop after so many requests; 0: all of the trace [default: 0, of generated traffic 3000]
    #[arg(long)]
    pub limit: Option<u64>,
    /// Replay one node's part of the requests, INDEX/COUNT: every COUNT-th one. `--limit` counts those
    #[arg(long)]
    pub part: Option<Part>,
    /// Seed of generated traffic
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Move no bytes: copies and tier I/O are replaced by a counted null
    #[arg(long)]
    pub no_bytes: bool,
    /// Copy engine [default: the configuration's, which is auto]
    #[arg(long, value_enum)]
    pub copy: Option<Copies>,
    /// KV-cache groups: 1 (full attention) or 2 (and a sliding window)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub groups: Option<u32>,
    /// Window of the second group, tokens
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..))]
    pub window_tokens: u32,
    /// GPU blocks in an offloaded block
    #[arg(long)]
    pub blocks_per_chunk: Option<u32>,
    /// Tokens of one block of the trace, which is one GPU block; told from the trace without it
    #[arg(long, default_value_t = 0)]
    pub tokens_per_block: u32,
    /// Tokens that one engine step computes at most; the default computes whole prompts
    #[arg(long, default_value_t = 1_048_576, value_parser = clap::value_parser!(u32).range(1..))]
    pub step_tokens: u32,
    /// Tokens that the modelled GPU computes a second: a step takes as long. Without it computing takes no longer than filling the blocks, and
    /// no cache is as fast
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub prefill_tokens_per_second: Option<u64>,
    /// Steps in which a request generates before it ends
    #[arg(long, default_value_t = 2)]
    pub decode_steps: u32,
    /// Admit no request while cascades are queued or running, so that hits do not depend on the disk's speed
    /// [default: on if --concurrency is 1]
    #[arg(long, value_enum)]
    pub lossless: Option<Switch>,
    /// Arrivals at this multiple of the trace's own pace; without it as fast as possible
    #[arg(long)]
    pub speed: Option<f64>,
    /// One JSON object on stdout instead of the table
    #[arg(long)]
    pub json: bool,
    /// The same, so far, and the time as `unix_s`, four times a second into this file, one object a line
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Make the NVMe tier sick (for tests)
    #[arg(long, value_enum, hide = true)]
    pub tier_fault: Option<TierFault>,
}

impl ReplayOptions {
    /// Requests to replay; `None`: to the end of the trace.
    pub fn requests(&self) -> Option<u64> {
        match (self.limit, &self.trace) {
            (Some(0), Some(_)) | (None, Some(_)) => None,
            (Some(limit), _) if limit > 0 => Some(limit),
            _ => Some(GENERATED_REQUESTS),
        }
    }

    /// Tokens a block of generated traffic.
    pub const fn generated_tokens_per_block(&self) -> u32 {
        if self.tokens_per_block == 0 { TOKENS_PER_BLOCK } else { self.tokens_per_block }
    }

    /// GPU blocks of the engine.
    pub fn gpu_blocks(&self) -> u32 {
        self.gpu_blocks.unwrap_or(match (self.no_bytes, &self.trace) {
            (true, _) => GPU_BLOCKS_WITHOUT_BYTES,
            (false, Some(_)) => GPU_BLOCKS,
            (false, None) => GPU_BLOCKS_GENERATED,
        })
    }

    /// Whether requests wait for cascades.
    pub fn is_lossless(&self) -> bool {
        self.lossless.unwrap_or(if self.concurrency == 1 { Switch::On } else { Switch::Off }) == Switch::On
    }

    /// The configuration: that of the file or the defaults of a replay, with the options laid over. `nvme_dir` is where the
    /// NVMe tier lies if the file names none.
    pub fn config(&self, tokens_per_block: u32, nvme_dir: &Path) -> Result<Config> {
        self.check()?;
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => {
                let text = format!("[primary]\nblocks = {PRIMARY_BLOCKS}\n[geometry]\nblock_bytes = {BLOCK_BYTES}\n");
                Config::parse(&text, "defaults of replay")?
            }
        };
        if config.namespace.model.is_empty() {
            config.namespace.model = "replay".to_owned();
            config.namespace.engine = "terrace replay 1".to_owned();
        }
        if let Some(tenant) = &self.tenant {
            config.namespace.tenant.clone_from(tenant);
        }
        let geometry = &mut config.geometry;
        geometry.tokens_per_block = tokens_per_block;
        geometry.hash_bytes = HASH_BYTES as u8;
        geometry.block_bytes = self.block_bytes.unwrap_or(geometry.block_bytes);
        geometry.groups = self.groups.unwrap_or(geometry.groups.min(2));
        geometry.blocks_per_chunk = self.blocks_per_chunk.unwrap_or(geometry.blocks_per_chunk);
        let (slot_stride, file_bytes) = (geometry.slot_stride(), geometry.file_bytes());
        if let Some(blocks) = self.primary_blocks {
            config.primary.blocks = blocks;
        }
        if let Some(bytes) = self.primary_bytes {
            config.primary.blocks = u32::try_from(bytes / u64::from(slot_stride)).unwrap_or(u32::MAX);
        }
        config.primary.policy = self.policy.unwrap_or(config.primary.policy);
        config.admission.store_threshold = self.store_threshold.unwrap_or(config.admission.store_threshold);
        config.limits.promotion_share = self.promotion_share.unwrap_or(config.limits.promotion_share);
        config.copy.engine = match self.copy {
            Some(Copies::Auto) => CopyChoice::Auto,
            Some(Copies::Host) => CopyChoice::Host,
            Some(Copies::Cuda | Copies::Scripted) => CopyChoice::Cuda,
            None => config.copy.engine,
        };
        self.lay_nvme(&mut config, file_bytes, nvme_dir);
        config.validate("the command line")?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let fault = if self.concurrency == 0 {
            "--concurrency must be at least 1".to_owned()
        } else if self.speed.is_some_and(|speed| !(speed.is_finite() && speed > 0.0)) {
            "--speed must be a positive number".to_owned()
        } else if self.gpu_blocks() == 0 || self.gpu_blocks() == u32::MAX {
            format!("--gpu-blocks must be 1 to {}", u32::MAX - 1)
        } else if self.no_bytes && self.tier_fault.is_some() {
            "--tier-fault needs bytes: leave --no-bytes out".to_owned()
        } else if self.no_bytes && self.copy.is_some() {
            "--copy needs bytes: leave --no-bytes out".to_owned()
        } else if let Some(option) = self.connect.as_ref().and_then(|_| self.daemons_option()) {
            format!("{option} cannot be used with --connect: primary and tiers are the daemon's, see its configuration")
        } else {
            return Ok(());
        };
        Err(BadInput::new(fault).into())
    }

    /// An option that was given and says what a daemon has.
    fn daemons_option(&self) -> Option<&'static str> {
        let given = [
            ("--primary-blocks", self.primary_blocks.is_some()),
            ("--primary-bytes", self.primary_bytes.is_some()),
            ("--nvme-blocks", self.nvme_blocks.is_some()),
            ("--nvme-bytes", self.nvme_bytes.is_some()),
            ("--nvme-dir", self.nvme_dir.is_some()),
            ("--policy", self.policy.is_some()),
            ("--store-threshold", self.store_threshold.is_some()),
            ("--promotion-share", self.promotion_share.is_some()),
            ("--no-bytes", self.no_bytes),
            ("--tier-fault", self.tier_fault.is_some()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }

    /// Lays the options of the NVMe tier over the first one of the configuration, or adds or removes it.
    fn lay_nvme(&self, config: &mut Config, file_bytes: u64, nvme_dir: &Path) {
        let capacity = self.nvme_bytes.or(self.nvme_blocks.map(|blocks| u64::from(blocks) * file_bytes));
        if capacity == Some(0) {
            config.tiers.retain(|tier| !matches!(tier.kind, TierKind::Nvme(_)));
            return;
        }
        let found = config.tiers.iter_mut().find_map(|tier| match &mut tier.kind {
            TierKind::Nvme(nvme) => Some(nvme),
            TierKind::Memory(_) | TierKind::Object(_) => None,
        });
        if let Some(nvme) = found {
            nvme.capacity_bytes = capacity.unwrap_or(nvme.capacity_bytes);
            if self.nvme_dir.is_some() {
                nvme.paths = vec![nvme_dir.to_path_buf()];
            }
            return;
        }
        if self.config.is_some() && capacity.is_none() && self.nvme_dir.is_none() {
            // A file without an NVMe tier means that.
            return;
        }
        let nvme = NvmeConfig {
            paths: vec![nvme_dir.to_path_buf()],
            capacity_bytes: capacity.unwrap_or(u64::from(NVME_BLOCKS) * file_bytes),
            high_watermark: 1.0,
            low_watermark: 0.99,
            queue_depth: 64,
            queue_entries: 65_536,
            direct_io: Choice::Auto,
            io_uring: Choice::Auto,
            catalog: Choice::Auto,
            // A replay counts what requests do.
            scrub_bytes_per_second: 0,
        };
        config.tiers.push(TierConfig { name: "nvme".to_owned(), backfill: true, kind: TierKind::Nvme(nvme) });
    }
}
