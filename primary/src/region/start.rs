//! The start of a region: ask what may be had, map, bind, each with an error that names its fix.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use terrace_config::Choice;

use super::backing::Backing;
use super::map::{HUGE_PAGE_BYTES, Mapping};
use super::{PageKind, RegionOptions, limits};
use crate::error::PrimaryError;

/// A mapping of at least `bytes`, none of it backed, and what backs it.
pub(super) fn start(bytes: usize, options: &RegionOptions) -> Result<(Arc<Mapping>, Backing), PrimaryError> {
    let root = Path::new("/");
    if let Some(node) = options.numa_node
        && !limits::has_node(root, node)
    {
        return Err(PrimaryError::NumaNode { node, why: "this machine has no such node".to_owned() });
    }
    if options.lock_memory
        && let Some(limit_bytes) = limits::lock_limit(root).filter(|limit_bytes| *limit_bytes < bytes as u64)
    {
        return Err(PrimaryError::LockLimit { need_bytes: bytes as u64, limit_bytes });
    }
    let mapping = map(bytes, options, root)?;
    if let Some(node) = options.numa_node {
        let refused = |errno: Errno| PrimaryError::NumaNode { node, why: format!("mbind: {errno}") };
        mapping.bind(node).map_err(refused)?;
    }
    let mapping = Arc::new(mapping);
    let backing = Backing::new(Arc::clone(&mapping), options.lock_memory, options.numa_node, root.to_owned());
    Ok((mapping, backing))
}

/// Huge pages where they are asked for and reserved, normal ones else.
fn map(bytes: usize, options: &RegionOptions, root: &Path) -> Result<Mapping, PrimaryError> {
    let (free_pages, all_pages) = limits::huge_pages(root, options.numa_node);
    let need_pages = bytes.div_ceil(HUGE_PAGE_BYTES) as u64;
    if options.huge_pages != Choice::Off {
        // A node's pages must be counted here: the reservation that `mmap` makes is the machine's, not the node's.
        let refused = if options.numa_node.is_some() && free_pages < need_pages {
            Errno::NOMEM
        } else {
            match Mapping::new(bytes, PageKind::Huge) {
                Ok(mapping) => return Ok(mapping),
                Err(errno) => errno,
            }
        };
        if options.huge_pages == Choice::Require {
            return Err(match refused {
                Errno::NOMEM => PrimaryError::HugePages {
                    need_pages,
                    free_pages,
                    total_pages: all_pages + need_pages.saturating_sub(free_pages),
                },
                errno => system("mapping 2 MiB pages")(errno),
            });
        }
        tracing::info!(
            need_pages,
            free_pages,
            "the primary region uses 4 KiB pages: 2 MiB pages are not reserved (vm.nr_hugepages)"
        );
    }
    if let Some(available) = limits::available_memory(root, options.numa_node)
        && available.bytes < bytes as u64
    {
        return Err(PrimaryError::Memory {
            need_bytes: bytes as u64,
            available_bytes: available.bytes,
            limit: available.limit,
        });
    }
    let mapping = Mapping::new(bytes, PageKind::Normal).map_err(system("mapping its memory"))?;
    if options.huge_pages != Choice::Off {
        mapping.prefer_huge();
    }
    Ok(mapping)
}

fn system(step: &'static str) -> impl FnOnce(Errno) -> PrimaryError {
    move |errno| PrimaryError::System { step, source: errno.into() }
}
