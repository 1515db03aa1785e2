"""Where the pages of a KV-cache group lie in a slot of the region, and the copies between the two.

A slot holds one chunk (`blocks_per_chunk` blocks) of one group. It consists of one part for each worker, or of one
part alone where all workers hold equal bytes. In a part the group's data references follow one another, each with the
pages of the chunk's blocks in a row:

    slot: | part of rank 0                                | part of rank 1 | ...
    part: | reference 0: page, page, .. | reference 1: .. | .. | unused   |

Copies are numpy's and not torch's: a copy of torch's on a thread of its own has a team of OpenMP threads of its own,
and with more such threads than processors the model's own team sleeps and is woken for each of its operations
(measured on two processors: forward passes 1.7 times as long).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches

#: Element types for copies, the widest first.
_WIDTHS = ((8, np.int64), (4, np.int32), (2, np.int16), (1, np.int8))


class LayoutError(Exception):
    """Pages or slots that do not fit what was agreed."""


@dataclass(frozen=True)
class Reference:
    """One tensor's pages of a group."""

    #: (blocks, page bytes or more), int8.
    tensor: torch.Tensor
    page_bytes: int
    #: Where the pages of a chunk begin in the worker's part of a slot.
    offset: int


@dataclass(frozen=True)
class Run:
    """The blocks of one group in one job, and where they lie in slots."""

    group: int
    blocks: np.ndarray
    #: Slot and place in the slot's chunk of each block.
    slots: np.ndarray
    places: np.ndarray


class WorkerLayout:
    """How this worker's pages lie in its part of a slot."""

    def __init__(self, caches: CanonicalKVCaches, blocks_per_chunk: int, part_offset: int, part_bytes: int) -> None:
        """`part_offset` and `part_bytes`: this worker's part of a slot. Raises `LayoutError` if a group's pages do
        not fit into it."""
        self.blocks_per_chunk = blocks_per_chunk
        self.part_offset = part_offset
        self.part_bytes = part_bytes
        self.groups: list[list[Reference]] = []
        for index, references in enumerate(caches.group_data_refs):
            offset = 0
            group = []
            for reference in references:
                tensor = caches.tensors[reference.tensor_idx].tensor
                if tensor.dtype != torch.int8 or tensor.ndim != 2 or tensor.shape[1] < reference.page_size_bytes:
                    raise LayoutError(
                        f"a KV cache of shape {tuple(tensor.shape)} and type {tensor.dtype} is not understood"
                    )
                page_bytes = reference.page_size_bytes
                group.append(Reference(tensor, page_bytes, offset))
                offset += page_bytes * blocks_per_chunk
            if offset > part_bytes:
                raise LayoutError(
                    f"group {index} has {offset} bytes for each chunk, the worker's part of a slot only {part_bytes}"
                )
            self.groups.append(group)

    @property
    def device(self) -> torch.device:
        """Where the KV cache lies. Raises `LayoutError` if it lies in several places."""
        devices = {reference.tensor.device for group in self.groups for reference in group}
        if len(devices) != 1:
            raise LayoutError(f"the KV cache lies on {sorted(map(str, devices))}: it must lie on one device")
        return next(iter(devices))

    def runs(
        self, block_ids: np.ndarray, group_sizes: Sequence[int], block_indices: Sequence[int], slots: np.ndarray
    ) -> list[Run]:
        """The copies of a job. Raises `LayoutError` if blocks and slots do not belong together; nothing is copied then.

        As in vLLM's own worker: a group's blocks are consecutive, the first of them at `block_indices[group] %
        blocks_per_chunk` of its first chunk. Null blocks (id 0) count, but are not copied.
        """
        if len(group_sizes) != len(self.groups) or len(block_indices) != len(self.groups):
            raise LayoutError(f"a job of {len(group_sizes)} groups, the cache has {len(self.groups)}")
        per_chunk = self.blocks_per_chunk
        runs: list[Run] = []
        at_block = at_slot = 0
        for group, (size, first) in enumerate(zip(group_sizes, block_indices)):
            if not size:
                continue
            skip = first % per_chunk
            chunks = -(-(size + skip) // per_chunk)
            chunk_slots = slots[at_slot : at_slot + chunks]
            blocks = block_ids[at_block : at_block + size]
            if len(chunk_slots) != chunks or len(blocks) != size:
                break
            at_slot += chunks
            at_block += size
            positions = np.arange(skip, skip + size)
            wanted = blocks != 0
            if not wanted.all():
                positions, blocks = positions[wanted], blocks[wanted]
            runs.append(
                Run(
                    group,
                    blocks.astype(np.int64),
                    chunk_slots[positions // per_chunk].astype(np.int64),
                    positions % per_chunk,
                )
            )
        if at_slot != len(slots) or at_block != len(block_ids):
            raise LayoutError(
                f"{len(block_ids)} blocks in groups of {list(group_sizes)}, the first at {list(block_indices)}, "
                f"do not match {len(slots)} slots of "
                f"{per_chunk} blocks"
            )
        return runs


class RegionView:
    """This worker's part of all slots of a mapped region."""

    def __init__(self, layout: WorkerLayout, memory: Any, slots: int, slot_stride: int) -> None:
        """`memory` is the mapping: a writable buffer. Raises `LayoutError` if the part does not lie in a slot."""
        if layout.part_offset + layout.part_bytes > slot_stride:
            raise LayoutError(
                f"slots of {slot_stride} bytes are too short for a part of {layout.part_bytes} at {layout.part_offset}"
            )
        self.slots = slots
        self._groups = [
            [
                _pair(memory, slots, slot_stride, layout.part_offset, layout.blocks_per_chunk, reference)
                for reference in group
            ]
            for group in layout.groups
        ]

    def store(self, runs: Sequence[Run]) -> int:
        """Pages to slots. The bytes that were copied."""
        copied = 0
        for run in runs:
            for pages, area, page_bytes in self._groups[run.group]:
                area[run.slots, run.places] = pages[run.blocks]
                copied += len(run.blocks) * page_bytes
        return copied

    def load(self, runs: Sequence[Run]) -> int:
        """Slots to pages. The bytes that were copied."""
        copied = 0
        for run in runs:
            for pages, area, page_bytes in self._groups[run.group]:
                pages[run.blocks] = area[run.slots, run.places]
                copied += len(run.blocks) * page_bytes
        return copied


def _pair(
    memory: Any, slots: int, stride: int, part: int, per_chunk: int, reference: Reference
) -> tuple[np.ndarray, np.ndarray, int]:
    """A reference's pages and its area (slots, places, page) of the region, both of the widest element type that
    fits."""
    page_bytes, start = reference.page_bytes, part + reference.offset
    pages = reference.tensor.numpy()[:, :page_bytes]
    for width, dtype in _WIDTHS:
        if any(place % width for place in (page_bytes, start, stride, pages.strides[0], pages.ctypes.data)):
            continue
        shape, strides = (slots, per_chunk, page_bytes // width), (stride, page_bytes, width)
        return pages.view(dtype), np.ndarray(shape, dtype, memory, start, strides), page_bytes
    raise AssertionError("every number is a multiple of 1")
