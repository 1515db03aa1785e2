"""Lookups that are sent before anybody waits for them: their order, their life, and what a sick daemon does to them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terrace_kv import LeaseEnd, Scan, SchedulerSession, next_job, numbers_to_bytes
from terrace_kv.ahead import MOST_OUT, LookAhead, LookAheads
from terrace_kv.connection import Connection, Frame
from terrace_kv.errors import ConnectionLost
from terrace_kv.protocol import REQUEST, EndStep, EndStepReply, ErrorCode, Kind, Lookup, LookupReply, decode

from conftest import eventually
from daemon import Daemon, Engine
from fake import LIMITS, Fake, Peer, keys, options

QUERIES = [(Scan.PREFIX, keys(1, 2))]
OTHERS = [(Scan.EACH, keys(3))]
Open = Callable[..., SchedulerSession]


@pytest.fixture
def opened(path: str) -> Iterator[Open]:
    """Opens sessions with two requests that were looked up, and closes them."""
    sessions: list[SchedulerSession] = []

    def make(**changes: Any) -> SchedulerSession:
        session = SchedulerSession(options(path, **changes))
        sessions.append(session)
        assert session.wait_ready(10)
        assert session.lookup(1, 0, QUERIES) is not None
        assert session.lookup(2, 0, OTHERS) is not None
        return session

    yield make
    for session in sessions:
        session.close()


def kinds(fake: Fake) -> list[Kind]:
    """What arrived behind the two lookups of `opened`."""
    return [frame.header.kind for frame in fake.frames][3:]


def test_they_follow_the_end_of_the_step_and_their_leases_are_the_next_steps(fake: Fake, opened: Open) -> None:
    session = opened()
    session.end_step(finished=[2], ahead=[LookAhead(1, 0, QUERIES), LookAhead(2, 0, OTHERS), LookAhead(9, 0, OTHERS)])
    fake.wait_seen(Kind.LOOKUP, 3)
    assert kinds(fake) == [Kind.END_STEP, Kind.LOOKUP], "2 is finished, and 9 was never opened"
    sent = fake.seen(Kind.LOOKUP)[2]
    assert decode(Lookup, sent.body) == decode(Lookup, fake.seen(Kind.LOOKUP)[0].body)
    answer = session.lookup(1, 0, QUERIES)
    assert answer is not None
    assert (answer.answers, answer.lease, answer.epoch) == (b"\1\1", sent.header.sequence, session.epoch)
    assert session.untaken == 0
    assert (session.counters["asked_ahead"], session.counters["taken_ahead"]) == (1, 1)
    assert session.counters["round_trips"] == session.counters["lookups"] == 3
    load = LeaseEnd(answer.lease, next_job(), numbers_to_bytes([0]))
    assert session.end_step([load]) is not None
    assert decode(EndStep, fake.wait_seen(Kind.END_STEP, 2)[1].body).leases == [load]
    assert len(fake.seen(Kind.LOOKUP)) == 3
    assert session.lookup(1, 0, QUERIES) is not None
    fake.wait_seen(Kind.LOOKUP, 4)


def test_they_are_taken_once_by_the_same_question_that_need_not_be_fresh(fake: Fake, opened: Open) -> None:
    session = opened()
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    for mask, queries, more in ((1, QUERIES, {}), (0, OTHERS, {}), (0, QUERIES, {"fresh": True}), (0, QUERIES, {})):
        assert session.lookup(1, mask, queries, **more) is not None
    assert (session.counters["taken_ahead"], len(fake.seen(Kind.LOOKUP))) == (1, 6)
    assert session.lookup(1, 0, QUERIES) is not None
    assert (session.counters["taken_ahead"], len(fake.seen(Kind.LOOKUP))) == (1, 7)


def test_the_middle_of_a_step(fake: Fake, opened: Open) -> None:
    session = opened()
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    for _ in range(3):
        session.look_ahead(LookAhead(1, 0, QUERIES))
        session.look_ahead(LookAhead(2, 0, OTHERS))
    assert session.untaken == 2
    assert session.lookup(2, 0, OTHERS) is not None
    assert session.lookup(1, 0, QUERIES) is not None
    assert kinds(fake) == [Kind.END_STEP, Kind.LOOKUP, Kind.LOOKUP], "each once"
    assert session.counters["taken_ahead"] == 2


def test_what_nobody_takes_ends_with_the_step(fake: Fake, opened: Open) -> None:
    """The request was aborted, or vLLM did not come to it; also where the reply is not in."""
    session = opened()
    go = threading.Event()
    plain = fake.on[Kind.LOOKUP]

    def hold(peer: Peer, frame: Frame) -> None:
        go.wait(10)
        plain(peer, frame)

    fake.on[Kind.LOOKUP] = hold
    session.end_step(ahead=[LookAhead(1, 0, QUERIES), LookAhead(2, 0, OTHERS)])
    sequence = fake.wait_seen(Kind.LOOKUP, 3)[2].header.sequence
    session.end_step(finished=[1])
    assert (session.untaken, session.state) == (0, "ready"), "nobody waits for it"
    go.set()
    fake.wait_seen(Kind.END_STEP, 2)
    assert decode(EndStep, fake.seen(Kind.END_STEP)[1].body) == EndStep([], [], [1], b"", 0)
    job = next_job()
    merged = session.end_step([LeaseEnd(sequence, job, numbers_to_bytes([0]))])
    assert merged is not None
    assert [(outcome.job, outcome.ok) for outcome in merged.jobs] == [(job, False)], "its lease is over"
    assert session.lookup(2, 0, OTHERS) is not None
    assert session.counters["taken_ahead"] == 0
    assert (session.counters["protocol_errors"], session.counters["lost_connections"]) == (0, 0)


def test_a_reply_that_does_not_come_costs_one_budget(fake: Fake, opened: Open) -> None:
    session = opened(call_budget_s=0.3, stall_patience_s=60.0)
    go = threading.Event()
    plain = fake.on[Kind.LOOKUP]

    def hold(peer: Peer, frame: Frame) -> None:
        go.wait(10)
        plain(peer, frame)

    fake.on[Kind.LOOKUP] = hold
    session.end_step(ahead=[LookAhead(1, 0, QUERIES), LookAhead(2, 0, OTHERS)])
    assert session.counters["timeouts"] == 0
    assert session.lookup(1, 0, QUERIES) is None, "ask again"
    waited = session.counters["waited_us"]
    assert session.lookup(2, 0, OTHERS) is None
    assert session.prepare_store(1, next_job(), keys(5)) is None
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    assert (session.counters["timeouts"], session.counters["waited_us"]) == (1, waited), "only one call waited"
    assert session.counters["asked_ahead"] == 2, "nothing is asked ahead while stalled"
    go.set()
    eventually(lambda: session.state == "ready", "the late replies are in")
    assert session.counters["late_replies"] == 2
    answer = session.lookup(1, 0, QUERIES)
    assert answer is not None
    assert answer.answers == b"\1\1"
    assert [kind for kind in kinds(fake) if kind is not Kind.PREPARE_STORE] == [
        Kind.END_STEP,
        Kind.LOOKUP,
        Kind.LOOKUP,
        Kind.END_STEP,
        Kind.LOOKUP,
    ], "the step that was kept goes first"


@pytest.mark.parametrize("code", [ErrorCode.RETRY, ErrorCode.LIMIT])
def test_a_refusal_is_that_of_a_lookup(fake: Fake, opened: Open, code: ErrorCode) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.refuse(frame, code)
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    answer = session.lookup(1, 0, QUERIES)
    assert answer is None if code is ErrorCode.RETRY else answer is not None and answer.answers == bytes(2)
    assert (session.counters["refused"], session.state) == (1, "ready")


def test_a_refusal_that_nobody_takes_is_nothing(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.refuse(frame, ErrorCode.LIMIT)
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    session.end_step()
    assert session.ping() is not None
    assert session.state == "ready"


@pytest.mark.parametrize("answers", [b"\1", b"\1\1\1", b"\7\0"])
def test_answers_that_make_no_sense_end_the_connection(fake: Fake, opened: Open, answers: bytes) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.reply(frame, LookupReply(frame.header.sequence, answers, b""))
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    answer = session.lookup(1, 0, QUERIES)
    assert answer is not None
    assert answer.answers == bytes(2)
    assert session.counters["protocol_errors"] == 1


def test_another_kind_of_reply_ends_the_connection(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.send(
        Kind.END_STEP, 1, frame.header.sequence, EndStepReply([], 0, [], [], 0, [], [])
    )
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    eventually(lambda: session.end_step() is None and session.counters["protocol_errors"] == 1, "it is seen")


def test_a_daemon_that_goes_away_between(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: None
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    assert session.untaken == 1
    fake.end()
    answer = session.lookup(1, 0, QUERIES)
    assert answer is not None
    assert (answer.answers, answer.lease) == (bytes(2), 0)
    assert (session.state, session.untaken) == ("away", 0)
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    session.look_ahead(LookAhead(1, 0, QUERIES))
    assert session.untaken == 0


def test_a_new_connection_knows_nothing_of_them(fake: Fake, opened: Open) -> None:
    session = opened()
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    fake.wait_seen(Kind.LOOKUP, 3)
    epoch = session.epoch
    fake.peers[0].close()
    eventually(lambda: session.state == "ready" and session.epoch > epoch, "it connects again")
    assert session.untaken == 0
    answer = session.lookup(1, 0, QUERIES)
    assert answer is not None
    assert answer.epoch == session.epoch
    assert len(fake.seen(Kind.LOOKUP)) == 4


def test_a_reset_makes_them_void(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.RESET] = lambda peer, frame: peer.reply(frame, None)
    session.end_step(ahead=[LookAhead(1, 0, QUERIES)])
    assert session.reset()
    assert session.lookup(1, 0, QUERIES) is not None
    assert (session.counters["taken_ahead"], len(fake.seen(Kind.LOOKUP))) == (0, 4)


def test_too_many_keys_and_too_many_are_not_sent(fake: Fake, opened: Open) -> None:
    session = opened()
    long = [(Scan.PREFIX, keys(*range(LIMITS.keys_per_message + 1)))]
    session.end_step(ahead=[LookAhead(1, 0, long), LookAhead(2, 0, OTHERS)])
    assert (session.untaken, session.counters["over_limit"]) == (1, 1)
    table = LookAheads()
    for number in range(MOST_OUT):
        assert table.has_room
        table.sent(number, LookAhead(number, 0, OTHERS))
    assert not table.has_room
    table.let_go()
    assert not table.has_room, "the replies are still out"
    table.arrived(0, LookupReply(0, b"\0", b""))
    assert table.has_room


def test_frames_behind_a_cork_are_one_write() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    theirs.setblocking(False)
    connection.cork()
    connection.send(Kind.PING, REQUEST, 1, None)
    connection.send(Kind.PING, REQUEST, 2, None)
    assert connection.pending_bytes == 0, "they do not wait for the daemon"
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    connection.uncork()
    assert len(theirs.recv(1000)) == 64
    connection.cork()
    connection.send(Kind.PING, REQUEST, 3, None)
    theirs.close()
    with pytest.raises(ConnectionLost):
        connection.uncork()
    connection.close()


def test_a_load_from_what_was_asked_ahead(daemon_engine: Engine) -> None:
    """Against the real daemon: the lease of a look-ahead is one of the step that it was asked for."""
    engine = daemon_engine
    assert engine.store(keys(1, 2))
    request = engine.request()
    queries = [(Scan.EACH, keys(1, 2))]
    session = engine.scheduler
    first = session.lookup(request, 1, queries)
    assert first is not None
    session.end_step(ahead=[LookAhead(request, 1, queries)])
    time.sleep(0.05)
    answer = session.lookup(request, 1, queries)
    assert answer is not None
    assert session.counters["taken_ahead"] == 1
    assert answer.lease not in (0, first.lease)
    job = next_job()
    engine.step([LeaseEnd(answer.lease, job, numbers_to_bytes([0, 1]))])
    assert engine.worker is not None
    assert engine.worker.begin(job, answer.region) is not None
    engine.worker.complete([(job, True)])
    assert engine.outcome(job)
    session.end_step(ahead=[LookAhead(request, 1, queries)])
    engine.step(finished=[request])
    eventually(
        lambda: (session.stats() or {}).get('terrace_primary_slots{state="in_use"}') == 0, "an abort leaves no reader"
    )
    assert session.counters["refused"] == 0


@pytest.fixture
def daemon_engine(folder: Any) -> Iterator[Engine]:
    daemon = Daemon(folder)
    engine = Engine(daemon.socket, "a")
    engine.wait_ready()
    yield engine
    engine.close()
    daemon.end()
