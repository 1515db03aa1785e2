"""Opens a connection: connect, Hello, and what the daemon answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .connection import Connection, Frame, close_all
from .errors import ConnectionLost, Overflow, ProtocolError, Refused
from .options import SessionOptions
from .protocol import ERROR, REPLY, REQUEST, VERSION, ErrorReply, ForeignRegion, Hello, HelloReply, Kind, decode

#: How long the daemon may take to accept, and to answer Hello: opening a pool takes longer than any other call.
CONNECT_TIMEOUT_S = 2.0
GREETING_TIMEOUT_S = 10.0


class Greeting(NamedTuple):
    """An open session."""

    connection: Connection
    reply: HelloReply
    #: Of the region; it is the owner's to close. None for the role "tier".
    descriptor: int | None


def connect(path: str) -> Connection:
    """Connects. Waits for `CONNECT_TIMEOUT_S` at most. Raises `OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect(path)
        return Connection(sock)
    except BaseException:
        sock.close()
        raise


def greet(
    connection: Connection,
    options: SessionOptions,
    role: str,
    sequence: Iterator[int],
    foreign: ForeignRegion | None,
    descriptor: int | None,
    features: Sequence[str],
    stopping: Callable[[], bool],
) -> Greeting:
    """Says Hello and waits for the answer, until `stopping`. Raises `TerraceError`; the connection is closed then."""
    hello = Hello(
        VERSION,
        VERSION,
        list(features),
        role,
        options.engine,
        options.rank,
        options.store_workers,
        options.load_workers,
        options.namespace,
        options.geometry,
        foreign,
        options.client,
    )
    received: list[int] = []
    try:
        number = next(sequence)
        try:
            connection.send(Kind.HELLO, REQUEST, number, hello, () if descriptor is None else (descriptor,))
        except Overflow as error:
            raise ProtocolError(str(error)) from error
        frame = _answer(connection, received, stopping)
        return Greeting(connection, *_accept(connection, frame, number, received, 0 if role == "tier" else 1))
    except BaseException:
        close_all(received)
        connection.close()
        raise


def _answer(connection: Connection, received: list[int], stopping: Callable[[], bool]) -> Frame:
    deadline = time.monotonic() + GREETING_TIMEOUT_S
    while True:
        frames, descriptors = connection.receive_descriptors()
        received += descriptors
        if len(received) > 1:
            raise ProtocolError(f"{len(received)} descriptors came with the greeting")
        if len(frames) > 1 and frames[0].header.kind is Kind.HELLO and frames[1].header.kind is Kind.GOODBYE:
            raise ConnectionLost("the daemon is closing")
        if len(frames) > 1:
            raise ProtocolError("frames follow the greeting that nobody asked for")
        if frames:
            return frames[0]
        if stopping():
            raise ConnectionLost("the session is being closed")
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise ConnectionLost(f"the daemon did not answer the greeting within {GREETING_TIMEOUT_S:.0f} s")
        connection.wait(min(0.1, remaining))


def _accept(
    connection: Connection, frame: Frame, number: int, received: list[int], wanted: int
) -> tuple[HelloReply, int | None]:
    header = frame.header
    if header.kind is Kind.GOODBYE:
        raise ConnectionLost("the daemon is closing")
    if header.flags == ERROR:
        refusal = decode(ErrorReply, frame.body)
        raise Refused(refusal.code, refusal.message)
    if header.kind is not Kind.HELLO or header.flags != REPLY or header.sequence != number:
        raise ProtocolError(
            f"{header.kind.name} with sequence {header.sequence} came as answer to the greeting {number}"
        )
    reply = decode(HelloReply, frame.body)
    if reply.version != VERSION:
        raise ProtocolError(f"the daemon answers with protocol version {reply.version}, {VERSION} was offered")
    if header.descriptors != len(received) or len(received) != wanted:
        raise ProtocolError(
            f"{len(received)} descriptors came with the greeting, it announces {header.descriptors}, "
            f"{wanted} belong to it"
        )
    connection.most_body_bytes = reply.limits.message_bytes
    return reply, received.pop() if received else None
