//! From blocks and slots to copy runs.

use super::shape::PageTensor;
use crate::engine::{CopyError, CopyRun, Direction};

/// The pages of all groups, and where they lie in a slot.
#[derive(Clone, Debug)]
pub struct PagedLayout {
    groups: Vec<Group>,
    blocks_per_chunk: u32,
    /// Where this worker's part begins in a slot.
    part_offset: usize,
}

#[derive(Clone, Debug)]
struct Group {
    /// Tensors, and where their pages begin in the part.
    tensors: Vec<(PageTensor, usize)>,
    /// Blocks that every tensor has.
    num_blocks: u32,
    /// Bytes of a block, all tensors.
    block_bytes: u64,
}

/// The slots of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTable {
    /// Address of slot 0.
    pub base: usize,
    /// From one slot to the next.
    pub stride: usize,
    /// Slots.
    pub slots: u32,
}

/// A job as vLLM lists it: per group a row of GPU blocks, and the slots of the chunks that they fill.
#[derive(Clone, Copy, Debug)]
pub struct JobPages<'a> {
    /// GPU blocks, group after group.
    pub block_ids: &'a [u32],
    /// Blocks of each group.
    pub group_sizes: &'a [u32],
    /// Of each group, the place of its first block in the request: modulo `blocks_per_chunk` the blocks that are skipped in its first chunk.
    pub block_indices: &'a [u32],
    /// Slots, group after group, one per chunk.
    pub slots: &'a [u32],
    /// A block that counts but is not copied: vLLM's null block, 0.
    pub null_block: Option<u32>,
}

fn invalid<T>(text: String) -> Result<T, CopyError> {
    Err(CopyError::Invalid(text))
}

impl PagedLayout {
    /// A layout in `part_bytes` bytes from `part_offset` on of each slot. `Invalid`: a group without bytes, a tensor that is no memory, or a
    /// chunk that does not fit.
    pub fn new(
        groups: Vec<Vec<PageTensor>>,
        blocks_per_chunk: u32,
        part_offset: usize,
        part_bytes: usize,
    ) -> Result<Self, CopyError> {
        if blocks_per_chunk == 0 || part_offset.checked_add(part_bytes).is_none() {
            return invalid(format!("chunks of {blocks_per_chunk} blocks in {part_bytes} bytes at {part_offset}"));
        }
        let mut placed = Vec::with_capacity(groups.len());
        for (index, tensors) in groups.into_iter().enumerate() {
            let (mut places, mut offset, mut block_bytes) = (Vec::with_capacity(tensors.len()), 0_usize, 0_u64);
            for tensor in tensors {
                if tensor.extent().is_none() || tensor.page_stride < tensor.page_bytes {
                    return invalid(format!("KV cache of group {index}: {tensor:?} is no memory"));
                }
                places.push((tensor, offset));
                let end =
                    tensor.page_bytes.checked_mul(blocks_per_chunk as usize).and_then(|len| offset.checked_add(len));
                let Some(end) = end.filter(|end| *end <= part_bytes) else {
                    return invalid(format!(
                        "KV cache of group {index}: {blocks_per_chunk} GPU blocks do not fit into {part_bytes} bytes of a slot"
                    ));
                };
                offset = end;
                block_bytes += tensor.page_bytes as u64;
            }
            let Some(num_blocks) = places.iter().map(|(tensor, _)| tensor.num_blocks).min() else {
                return invalid(format!("KV cache of group {index}: no tensor"));
            };
            placed.push(Group { tensors: places, num_blocks, block_bytes });
        }
        Ok(Self { groups: placed, blocks_per_chunk, part_offset })
    }

    /// Groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of one GPU block of a group, all tensors; 0 for a group that is not there.
    pub fn block_bytes(&self, group: usize) -> u64 {
        self.groups.get(group).map_or(0, |group| group.block_bytes)
    }

    /// Appends the runs between the slot at `slot` and GPU blocks of one chunk, given as (block, place in the chunk). Neighbours in both
    /// memories become one run, inside a tensor only: the next tensor may be another allocation. `Invalid`, and nothing
    /// appended: a group, block or place that is not there.
    ///
    /// The slot's bytes are the caller's to know: `part_offset + part_bytes` of them are touched at most.
    pub fn chunk_runs(
        &self,
        group: usize,
        slot: usize,
        pages: impl Iterator<Item = (u32, u32)> + Clone,
        direction: Direction,
        runs: &mut Vec<CopyRun>,
    ) -> Result<(), CopyError> {
        let Some(layout) = self.groups.get(group) else { return invalid(format!("there is no group {group}")) };
        let part = slot.checked_add(self.part_offset);
        let (Some(part), true) = (part, slot > 0) else { return invalid(format!("no slot is at {slot:#x}")) };
        if let Some((block, place)) =
            pages.clone().find(|(block, place)| *block >= layout.num_blocks || *place >= self.blocks_per_chunk)
        {
            return invalid(format!(
                "block {block} at place {place}: group {group} has {} blocks, a chunk {}",
                layout.num_blocks, self.blocks_per_chunk
            ));
        }
        for (tensor, offset) in &layout.tensors {
            let first = runs.len();
            for (block, place) in pages.clone() {
                let page = tensor.base + block as usize * tensor.page_stride;
                let held = part.wrapping_add(offset + place as usize * tensor.page_bytes);
                let (src, dst) = match direction {
                    Direction::DeviceToHost => (page, held),
                    Direction::HostToDevice => (held, page),
                };
                match runs.get_mut(first..).and_then(<[CopyRun]>::last_mut) {
                    Some(last) if last.src + last.len == src && last.dst + last.len == dst => {
                        last.len += tensor.page_bytes
                    }
                    _ => runs.push(CopyRun { src, dst, len: tensor.page_bytes }),
                }
            }
        }
        Ok(())
    }

