//! From blocks to copy runs: the layout of `pages.rs` as addresses.

use terrace_kernels::{CopyError, CopyRun, Direction};
use terrace_primary::Region;

use crate::api::BlockCopy;
use crate::pages::Layout;

/// Appends the runs of a transfer; neighbours in both memories become one. Without memory it is one run of the bytes that
/// would move, at no address. The copies were checked against layout and region.
pub(super) fn build(
    layout: &Layout,
    region: &Region,
    copies: &[BlockCopy],
    direction: Direction,
    runs: &mut Vec<CopyRun>,
) -> Result<(), CopyError> {
    if !region.moves_bytes() {
        let bytes = copies.iter().filter_map(|copy| layout.groups.get(usize::from(copy.group)));
        let len = bytes.map(|group| group.block_bytes).sum::<u64>() as usize;
        runs.push(CopyRun { src: 0, dst: 0, len });
        return Ok(());
    }
    let outside = |copy: &BlockCopy| CopyError::Invalid(format!("{copy:?} has no address"));
    for chunk in copies.chunk_by(|a, b| a.slot == b.slot && a.group == b.group) {
        let Some(first) = chunk.first() else { continue };
        let group = layout.groups.get(usize::from(first.group)).ok_or_else(|| outside(first))?;
        let slot = region.slot_ptr(first.slot).ok_or_else(|| outside(first))?.as_ptr() as usize;
        for tensor in &group.tensors {
            for copy in chunk {
                let page = tensor.base + copy.block.index() * tensor.page_bytes;
                let place = slot + tensor.slot_offset + usize::from(copy.place) * tensor.page_bytes;
                let (src, dst) = match direction {
                    Direction::DeviceToHost => (page, place),
                    Direction::HostToDevice => (place, page),
                };
                match runs.last_mut() {
                    Some(last) if last.src + last.len == src && last.dst + last.len == dst => {
                        last.len += tensor.page_bytes;
                    }
                    _ => runs.push(CopyRun { src, dst, len: tensor.page_bytes }),
                }
            }
        }
    }
    Ok(())
}
