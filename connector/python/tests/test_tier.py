"""The tier's session: the end of each row job is told once, and not while the daemon may still copy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terrace_kv import TierSession, next_job, numbers_to_bytes, tier_session
from terrace_kv.protocol import EndStepReply, ErrorCode, ForeignRegion, Hello, Kind, RowsDone, StoreRows, decode

from conftest import eventually
from fake import LIMITS, Fake, keys, options, region_file

Open = Callable[..., TierSession]


@pytest.fixture
def opened(path: str) -> Iterator[Open]:
    """Opens sessions, and closes them."""
    sessions: list[TierSession] = []
    region = region_file(1 << 16)

    def make(ready: bool = True, **changes: Any) -> TierSession:
        session = TierSession(options(path, **changes), region_fd=region, rows=8, row_stride=8192, offset_bytes=64)
        sessions.append(session)
        assert not ready or session.wait_ready(10)
        return session

    yield make
    for session in sessions:
        session.close()
    os.close(region)


def told(session: TierSession) -> list[RowsDone]:
    reply = session.poll()
    return reply.rows if reply is not None else []


def test_rows_go_out_and_come_back(fake: Fake, opened: Open) -> None:
    session = opened()
    hello = fake.seen(Kind.HELLO)[0]
    assert hello.header.descriptors == 1
    assert decode(Hello, hello.body).foreign == ForeignRegion(8, 8192, 64)
    store, load = next_job(), next_job()
    assert session.store_rows(1, store, keys(1, 2), [4, 5])
    assert session.load_rows(1, load, keys(3), numbers_to_bytes([6]))
    assert decode(StoreRows, fake.wait_seen(Kind.STORE_ROWS, 1)[0].body) == StoreRows(
        1, store, keys(1, 2), numbers_to_bytes([4, 5])
    )
    done = [RowsDone(store, b"\1\0", 5), RowsDone(load, b"\1", 6)]
    fake.on[Kind.END_STEP] = lambda peer, frame: peer.reply(frame, EndStepReply([], 0, done, [], 0, [], []))
    assert session.row_jobs == 2
    session.end_step()
    assert session.ping() is not None
    assert told(session) == done
    assert session.row_jobs == 0


def test_away_drops_at_once(opened: Open) -> None:
    session = opened(ready=False)
    assert not session.store_rows(1, next_job(), keys(1), [1])
    assert not session.load_rows(1, next_job(), keys(1), [1])
    assert session.row_jobs == 0
    assert session.counters["dropped_stores"] == 1


def test_a_refused_job_has_failed(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.LOAD_ROWS] = lambda peer, frame: peer.refuse(frame, ErrorCode.LIMIT)
    job = next_job()
    assert session.load_rows(1, job, keys(1, 2), [1, 2])
    assert session.ping() is not None
    assert told(session) == [RowsDone(job, b"\0\0", 0)]
    assert told(session) == []


def test_jobs_of_a_lost_connection_fail_when_their_time_is_over(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake lives in this process: it is seen to be alive."""
    session = opened()
    job = next_job()
    assert session.store_rows(1, job, keys(1), [1])
    fake.wait_seen(Kind.STORE_ROWS, 1)
    fake.peers[-1].close()
    eventually(lambda: session.counters["lost_connections"] == 1 or told(session) != [], "the connection is lost")
    assert session.wait_ready(10)
    assert told(session) == [], "the daemon may still copy"
    assert session.row_jobs == 1
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + tier_session.LOST_ROWS_S)
    assert told(session) == [RowsDone(job, b"\0", 0)]
    assert session.row_jobs == 0
    assert told(session) == []


DAEMON = "import sys, time; from fake import Fake; Fake(sys.argv[1]); print('ready', flush=True); time.sleep(60)"


def test_jobs_of_a_dead_daemon_fail_at_once(path: str, opened: Open) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", DAEMON, path], stdout=subprocess.PIPE, env=environment) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        session = opened()
        jobs = [next_job(), next_job()]
        assert all(session.load_rows(1, job, keys(1), [1]) for job in jobs)
        daemon.kill()
    found: list[RowsDone] = []

    def all_told() -> bool:
        found.extend(told(session))
        return len(found) == 2

    eventually(all_told, "both jobs failed", tier_session.LOST_ROWS_S / 2)
    assert found == [RowsDone(job, b"\0", 0) for job in jobs]


def test_limits(fake: Fake, opened: Open) -> None:
    session = opened()
    for number in range(LIMITS.jobs):
        assert session.store_rows(1, number + 1, keys(1), [1])
    assert not session.store_rows(1, next_job(), keys(1), [1])
    assert session.counters["over_limit"] == 1
