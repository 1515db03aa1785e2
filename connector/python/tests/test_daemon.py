"""Against the real daemon: bytes that come back, and what its end, its stop and a worker's death cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from terrace_kv import Answer, Namespace, Scan, TierSession, next_job

from conftest import eventually
from daemon import Daemon, Engine, payload, slots_are_ready
from fake import GEOMETRY, key, keys, options

Make = Callable[..., Engine]


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    running = Daemon(folder)
    yield running
    running.send(signal.SIGCONT)
    running.end()


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Make]:
    """Makes engines that are ready, and closes them."""
    engines: list[Engine] = []

    def make(name: str = "a", ready: bool = True, **changes: Any) -> Engine:
        made = Engine(daemon.socket, name, **changes)
        engines.append(made)
        if ready:
            made.wait_ready()
        return made

    yield make
    for made in engines:
        made.close()


def several(first: int, count: int) -> bytes:
    return keys(*range(first, first + count))


def test_bytes_come_back(engine: Make) -> None:
    one = engine()
    before = one.scheduler.counters
    assert one.load(several(0, 8)) == 0
    assert one.store(several(0, 8))
    assert one.load(several(0, 10)) == 8
    assert one.store(several(0, 8)), "what is there already is not copied again"
    counters = one.scheduler.counters
    assert (counters["timeouts"], counters["refused"], counters["protocol_errors"]) == (0, 0, 0)
    assert counters["round_trips"] - before["round_trips"] == counters["lookups"] + counters["stores"]


def test_pins_statistics_and_reset(engine: Make) -> None:
    one = engine()
    assert one.store(several(0, 4))
    request = one.request()
    assert one.lookup(request, several(0, 4)) is not None
    assert one.scheduler.pin(request, several(0, 4), 5.0) == 4
    assert one.scheduler.unpin(request, several(0, 4))
    one.step(finished=[request])
    stats = one.scheduler.stats()
    assert stats is not None
    assert stats['terrace_primary_slots{state="evictable"}'] + stats['terrace_primary_slots{state="in_use"}'] == 4
    assert one.scheduler.ping() is not None
    assert one.scheduler.reset()
    assert one.scheduler.counters["refused"] == 0


def test_two_engines_share(engine: Make) -> None:
    one, other = engine("a"), engine("b")
    assert one.store(several(0, 6))
    assert other.load(several(0, 6)) == 6
    assert other.store(several(3, 6))
    assert one.load(several(0, 9)) == 9


def test_other_namespaces_do_not_share(engine: Make, daemon: Daemon) -> None:
    one = engine("a")
    assert one.store(several(0, 2))
    one.close()
    other = engine("b", namespace=Namespace("another model"))
    assert other.load(several(0, 2)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_restarted_daemon_is_found_again_with_what_it_had_on_disk(
    engine: Make, daemon: Daemon, number: signal.Signals
) -> None:
    one = engine()
    assert one.store(several(0, 8))
    stored = time.monotonic()
    eventually(lambda: one.load(several(0, 8)) == 8 and time.monotonic() - stored > 1.0, "the cascade is through")
    epoch = one.scheduler.epoch
    code = daemon.end(number)
    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    eventually(lambda: one.scheduler.state == "away", "the loss is seen")
    assert one.load(several(0, 8)) == 0
    assert not one.store(several(20, 1))
    daemon.start()
    eventually(lambda: one.scheduler.epoch > epoch, "connected again")
    one.wait_ready()
    assert one.load(several(0, 8)) == 8
    assert one.store(several(8, 4))
    assert one.load(several(0, 12)) == 12


def test_a_stopped_daemon_costs_one_budget(engine: Make, daemon: Daemon) -> None:
    one = engine(call_budget_s=0.05, stall_patience_s=0.2)
    assert one.store(several(0, 4))
    before = one.scheduler.counters
    daemon.send(signal.SIGSTOP)
    stopped = time.monotonic()
    answers = []
    while time.monotonic() - stopped < 1.0:
        answers.append(one.lookup(1, several(0, 4)))
        assert one.scheduler.prepare_store(1, next_job(), several(30, 1)) is None
        assert one.scheduler.ping() is None
        one.scheduler.end_step()
    after = one.scheduler.counters
    assert after["timeouts"] - before["timeouts"] == 1, "only the first call waited"
    assert after["lost_connections"] == 0
    assert answers[0] is None, "ask again"
    assert answers[-1] is not None and answers[-1].answers == bytes(4), "patience ends"
    daemon.send(signal.SIGCONT)
    eventually(lambda: one.load(several(0, 4)) == 4, "it answers again")
    eventually(lambda: one.store(several(4, 4)), "and stores")


def test_a_store_that_the_daemon_prepared_too_late_is_given_up(engine: Make, daemon: Daemon) -> None:
    one = engine(call_budget_s=0.05, stall_patience_s=60.0)
    daemon.send(signal.SIGSTOP)
    assert one.scheduler.prepare_store(one.request(), next_job(), several(0, 4)) is None
    daemon.send(signal.SIGCONT)
    eventually(lambda: one.scheduler.state == "ready", "it answers again")
    assert one.scheduler.counters["late_replies"] == 1
    one.step()
    eventually(lambda: one.store(several(0, 4)), "a store within the budget")
    assert one.load(several(0, 4)) == 4, "its slots came back: nothing waits for bytes that nobody copies"


def test_a_daemon_that_is_stopped_when_the_engine_starts(engine: Make, daemon: Daemon) -> None:
    daemon.send(signal.SIGSTOP)
    one = engine(ready=False)
    for _ in range(20):
        missed = one.lookup(1, several(0, 2))
        assert missed is not None and missed.answers == bytes(2)
        one.scheduler.end_step()
    assert one.scheduler.counters["waited_us"] == 0
    daemon.send(signal.SIGCONT)
    one.wait_ready()
    assert one.store(several(0, 2))


WORKER = """
import sys, time
from terrace_kv import WorkerSession
from fake import options
session = WorkerSession(options(sys.argv[1], engine="a"))
assert session.wait_attached(20)
print("attached", flush=True)
job, region, slot = map(int, sys.stdin.readline().split())
mapping = session.begin(job, region)
mapping.slot(slot)[:7] = b"partial"
print("written", flush=True)
time.sleep(60)
"""


def test_a_worker_that_is_killed_in_the_middle_of_a_store(engine: Make, daemon: Daemon) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, daemon.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "attached\n"
        one = engine("a", worker=False)
        job, request = next_job(), one.request()
        answer = one.scheduler.prepare_store(request, job, keys(1))
        assert answer is not None
        child.stdin.write(f"{job} {answer.region} {answer.slots[0]}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "written\n"
        other = engine("b")
        killed = time.monotonic()
        child.kill()
    assert one.outcome(job) is False
    assert time.monotonic() - killed < 5
    assert other.load(keys(1)) == 0, "what was half written is never readable"
    one.step(finished=[request])
    assert other.store(keys(1))
    assert other.load(keys(1)) == 1


def test_a_tier_stores_and_loads_rows(engine: Make, daemon: Daemon) -> None:
    stride = GEOMETRY.block_bytes + 512
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        region = os.dup(file.fileno())
    os.ftruncate(region, 64 + 8 * stride)
    session = TierSession(
        options(daemon.socket, engine="t"), region_fd=region, rows=8, row_stride=stride, offset_bytes=64
    )
    try:
        assert session.wait_ready(20), session.last_error
        eventually(lambda: slots_are_ready(session), "all slots are ready")
        os.pwrite(region, payload(key(1)), 64)
        os.pwrite(region, payload(key(2)), 64 + stride)
        done: dict[int, bytes] = {}

        def ended(job: int) -> bool:
            for reply in (session.end_step(), session.poll()):
                done.update({row.job: row.ok for row in reply.rows} if reply is not None else {})
            return job in done

        store, load = next_job(), next_job()
        assert session.store_rows(1, store, keys(1, 2), [0, 1])
        eventually(lambda: ended(store), "the store ends")
        assert done[store] == b"\1\1"

        def found() -> list[int]:
            ended(store)
            answer = session.lookup(1, 0xFFFF_FFFF, [(Scan.EACH, keys(1, 2, 3))], lease=False)
            assert answer is not None and answer.lease == 0
            return [byte & 7 for byte in answer.answers]

        # A directory that was just opened does not know at once what it has not got.
        eventually(lambda: Answer.RETRY not in found(), "the tier knows its files")
        assert found() == [Answer.HIT, Answer.HIT, Answer.MISS]
        assert session.load_rows(1, load, keys(2, 3, 1), [5, 6, 7])
        eventually(lambda: ended(load), "the load ends")
        assert done[load] == b"\1\0\1"
        assert os.pread(region, GEOMETRY.block_bytes, 64 + 5 * stride) == payload(key(2))
        assert os.pread(region, GEOMETRY.block_bytes, 64 + 7 * stride) == payload(key(1))
        assert session.row_jobs == 0
    finally:
        session.close()
        os.close(region)
