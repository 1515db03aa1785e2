//! From blocks to copy runs: the layout of `pages.rs` as addresses.

use terrace_kernels::{CopyError, CopyRun, Direction};
use terrace_primary::Region;

use crate::api::BlockCopy;
use crate::pages::Layout;

/// Appends the runs of a transfer. Without memory it is one run of the bytes that
/// would move, at no address. The copies were checked against layout and region.
pub(super) fn build(
    layout: &Layout,
    region: &Region,
    copies: &[BlockCopy],
    direction: Direction,
    runs: &mut Vec<CopyRun>,
) -> Result<(), CopyError> {
    if !region.moves_bytes() {
        let len = copies.iter().map(|copy| layout.paged.block_bytes(usize::from(copy.group))).sum::<u64>() as usize;
        runs.push(CopyRun { src: 0, dst: 0, len });
        return Ok(());
    }
    for chunk in copies.chunk_by(|a, b| a.slot == b.slot && a.group == b.group) {
        let Some(first) = chunk.first() else { continue };
        let slot = region.slot_ptr(first.slot);
        let slot = slot.ok_or_else(|| CopyError::Invalid(format!("{first:?} has no address")))?.as_ptr() as usize;
        let pages = chunk.iter().map(|copy| (copy.block.0, u32::from(copy.place)));
        layout.paged.chunk_runs(usize::from(first.group), slot, pages, direction, runs)?;
    }
    Ok(())
}