    /// Appends the runs of a job; the bytes that they copy. `Invalid`, and nothing appended: lists that do not belong together, or a
    /// block or slot that is not there.
    pub fn job_runs(
        &self,
        job: &JobPages<'_>,
        table: &SlotTable,
        direction: Direction,
        runs: &mut Vec<CopyRun>,
    ) -> Result<u64, CopyError> {
        let before = runs.len();
        let bytes = self.append_job(job, table, direction, runs);
        if bytes.is_err() {
            runs.truncate(before);
        }
        bytes
    }

    fn append_job(
        &self,
        job: &JobPages<'_>,
        table: &SlotTable,
        direction: Direction,
        runs: &mut Vec<CopyRun>,
    ) -> Result<u64, CopyError> {
        let unfit = || {
            invalid(format!(
                "{} blocks in groups of {:?}, the first at {:?}, do not match {} slots of {} blocks and {} groups",
                job.block_ids.len(),
                job.group_sizes,
                job.block_indices,
                job.slots.len(),
                self.blocks_per_chunk,
                self.groups.len()
            ))
        };
        if job.group_sizes.len() != self.groups.len() || job.block_indices.len() != self.groups.len() {
            return unfit();
        }
        let per_chunk = self.blocks_per_chunk as usize;
        let (mut blocks, mut slots, mut bytes) = (job.block_ids, job.slots, 0);
        for (group, (size, first)) in job.group_sizes.iter().zip(job.block_indices).enumerate() {
            let skip = *first as usize % per_chunk;
            let Some((mut own, rest)) = blocks.split_at_checked(*size as usize) else { return unfit() };
            blocks = rest;
            let mut place = skip;
            while !own.is_empty() {
                let Some((slot, later)) = slots.split_first() else { return unfit() };
                slots = later;
                let Some((chunk, rest)) = own.split_at_checked(own.len().min(per_chunk - place)) else {
                    return unfit();
                };
                own = rest;
                let address = (*slot < table.slots)
                    .then(|| table.stride.checked_mul(*slot as usize).and_then(|offset| table.base.checked_add(offset)))
                    .flatten();
                let Some(address) = address else {
                    return invalid(format!("slot {slot} of a region with {} slots", table.slots));
                };
                let pages =
                    chunk.iter().copied().zip(place as u32..).filter(|(block, _)| Some(*block) != job.null_block);
                bytes += pages.clone().count() as u64 * self.block_bytes(group);
                self.chunk_runs(group, address, pages, direction, runs)?;
                place = 0;
            }
        }
        if !blocks.is_empty() || !slots.is_empty() {
            return unfit();
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: SlotTable = SlotTable { base: 1 << 40, stride: 8192, slots: 50 };

    fn layout(per_chunk: u32) -> PagedLayout {
        let tensor = |base, page_bytes, page_stride| PageTensor { base, num_blocks: 40, page_bytes, page_stride };
        let groups = vec![
            vec![tensor(1 << 20, 100, 100), tensor((1 << 20) + 4000, 100, 300), tensor(1 << 24, 16, 4096)],
            vec![tensor(1 << 28, 500, 500)],
        ];
        PagedLayout::new(groups, per_chunk, 512, 4096).unwrap()
    }

    proptest! {
        /// Against a model that copies page by page: same bytes, each target byte once.
        #[test]
        fn a_job_copies_its_pages_and_nothing_else(
            per_chunk in 1_u32..6,
            sizes in prop::collection::vec(0_u32..12, 2),
            firsts in prop::collection::vec(0_u32..20, 2),
            picks in prop::collection::vec(0_u32..40, 24),
            neighbours in any::<bool>(),
            store in any::<bool>(),
        ) {
            let layout = layout(per_chunk);
            let direction = if store { Direction::DeviceToHost } else { Direction::HostToDevice };
            let count: u32 = sizes.iter().sum();
            let blocks: Vec<u32> =
                (0..count).map(|at| if neighbours { (picks[0] + at) % 40 } else { picks[at as usize] }).collect();
            let chunks = |group: usize| if sizes[group] == 0 { 0 } else { (firsts[group] % per_chunk + sizes[group]).div_ceil(per_chunk) };
            let slots: Vec<u32> = (0..chunks(0) + chunks(1)).map(|at| (at * 7 + 3) % 50).collect();
            let job = JobPages { block_ids: &blocks, group_sizes: &sizes, block_indices: &firsts, slots: &slots, null_block: Some(0) };
            let mut runs = vec![CopyRun { src: 1, dst: 2, len: 3 }];
            let bytes = layout.job_runs(&job, &REGION, direction, &mut runs).unwrap();
            prop_assert_eq!(runs.remove(0), CopyRun { src: 1, dst: 2, len: 3 });

            let mut expected = Vec::new();
            let (mut at_block, mut at_slot) = (0, 0);
            for group in 0..2 {
                for number in 0..sizes[group] {
                    let position = firsts[group] % per_chunk + number;
                    let block = blocks[at_block];
                    at_block += 1;
                    if block == 0 { continue; }
                    let slot = slots[at_slot + (position / per_chunk) as usize] as usize;
                    for (tensor, offset) in &layout.groups[group].tensors {
                        let page = tensor.base + block as usize * tensor.page_stride;
                        let held = REGION.base + slot * REGION.stride + 512 + offset + (position % per_chunk) as usize * tensor.page_bytes;
                        expected.extend((0..tensor.page_bytes).map(|byte| (page + byte, held + byte)));
                    }
                }
                at_slot += chunks(group) as usize;
            }
            let mut found: Vec<(usize, usize)> = runs.iter().flat_map(|run| (0..run.len).map(|byte| {
                let (src, dst) = (run.src + byte, run.dst + byte);
                if store { (src, dst) } else { (dst, src) }
            })).collect();
            prop_assert_eq!(bytes, found.len() as u64);
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn neighbours_merge_inside_a_tensor_only() {
        let layout = layout(4);
        let mut runs = Vec::new();
        layout
            .chunk_runs(
                0,
                REGION.base,
                [(36, 0), (37, 1), (38, 2), (39, 3)].into_iter(),
                Direction::DeviceToHost,
                &mut runs,
            )
            .unwrap();
        // Tensor 1 begins where tensor 0 ends, in the GPU and in the slot; its pages and those of tensor 2 lie apart.
        let lens: Vec<usize> = runs.iter().map(|run| run.len).collect();
        assert_eq!(lens, [400, 100, 100, 100, 100, 16, 16, 16, 16]);
    }

    #[test]
    fn what_does_not_belong_together_is_refused_whole() {
        let layout = layout(4);
        let good = JobPages {
            block_ids: &[1, 2, 3],
            group_sizes: &[2, 1],
            block_indices: &[3, 0],
            slots: &[4, 5, 6],
            null_block: None,
        };
        let refused = |job: JobPages<'_>| {
            let mut runs = Vec::new();
            let result = layout.job_runs(&job, &REGION, Direction::HostToDevice, &mut runs);
            matches!(result, Err(CopyError::Invalid(_))) && runs.is_empty()
        };
        assert!(!refused(good));
        for bad in [
            JobPages { block_ids: &[1, 2], ..good },
            JobPages { block_ids: &[1, 2, 3, 4], ..good },
            JobPages { block_ids: &[1, 2, 40], ..good },
            JobPages { slots: &[4, 5], ..good },
            JobPages { slots: &[4, 5, 6, 7], ..good },
            JobPages { slots: &[4, 5, 50], ..good },
            JobPages { group_sizes: &[3], ..good },
            JobPages { group_sizes: &[2, u32::MAX], ..good },
            JobPages { block_indices: &[3], ..good },
        ] {
            assert!(refused(bad), "{bad:?}");
        }
        let tensor = PageTensor { base: 4096, num_blocks: 4, page_bytes: 100, page_stride: 100 };
        for (groups, per_chunk, bytes) in [
            (vec![vec![]], 1, 4096),
            (vec![vec![tensor]], 0, 4096),
            (vec![vec![tensor]], 41, 4096),
            (vec![vec![PageTensor { base: 0, ..tensor }]], 1, 4096),
            (vec![vec![PageTensor { num_blocks: 0, ..tensor }]], 1, 4096),
            (vec![vec![PageTensor { page_bytes: 0, ..tensor }]], 1, 4096),
            (vec![vec![PageTensor { page_stride: 99, ..tensor }]], 1, 4096),
            (vec![vec![PageTensor { base: usize::MAX - 100, ..tensor }]], 1, 4096),
        ] {
            assert!(PagedLayout::new(groups, per_chunk, 0, bytes).is_err());
        }
    }
}
