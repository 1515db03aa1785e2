"""The real `terrace serve`, and an engine that stores and loads through it."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from terrace_kv import (
    Answer,
    EndStepReply,
    LeaseEnd,
    LookupAnswer,
    Mapping,
    Scan,
    SchedulerSession,
    WorkerSession,
    next_job,
    numbers_to_bytes,
)

from fake import GEOMETRY, KEY_BYTES, options

CONFIG = """
[primary]
blocks = {blocks}

[geometry]
block_bytes = {block_bytes}

[server]
socket = "{socket}"

[[tier]]
type = "nvme"
blocks = 256
paths = ["{files}"]
"""


def binary() -> str:
    """The daemon's binary; an error that says how to build it."""
    cache = os.environ.get("TERRACE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "terrace"
    )
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(cache, "target")
    path = os.environ.get("TERRACE_BIN") or os.path.join(target, "release", "terrace")
    assert os.access(path, os.X_OK), f"{path} is missing: build it with `make build`, or set TERRACE_BIN"
    return path


class Daemon:
    """A daemon with an NVMe tier in a folder."""

    def __init__(self, folder: Path, blocks: int = 64) -> None:
        self.socket = str(folder / "s")
        self._log = folder / "log"
        self._config = folder / "terrace.toml"
        files = folder / "files"
        files.mkdir(exist_ok=True)
        self._config.write_text(
            CONFIG.format(blocks=blocks, block_bytes=GEOMETRY.block_bytes, socket=self.socket, files=files)
        )
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen([binary(), "serve", "--config", str(self._config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._listens():
            assert self.process.poll() is None, (
                f"the daemon ended with {self.process.returncode}:\n{self._log.read_text()}"
            )
            assert time.monotonic() < deadline, f"the daemon does not listen:\n{self._log.read_text()}"
            time.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. A stop is waited for: each thread ends its turn first."""
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.process.pid}/task").iterdir()):
                time.sleep(0.001)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends it, with this signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(") ")[2].startswith("T")


def payload(key: bytes) -> bytes:
    """What the block of a key holds: depends on nothing else."""
    return hashlib.shake_128(key).digest(GEOMETRY.block_bytes)


def slots_are_ready(session: SchedulerSession) -> bool:
    """Whether all slots of the pool are backed by memory."""
    return (session.stats() or {}).get('terrace_primary_slots{state="unready"}') == 0


class Engine:
    """A scheduler session and one worker session, and the calls of an engine's step."""

    def __init__(self, path: str, name: str, worker: bool = True, **changes: Any) -> None:
        self.scheduler = SchedulerSession(options(path, engine=name, store_workers=1, load_workers=1, **changes))
        self.worker = WorkerSession(options(path, engine=name, **changes)) if worker else None
        self._requests = 0
        self._outcomes: dict[int, bool] = {}

    def wait_ready(self) -> None:
        """Waits until the daemon knows the engine as whole, and all slots are backed by memory: behind the start, there
        is no room for a moment.
        """
        assert self.scheduler.wait_ready(20), self.scheduler.last_error
        assert self.worker is None or self.worker.wait_attached(20), self.worker.last_error
        deadline = time.monotonic() + 10
        while True:
            reply = self.step()
            if reply is not None and reply.workers == 1 and slots_are_ready(self.scheduler):
                return
            assert time.monotonic() < deadline, "the daemon does not count the worker, or its slots are not ready"

    def request(self) -> int:
        """A new request."""
        self._requests += 1
        return self._requests

    def step(self, leases: Sequence[LeaseEnd] = (), finished: Sequence[int] = ()) -> EndStepReply | None:
        """Ends a step, and gives the daemon time to answer it."""
        reply = self.scheduler.end_step(leases, (), finished)
        self._note(reply)
        time.sleep(0.005)
        late = self.scheduler.poll()
        self._note(late)
        return late or reply

    def _note(self, reply: EndStepReply | None) -> None:
        if reply is not None:
            self._outcomes |= {outcome.job: outcome.ok for outcome in reply.jobs}

    def outcome(self, job: int) -> bool:
        """How a job ended; waits for it."""
        deadline = time.monotonic() + 10
        while job not in self._outcomes:
            assert time.monotonic() < deadline, f"job {job} does not end"
            self.step()
        return self._outcomes.pop(job)

    def lookup(self, request: int, keys: bytes) -> LookupAnswer | None:
        """One lookup of one group."""
        return self.scheduler.lookup(request, 0xFFFF_FFFF, [(Scan.EACH, keys)])

    def store(self, keys: bytes) -> bool:
        """Stores the payloads of keys that are not there yet. Whether the daemon says that they are readable."""
        assert self.worker is not None
        request, job = self.request(), next_job()
        answer = self.scheduler.prepare_store(request, job, keys)
        if answer is None:
            return False
        if len(answer.slots):
            mapping = self.worker.begin(job, answer.region)
            assert mapping is not None
            for index, slot in zip(answer.store, answer.slots, strict=True):
                mapping.slot(slot, GEOMETRY.block_bytes)[:] = payload(keys[index * KEY_BYTES :][:KEY_BYTES])
            self.worker.complete([(job, True)])
            if not self.outcome(job):
                return False
        self.step(finished=[request])
        return True

    def load(self, keys: bytes, timeout_s: float = 10.0) -> int:
        """Brings what there is of the keys, compares each byte, and counts the blocks. Waits for promotions."""
        assert self.worker is not None
        request = self.request()
        deadline = time.monotonic() + timeout_s
        count = len(keys) // KEY_BYTES
        while True:
            answer = self.lookup(request, keys)
            kinds = [byte & 7 for byte in answer.answers] if answer is not None else [int(Answer.RETRY)]
            if answer is not None and all(kind in (Answer.HIT, Answer.MISS) for kind in kinds):
                break
            assert time.monotonic() < deadline, f"not resolved: {kinds}"
            waiting = (
                [LeaseEnd(answer.lease, 0, b"", numbers_to_bytes(range(count)))] if answer and answer.lease else []
            )
            self.step(waiting)
        hits = [index for index, kind in enumerate(kinds) if kind == Answer.HIT]
        if hits:
            job = next_job()
            self.step([LeaseEnd(answer.lease, job, numbers_to_bytes(hits))])
            mapping = self.worker.begin(job, answer.region)
            assert mapping is not None
            self._compare(mapping, keys, hits, answer)
            self.worker.complete([(job, True)])
            assert self.outcome(job)
        self.step(finished=[request])
        return len(hits)

    def _compare(self, mapping: Mapping, keys: bytes, hits: list[int], answer: LookupAnswer) -> None:
        for index, slot in zip(hits, answer.slots, strict=True):
            key = keys[index * KEY_BYTES :][:KEY_BYTES]
            assert bytes(mapping.slot(slot, GEOMETRY.block_bytes)) == payload(key), f"wrong bytes in slot {slot}"

    def close(self) -> None:
        """Ends both sessions."""
        self.scheduler.close()
        if self.worker is not None:
            self.worker.close()
