//! Opening an NVMe tier: its directories, and its catalog in the first of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_config::Choice;

use super::directory::{DirectoryOptions, open_directory};
use super::port::ShardPort;
use super::shard::ShardOptions;
use super::tier::{NvmeOptions, NvmeTier};
use crate::catalog::{CatalogStore, NoCatalog};
use crate::error::TierError;

/// Name of the catalog's directory in the first directory of the tier.
pub(super) const CATALOG: &str = "catalog";

impl NvmeTier {
    /// Opens and probes every directory, starts a thread for each, and the catalog's. What is in them comes later, see the module.
    /// Fails when a directory cannot be used, or something that the configuration requires does not work here.
    pub fn open(options: NvmeOptions<'_>) -> Result<Self, TierError> {
        let config = options.config;
        let open = |(index, root): (usize, &PathBuf)| -> Result<Box<dyn ShardPort>, TierError> {
            let shard = ShardOptions {
                queue_depth: config.queue_depth,
                queue_entries: config.queue_entries,
                ..ShardOptions::new(options.namespace)
            };
            Ok(Box::new(open_directory(DirectoryOptions {
                tier: options.name.clone(),
                root: root.clone(),
                index,
                direct_io: config.direct_io,
                io_uring: config.io_uring,
                shard,
                region: Arc::clone(&options.region),
                clock: Arc::clone(&options.clock),
            })?))
        };
        let ports = config.paths.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        // Only now: the directories are locked, so no other process uses this catalog.
        let catalog = open_catalog(&options)?;
        Self::with_ports(options, ports, catalog)
    }
}

fn open_catalog(options: &NvmeOptions<'_>) -> Result<Box<dyn CatalogStore>, TierError> {
    let config = options.config;
    let Some(directory) = config.paths.first().map(|root| root.join(CATALOG)) else { return Ok(Box::new(NoCatalog)) };
    if config.catalog == Choice::Off {
        forget_catalog(&directory);
        return Ok(Box::new(NoCatalog));
    }
    #[cfg(feature = "rocksdb")]
    {
        use crate::catalog::{RocksCatalog, RocksCatalogOptions};
        let paths = config.paths.iter().map(|root| fs::canonicalize(root).unwrap_or_else(|_| root.clone()));
        let catalog = RocksCatalogOptions {
            tier: options.name.clone(),
            paths: paths.collect(),
            require: config.catalog == Choice::Require,
            directory,
        };
        Ok(Box::new(RocksCatalog::open(catalog)?))
    }
    #[cfg(not(feature = "rocksdb"))]
    {
        if config.catalog == Choice::Require {
            return Err(TierError::Required {
                tier: options.name.clone(),
                facility: "catalog",
                why: "built without the feature `rocksdb`".into(),
            });
        }
        forget_catalog(&directory);
        Ok(Box::new(NoCatalog))
    }
}

/// Removes the catalog of an earlier life: it will not hear of what this life does, and must not be believed by the next.
fn forget_catalog(directory: &Path) {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::warn!(
            directory = %directory.display(),
            %error,
            "a catalog that is not used cannot be removed: remove it before a start that uses it"
        ),
        _ => {}
    }
}
