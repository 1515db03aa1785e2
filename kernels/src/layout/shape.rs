//! Tensors of any shape as pages at constant distances.

use crate::engine::CopyError;

/// Pages of one tensor, or of one piece of a tensor whose blocks lie in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTensor {
    /// Address of block 0's page.
    pub base: usize,
    /// Blocks.
    pub num_blocks: u32,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// From the start of a page to the start of the next block's.
    pub page_stride: usize,
}

impl PageTensor {
    /// Bytes from the first page's first to the last page's last. `None`: they do not fit the address space, or there are none.
    pub fn extent(&self) -> Option<usize> {
        let steps = (self.num_blocks as usize).checked_sub(1)?;
        let len = self.page_stride.checked_mul(steps)?.checked_add(self.page_bytes)?;
        self.base.checked_add(len)?;
        (self.base > 0 && self.page_bytes > 0).then_some(len)
    }
}

/// A tensor as an engine describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Address of the first element.
    pub address: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Length of each axis.
    pub sizes: Vec<usize>,
    /// Per axis, elements from one index to the next.
    pub strides: Vec<usize>,
    /// The axis that counts blocks.
    pub block_axis: usize,
}

/// Axes at most, and pieces of a block in one tensor: K and V of every layer of a large model.
const MOST_AXES: usize = 16;
const MOST_PIECES: usize = 4096;

impl TensorShape {
    /// The pages. K and V in front of the blocks, `(2, blocks, ..)`, make two; behind them, `(blocks, 2, ..)`, one; anything inside
    /// a block that does not lie without gaps makes as many as it has pieces, in the order of the axes. `Invalid`: a shape that contradicts
    /// itself, or elements that overlap.
    pub fn canonical(&self) -> Result<Vec<PageTensor>, CopyError> {
        let refuse = |why: &str| {
            Err(CopyError::Invalid(format!("a tensor of shape {:?}, strides {:?}: {why}", self.sizes, self.strides)))
        };
        if self.sizes.len() != self.strides.len()
            || self.sizes.len() > MOST_AXES
            || self.address == 0
            || self.element_bytes == 0
        {
            return refuse("not a tensor with an address, an element size and a stride for each axis");
        }
        let (Some(blocks), Some(block_stride)) = (self.sizes.get(self.block_axis), self.strides.get(self.block_axis))
        else {
            return refuse("no such axis of blocks");
        };
        let (Ok(num_blocks), Some(page_stride)) =
            (u32::try_from(*blocks), block_stride.checked_mul(self.element_bytes))
        else {
            return refuse("too many blocks");
        };
        if self.sizes.contains(&0) {
            return refuse("no elements");
        }
        // Axes in bytes, the densest first. An axis of one index lies nowhere.
        let mut axes: Vec<(usize, usize, usize)> = Vec::new();
        for (axis, (size, stride)) in self.sizes.iter().zip(&self.strides).enumerate() {
            let Some(stride) = stride.checked_mul(self.element_bytes) else { return refuse("too long") };
            if *size > 1 {
                axes.push((stride, *size, axis));
            }
        }
        axes.sort_unstable();
        // Each axis steps over all that is denser.
        let mut reach = self.element_bytes;
        for (stride, size, _) in &axes {
            if *stride < reach {
                return refuse("elements overlap, or axes interleave");
            }
            let Some(more) = stride.checked_mul(size - 1).and_then(|more| reach.checked_add(more)) else {
                return refuse("too long");
            };
            reach = more;
        }
        if self.address.checked_add(reach).is_none() {
            return refuse("wraps around the address space");
        }
        // What lies without gaps is the page.
        let mut page_bytes = self.element_bytes;
        let mut outer: Vec<(usize, usize, usize)> = Vec::new();
        for (stride, size, axis) in axes {
            if axis == self.block_axis {
                continue;
            }
            if outer.is_empty() && stride == page_bytes {
                page_bytes *= size;
            } else {
                outer.push((stride, size, axis));
            }
        }
        outer.sort_unstable_by_key(|(_, _, axis)| *axis);
        let mut bases = vec![self.address];
        for (stride, size, _) in outer {
            if bases.len().saturating_mul(size) > MOST_PIECES {
                return refuse("a block lies in too many pieces");
            }
            bases = bases.iter().flat_map(|base| (0..size).map(move |index| base + index * stride)).collect();
        }
        let tensor = |base| PageTensor { base, num_blocks, page_bytes, page_stride: page_stride.max(page_bytes) };
        Ok(bases.into_iter().map(tensor).collect())
    }

    /// First address, and bytes to the last element's end: lies in one allocation, as [`crate::cuda::CudaCopyEngine::add_memory`] wants
    /// it. `Invalid` as [`TensorShape::canonical`].
    pub fn span(&self) -> Result<(usize, usize), CopyError> {
        let pages = self.canonical()?;
        let end = pages.iter().filter_map(|page| Some(page.base + page.extent()?)).max().unwrap_or(self.address);
        Ok((self.address, end - self.address))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dense(sizes: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; sizes.len()];
        for axis in (0..sizes.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * sizes[axis + 1];
        }
        strides
    }

