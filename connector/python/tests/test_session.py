"""The scheduler's session: away, ready, stalled, and what is said after each."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terrace_kv import Answer, CompletedJob, LeaseEnd, Scan, SchedulerSession, next_job, numbers_to_bytes
from terrace_kv.connection import Frame
from terrace_kv.protocol import (
    ONE_WAY,
    REPLY,
    EndStep,
    EndStepReply,
    ErrorCode,
    Goodbye,
    JobOutcome,
    Kind,
    Lookup,
    LookupReply,
    PinReply,
    PrepareStoreReply,
    Query,
    Refusal,
    StatsReply,
    decode,
    encode_frame,
)

from conftest import eventually
from fake import KEY_BYTES, LIMITS, Fake, Peer, key, keys, options

Open = Callable[..., SchedulerSession]
PREFIX, EACH = Scan.PREFIX, Scan.EACH


@pytest.fixture
def opened(path: str) -> Iterator[Open]:
    """Opens sessions, and closes them."""
    sessions: list[SchedulerSession] = []

    def make(ready: bool = True, **changes: Any) -> SchedulerSession:
        session = SchedulerSession(options(path, **changes))
        sessions.append(session)
        assert not ready or session.wait_ready(10)
        return session

    yield make
    for session in sessions:
        session.close()


class Held:
    """Holds replies back until they are let go."""

    def __init__(self, fake: Fake, kind: Kind, then: Callable[[Peer, Frame], None]) -> None:
        self.go = threading.Event()

        def hold(peer: Peer, frame: Frame) -> None:
            self.go.wait(10)
            then(peer, frame)

        fake.on[kind] = hold


def step_of(frame: Frame) -> EndStep:
    return decode(EndStep, frame.body)


def test_away_is_a_miss_and_nothing_waits(opened: Open) -> None:
    session = opened(ready=False)
    answer = session.lookup(1, 0, [(PREFIX, keys(1, 2)), (EACH, keys(3))])
    assert answer is not None
    assert (answer.answers, answer.lease, len(answer.slots), answer.region) == (bytes(3), 0, 0, 0)
    assert session.prepare_store(1, next_job(), keys(1)) is None
    assert session.end_step(finished=[1], touched=keys(1)) is None
    assert (session.state, session.region, session.epoch, session.tiers, session.limits) == ("away", 0, 0, (), None)
    assert session.ping() is None
    assert session.stats() is None
    assert not session.reset()
    assert session.pin(1, keys(1), 1.0) == 0
    assert not session.unpin(1, keys(1))
    assert session.counters["waited_us"] == 0
    eventually(lambda: session.counters["failed_attempts"] > 2, "attempts go on")
    assert session.last_error


def test_a_lookup_and_its_load(fake: Fake, opened: Open) -> None:
    session = opened()
    assert (session.state, session.region, session.slots, session.tiers[0].name) == ("ready", 7, 8, "nvme")
    answer = session.lookup(5, 3, [(PREFIX, keys(1, 2)), (EACH, keys(3))])
    assert answer is not None
    assert (answer.answers, list(answer.slots), answer.region) == (b"\1\1\1", [0, 1, 2], 7)
    assert answer.epoch == session.epoch
    asked = decode(Lookup, fake.seen(Kind.LOOKUP)[0].body)
    assert asked == Lookup(5, 3, True, [Query(0, keys(1, 2)), Query(1, keys(3))])
    job = next_job()
    load = LeaseEnd(answer.lease, job, numbers_to_bytes([0, 2]), numbers_to_bytes([1]))
    session.end_step([load], [CompletedJob(9, True)], [5, 77], keys(1), 3)
    said = step_of(fake.wait_seen(Kind.END_STEP, 1)[0])
    assert said == EndStep([load], [CompletedJob(9, True)], [5], keys(1), 3), "request 77 was never opened"
    assert session.counters["round_trips"] == 1


def test_replies_to_steps_come_back_later_as_one(fake: Fake, opened: Open) -> None:
    parts = iter(
        [
            EndStepReply([Refusal(1, b"")], 1, [], [], 0, [("a", 1.0)], [JobOutcome(1, True)]),
            EndStepReply([Refusal(2, b"")], 2, [], [], 5, [], [JobOutcome(2, False)]),
        ]
    )
    fake.on[Kind.END_STEP] = lambda peer, frame: peer.reply(frame, next(parts))
    session = opened()
    assert session.end_step() is None
    fake.wait_seen(Kind.END_STEP, 1)
    fake.on[Kind.LOOKUP] = fake.hits
    session._send_step()
    session._steps.end([], [], [], b"", 0, session._counters)
    session._send_step()
    assert session.ping() is not None, "the daemon answers in order: both replies are in"
    merged = session.poll()
    assert merged == EndStepReply(
        [Refusal(1, b""), Refusal(2, b"")], 2, [], [], 5, [("a", 1.0)], [JobOutcome(1, True), JobOutcome(2, False)]
    )
    assert session.poll() is None


def test_prefix_answers_are_filled_up(fake: Fake, opened: Open) -> None:
    wire = bytes([1, 0, 1 | 2 << 3, 0, 4, 2, 3 | 1 << 3])
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.reply(
        frame, LookupReply(frame.header.sequence, wire, numbers_to_bytes([6, 5]))
    )
    answer = opened().lookup(1, 1, [(PREFIX, keys(1, 2, 3, 4)), (EACH, keys(5, 6, 7)), (PREFIX, keys(8, 9))])
    assert answer is not None
    assert answer.answers == bytes([1, 0, 0, 0, 1 | 2 << 3, 0, 4, 2, 3 | 1 << 3])
    assert list(answer.slots) == [6, 5]


@pytest.mark.parametrize(
    ("answers", "slots"),
    [
        (b"\1", 0),
        (b"\0\0", 1),
        (b"\1\1", 1),
        (b"\0", 1),
        (b"\1\1\1", 3),
        (b"\2\2\2", 0),
        (b"\1", 1),
        (b"", 0),
        (b"\7\0", 0),
        (b"\7\0", 1),
        (b"\x0a\0", 0),
        (b"\x08\0", 0),
        (b"\x0c\0", 0),
        (b"\5\0", 0),
    ],
)
def test_answers_that_make_no_sense_end_the_connection(fake: Fake, opened: Open, answers: bytes, slots: int) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.reply(
        frame, LookupReply(frame.header.sequence, answers, numbers_to_bytes(range(slots)))
    )
    answer = session.lookup(1, 0, [(EACH, keys(1, 2))])
    assert answer is not None
    assert answer.answers == bytes(2)
    assert session.counters["protocol_errors"] == 1
    assert session.wait_ready(10), "it connects again"


def test_random_bytes_instead_of_replies_never_raise(fake: Fake, opened: Open) -> None:
    """Every fault in a reply is a miss, whatever the call."""
    seed = 4711
    rng = random.Random(seed)
    session = opened()
    valid = bytearray()

    def mangle(peer: Peer, frame: Frame) -> None:
        encode_frame(
            valid,
            frame.header.kind,
            REPLY,
            frame.header.sequence,
            LookupReply(frame.header.sequence, b"\1\1", bytes(8)),
        )
        wire = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            wire[rng.randrange(len(wire))] = rng.randrange(256)
        peer.socket.sendall(wire[: rng.randrange(len(wire) + 1)] if rng.random() < 0.3 else wire)
        peer.close()

    fake.on[Kind.LOOKUP] = fake.on[Kind.PREPARE_STORE] = fake.on[Kind.PIN] = fake.on[Kind.STATS] = mangle
    for _ in range(100):
        assert session.wait_ready(10), f"seed {seed}"
        kind = rng.randrange(4)
        if kind == 0:
            answer = session.lookup(1, 0, [(EACH, keys(1, 2))])
            assert answer is None or len(answer.answers) == 2
        elif kind == 1:
            session.prepare_store(1, next_job(), keys(1, 2))
        elif kind == 2:
            assert session.pin(1, keys(1), 1.0) >= 0
        else:
            session.stats()
        session.end_step()
    assert session.counters["connections"] > 30


def test_the_end_of_the_stream_in_every_place_of_a_reply(fake: Fake, opened: Open) -> None:
    session = opened()
    frame = bytearray()
    encode_frame(frame, Kind.LOOKUP, REPLY, 1, LookupReply(1, b"\1", bytes(4)))
    for count in range(len(frame)):

        def cut(peer: Peer, asked: Frame, count: int = count) -> None:
            wire = bytearray()
            encode_frame(
                wire, Kind.LOOKUP, REPLY, asked.header.sequence, LookupReply(asked.header.sequence, b"\1", bytes(4))
            )
            peer.socket.sendall(wire[:count])
            peer.close()

        fake.on[Kind.LOOKUP] = cut
        answer = session.lookup(1, 0, [(EACH, keys(1))])
        assert answer is not None
        assert answer.answers == b"\0"
        assert session.state == "away" or session.epoch > count, "the lost connection was noticed"
        assert session.wait_ready(10)
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    regions = [file for file in files if os.path.lexists(file) and "memfd:region" in os.readlink(file)]
    assert len(regions) == 1, "only the fake holds its region"


def test_a_stalled_daemon_costs_one_budget(fake: Fake, opened: Open) -> None:
    held = Held(fake, Kind.LOOKUP, fake.hits)
    session = opened(call_budget_s=0.02, stall_patience_s=0.3)
    began = time.monotonic()
    assert session.lookup(1, 0, [(EACH, keys(1))]) is None
    assert session.state == "stalled"
    assert session.counters["timeouts"] == 1
    waited = session.counters["waited_us"]
    while time.monotonic() - began < 0.2:
        assert session.lookup(1, 0, [(EACH, keys(1))]) is None, "ask again"
        assert session.prepare_store(1, next_job(), keys(1)) is None
        assert session.ping() is None
        session.end_step()
    eventually(lambda: session.lookup(1, 0, [(EACH, keys(1))]) is not None, "patience ends")
    assert session.counters["given_up"] == 1
    assert (session.counters["timeouts"], session.counters["waited_us"]) == (1, waited), "no second call waited"
    assert session.counters["lost_connections"] == 0, "a live connection is not closed because it is slow"
    held.go.set()
    fake.on[Kind.LOOKUP] = fake.hits
    eventually(lambda: session.state == "ready", "the late reply is in")
    assert session.counters["late_replies"] == 1
    fake.wait_seen(Kind.LOOKUP, 1)
    assert len(fake.seen(Kind.LOOKUP)) == 1, "nothing was asked while it was stalled"
    hit = session.lookup(1, 0, [(EACH, keys(1))])
    assert hit is not None
    fake.on[Kind.LOOKUP] = lambda peer, frame: None
    assert session.lookup(1, 0, [(EACH, keys(1))]) is None, (
        "a reply that came in time ended the trouble: patience begins anew"
    )


def test_a_daemon_that_is_always_a_little_late_is_given_up_too(fake: Fake, opened: Open) -> None:
    def late(peer: Peer, frame: Frame) -> None:
        time.sleep(0.06)
        fake.hits(peer, frame)

    fake.on[Kind.LOOKUP] = late
    session = opened(call_budget_s=0.01, stall_patience_s=0.3)
    began = time.monotonic()
    answers = []
    while time.monotonic() - began < 0.6:
        eventually(lambda: session.state == "ready", "the late reply is in")
        answers.append(session.lookup(1, 0, [(EACH, keys(1))]))
        session.end_step()
    assert answers[0] is None
    assert answers[-1] is not None and answers[-1].answers == b"\0", "it does not ask again for ever"


def test_steps_that_are_kept_go_out_as_one_before_the_next_call(fake: Fake, opened: Open) -> None:
    session = opened(call_budget_s=0.2)
    first = session.lookup(1, 0, [(EACH, keys(1))])
    assert first is not None
    held = Held(fake, Kind.LOOKUP, fake.hits)
    assert session.lookup(2, 0, [(EACH, keys(2))]) is None
    load = LeaseEnd(first.lease, next_job(), numbers_to_bytes([0]))
    session.end_step([load], finished=[1])
    session.end_step(completed=[CompletedJob(3, True)], finished=[2], touched=keys(1), want=1)
    session.end_step(touched=keys(2), want=2)
    assert fake.seen(Kind.END_STEP) == []
    assert session.counters["kept_steps"] == 2
    held.go.set()
    fake.on[Kind.LOOKUP] = fake.hits
    eventually(lambda: session.state == "ready", "the late reply is in")
    assert session.lookup(3, 0, [(EACH, keys(3))]) is not None
    assert step_of(fake.wait_seen(Kind.END_STEP, 1)[0]) == EndStep(
        [load], [CompletedJob(3, True)], [1, 2], keys(2, 1), 3
    )
    order = [frame.header.kind for frame in fake.frames]
    assert order == [Kind.HELLO, Kind.LOOKUP, Kind.LOOKUP, Kind.END_STEP, Kind.LOOKUP]


def test_a_store_that_is_prepared_too_late_is_given_up(fake: Fake, opened: Open) -> None:
    session = opened(call_budget_s=0.2)
    live = session.lookup(1, 0, [(EACH, keys(1))])
    assert live is not None
    held = Held(fake, Kind.PREPARE_STORE, fake.room)
    job = next_job()
    assert session.prepare_store(1, job, keys(1, 2)) is None
    held.go.set()
    eventually(lambda: session.state == "ready", "the late reply is in")
    assert session.ping() is not None
    assert fake.seen(Kind.END_STEP) == [], "an end of a step would end the lease of the step that runs"
    session.end_step([LeaseEnd(live.lease, next_job(), numbers_to_bytes([0]))])
    said = step_of(fake.wait_seen(Kind.END_STEP, 1)[0])
    assert said.completed == [CompletedJob(job, False)]
    assert said.leases[0].lease == live.lease


def test_ends_of_jobs_are_told_until_they_are_confirmed_on_any_connection(fake: Fake, path: str, opened: Open) -> None:
    session = opened(call_budget_s=0.2)
    lost = next_job()
    fake.on[Kind.PREPARE_STORE] = lambda peer, frame: None
    assert session.prepare_store(1, lost, keys(1, 2)) is None
    epochs = {0, session.epoch}
    fake.end()
    # The store whose reply was lost, and a job of the first connection that ends later.
    ended = [CompletedJob(lost, False), CompletedJob(3, True)]
    # The one that hears of it first dies before it answers.
    for answers in (False, True):
        another = Fake(path)
        if not answers:
            another.on[Kind.END_STEP] = lambda peer, frame: None
        eventually(lambda: session.epoch not in epochs, "another connection")
        epochs.add(session.epoch)
        session.end_step(completed=[] if answers else ended[1:])
        assert step_of(another.wait_seen(Kind.END_STEP, 1)[0]).completed == ended
        if answers:
            assert session.ping() is not None
            session.end_step()
            assert step_of(another.wait_seen(Kind.END_STEP, 2)[1]).completed == []
            session.close()
        another.end()


def test_stores(fake: Fake, opened: Open) -> None:
    session = opened()
    stored = session.prepare_store(1, next_job(), keys(1, 2))
    assert stored is not None
    assert (list(stored.store), list(stored.slots), stored.region) == ([0, 1], [0, 1], 7)
    for answer, counter in [
        (PrepareStoreReply(False, b"", b""), "no_room"),
        (PrepareStoreReply(True, bytes(4), b""), "protocol_errors"),
        (PrepareStoreReply(True, numbers_to_bytes([2]), bytes(4)), "protocol_errors"),
        (PrepareStoreReply(True, b"123", b"123"), "protocol_errors"),
    ]:
        before = session.counters[counter]
        fake.on[Kind.PREPARE_STORE] = lambda peer, frame, answer=answer: peer.reply(frame, answer)  # type: ignore[misc]
        assert session.prepare_store(1, next_job(), keys(1, 2)) is None
        assert session.counters[counter] == before + 1
        assert session.wait_ready(10)


def test_refusals(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.refuse(frame, ErrorCode.RETRY)
    assert session.lookup(1, 0, [(EACH, keys(1))]) is None
    fake.on[Kind.LOOKUP] = lambda peer, frame: peer.refuse(frame, 999)
    missed = session.lookup(1, 0, [(EACH, keys(1))])
    assert missed is not None
    assert missed.answers == b"\0"
    fake.on[Kind.PREPARE_STORE] = lambda peer, frame: peer.refuse(frame, ErrorCode.LIMIT)
    assert session.prepare_store(1, next_job(), keys(1)) is None
    fake.on[Kind.END_STEP] = lambda peer, frame: peer.refuse(frame, ErrorCode.UNKNOWN)
    fake.on[Kind.LOOKUP] = fake.hits
    leased = session.lookup(1, 0, [(EACH, keys(1))])
    assert leased is not None
    session.end_step([LeaseEnd(leased.lease, 44, numbers_to_bytes([0]))])
    assert session.ping() is not None
    told = session.poll()
    assert told is not None
    assert told.jobs == [JobOutcome(44, False)], "a step that is refused begins no load"
    assert session.counters["refused"] == 4
    assert session.state == "ready"


def test_rare_calls(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.on[Kind.RESET] = fake.on[Kind.UNPIN] = lambda peer, frame: peer.reply(frame, None)
    fake.on[Kind.PIN] = lambda peer, frame: peer.reply(frame, PinReply(2))
    fake.on[Kind.STATS] = lambda peer, frame: peer.reply(frame, StatsReply([("terrace_x", 2.5)]))
    assert session.reset()
    assert session.pin(1, keys(1, 2), 1.0) == 0, "the request is not open"
    assert not session.unpin(1, keys(1, 2))
    assert fake.seen(Kind.PIN) == fake.seen(Kind.UNPIN) == []
    assert session.lookup(1, 0, [(EACH, keys(1))]) is not None
    assert session.pin(1, keys(1, 2), 1e9) == 2
    assert session.unpin(1, keys(1, 2))
    assert session.stats() == {"terrace_x": 2.5}
    took = session.ping()
    assert took is not None and took > 0


def test_what_is_void_after_a_reconnection(fake: Fake, path: str, opened: Open) -> None:
    session = opened()
    old = session.lookup(1, 0, [(EACH, keys(1))])
    assert old is not None
    assert session.prepare_store(1, 5, keys(2)) is not None
    fake.end()
    another = Fake(path, region=8)
    eventually(lambda: session.epoch not in (0, old.epoch), "another connection")
    assert session.region == 8
    new = session.lookup(2, 0, [(EACH, keys(1))])
    assert new is not None
    assert new.lease > old.lease, "numbers of leases are not used again"
    good = LeaseEnd(new.lease, 22, numbers_to_bytes([0]))
    reply = session.end_step([LeaseEnd(old.lease, 21, numbers_to_bytes([0])), good], finished=[1, 2])
    assert reply is not None
    assert reply.jobs == [JobOutcome(21, False)], "a load from a void lease is not begun"
    assert step_of(another.wait_seen(Kind.END_STEP, 1)[0]) == EndStep([good], [], [2], b"", 0)
    assert session.counters["void_loads"] == 1
    session.close()
    another.end()


def test_a_load_fails_if_the_connection_is_lost_before_its_step_ends(fake: Fake, opened: Open) -> None:
    session = opened()
    answer = session.lookup(1, 0, [(EACH, keys(1))])
    assert answer is not None
    fake.end()
    eventually(lambda: session.state == "away", "the end is seen without a call")
    reply = session.end_step([LeaseEnd(answer.lease, 33, numbers_to_bytes([0]))])
    assert reply is not None
    assert reply.jobs == [JobOutcome(33, False)]


def test_limits_that_were_told_are_kept(fake: Fake, opened: Open) -> None:
    session = opened()
    many = b"".join(key(number) for number in range(LIMITS.keys_per_message + 10))
    answer = session.lookup(1, 0, [(EACH, many), (PREFIX, keys(1))])
    assert answer is not None
    assert len(answer.answers) == LIMITS.keys_per_message + 11
    assert answer.answers.count(1) == LIMITS.keys_per_message
    assert sum(len(query.keys) for query in decode(Lookup, fake.seen(Kind.LOOKUP)[0].body).queries) == (
        LIMITS.keys_per_message * KEY_BYTES
    )
    assert session.prepare_store(1, next_job(), many) is None
    for request in range(2, LIMITS.requests + 1):
        assert session.prepare_store(request, next_job(), keys(1)) is not None
    over = session.lookup(10_000, 0, [(EACH, keys(1))])
    assert over is not None
    assert over.answers == b"\0"
    session.end_step(finished=[1])
    hit = session.lookup(10_000, 0, [(EACH, keys(1))])
    assert hit is not None
    assert hit.answers[0] & 7 == Answer.HIT
    assert session.counters["over_limit"] == 3


def test_a_goodbye_and_frames_for_no_call(fake: Fake, opened: Open) -> None:
    session = opened()
    fake.peers[-1].send(Kind.GOODBYE, ONE_WAY, 0, Goodbye("closing"))
    assert session.ping() is not None
    fake.peers[-1].send(Kind.LOOKUP, REPLY, 4242, LookupReply(0, b"", b""))
    eventually(lambda: session.ping() is None or session.counters["protocol_errors"] == 1, "the stray reply is seen")
    assert session.counters["protocol_errors"] == 1
    assert session.wait_ready(10)
    fake.on[Kind.PING] = lambda peer, frame: peer.send(Kind.PING, 0, frame.header.sequence, None)
    assert session.ping() is None, "a request is no reply"
    assert session.counters["protocol_errors"] == 2


def test_an_interrupted_call_is_a_late_one(fake: Fake, opened: Open) -> None:
    held = Held(fake, Kind.LOOKUP, fake.hits)
    session = opened(call_budget_s=30.0)
    connection = session._connection
    assert connection is not None
    wait = connection.wait
    connection.wait = lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        session.lookup(1, 0, [(EACH, keys(1))])
    connection.wait = wait  # type: ignore[method-assign]
    assert session.state == "stalled"
    held.go.set()
    eventually(lambda: session.state == "ready", "the late reply is in")
    assert session.counters["protocol_errors"] == 0


def test_a_daemon_that_does_not_read_is_stalled_and_bounded(fake: Fake, opened: Open) -> None:
    held = Held(fake, Kind.END_STEP, lambda peer, frame: peer.reply(frame, EndStepReply([], 0, [], [], 0, [], [])))
    session = opened()
    for _ in range(3000):
        session.end_step(touched=keys(*range(64)))
    assert session.state == "stalled"
    connection = session._connection
    assert connection is not None
    assert 0 < connection.pending_bytes < 1 << 20
    assert len(session._steps._touched) <= 65536 * KEY_BYTES
    held.go.set()
    eventually(lambda: session.state == "ready", "it reads again")
    session.end_step()
    assert session.counters["lost_connections"] == 0


def test_close_says_bye(fake: Fake, opened: Open) -> None:
    session = opened()
    session.close()
    fake.wait_seen(Kind.BYE, 1)
    assert session.state == "away"
    session.close()


def test_closing_while_the_daemon_does_not_answer_the_greeting(fake: Fake, opened: Open) -> None:
    fake.on[Kind.HELLO] = lambda peer, frame: None
    session = opened(ready=False)
    fake.wait_seen(Kind.HELLO, 1)
    session.close()
    assert not session._link._thread.is_alive()


def test_job_names_ascend_and_follow_the_clock() -> None:
    names = [next_job() for _ in range(1000)]
    assert names == sorted(set(names))
    assert abs(names[-1] - time.monotonic_ns()) < 60e9
