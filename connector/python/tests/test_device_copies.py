"""Copies that the daemon makes for a worker: what is asked, what is told, and what a lost daemon ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from terrace_kv import WorkerSession, next_job
from terrace_kv.device_copies import Flights
from terrace_kv.peer import Peer
from terrace_kv.protocol import (
    DEVICE_COPIES,
    ONE_WAY,
    Attach,
    AttachReply,
    Complete,
    CompletedJob,
    Copied,
    CopiedJob,
    Copy,
    CopyJob,
    ErrorCode,
    Hello,
    Kind,
    decode,
    numbers_to_bytes,
)

from conftest import eventually
from fake import Fake, options

ATTACH = Attach(bytes(16), [], [[]], 0, 4096, 0, bytes(64), bytes(64))
REPLY = AttachReply(b"s" * 64, b"l" * 64)


class User:
    """Who has copies made."""

    def __init__(self) -> None:
        self.replies: list[AttachReply] = []
        self.refusals: list[str] = []
        self.ended: list[CopiedJob] = []
        self.session: WorkerSession | None = None

    def attachment(self) -> Attach:
        return ATTACH

    def attached(self, reply: AttachReply) -> None:
        self.replies.append(reply)

    def not_attached(self, why: str) -> None:
        self.refusals.append(why)

    def copied(self, job: CopiedJob) -> None:
        if self.session is not None:
            # Not under a lock of the session: this would wait for ever.
            reader = threading.Thread(target=lambda: self.session and self.session.map(7))
            reader.start()
            reader.join(5)
            assert not reader.is_alive()
        self.ended.append(job)


Open = Callable[..., tuple[WorkerSession, User]]


@pytest.fixture
def opened(path: str) -> Iterator[Open]:
    """Opens sessions with a device, and closes them."""
    sessions: list[WorkerSession] = []

    def make(**changes: Any) -> tuple[WorkerSession, User]:
        user = User()
        session = WorkerSession(options(path, rank=1, **changes), user)
        user.session = session
        sessions.append(session)
        assert session.wait_attached(10)
        return session, user

    yield make
    for session in sessions:
        session.close()


def copies(fake: Fake, reply: bool = True) -> None:
    """The daemon copies for workers."""
    fake.greeting.features = [DEVICE_COPIES]
    if reply:
        fake.on[Kind.ATTACH] = lambda peer, frame: peer.reply(frame, REPLY)
    fake.on[Kind.COPY] = lambda peer, frame: None


def job(name: int, *slots: int) -> CopyJob:
    return CopyJob(name, numbers_to_bytes([1, 2]), numbers_to_bytes([2]), numbers_to_bytes([0]), numbers_to_bytes(slots))


def ready(session: WorkerSession) -> None:
    eventually(lambda: session.takes_copies, "the daemon takes copies")


def reports(fake: Fake) -> list[CompletedJob]:
    return [entry for frame in fake.seen(Kind.COMPLETE) for entry in decode(Complete, frame.body).jobs]


def failed(name: int) -> CopiedJob:
    return CopiedJob(name, False, 0, 0)


def test_a_step_is_one_message_and_each_job_ends_once(fake: Fake, opened: Open) -> None:
    copies(fake)
    session, user = opened()
    ready(session)
    hello = decode(Hello, fake.seen(Kind.HELLO)[0].body)
    assert hello.features == [DEVICE_COPIES]
    assert decode(Attach, fake.seen(Kind.ATTACH)[0].body) == ATTACH
    assert user.replies == [REPLY]
    first, second = next_job(), next_job()
    session.copy(True, [job(first, 0, 1), job(second, 2)], 7)
    fake.wait_seen(Kind.COPY, 1)
    (frame,) = fake.seen(Kind.COPY)
    assert decode(Copy, frame.body) == Copy(True, [job(first, 0, 1), job(second, 2)])
    assert user.ended == []
    ended = [CopiedJob(second, True, 8192, 12), CopiedJob(first, False, 0, 3), CopiedJob(12345, True, 1, 1)]
    fake.peers[0].send(Kind.COPIED, ONE_WAY, 0, Copied(ended))
    eventually(lambda: len(user.ended) == 2, "both jobs ended")
    assert user.ended == ended[:2]
    fake.wait_seen(Kind.COMPLETE, 1)
    assert reports(fake) == [CompletedJob(second, True), CompletedJob(first, False)]
    fake.peers[0].send(Kind.COPIED, ONE_WAY, 0, Copied(ended))
    session.copy(False, [job(third := next_job(), 3)], 7)
    fake.peers[0].send(Kind.COPIED, ONE_WAY, 0, Copied([CopiedJob(third, True, 4096, 1)]))
    eventually(lambda: len(user.ended) == 3, "the third ended")
    assert reports(fake)[2:] == [CompletedJob(third, True)], "a job is reported once"


def test_a_daemon_that_does_not_copy(fake: Fake, opened: Open) -> None:
    session, user = opened()
    eventually(lambda: bool(user.refusals), "the user is told")
    session.copy(True, [job(name := next_job(), 0)], 7)
    assert user.ended == [failed(name)]
    fake.wait_seen(Kind.COMPLETE, 1)
    assert reports(fake) == [CompletedJob(name, False)]
    assert fake.seen(Kind.ATTACH) == fake.seen(Kind.COPY) == []
    assert session.begin(next_job(), 7) is not None, "the session goes on: this process may copy"


def test_an_attachment_that_is_refused_leaves_the_session(fake: Fake, opened: Open) -> None:
    copies(fake)
    fake.on[Kind.ATTACH] = lambda peer, frame: peer.refuse(frame, ErrorCode.INVALID, "no such GPU")
    session, user = opened()
    eventually(lambda: user.refusals == ["no such GPU"], "the user is told")
    assert session.attached
    assert not session.takes_copies


def test_copies_before_the_attachment_and_of_other_regions_are_refused(fake: Fake, opened: Open) -> None:
    copies(fake, reply=False)
    fake.on[Kind.ATTACH] = lambda peer, frame: None
    session, user = opened()
    fake.wait_seen(Kind.ATTACH, 1)
    session.copy(True, [job(early := next_job(), 0)], 7)
    (peer,) = fake.peers
    peer.reply(fake.seen(Kind.ATTACH)[0], REPLY)
    ready(session)
    session.copy(False, [job(other := next_job(), 0)], 8)
    assert user.ended == [failed(early), failed(other)]
    assert fake.seen(Kind.COPY) == []
    assert session.counters["refused_copies"] == 2


def test_a_store_can_be_given_up_and_a_load_not(fake: Fake, opened: Open) -> None:
    copies(fake)
    session, user = opened()
    ready(session)
    store, load = next_job(), next_job()
    session.copy(True, [job(store, 0)], 7)
    session.copy(False, [job(load, 1)], 7)
    session.give_up([store, load, 99])
    assert user.ended == [failed(store)]
    fake.wait_seen(Kind.COMPLETE, 1)
    fake.peers[0].send(Kind.COPIED, ONE_WAY, 0, Copied([CopiedJob(store, True, 1, 1), CopiedJob(load, True, 1, 1)]))
    eventually(lambda: len(user.ended) == 2, "the load ended")
    eventually(lambda: len(reports(fake)) == 2, "both are reported")
    assert reports(fake) == [CompletedJob(store, False), CompletedJob(load, True)]
    assert session.counters["given_up_copies"] == 1


def test_a_lost_connection_ends_stores_at_once_and_loads_when_the_daemon_greets_again(
    fake: Fake, opened: Open
) -> None:
    copies(fake)
    hello, closed = fake.on[Kind.HELLO], threading.Event()
    session, user = opened()
    ready(session)
    store, load = next_job(), next_job()
    session.copy(True, [job(store, 0)], 7)
    session.copy(False, [job(load, 1)], 7)
    # It copies still: the rank is told to come back.
    fake.on[Kind.HELLO] = lambda peer, frame: peer.refuse(frame, ErrorCode.RETRY, "copies of the old session")
    fake.peers[0].close()
    eventually(lambda: user.ended == [failed(store)], "the store ended")
    closed.wait(0.3)
    assert user.ended == [failed(store)], "the pages of the load are the daemon's"
    assert not session.takes_copies
    fake.on[Kind.HELLO] = hello
    eventually(lambda: user.ended == [failed(store), failed(load)], "the load ended")
    ready(session)
    assert len(fake.seen(Kind.ATTACH)) == 2
    assert reports(fake) == [], "the daemon counts them as failed by itself"
    fake.peers[-1].send(Kind.COPIED, ONE_WAY, 0, Copied([CopiedJob(load, True, 1, 1)]))
    session.copy(True, [job(name := next_job(), 0)], 7)
    fake.peers[-1].send(Kind.COPIED, ONE_WAY, 0, Copied([CopiedJob(name, True, 1, 1)]))
    eventually(lambda: len(user.ended) == 3, "the new store ended")


def test_a_daemon_that_died_ends_its_loads(tmp_path: Path) -> None:
    script = (
        "import socket, sys, time\n"
        "listener = socket.socket(socket.AF_UNIX)\n"
        "listener.bind(sys.argv[1])\n"
        "listener.listen()\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    path = str(tmp_path / "socket")
    daemon = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    daemon.stdout.readline()
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        peer = Peer(sock)
        assert (peer.pid, peer.watched, peer.gone()) == (daemon.pid, True, False)
        flights = Flights()
        flights.begin(1, True, 4)
        flights.begin(2, False, 4)
        flights.begin(3, False, 5)
        assert flights.lose(4, peer) == [failed(1)]
        os.kill(daemon.pid, signal.SIGSTOP)
        assert flights.settle() == [], "a daemon that stands still may go on"
        os.kill(daemon.pid, signal.SIGKILL)
        ended: list[CopiedJob] = []
        deadline = time.monotonic() + 10
        while not ended and time.monotonic() < deadline:
            ended = flights.settle()
        assert ended == [failed(2)]
        assert not flights.waits
        assert not flights.end(3, 4), "of another connection"
        assert flights.end(3, 5)
    daemon.wait()
    daemon.stdout.close()
