"""Copies that the daemon makes: what the worker hands over, asks for and waits for."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed import kv_transfer
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from terrace_kv.protocol import AttachReply, CopiedJob, CopyJob, DevicePages, numbers
from terrace_kv.vllm.compat import flush_in_step
from terrace_kv.vllm.cuda_device import DeviceError, Driver
from terrace_kv.vllm.device_copier import DeviceCopier
from terrace_kv.vllm.layout import WorkerLayout
from terrace_kv.vllm.transfer import TerraceLoadStoreSpec
from terrace_kv.vllm.worker import TerraceWorker

from vllm_worker import BLOCKS, caches


class Gpu:
    """A device whose allocations are whatever lies within 64 KiB."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.log: list[Any] = []
        self.exported: list[int] = []

    def uuid(self) -> bytes:
        return b"uuid of a device"

    def export(self, address: int) -> tuple[bytes, int, int]:
        self.exported.append(address)
        return f"memory {len(self.exported)}".encode().ljust(64), address % 65536, 65536

    def make_event(self) -> bytes:
        self.events.append(f"event {len(self.events)}".encode().ljust(64))
        return self.events[-1]

    def record(self, event: bytes) -> None:
        self.log.append(("record", self.events.index(event)))

    def hold_back(self, event: bytes) -> None:
        self.log.append(("hold back", event))