    fn shape(sizes: &[usize], strides: &[usize], block_axis: usize) -> TensorShape {
        TensorShape { address: 1 << 20, element_bytes: 2, sizes: sizes.to_vec(), strides: strides.to_vec(), block_axis }
    }

    #[test]
    fn the_layouts_of_engines() {
        let base = 1 << 20;
        let page = |base, page_bytes, page_stride| PageTensor { base, num_blocks: 100, page_bytes, page_stride };
        // K and V together: (blocks, 2, tokens, heads, dim).
        let together = [100, 2, 16, 8, 64];
        let bytes = 2 * 16 * 8 * 64 * 2;
        assert_eq!(shape(&together, &dense(&together), 0).canonical().unwrap(), [page(base, bytes, bytes)]);
        // K and V apart: (2, blocks, tokens, heads, dim).
        let apart = [2, 100, 16, 8, 64];
        let half = bytes / 2;
        assert_eq!(
            shape(&apart, &dense(&apart), 1).canonical().unwrap(),
            [page(base, half, half), page(base + 100 * half, half, half)]
        );
        // The same as a view of memory in the order (blocks, heads, tokens): still one page of all its bytes.
        assert_eq!(
            shape(&[100, 2, 16, 8, 64], &[16384, 8192, 64, 1024, 1], 0).canonical().unwrap(),
            [page(base, bytes, bytes)]
        );
        // Blocks of several layers in one allocation: (blocks, layers, ..) seen per layer, pages far apart.
        assert_eq!(shape(&[100, 512], &[32 * 512, 1], 0).canonical().unwrap(), [page(base, 1024, 32 * 1024)]);
        // Padding between K and V inside a block.
        assert_eq!(
            shape(&[100, 2, 512], &[2048, 1024, 1], 0).canonical().unwrap(),
            [page(base, 1024, 4096), page(base + 2048, 1024, 4096)]
        );
        assert_eq!(shape(&apart, &dense(&apart), 1).span().unwrap(), (base, 100 * bytes));
        assert_eq!(
            shape(&[1, 512], &[0, 1], 0).canonical().unwrap().len(),
            1,
            "the stride of a lone block means nothing"
        );
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (sizes, strides, axis) in [
            (vec![4, 8], vec![8], 0),
            (vec![4, 8], vec![8, 1], 2),
            (vec![4, 0], vec![8, 1], 0),
            (vec![4, 8], vec![7, 1], 0),
            (vec![4, 8], vec![0, 1], 0),
            (vec![4, 8], vec![usize::MAX, 1], 0),
            (vec![usize::MAX, 8], vec![8, 1], 0),
            (vec![4, 5000, 8], vec![1 << 20, 16, 1], 0),
            (vec![1; 17], vec![1; 17], 0),
        ] {
            assert!(shape(&sizes, &strides, axis).canonical().is_err(), "{sizes:?} {strides:?} {axis}");
        }
    }

    proptest! {
        /// Every element of block `b` lies in exactly one page of `b`, and the pages hold nothing else.
        #[test]
        fn pages_hold_exactly_the_elements(
            sizes in prop::collection::vec(1_usize..5, 1..5),
            gaps in prop::collection::vec(0_usize..3, 5),
            order in Just([0_usize, 1, 2, 3]).prop_shuffle(),
            axis in 0_usize..4,
        ) {
            let axis = axis % sizes.len();
            // Axes from the densest on, with gaps between.
            let mut strides = vec![0; sizes.len()];
            let mut next = 1;
            for dense in order.into_iter().filter(|axis| *axis < sizes.len()) {
                strides[dense] = next;
                next = next * sizes[dense] + gaps[dense];
            }
            let tensor = shape(&sizes, &strides, axis);
            let pages = tensor.canonical().unwrap();
            for block in 0..sizes[axis] {
                let mut expected = std::collections::BTreeSet::new();
                let count: usize = sizes.iter().product();
                for number in 0..count {
                    let (mut rest, mut at, mut of_block) = (number, 0, true);
                    for (index, size) in sizes.iter().enumerate() {
                        at += rest % size * strides[index];
                        of_block &= index != axis || rest % size == block;
                        rest /= size;
                    }
                    if of_block {
                        expected.extend([tensor.address + 2 * at, tensor.address + 2 * at + 1]);
                    }
                }
                let mut found = std::collections::BTreeSet::new();
                for page in &pages {
                    for byte in 0..page.page_bytes {
                        prop_assert!(found.insert(page.base + block * page.page_stride + byte));
                    }
                }
                prop_assert_eq!(found, expected);
            }
            let (base, len) = tensor.span().unwrap();
            prop_assert!(pages.iter().all(|page| page.base >= base && page.base + page.extent().unwrap() <= base + len));
        }
    }
}
