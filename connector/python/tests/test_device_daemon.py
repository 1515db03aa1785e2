"""A worker whose copies the real daemon makes, on a device that exists only in memory: no machine here has a GPU.

The daemon is `scripted_daemon`, an example of the project; `tests/python/run` builds it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from terrace_kv import LeaseEnd, LookupAnswer, WorkerSession, next_job, numbers_to_bytes
from terrace_kv.protocol import Attach, AttachReply, CopiedJob, CopyJob, DeviceMemory, DevicePages

from conftest import eventually
from daemon import CONFIG, Engine, payload
from fake import GEOMETRY, keys, options

BINARY = os.environ.get("TERRACE_SCRIPTED_DAEMON", "")
pytestmark = pytest.mark.skipif(not BINARY, reason="NOT RUN: TERRACE_SCRIPTED_DAEMON names no daemon")

#: `scripted::UUID` of terrace-kernels.
UUID = b"scripted device!"
PAGES, PAGE_BYTES = 16, GEOMETRY.block_bytes
#: A page that counts and is not copied.
NULL = 0
_numbers = itertools.count(1)


def handle(kind: bytes, file: int, length: int, value: int) -> bytes:
    """What the scripted driver makes of its 64 bytes: see `kernels/src/cuda/scripted/shared.rs`."""
    process = os.getpid() | (file + 1 if file >= 0 else 0) << 32
    return struct.pack("<8sQQQ", kind, process, length, value).ljust(64, b"\0")


def event() -> bytes:
    """An event of this process: its work is always done."""
    return handle(b"event  1", -1, 0, next(_numbers))


class Device:
    """KV memory of a worker, and who has copies made."""

    def __init__(self) -> None:
        self.file = os.memfd_create("pages", os.MFD_CLOEXEC)
        os.ftruncate(self.file, PAGES * PAGE_BYTES)
        self.memory = mmap.mmap(self.file, PAGES * PAGE_BYTES)
        self.events = event(), event()
        self.replies: list[AttachReply] = []
        self.refusals: list[str] = []
        self.ended: dict[int, CopiedJob] = {}

    def attachment(self) -> Attach:
        length = PAGES * PAGE_BYTES
        # The value names the allocation: any number that no other one of this process has.
        memory = DeviceMemory(handle(b"memory 1", self.file, length, next(_numbers) << 20), 0, length)
        pages = DevicePages(0, 0, PAGES, PAGE_BYTES, PAGE_BYTES)
        return Attach(UUID, [memory], [[pages]], 0, PAGE_BYTES, NULL, *self.events)

    def attached(self, reply: AttachReply) -> None:
        self.replies.append(reply)

    def not_attached(self, why: str) -> None:
        self.refusals.append(why)

    def copied(self, job: CopiedJob) -> None:
        self.ended[job.job] = job

    def page(self, index: int) -> memoryview:
        return memoryview(self.memory)[index * PAGE_BYTES :][:PAGE_BYTES]


class DeviceEngine(Engine):
    """A scheduler session and a worker session whose copies the daemon makes."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path, name, worker=False)
        self.device = Device()
        self.worker = WorkerSession(options(path, engine=name), self.device)
        eventually(lambda: self.copies.takes_copies or bool(self.device.refusals), "the daemon answers the attachment")
        assert self.device.refusals == []

    @property
    def copies(self) -> WorkerSession:
        assert self.worker is not None
        return self.worker

    def copy(self, store: bool, job: int, pages: list[int], slots: list[int], region: int) -> CopiedJob:
        """One job in a step of its own; waits for its end."""
        lists = (pages, [len(pages)], [0], slots)
        self.copies.copy(store, [CopyJob(job, *map(numbers_to_bytes, lists))], region)
        eventually(lambda: job in self.device.ended, "the copies ended")
        return self.device.ended.pop(job)

    def close(self) -> None:
        self.copies.close()
        self.scheduler.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Socket and process of a scripted daemon."""
    files, path = tmp_path / "files", tmp_path / "s"
    files.mkdir()
    text = CONFIG.format(blocks=64, block_bytes=GEOMETRY.block_bytes, socket=path, files=files)
    (tmp_path / "terrace.toml").write_text(text + '\n[copy]\npath = "runs"\n')
    process = subprocess.Popen(
        [BINARY, "--config", str(tmp_path / "terrace.toml")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    yield str(path), process
    process.kill()
    process.communicate()


def held_store(engine: DeviceEngine, process: "subprocess.Popen[str]") -> tuple[int, bytes]:
    """Holds all copies of the daemon, which does so when it has read the line: the first store that does not end, and its key."""
    assert process.stdin is not None
    process.stdin.write("hold\n")
    process.stdin.flush()
    for number in range(100, 160):
        request, job, key = engine.request(), next_job(), keys(number)
        answer = engine.scheduler.prepare_store(request, job, key)
        assert answer is not None
        lists = ([4], [1], [0], list(answer.slots))
        engine.copies.copy(True, [CopyJob(job, *map(numbers_to_bytes, lists))], answer.region)
        until = time.monotonic() + 0.2
        while job not in engine.device.ended and time.monotonic() < until:
            time.sleep(0.005)
        if job not in engine.device.ended:
            return job, key
        assert engine.device.ended.pop(job).ok
        assert engine.outcome(job)
    raise AssertionError("the daemon does not hold its copies")


def found(engine: DeviceEngine, request: int, wanted: bytes) -> LookupAnswer:
    answer = engine.lookup(request, wanted)
    assert answer is not None
    return answer


def test_what_one_worker_stored_another_loads(daemon: tuple[str, "subprocess.Popen[str]"]) -> None:
    one, other = DeviceEngine(daemon[0], "one"), DeviceEngine(daemon[0], "other")
    one.wait_ready()
    other.wait_ready()
    wanted = keys(1, 2, 3)
    for page, number in ((4, 1), (9, 2), (5, 3)):
        one.device.page(page)[:] = payload(keys(number))
    request, job = one.request(), next_job()
    answer = one.scheduler.prepare_store(request, job, wanted)
    assert answer is not None
    assert len(answer.slots) == 3
    ended = one.copy(True, job, [4, 9, 5], list(answer.slots), answer.region)
    assert (ended.ok, ended.bytes) == (True, 3 * PAGE_BYTES)
    assert one.outcome(job), "the daemon says that they are readable"

    request, job = other.request(), next_job()
    lookup = found(other, request, wanted)
    assert [byte & 7 for byte in lookup.answers] == [1, 1, 1]
    other.step([LeaseEnd(lookup.lease, job, numbers_to_bytes([0, 1, 2]), b"")])
    ended = other.copy(False, job, [2, NULL, 7], list(lookup.slots), other.copies.region)
    assert (ended.ok, ended.bytes) == (True, 2 * PAGE_BYTES)
    assert other.outcome(job)
    assert bytes(other.device.page(2)) == payload(keys(1))
    assert bytes(other.device.page(7)) == payload(keys(3))
    assert bytes(other.device.page(NULL)) == bytes(PAGE_BYTES), "the null block is not copied"
    other.close()
    one.close()


def test_slots_of_others_are_not_copied_and_a_given_up_store_is_not_published(
    daemon: tuple[str, "subprocess.Popen[str]"],
) -> None:
    path, process = daemon
    engine = DeviceEngine(path, "one")
    engine.wait_ready()
    request, job = engine.request(), next_job()
    answer = engine.scheduler.prepare_store(request, job, keys(1))
    assert answer is not None
    (slot,) = answer.slots
    assert not engine.copy(True, job, [4], [(slot + 1) % 64], answer.region).ok
    assert not engine.outcome(job)
    job, key = held_store(engine, process)
    engine.copies.give_up([job])
    assert not engine.device.ended.pop(job).ok
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert not engine.outcome(job)
    assert [byte & 7 for byte in found(engine, engine.request(), key).answers] == [0]
    engine.close()


def test_loads_of_a_daemon_that_is_killed_end(daemon: tuple[str, "subprocess.Popen[str]"]) -> None:
    path, process = daemon
    engine = DeviceEngine(path, "one")
    engine.wait_ready()
    request, job = engine.request(), next_job()
    answer = engine.scheduler.prepare_store(request, job, keys(1))
    assert answer is not None
    assert engine.copy(True, job, [4], list(answer.slots), answer.region).ok
    assert engine.outcome(job)
    held_store(engine, process)
    job = next_job()
    lookup = found(engine, request, keys(1))
    engine.step([LeaseEnd(lookup.lease, job, numbers_to_bytes([0]), b"")])
    lists = ([6], [1], [0], list(lookup.slots))
    engine.copies.copy(False, [CopyJob(job, *map(numbers_to_bytes, lists))], engine.copies.region)
    process.kill()
    process.wait()
    eventually(lambda: job in engine.device.ended, "the load ended with its daemon")
    assert not engine.device.ended[job].ok
    assert not engine.copies.takes_copies
    engine.close()
