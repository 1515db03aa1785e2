//! Why a tier cannot be opened. Later faults are no errors: they end as misses, counters and log lines.

use std::io;
use std::path::PathBuf;

/// What can go wrong while a tier opens. Each text names the place, the value and the fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A directory cannot be used: not there and not creatable, not writable, in use by another process, or written in
    /// another format.
    #[error("tier directory {path}: {problem}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },
    /// A facility is required and does not work here.
    #[error("tier {tier}: {facility} = \"require\", and it does not work here ({why}): set {facility} = \"auto\"")]
    Required {
        /// Name of the tier.
        tier: String,
        /// The key of the configuration.
        facility: &'static str,
        /// What was seen.
        why: String,
    },
    /// The capacity makes no sense for the block size.
    #[error(
        "tier {tier}: a capacity of {capacity_bytes} bytes holds {blocks} blocks of {block_bytes} bytes each, overhead \
         included; it must hold at least 1 and at most {most}"
    )]
    Capacity {
        /// Name of the tier.
        tier: String,
        /// The capacity.
        capacity_bytes: u64,
        /// Blocks that fit.
        blocks: u64,
        /// What one block takes.
        block_bytes: u64,
        /// The most blocks that a tier's index takes.
        most: u32,
    },
    /// The number of directories is out of range.
    #[error("tier {tier}: {paths} directories; give 1 to {most}")]
    Paths {
        /// Name of the tier.
        tier: String,
        /// Directories given.
        paths: usize,
        /// The most.
        most: usize,
    },
    /// The region was made for blocks of another size.
    #[error("tier {tier}: the region's blocks have {region_bytes} bytes, the geometry says {geometry_bytes}")]
    Geometry {
        /// Name of the tier.
        tier: String,
        /// Payload bytes of a slot.
        region_bytes: u32,
        /// Payload bytes of a block.
        geometry_bytes: u32,
    },
    /// The operating system refused something that is not about one directory.
    #[error("{step} failed")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A tenant's keys cannot be used: nothing may be stored for it.
    #[error("tenant {tenant}: {problem}")]
    Tenant {
        /// The tenant.
        tenant: String,
        /// What is wrong, and the fix. Never holds a secret.
        problem: String,
    },
    /// An object tier cannot be used as the configuration says.
    #[error("tier {tier}: {key}: {problem}")]
    Object {
        /// Name of the tier.
        tier: String,
        /// The key of the configuration that says so.
        key: &'static str,
        /// What is wrong, and the fix. Never holds a secret.
        problem: String,
        /// What the system or the store's client said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}
