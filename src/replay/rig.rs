//! Builds the whole stack that a replay drives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_config::{Config, CopyChoice, TierConfig, TierKind};
use terrace_connector::client::ClientOptions;
use terrace_connector::device::{cuda_options, open_device, pin_region};
use terrace_connector::{ConnectorError, ConnectorOptions, GroupKind, OffloadingConnector, RemoteConnector};
use terrace_kernels::cuda::scripted::{Script, Scripted};
use terrace_kernels::cuda::{CudaCopyEngine, Driver};
use terrace_kernels::{CopyEngine, CopyEngineKind};
use terrace_primary::{Region, RegionOptions};
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::wrappers::{FaultRates, Faulty, HangSwitch, Hanging, Slow};
use terrace_tiers::{Clock, SecondaryTier, SystemClock, TierNamespace, null_nvme_tier, open_tier};

use super::gpu_memory::{GpuMemory, Place};
use super::options::{Copies, ReplayOptions, Switch, TierFault};
use super::progress::Bars;
use super::stack::Stack;
use crate::failure::BadInput;

/// Copies that the worker may have in flight.
const COPY_QUEUE: usize = 4_096;
/// Threads of the host copy engine.
const COPY_THREADS: usize = 2;
/// How long a daemon may take to answer at the start.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
/// Bytes for measuring the paths of the device that exists only in host memory.
const SCRIPTED_CALIBRATE_BYTES: usize = 64 << 10;
/// How late a slow tier starts its jobs.
const SLOW: Duration = Duration::from_millis(20);
/// How often a faulty tier fails.
const FAULT_RATE: f64 = 0.1;

/// Where the NVMe tier lies: a given directory, kept, or a temporary one, removed when this is dropped.
pub enum NvmeDir {
    Kept(PathBuf),
    Temporary(PathBuf),
}

