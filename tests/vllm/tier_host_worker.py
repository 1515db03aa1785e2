"""vLLM's own tiering on a machine without a GPU.

vLLM's `TieringOffloadingSpec` refuses to make a worker there. `HostTieringSpec` is that spec with a plain worker:
pages are copied between the KV cache tensors and vLLM's region file in /dev/shm, whose rows are laid out as vLLM's
own worker lays them out. Manager, region and secondary tiers are vLLM's, unchanged. Used by the tests of
`TerraceTier` and by the bench that runs vLLM's own tiers beside Terrace.

In `kv_connector_extra_config`: `"spec_name": "HostTieringSpec", "spec_module_path": "tier_host_worker"`, with this
folder on `PYTHONPATH`.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from dataclasses import dataclass

import numpy as np
import torch

from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


@dataclass(frozen=True)
class _Tensor:
    """Addresses of one KV cache tensor and of its part of a row."""

    gpu: int
    gpu_stride: int
    row: int
    row_stride: int
    page_bytes: int


def _chunk_pages(spec: BlockIDsLoadStoreSpec, gpu: GPULoadStoreSpec, blocks_per_chunk: int) -> list[np.ndarray]:
    """For each group, (chunk, page in the chunk) of each of its GPU blocks: what lies before the first block in the
    first chunk is skipped.
    """
    pages, taken = [], 0
    for size, first in zip(gpu.group_sizes, gpu.block_indices, strict=True):
        skip = first % blocks_per_chunk if size else 0
        at = np.arange(skip, skip + size)
        chunks = spec.block_ids[taken + at // blocks_per_chunk]
        taken += -(-(skip + size) // blocks_per_chunk)
        pages.append(np.stack([chunks.astype(np.int64), at % blocks_per_chunk], axis=1))
    if taken != len(spec.block_ids):
        raise ValueError(f"{len(spec.block_ids)} chunks given, the GPU blocks need {taken}")
    return pages


class HostCopyWorker(OffloadingWorker):
    """Copies on one thread, jobs in the order of their submission."""

    def __init__(self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._groups = kv_caches.group_data_refs
        self._tensors = []
        for cache in kv_caches.tensors:
            rows = region.create_next_worker_view(cache.page_size_bytes * blocks_per_chunk)
            pages = cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            self._tensors.append(
                _Tensor(pages.data_ptr(), pages.stride(0), rows.data_ptr(), rows.stride(0), cache.page_size_bytes)
            )
        self._kv_caches = kv_caches
        self._jobs: queue.SimpleQueue[tuple[int, bool, LoadStoreSpec, GPULoadStoreSpec] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._open: set[int] = set()
        self._finished: list[TransferResult] = []
        self._thread = threading.Thread(target=self._run, name="host-copy", daemon=True)
        self._thread.start()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, True, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, False, src_spec, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open.isdisjoint(job_ids))

    def shutdown(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._region.cleanup()

    def _submit(self, job_id: int, store: bool, rows: LoadStoreSpec, gpu: GPULoadStoreSpec) -> bool:
        with self._changed:
            self._open.add(job_id)
        self._jobs.put((job_id, store, rows, gpu))
        return True

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job_id, store, rows, gpu = job
            begin = time.perf_counter()
            copied, ok = 0, True
            try:
                assert isinstance(rows, BlockIDsLoadStoreSpec)
                copied = self._copy(store, rows, gpu)
            except Exception:  # noqa: BLE001 - vLLM's worker reports a failure, it does not raise
                ok = False
            with self._changed:
                self._open.discard(job_id)
                self._finished.append(TransferResult(job_id, ok, copied, time.perf_counter() - begin))
                self._changed.notify_all()

    def _copy(self, store: bool, rows: BlockIDsLoadStoreSpec, gpu: GPULoadStoreSpec) -> int:
        copied, first = 0, 0
        for group, pages in zip(self._groups, _chunk_pages(rows, gpu, self._blocks_per_chunk), strict=True):
            blocks = gpu.block_ids[first : first + len(pages)].astype(np.int64)
            first += len(pages)
            for ref in group:
                tensor = self._tensors[ref.tensor_idx]
                in_gpu = tensor.gpu + blocks * tensor.gpu_stride
                in_row = tensor.row + pages[:, 0] * tensor.row_stride + pages[:, 1] * tensor.page_bytes
                to, source = (in_row, in_gpu) if store else (in_gpu, in_row)
                for to_address, source_address in zip(to.tolist(), source.tolist(), strict=True):
                    ctypes.memmove(to_address, source_address, ref.page_size_bytes)
                copied += len(pages) * ref.page_size_bytes
        return copied


class HostTieringSpec(TieringOffloadingSpec):
    """vLLM's tiering with `HostCopyWorker`."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
