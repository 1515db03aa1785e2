"""The worker's copies against a plain loop over blocks, and what it says when it cannot copy."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from terrace_kv.vllm.copies import open_worker
from terrace_kv.vllm.host_copier import HostCopier
from terrace_kv.vllm.layout import LayoutError, WorkerLayout
from terrace_kv.vllm.in_process_copier import LibraryCopier
from terrace_kv.vllm.settings import Settings
from terrace_kv.vllm.transfer import TerraceLoadStoreSpec
from terrace_kv.vllm.worker import TerraceWorker

from fake import options

BLOCKS = 24
SLOTS = 16


class Region:
    """A mapping."""

    def __init__(self, stride: int) -> None:
        self.memory = bytearray(random.Random(1).randbytes(SLOTS * stride))
        self.slots = SLOTS
        self.slot_stride = stride
        self.region = 7

    def array(self) -> np.ndarray:
        return np.frombuffer(self.memory, dtype=np.int8).reshape(SLOTS, self.slot_stride)


def host(session: WorkerScript, layout: WorkerLayout) -> TerraceWorker:
    """A worker that copies by its own threads."""
    return TerraceWorker(lambda ended: HostCopier(session, layout, ended))


def library(session: WorkerScript, layout: WorkerLayout) -> TerraceWorker:
    """A worker that copies by libterrace_copy.so."""
    return TerraceWorker(lambda ended: LibraryCopier(os.environ["TERRACE_COPY_LIBRARY"], session, layout, ended))


class WorkerScript:
    """A worker session."""

    def __init__(self, region: Region) -> None:
        self.regions = {7: region}
        self.reports: list[tuple[int, bool]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def begin(self, job: int, region: int) -> Any:
        assert self.gate.wait(10)
        return self.regions.get(region)

    def complete(self, jobs: list[tuple[int, bool]]) -> None:
        self.reports += jobs

    def close(self) -> None:
        self.closed = True


def caches(groups: list[list[int]], padding: int = 0, seed: int = 0) -> CanonicalKVCaches:
    """KV caches of random bytes: for each group the page bytes of its references, each padded."""
    draw = torch.Generator().manual_seed(seed)
    tensors, references = [], []
    for pages in groups:
        group = []
        for page in pages:
            whole = torch.randint(-128, 128, (BLOCKS, page + padding), dtype=torch.int8, generator=draw)
            group.append(CanonicalKVCacheRef(tensor_idx=len(tensors), page_size_bytes=page))
            tensors.append(CanonicalKVCacheTensor(tensor=whole, page_size_bytes=page + padding))
        references.append(group)
    return CanonicalKVCaches(tensors=tensors, group_data_refs=references)


def part_bytes(groups: list[list[int]], per_chunk: int) -> int:
    return max(sum(pages) for pages in groups) * per_chunk


def plain_copy(
    kv: CanonicalKVCaches,
    region: Region,
    per_chunk: int,
    offset: int,
    pages: GPULoadStoreSpec,
    slots: list[int],
    store: bool,
) -> None:
    """What the worker is to do, block by block."""
    array = region.array()
    at_slot = at_block = 0
    for group, (size, first) in enumerate(zip(pages.group_sizes, pages.block_indices)):
        if not size:
            continue
        skip = first % per_chunk
        for number in range(size):
            block = int(pages.block_ids[at_block + number])
            slot = slots[at_slot + (skip + number) // per_chunk]
            place = offset
            for reference in kv.group_data_refs[group]:
                length = reference.page_size_bytes
                begin = place + (skip + number) % per_chunk * length
                place += length * per_chunk
                if block:
                    page = kv.tensors[reference.tensor_idx].tensor.numpy()[block, :length]
                    if store:
                        array[slot, begin : begin + length] = page
                    else:
                        page[:] = array[slot, begin : begin + length]
        at_block += size
        at_slot += -(-(size + skip) // per_chunk)


def job(draw: random.Random, groups: int, per_chunk: int, nulls: bool) -> tuple[GPULoadStoreSpec, list[int]]:
    """A random job: blocks of some groups, a first chunk that is not whole, null blocks."""
    free = draw.sample(range(1, BLOCKS), BLOCKS - 1)
    sizes, firsts, blocks, chunks = [], [], [], 0
    for _ in range(groups):
        size = draw.choice([0, 1, 2, 3, 5])
        first = draw.randrange(4 * per_chunk)
        sizes.append(size)
        firsts.append(first)
        blocks += [0 if nulls and draw.random() < 0.3 else free.pop() for _ in range(size)]
        chunks += -(-(size + first % per_chunk) // per_chunk) if size else 0
    return GPULoadStoreSpec(blocks, group_sizes=sizes, block_indices=firsts), draw.sample(range(SLOTS), chunks)


@pytest.mark.parametrize("make", [host, library])
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("per_chunk", [1, 2, 3])
@pytest.mark.parametrize("groups", [[[64, 64]], [[7, 24, 8], [13]], [[32], [16, 16], [32]]])
@pytest.mark.parametrize("padding", [0, 8, 3])
def test_copies_are_those_of_a_plain_loop(
    make: Callable[[WorkerScript, WorkerLayout], TerraceWorker],
    store: bool,
    per_chunk: int,
    groups: list[list[int]],
    padding: int,
) -> None:
    draw = random.Random(f"{store} {per_chunk} {groups} {padding}")
    bytes_of_part = part_bytes(groups, per_chunk)
    for rank in (0, 1):
        kv, region = caches(groups, padding), Region(2 * bytes_of_part + 16)
        wanted_kv, wanted_region = caches(groups, padding), Region(2 * bytes_of_part + 16)
        session = WorkerScript(region)
        worker = make(session, WorkerLayout(kv, per_chunk, rank * bytes_of_part, bytes_of_part))
        for number in range(20):
            pages, slots = job(draw, len(groups), per_chunk, nulls=True)
            spec = TerraceLoadStoreSpec(7, number + 1, slots, "request")
            plain_copy(wanted_kv, wanted_region, per_chunk, rank * bytes_of_part, pages, slots, store)
            assert worker.submit_store(number, pages, spec) if store else worker.submit_load(number, spec, pages)
            if make is library:
                # Jobs that are in flight together end in any order, and these overlap.
                worker.wait({number})
        worker.wait(set(range(20)))
        assert np.array_equal(region.array(), wanted_region.array())
        for ours, theirs in zip(kv.tensors, wanted_kv.tensors):
            assert torch.equal(ours.tensor, theirs.tensor)
        assert session.reports == [(number + 1, True) for number in range(20)]
        assert [result.job_id for result in worker.get_finished()] == list(range(20))
        worker.shutdown()
        assert session.closed


def simple(per_chunk: int = 1) -> tuple[TerraceWorker, WorkerScript, CanonicalKVCaches, Region]:
    kv = caches([[16, 16]])
    region = Region(32 * per_chunk)
    session = WorkerScript(region)
    return host(session, WorkerLayout(kv, per_chunk, 0, 32 * per_chunk)), session, kv, region


def pages_of(*blocks: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(list(blocks), group_sizes=[len(blocks)], block_indices=[0])


def test_ranks_write_their_own_part_of_a_slot_and_one_copy_serves_all_where_bytes_are_equal() -> None:
    region = Region(64)
    sessions = [WorkerScript(region) for _ in range(2)]
    parts = [caches([[16, 16]], seed=rank) for rank in range(2)]
    workers = [host(sessions[rank], WorkerLayout(parts[rank], 1, rank * 32, 32)) for rank in range(2)]
    for worker in workers:
        worker.submit_store(0, pages_of(3), TerraceLoadStoreSpec(7, 1, [5], "request"))
        worker.wait({0})
    slot = region.array()[5]
    for rank in range(2):
        own = np.concatenate([tensor.tensor[3].numpy() for tensor in parts[rank].tensors])
        assert np.array_equal(slot[rank * 32 : rank * 32 + 32], own)
    # Replicated: the second rank reads what the first has written.
    reader = host(sessions[1], WorkerLayout(parts[1], 1, 0, 32))
    reader.submit_load(0, TerraceLoadStoreSpec(7, 2, [5], "request"), pages_of(9))
    reader.wait({0})
    assert torch.equal(parts[1].tensors[0].tensor[9], parts[0].tensors[0].tensor[3])
    for worker in (*workers, reader):
        worker.shutdown()


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("the job is void", TerraceLoadStoreSpec(7, 0, [1, 2], "request")),
        ("the region is unknown", TerraceLoadStoreSpec(8, 1, [1, 2], "request")),
        ("a slot does not exist", TerraceLoadStoreSpec(7, 1, [1, SLOTS], "request")),
        ("too few slots", TerraceLoadStoreSpec(7, 1, [1], "request")),
        ("too many slots", TerraceLoadStoreSpec(7, 1, [1, 2, 3], "request")),
    ],
)
def test_what_cannot_be_copied_is_a_success_to_vllm_and_the_truth_to_the_daemon(
    store: bool, what: str, spec: TerraceLoadStoreSpec
) -> None:
    worker, session, kv, region = simple()
    before = [tensor.tensor.clone() for tensor in kv.tensors], region.array().copy()
    if store:
        worker.submit_store(4, pages_of(1, 2), spec)
    else:
        worker.submit_load(4, spec, pages_of(1, 2))
    worker.wait({4})
    (result,) = worker.get_finished()
    assert (result.job_id, result.success, result.transfer_size) == (4, True, 0), what
    assert session.reports in ([], [(1, False)]), what
    assert worker.take_failed_requests({"request", "other"}) == (set() if store else {"request"}), what
    assert worker.take_failed_requests({"request"}) == set()
    assert all(torch.equal(tensor.tensor, old) for tensor, old in zip(kv.tensors, before[0])), what
    assert np.array_equal(region.array(), before[1]), what
    worker.shutdown()


def test_a_failed_load_is_named_only_with_its_request() -> None:
    worker, *_ = simple()
    worker.submit_load(1, TerraceLoadStoreSpec(7, 0, [1], "request"), pages_of(1))
    worker.wait({1})
    assert worker.take_failed_requests(set()) == set()
    assert worker.take_failed_requests({"request"}) == {"request"}
    worker.shutdown()


def test_nothing_to_copy_is_no_failure() -> None:
    worker, session, *_ = simple()
    worker.submit_load(
        1, TerraceLoadStoreSpec(0, 0, [], "request"), GPULoadStoreSpec([], group_sizes=[0], block_indices=[0])
    )
    worker.wait({1})
    assert worker.take_failed_requests({"request"}) == set()
    assert session.reports == []
    worker.shutdown()


def test_wait_returns_when_the_pages_were_read_and_loads_do_not_wait_for_stores() -> None:
    worker, session, kv, region = simple()
    session.gate.clear()
    worker.submit_store(1, pages_of(3), TerraceLoadStoreSpec(7, 1, [0], "request"))
    waiter = threading.Thread(target=worker.wait, args=({1},))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    assert worker.get_finished() == []
    worker.wait({99})
    session.gate.set()
    waiter.join(10)
    assert not waiter.is_alive()
    kv.tensors[0].tensor[3] = 0
    assert region.array()[0, :16].any()
    worker.shutdown()


def test_a_load_is_submitted_as_in_0_33() -> None:
    worker, session, *_ = simple()
    worker.submit_load(1, TerraceLoadStoreSpec(7, 1, [0], "request"), pages_of(1), expedited=True)
    worker.wait({1})
    assert session.reports == [(1, True)]
    worker.shutdown()


def test_shutdown_ends_what_was_submitted() -> None:
    worker, session, *_ = simple()
    for number in range(50):
        worker.submit_store(number, pages_of(1), TerraceLoadStoreSpec(7, number + 1, [number % SLOTS], "request"))
    worker.shutdown()
    assert len(session.reports) == 50


def on(device: str, index: int | None = None) -> Any:
    """The layout of a cache on a device that is not here."""
    where = torch.device(device, index) if index is not None else torch.device(device)
    tensor = SimpleNamespace(device=where, dtype=torch.int8, ndim=2, shape=(BLOCKS, 16))
    kv: Any = SimpleNamespace(
        tensors=[SimpleNamespace(tensor=tensor)],
        group_data_refs=[[CanonicalKVCacheRef(tensor_idx=0, page_size_bytes=16)]],
    )
    return WorkerLayout(kv, 1, 0, 16)


@pytest.mark.parametrize(
    ("layout", "way", "words"),
    [
        (lambda: on("cuda", 0), "host", r"cuda:0 and 'terrace_copy' is 'host'.*'auto'"),
        (lambda: on("xpu", 0), "auto", r"xpu:0: copies are made in host memory and on NVIDIA GPUs"),
        (lambda: WorkerLayout(caches([[16]]), 1, 0, 16), "daemon", r"cpu and 'terrace_copy' is 'daemon'"),
    ],
)
def test_who_cannot_copy_is_told_so(layout: Callable[[], WorkerLayout], way: str, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        open_worker(Settings("/nowhere/socket", copy=way), options("/nowhere/socket"), layout())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_without_its_driver_is_an_error_that_names_it(tmp_path: Path) -> None:
    settings = Settings("/nowhere/socket", copy="daemon")
    with pytest.raises(LayoutError, match=r"'daemon': libcuda.so.1, the CUDA driver's library, cannot be loaded"):
        open_worker(settings, options("/nowhere/socket"), on("cuda", 0))
    settings = Settings("/nowhere/socket", copy_library=str(tmp_path / "none.so"))
    with pytest.raises(LayoutError, match=r"none.so cannot be loaded.*cargo build --release -p terrace-copy"):
        open_worker(settings, options("/nowhere/socket"), on("cuda", 0))


def test_pages_that_do_not_fit_into_a_part_are_refused() -> None:
    with pytest.raises(LayoutError, match="64 bytes for each chunk"):
        WorkerLayout(caches([[16, 16]]), 2, 0, 63)
