//! A tiered KV-cache store for LLM engines: pinned DRAM over io_uring NVMe.
//!
//! An engine drives a [`Connector`]; [`OffloadingConnector`] is the one that works in process. ARCHITECTURE.md draws the house.
//!
//! ```
//! use std::sync::Arc;
//! use terrace::{Config, Lookup, LookupMode, RequestContext, RequestId, StorePlan, SystemClock, TierFilter};
//!
//! // A manager over 64 slots and no secondary tier.
//! let config = Config::parse("[primary]\nblocks = 64\n", "example")?;
//! let mut manager = terrace::TieringOffloadingManager::new(&config, Vec::new(), Arc::new(SystemClock::new()))?;
//! let (id, key) = (RequestId(1), terrace::Key::new(&[7; 32], 0)?);
//! manager.begin_request(RequestContext { id, tiers: TierFilter::ALL })?;
//!
//! let mut answers = Vec::new();
//! manager.lookup(id, &[key], LookupMode::Prefix, &mut answers)?;
//! assert_eq!(answers, [Lookup::Miss]);
//!
//! // Store it: the engine's copy engine would fill the slot between the two calls.
//! let mut plan = StorePlan::default();
//! assert!(manager.prepare_store(id, &[key], false, &mut plan)?);
//! manager.complete_store(id, &[key], true)?;
//! manager.lookup(id, &[key], LookupMode::Prefix, &mut answers)?;
//! assert_eq!(answers, [Lookup::Hit]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use terrace_config::{Config, ConfigError, Geometry, Namespace};
pub use terrace_connector::{
    Connector, ConnectorError, ConnectorMeta, ConnectorOptions, ConnectorOutput, GpuBlock, GroupKind, HashList,
    KvCaches, KvTensor, Matched, NewRequest, OffloadingConnector, ScheduledRequest, SchedulerHalf, StepPlan,
    WorkerHalf, WorkerOutput,
};
pub use terrace_kernels::{Arena, CopyEngine, CopyEngineKind, HostCopyEngine};
pub use terrace_primary::{Key, Region, RegionOptions, SlotId};
pub use terrace_tiering::{
    Event, Lookup, LookupMode, RequestContext, RequestId, RequestSummary, Stats, StorePlan, TierFilter,
    TieringOffloadingManager,
};
pub use terrace_tiers::{Clock, SecondaryTier, SystemClock, open_tier};
