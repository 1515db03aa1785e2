"""Framing over a stream that cuts anywhere, bounds before the socket, and the greeting."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from terrace_kv import protocol
from terrace_kv.connection import PENDING_BYTES, Connection, Frame
from terrace_kv.errors import ConnectionLost, Overflow, ProtocolError, Refused, RegionError, TerraceError
from terrace_kv.greeting import connect, greet
from terrace_kv.protocol import REPLY, Goodbye, HelloReply, Kind, LookupReply, Message, encode_frame
from terrace_kv.region import Mapping

from fake import LIMITS, Fake, Peer, options, region_file


def frame_bytes(kind: Kind, sequence: int, message: Message | None, flags: int = REPLY, descriptors: int = 0) -> bytes:
    """One frame."""
    frame = bytearray()
    encode_frame(frame, kind, flags, sequence, message, descriptors)
    return bytes(frame)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    connection.most_body_bytes = 1 << 22
    yield connection, theirs
    connection.close()
    theirs.close()


def test_frames_that_arrive_byte_by_byte(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    wire = frame_bytes(Kind.PING, 1, None) + frame_bytes(Kind.LOOKUP, 2, LookupReply(2, b"\1", bytes(4)))
    got: list[Frame] = []
    for byte in wire:
        theirs.send(bytes([byte]))
        got += connection.receive()
    assert [(frame.header.kind, frame.header.sequence) for frame in got] == [(Kind.PING, 1), (Kind.LOOKUP, 2)]
    assert connection.receive() == []


def test_many_frames_at_once_and_then_the_end(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.send(b"".join(frame_bytes(Kind.PING, number, None) for number in range(100)) + b"TRRC")
    theirs.close()
    assert [frame.header.sequence for frame in connection.receive()] == list(range(100))
    with pytest.raises(ConnectionLost):
        connection.receive()


@pytest.mark.parametrize("length", [0, 1, 65503, 65504, 65505, 200000, 3 << 20])
def test_bodies_of_all_lengths(pair: tuple[Connection, socket.socket], length: int) -> None:
    connection, theirs = pair
    theirs.setblocking(False)
    body = os.urandom(length)
    wire = memoryview(2 * frame_bytes(Kind.LOOKUP, 5, LookupReply(5, body, b"")))
    got: list[Frame] = []
    while len(got) < 2:
        if wire:
            wire = wire[theirs.send(wire) :]
        got += connection.receive()
    assert all(protocol.decode(LookupReply, frame.body).answers == body for frame in got)


def test_an_announced_length_takes_no_memory(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    header = bytearray(32)
    protocol.pack_header(header, Kind.LOOKUP, REPLY, 1 << 22, 1, 0)
    theirs.send(header + bytes(100_000))
    assert connection.receive() == []
    assert 100_000 < len(connection._buffer) < 1 << 18


def test_an_announced_length_beyond_the_limit(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    header = bytearray(32)
    protocol.pack_header(header, Kind.LOOKUP, REPLY, (1 << 22) + 1, 1, 0)
    theirs.send(header)
    with pytest.raises(ProtocolError, match="at most"):
        connection.receive()


def test_what_the_socket_does_not_take_is_kept_up_to_a_bound(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    large = LookupReply(0, bytes(100_000), b"")
    sent = 0
    with pytest.raises(Overflow):
        for sent in itertools.count():
            connection.send(Kind.LOOKUP, REPLY, sent, large)
            assert connection.pending_bytes <= PENDING_BYTES
    assert connection.pending_bytes > 0
    reader = Connection(theirs)
    reader.most_body_bytes = 1 << 22
    got: list[Frame] = []
    while connection.pending_bytes:
        connection.wait(1.0)
        got += reader.receive()
    got += reader.receive()
    assert [frame.header.sequence for frame in got] == list(range(sent)), "what was refused was not sent in part"


def test_a_descriptor_after_the_greeting_is_refused(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.send(frame_bytes(Kind.PING, 1, None, descriptors=1))
    with pytest.raises(ProtocolError, match="descriptor"):
        connection.receive()


# The greeting.


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def greeted(fake: Fake, role: str = "scheduler") -> TerraceError | None:
    """What comes of a greeting; what it opened is closed."""
    connection = connect(fake.path)
    try:
        greeting = greet(connection, options(fake.path), role, itertools.count(1), None, None, (), lambda: False)
    except TerraceError as error:
        return error
    connection.close()
    if greeting.descriptor is not None:
        os.close(greeting.descriptor)
    return None


def test_a_greeting_opens_a_session(fake: Fake) -> None:
    assert greeted(fake) is None
    assert greeted(fake, "tier") is None


Answer = Callable[[Fake, Peer, Frame], None]


def close_after(count: int) -> Answer:
    """The daemon dies after so many bytes of its answer."""

    def answer(fake: Fake, peer: Peer, frame: Frame) -> None:
        peer.socket.sendall(frame_bytes(Kind.HELLO, frame.header.sequence, fake.greeting)[:count])
        peer.close()

    return answer


def with_descriptors(count: int, announced: int) -> Answer:
    """Sends so many descriptors and announces another number."""

    def answer(fake: Fake, peer: Peer, frame: Frame) -> None:
        peer.send(Kind.HELLO, REPLY, frame.header.sequence, fake.greeting, (fake.region,) * count, announced)

    return answer


def raw(wire: bytes) -> Answer:
    return lambda fake, peer, frame: peer.socket.sendall(wire)


WRONG: dict[str, tuple[Answer, type[TerraceError]]] = {
    "refused": (lambda fake, peer, frame: peer.refuse(frame, 3, "not you"), Refused),
    "another version": (
        lambda fake, peer, frame: peer.send(
            Kind.HELLO,
            REPLY,
            frame.header.sequence,
            HelloReply(2, [], 1, 7, bytes(32), 1, 4096, 4096, (), LIMITS),
            (fake.region,),
        ),
        ProtocolError,
    ),
    "version of the frame": (raw(b"TRRC\2" + bytes(27)), ProtocolError),
    "magic": (raw(b"HTTP/1.1 400 Bad Request\r\n\r\n      "), ProtocolError),
    "no descriptor": (with_descriptors(0, 0), ProtocolError),
    "no descriptor but announced": (with_descriptors(0, 1), ProtocolError),
    "a descriptor that is not announced": (with_descriptors(1, 0), ProtocolError),
    "two descriptors": (with_descriptors(2, 1), ProtocolError),
    "twenty descriptors": (with_descriptors(20, 1), ProtocolError),
    "another sequence": (
        lambda fake, peer, frame: peer.send(Kind.HELLO, REPLY, 99, fake.greeting, (fake.region,)),
        ProtocolError,
    ),
    "another kind": (raw(frame_bytes(Kind.PING, 1, None)), ProtocolError),
    "goodbye": (raw(frame_bytes(Kind.GOODBYE, 0, Goodbye("later"), protocol.ONE_WAY)), ConnectionLost),
    "two answers": (raw(2 * frame_bytes(Kind.PING, 1, None)), ProtocolError),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_greeting_is_an_error_and_leaves_no_descriptor(fake: Fake, case: str) -> None:
    answer, error = WRONG[case]
    fake.on[Kind.HELLO] = lambda peer, frame: answer(fake, peer, frame)
    assert isinstance(greeted(fake), error)
    for peer in fake.peers:
        peer.close()
    before = open_descriptors()
    for _ in range(5):
        assert isinstance(greeted(fake), error)
    assert open_descriptors() <= before + 2 * 5, "the fake's own ends may linger, ours may not"


def test_the_end_of_the_stream_in_every_place_of_the_greeting(fake: Fake) -> None:
    whole = len(frame_bytes(Kind.HELLO, 1, fake.greeting))
    for count in range(whole):
        answer = close_after(count)
        fake.on[Kind.HELLO] = lambda peer, frame, answer=answer: answer(fake, peer, frame)  # type: ignore[misc]
        assert isinstance(greeted(fake), ConnectionLost), f"after {count} bytes"


def test_a_daemon_that_does_not_answer_the_greeting(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("terrace_kv.greeting.GREETING_TIMEOUT_S", 0.05)
    fake.on[Kind.HELLO] = lambda peer, frame: None
    assert isinstance(greeted(fake), ConnectionLost)


# The region.


def reply(region: int = 7, slots: int = 4, stride: int = 4096, length: int = 16384) -> HelloReply:
    return HelloReply(1, [], 1, region, bytes(32), slots, stride, length, (), LIMITS)


def test_a_region_is_shared_memory() -> None:
    descriptor = region_file(16384)
    first, second = Mapping(descriptor, reply()), Mapping(descriptor, reply())
    os.close(descriptor)
    first.slot(2)[:4] = b"abcd"
    assert bytes(second.slot(2, 4)) == b"abcd"
    assert bytes(second.memory[8192:8196]) == b"abcd"
    with pytest.raises(IndexError):
        first.slot(4)
    with pytest.raises(IndexError):
        first.slot(-1)


@pytest.mark.parametrize(
    ("told", "length", "sealed", "word"),
    [
        (reply(), 16383, True, "16383 bytes"),
        (reply(), 0, True, "0 bytes"),
        (reply(slots=5), 16384, True, "cannot hold"),
        (reply(slots=0), 16384, True, "cannot hold"),
        (reply(region=0), 16384, True, "cannot hold"),
        (reply(stride=0), 16384, True, "cannot hold"),
        (reply(), 16384, False, "sealed"),
        (reply(length=1 << 63, slots=1), 16384, True, "were told"),
    ],
)
def test_a_region_that_is_not_what_was_said(told: HelloReply, length: int, sealed: bool, word: str) -> None:
    descriptor = region_file(length, sealed)
    with pytest.raises(RegionError, match=word):
        Mapping(descriptor, told)
    os.close(descriptor)


def test_a_region_that_is_no_memfd() -> None:
    read, write = os.pipe()
    with pytest.raises(RegionError):
        Mapping(read, reply())
    os.close(read)
    os.close(write)
