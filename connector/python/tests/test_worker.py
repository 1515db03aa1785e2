"""The worker's session: the region, which copies may be made, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terrace_kv import WorkerSession, next_job
from terrace_kv.protocol import Complete, CompletedJob, ErrorCode, Kind, decode

from conftest import eventually
from fake import Fake, options, region_file

Open = Callable[..., WorkerSession]


@pytest.fixture
def opened(path: str) -> Iterator[Open]:
    """Opens sessions, and closes them."""
    sessions: list[WorkerSession] = []

    def make(attached: bool = True, **changes: Any) -> WorkerSession:
        session = WorkerSession(options(path, rank=1, **changes))
        sessions.append(session)
        assert not attached or session.wait_attached(10)
        return session

    yield make
    for session in sessions:
        session.close()


def reports(fake: Fake) -> list[CompletedJob]:
    """All reports that arrived, in order."""
    return [job for frame in fake.seen(Kind.COMPLETE) for job in decode(Complete, frame.body).jobs]


def lost(session: WorkerSession) -> bool:
    return not session.attached


def test_away(opened: Open) -> None:
    session = opened(attached=False)
    assert (session.attached, session.region, session.map(7), session.begin(next_job(), 7)) == (False, 0, None, None)
    session.complete([(1, True)])
    assert session.counters["dropped_reports"] == 2
    assert not session.wait_attached(0.01)


def test_a_copy_and_its_report(fake: Fake, opened: Open) -> None:
    session = opened()
    job = next_job()
    mapping = session.begin(job, 7)
    assert mapping is not None
    assert mapping is session.map(7)
    assert (mapping.slots, mapping.slot_stride, session.region) == (8, 4096, 7)
    mapping.slot(3)[:5] = b"bytes"
    session.complete([(job, True), (12, False)])
    fake.wait_seen(Kind.COMPLETE, 1)
    assert reports(fake) == [CompletedJob(job, True), CompletedJob(12, False)]
    assert session.map(8) is None
    assert session.begin(next_job(), 8) is None


def test_what_was_handed_out_before_the_worker_attached_is_not_copied(fake: Fake, opened: Open) -> None:
    session = opened()
    before, running = next_job(), next_job()
    assert session.begin(running, 7) is not None
    fake.peers[0].close()
    eventually(lambda: lost(session), "the connection is lost")
    late = next_job()
    assert session.begin(late, 7) is not None, "the daemon holds what it handed out until the worker attaches again"
    time.sleep(0.2)
    assert len(fake.seen(Kind.HELLO)) == 1, "a copy is running: the worker must not say it has ended"
    session.complete([(running, True)])
    time.sleep(0.1)
    assert len(fake.seen(Kind.HELLO)) == 1
    session.complete([(late, True)])
    fake.wait_seen(Kind.HELLO, 2)
    assert session.wait_attached(10)
    assert session.begin(before, 7) is None
    assert session.begin(late, 7) is None
    assert session.begin(next_job(), 7) is not None
    assert session.counters["refused_copies"] == 2
    fake.wait_seen(Kind.COMPLETE, 2)
    assert reports(fake) == [CompletedJob(before, False), CompletedJob(late, False)], (
        "reports of the lost connection are not sent"
    )


def test_the_same_region_is_mapped_once(fake: Fake, opened: Open) -> None:
    session = opened()
    mapping = session.map(7)
    fake.peers[0].close()
    fake.wait_seen(Kind.HELLO, 2)
    eventually(lambda: session.attached and len(fake.peers) == 2, "attached again")
    assert session.map(7) is mapping


def test_a_new_region_and_the_old_one(fake: Fake, path: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    before = next_job()
    old = session.map(7)
    assert old is not None
    old.slot(0)[:3] = b"old"
    fake.end()
    eventually(lambda: lost(session), "the connection is lost")
    assert session.map(7) is old
    another = Fake(path, region=8)
    assert session.wait_attached(10)
    assert session.region == 8
    kept = session.begin(before, 7)
    assert kept is old, "a load that was on its way is still right"
    assert bytes(kept.slot(0, 3)) == b"old"
    session.complete([(before, True)])
    assert session.counters["dropped_reports"] == 1, "its daemon is gone"
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 31.0)
    assert session.map(7) is None
    assert session.map(8) is not None
    session.close()
    another.end()


def test_a_number_of_a_region_that_is_used_again_is_another_mapping(fake: Fake, path: str, opened: Open) -> None:
    session = opened()
    old = session.map(7)
    fake.end()
    eventually(lambda: lost(session), "the connection is lost")
    another = Fake(path, region=7)
    assert session.wait_attached(10)
    assert session.map(7) is not old
    session.close()
    another.end()


def test_a_region_that_is_too_short_is_not_attached(fake: Fake, opened: Open) -> None:
    fake.region = region_file(4096)
    session = opened(attached=False)
    eventually(lambda: session.counters["failed_attempts"] > 2, "refused again and again")
    assert not session.attached
    assert "4096 bytes" in session.last_error


def test_reports_that_the_daemon_does_not_read_are_kept(fake: Fake, opened: Open) -> None:
    session = opened()
    block = [True]

    def hold(peer: object, frame: object) -> None:
        while block[0]:
            time.sleep(0.01)

    fake.on[Kind.COMPLETE] = hold
    expected = 0
    for _ in range(400):
        session.complete([(expected + number + 1, True) for number in range(200)])
        expected += 200
    connection = session._connection
    assert connection is not None
    assert 0 < connection.pending_bytes <= 1 << 20
    block[0] = False
    eventually(lambda: len(reports(fake)) == expected, "all arrive")
    assert [report.job for report in reports(fake)] == list(range(1, expected + 1))


def test_refusals_and_nonsense(fake: Fake, opened: Open) -> None:
    fake.on[Kind.COMPLETE] = lambda peer, frame: peer.refuse(frame, ErrorCode.UNKNOWN)
    session = opened()
    session.complete([(1, True)])
    eventually(lambda: session.counters["refused"] == 1, "the refusal is read")
    assert session.attached
    fake.peers[-1].socket.sendall(bytes(32))
    eventually(lambda: session.counters["protocol_errors"] == 1, "nonsense ends the connection")
    fake.wait_seen(Kind.HELLO, 2)


def test_close_reports_and_says_bye(fake: Fake, opened: Open) -> None:
    session = opened()
    session.complete([(5, True)])
    session.close()
    fake.wait_seen(Kind.BYE, 1)
    assert [frame.header.kind for frame in fake.frames] == [Kind.HELLO, Kind.COMPLETE, Kind.BYE]
    assert not session._link._thread.is_alive()