class Session:
    """A worker session over which the daemon copies."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.copier: DeviceCopier | None = None
        self.given_up: list[int] = []
        self.closed = False

    def copy(self, store: bool, jobs: Sequence[CopyJob], region: int) -> None:
        self.gpu.log.append(("copy", store, region, list(jobs)))

    def give_up(self, jobs: Sequence[int]) -> None:
        self.given_up += jobs
        for job in jobs:
            self.end(job, False)

    def end(self, job: int, ok: bool = True, size: int = 32) -> None:
        assert self.copier is not None
        self.copier.copied(CopiedJob(job, ok, size if ok else 0, 1))

    def close(self) -> None:
        self.closed = True


def simple(budget_s: float = 0.01, groups: list[list[int]] | None = None) -> tuple[TerraceWorker, Session, DeviceCopier]:
    gpu = Gpu()
    session = Session(gpu)
    layout = WorkerLayout(caches(groups or [[16, 16]], 8), 2, 64, 64)

    def make(ended: Any) -> DeviceCopier:
        session.copier = DeviceCopier(gpu, layout, ended, budget_s)
        session.copier.use(session)
        return session.copier

    worker = TerraceWorker(make)
    assert session.copier is not None
    session.copier.attached(AttachReply(b"stored", b"loaded"))
    return worker, session, session.copier


def spec(job: int, *slots: int) -> TerraceLoadStoreSpec:
    return TerraceLoadStoreSpec(7, job, list(slots), "request")


def pages(*blocks: int, first: int = 0) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(list(blocks), group_sizes=[len(blocks)], block_indices=[first])


def test_the_daemon_learns_where_the_pages_lie() -> None:
    _, session, copier = simple(groups=[[16, 8], [24]])
    attach = copier.attachment()
    assert (attach.device, attach.part_offset, attach.part_bytes, attach.null_block) == (b"uuid of a device", 64, 64, 0)
    assert [attach.store_ready, attach.load_ready] == session.gpu.events
    assert [[page.page_bytes for page in group] for group in attach.groups] == [[16, 8], [24]]
    assert [[page.page_stride for page in group] for group in attach.groups] == [[24, 16], [32]]
    bases = [address - address % 65536 for address in session.gpu.exported]
    assert len(set(bases)) == len(bases) == len(attach.memories), "an allocation is handed over once"
    assert all((memory.offset, memory.allocation_bytes) == (0, 65536) for memory in attach.memories)
    for page in (page for group in attach.groups for page in group):
        assert isinstance(page, DevicePages)
        assert page.num_blocks == BLOCKS
        assert page.offset + BLOCKS * page.page_stride <= 2 * 65536


def test_a_step_is_one_message_for_each_direction_behind_the_models_work() -> None:
    worker, session, _ = simple()
    log = session.gpu.log
    worker.submit_store(1, pages(3, 4, 5, first=1), spec(11, 8, 9))
    worker.submit_load(2, spec(12, 1), pages(6))
    worker.submit_store(3, pages(7), spec(13, 2))
    assert log == [], "the step is not whole"
    worker.flush()
    stores = [entry for entry in log if entry[0] == "copy" and entry[1]]
    assert [entry[0] for entry in log] == ["record", "copy", "record", "copy"]
    assert [entry[1] for entry in log if entry[0] == "record"] == [0, 1]
    ((_, _, region, jobs),) = stores
    assert region == 7
    assert [job.job for job in jobs] == [11, 13]
    lists = [jobs[0].blocks, jobs[0].sizes, jobs[0].firsts, jobs[0].slots]
    assert [list(numbers(wire)) for wire in lists] == [[3, 4, 5], [3], [1], [8, 9]]
    assert worker.get_finished() == []
    assert len(log) == 4, "nothing was submitted since"
    session.end(13)
    session.end(11, ok=False)
    (third, first) = worker.get_finished()
    assert (third.job_id, third.success, third.transfer_size) == (3, True, 32)
    assert (first.job_id, first.success, first.transfer_size) == (1, True, 0)
    assert len(log) == 4, "nobody waits for stores"
    session.end(12)
    assert [result.job_id for result in worker.get_finished()] == [2]
    assert log[4:] == [("hold back", b"loaded")], "the model waits for what was loaded"
    assert worker.get_finished() == []
    assert len(log) == 5
    worker.shutdown()
    assert session.closed


def test_a_load_that_failed_is_named() -> None:
    worker, session, _ = simple()
    worker.submit_load(2, spec(12, 1), pages(6))
    worker.submit_load(3, spec(0, 1), pages(6))
    worker.flush()
    session.end(12, ok=False)
    assert {result.job_id for result in worker.get_finished()} == {2, 3}
    assert worker.take_failed_requests({"request"}) == {"request"}
    assert ("hold back", b"loaded") not in session.gpu.log


def test_a_store_that_is_waited_for_ends_or_is_given_up() -> None:
    worker, session, _ = simple(budget_s=5)
    worker.submit_store(1, pages(3), spec(11, 8))
    threading.Timer(0.05, session.end, (11,)).start()
    worker.wait({1})
    assert session.given_up == []
    worker, session, _ = simple(budget_s=0.02)
    worker.submit_store(1, pages(3), spec(11, 8))
    worker.submit_store(2, pages(4), spec(12, 9))
    began = time.monotonic()
    worker.wait({1, 99})
    assert time.monotonic() - began >= 0.02
    assert session.given_up == [11], "what nobody waits for goes on"
    assert [result.job_id for result in worker.get_finished()] == [1]


def test_a_load_is_waited_for_until_the_daemon_says_so() -> None:
    worker, session, _ = simple(budget_s=0.01)
    worker.submit_load(1, spec(11, 8), pages(3))
    waiter = threading.Thread(target=worker.wait, args=({1},))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive(), "its pages are the daemon's"
    assert session.given_up == []
    session.end(11)
    waiter.join(10)
    assert not waiter.is_alive()


def test_the_step_ends_when_the_connector_has_started_its_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    connector = types.SimpleNamespace(start_load_kv=lambda *arguments: calls.append("start"))
    monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: True)
    monkeypatch.setattr(kv_transfer, "get_kv_transfer_group", lambda: connector)
    assert flush_in_step(lambda: calls.append("flush"))
    connector.start_load_kv(object())
    assert calls == ["start", "flush"]
    monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: False)
    assert not flush_in_step(lambda: None)


DRIVER = r"""
#include <string.h>
typedef unsigned long long u64;
int cuCtxGetDevice(int *device) { *device = 3; return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 'a' + device, 16); uuid[5] = 0; return 0; }
int cuMemGetAddressRange_v2(u64 *base, size_t *size, u64 address) {
  if (address < 0x700000000000) return 1;
  *base = address & ~0xffffULL; *size = 0x10000; return 0;
}
int cuIpcGetMemHandle(char *handle, u64 base) {
  memset(handle, 0, 64); memcpy(handle + 8, &base, 8); return base & 0x100000 ? 801 : 0;
}
"""


def test_the_driver_is_called_as_it_is_declared(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed, as for building the daemon"
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    driver = Driver(str(library))
    assert driver.uuid() == b"ddddd\0dddddddddd"
    assert driver.allocation(0x7F0000012345) == (0x7F0000010000, 0x10000)
    handle = driver.memory_handle(0x7F0000010000)
    assert len(handle) == 64
    assert ctypes.c_uint64.from_buffer_copy(handle, 8).value == 0x7F0000010000
    with pytest.raises(DeviceError, match="cuMemGetAddressRange_v2 failed with CUresult 1"):
        driver.allocation(0x1000)
    with pytest.raises(DeviceError, match="CUresult 801"):
        driver.memory_handle(0x7F0000110000)
    with pytest.raises(DeviceError, match="cannot be loaded"):
        Driver(str(tmp_path / "none.so"))