impl NvmeDir {
    /// The directory that the options name, or a temporary one in the user's cache: not in /tmp, which may be memory.
    pub fn new(options: &ReplayOptions) -> Self {
        if let Some(path) = &options.nvme_dir {
            return Self::Kept(path.clone());
        }
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let parent = cache.or(home).unwrap_or_else(std::env::temp_dir).join("terrace");
        Self::Temporary(parent.join(format!("replay-{}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) | Self::Temporary(path) => path,
        }
    }
}

impl Drop for NvmeDir {
    fn drop(&mut self) {
        if let Self::Temporary(path) = self
            && path.exists()
        {
            // Disks that discard what is freed take milliseconds a file.
            eprintln!("removing {}", path.display());
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// The groups that the options ask for: full attention, and a sliding window as the second.
pub fn groups(options: &ReplayOptions, config: &Config) -> Vec<GroupKind> {
    let window = GroupKind::SlidingWindow { window_tokens: options.window_tokens };
    [GroupKind::FullAttention, window].into_iter().take(config.geometry.groups as usize).collect()
}

/// The connector, in this process or over the socket, and the memory that it loads into.
pub fn build(options: &ReplayOptions, config: &Config, bars: &Bars) -> Result<(Box<dyn Stack>, GpuMemory)> {
    let geometry = config.geometry;
    let gpu_block_bytes = geometry.block_bytes / geometry.blocks_per_chunk;
    if !gpu_block_bytes.is_multiple_of(2) || gpu_block_bytes * geometry.blocks_per_chunk != geometry.block_bytes {
        return Err(BadInput::new(format!(
            "block_bytes = {} with blocks_per_chunk = {}: a GPU block must be a whole and even number of bytes; give a power of two",
            geometry.block_bytes, geometry.blocks_per_chunk
        ))
        .into());
    }
    let device = device(options, config)?;
    let place = match &device {
        _ if options.no_bytes => Place::Nowhere,
        None => Place::Host,
        Some(driver) => Place::Device(driver),
    };
    let memory = GpuMemory::new(geometry.groups, options.gpu_blocks(), gpu_block_bytes, &place)?;
    let mut connector: Box<dyn Stack> = match &options.connect {
        Some(socket) => Box::new(connect(options, config, socket)?),
        None => Box::new(build_in_process(options, config, bars, device.zip(memory.on_device()))?),
    };
    connector.register_kv_caches(memory.caches()?)?;
    Ok((connector, memory))
}

/// The device for copies; `None`: they are the host's.
fn device(options: &ReplayOptions, config: &Config) -> Result<Option<Arc<dyn Driver>>> {
    if options.connect.is_some() {
        // What a client copies through the socket's region goes from memory to memory.
        return match config.copy.engine {
            CopyChoice::Auto | CopyChoice::Host => Ok(None),
            CopyChoice::Cuda => {
                let text =
                    "a replay over a daemon copies from memory to memory: write --copy host, or leave --connect out";
                Err(BadInput::new(text).into())
            }
        };
    }
    if options.no_bytes {
        return Ok(None);
    }
    if options.copy == Some(Copies::Scripted) {
        let script = Script { seed: options.seed, has_batch: true, has_kernel: true, unified: false };
        return Ok(Some(Scripted::new(script)));
    }
    open_device(&config.copy).map_err(|error| {
        let engine = config.copy.engine.word();
        BadInput::new(format!("copy.engine = {engine:?}: {error}; write \"host\", or \"auto\", where there is no GPU"))
            .into()
    })
}

/// The engine that copies between this device memory and a region, which it begins to register.
fn cuda_engine(
    options: &ReplayOptions,
    config: &Config,
    driver: &Arc<dyn Driver>,
    (base, len): (usize, usize),
    region: &Arc<Region>,
) -> Result<Box<dyn CopyEngine>> {
    let (mut engine_options, pin_options) = cuda_options(&config.copy);
    if options.copy == Some(Copies::Scripted) {
        engine_options.calibrate_bytes = SCRIPTED_CALIBRATE_BYTES;
        engine_options.cache_dir = None;
    }
    let pins = pin_region(driver, region, pin_options)?;
    let mut engine = CudaCopyEngine::new(driver, vec![Arc::new(pins)], &engine_options)?;
    engine.add_memory(base, len)?;
    Ok(Box::new(engine))
}

fn connector_options(options: &ReplayOptions, config: &Config) -> ConnectorOptions {
    let mut connector_options = ConnectorOptions::new(config.geometry, options.gpu_blocks());
    connector_options.groups = groups(options, config);
    connector_options.gpu_prefix_cache = options.gpu_prefix_cache == Switch::On;
    connector_options
}

/// A connector whose blocks the daemon at `socket` keeps. Waits for the first connection, so that a wrong path is told;
/// later ones come by themselves.
fn connect(options: &ReplayOptions, config: &Config, socket: &Path) -> Result<RemoteConnector> {
    let mut client = ClientOptions::new(socket, config.namespace.clone(), config.geometry);
    client.engine = "replay".to_owned();
    client.call_budget = Duration::from_millis(options.call_budget_ms);
    let engines = || {
        let kind = CopyEngineKind::Host { threads: COPY_THREADS, queue_entries: COPY_QUEUE };
        kind.build().map_err(ConnectorError::from)
    };
    let mut connector = RemoteConnector::start(connector_options(options, config), client, Box::new(engines))?;
    connector.wait_ready(FIRST_CONNECTION).map_err(BadInput::new)?;
    Ok(connector)
}

fn build_in_process(
    options: &ReplayOptions,
    config: &Config,
    bars: &Bars,
    device: Option<(Arc<dyn Driver>, (usize, usize))>,
) -> Result<OffloadingConnector> {
    let geometry = config.geometry;
    let region = if options.no_bytes {
        Region::null(config.primary.blocks, geometry.slot_stride(), geometry.block_bytes)
    } else {
        let bar = bars.prefault();
        let region = Region::create(
            &RegionOptions {
                slots: config.primary.blocks,
                slot_stride: geometry.slot_stride(),
                block_bytes: geometry.block_bytes,
                huge_pages: config.primary.huge_pages,
                lock_memory: config.primary.lock_memory,
                numa_node: config.primary.numa_node,
                prefault_threads: config.primary.prefault_threads,
            },
            &|done, total| {
                bar.set_length(total);
                bar.set_position(done);
            },
        );
        bar.finish_and_clear();
        region?
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let namespace = TierNamespace::of(config)?;
    let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::with_capacity(config.tiers.len());
    for tier in &config.tiers {
        tiers.push(build_tier(options, config, tier, &namespace, &region, &clock)?);
    }
    let mut manager = TieringOffloadingManager::new(config, tiers, clock)?;
    if config.primary.check_on_load {
        manager.check_loads(Arc::clone(&region));
    }
    let engine = match device {
        Some((driver, memory)) => cuda_engine(options, config, &driver, memory, &region)?,
        None if options.no_bytes => CopyEngineKind::Null.build()?,
        None => CopyEngineKind::Host { threads: COPY_THREADS, queue_entries: COPY_QUEUE }.build()?,
    };
    Ok(OffloadingConnector::new(connector_options(options, config), manager, region, engine)?)
}

fn build_tier(
    options: &ReplayOptions,
    config: &Config,
    tier: &TierConfig,
    namespace: &TierNamespace,
    region: &Arc<Region>,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn SecondaryTier>> {
    let (region, clock) = (Arc::clone(region), Arc::clone(clock));
    let geometry = &config.geometry;
    if options.no_bytes {
        return match &tier.kind {
            TierKind::Nvme(nvme) => Ok(Box::new(null_nvme_tier(&tier.name, nvme, geometry, region, clock)?)),
            TierKind::Memory(_) | TierKind::Object(_) => {
                Ok(open_tier(tier, namespace.clone(), geometry, region, clock)?)
            }
        };
    }
    let opened = open_tier(tier, namespace.clone(), geometry, region, Arc::clone(&clock))
        .with_context(|| format!("the tier {:?} cannot be opened", tier.name))?;
    Ok(match options.tier_fault {
        None => opened,
        Some(TierFault::Hang) => Box::new(Hanging::new(opened, HangSwitch::new(true))),
        Some(TierFault::Slow) => Box::new(Slow::new(opened, clock, SLOW)),
        Some(TierFault::Faulty) => {
            let rates = FaultRates { store: FAULT_RATE, load: FAULT_RATE, busy: FAULT_RATE, unknown: FAULT_RATE };
            Box::new(Faulty::new(opened, rates, options.seed))
        }
    })
}
