"""Frames and bodies, against the golden vectors that the daemon's side is held to as well."""

from __future__ import annotations

import json
import random
import socket
import threading
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from terrace_kv import protocol
from terrace_kv.connection import Connection, Frame
from terrace_kv.errors import ConnectionLost, ProtocolError, TerraceError
from terrace_kv.protocol import (
    ERROR,
    HEADER_BYTES,
    ONE_WAY,
    REPLIES,
    REPLY,
    REQUESTS,
    ErrorReply,
    Header,
    Kind,
    Message,
    decode,
    encode_frame,
    numbers,
    numbers_to_bytes,
    unpack_header,
)

VECTORS = Path(__file__).parents[3] / "tests" / "protocol" / "vectors.json"


FILE: dict[str, Any] = json.loads(VECTORS.read_text())


def body_type(kind: Kind, flags: int) -> type[Message] | None:
    """What the body of such a frame is."""
    return ErrorReply if flags == ERROR else REPLIES[kind] if flags == REPLY else REQUESTS[kind]


#: Kinds that want no reply.
ONE_WAY_KINDS = {
    Kind.COMPLETE,
    Kind.STORE_ROWS,
    Kind.LOAD_ROWS,
    Kind.BYE,
    Kind.GOODBYE,
    Kind.COPY,
    Kind.COPIED,
}


def check_flags(header: Header) -> None:
    """What a session checks of the frames that it waits for."""
    if header.flags != ERROR and (header.flags == ONE_WAY) != (header.kind in ONE_WAY_KINDS):
        raise ProtocolError(f"{header.kind.name} with flags {header.flags}")


def plain(value: Any) -> Any:
    """A message as the vectors write it: named fields, bytes as hex."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def build(kind: Any, value: Any) -> Any:
    """The value of a type that the vectors write so: the inverse of `plain`, by the types of the fields."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return build(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(next(a for a in arguments if a is not type(None)), value)
    if origin is list:
        return [build(arguments[0], item) for item in value]
    if origin is tuple:
        each = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        return tuple(build(a, item) for a, item in zip(each, value, strict=True))
    if kind is bytes:
        return bytes.fromhex(value["hex"])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        assert set(value) == set(kind.__struct_fields__), f"fields of {kind.__name__}"
        return kind(**{name: build(hints[name], value[name]) for name in kind.__struct_fields__})
    assert isinstance(value, kind) or (kind is float and isinstance(value, int)), f"{value!r} is no {kind}"
    return float(value) if kind is float else value


@pytest.mark.parametrize("vector", FILE["vectors"], ids=lambda vector: vector["name"])
def test_golden_vectors(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    kind, flags = Kind(vector["kind"]), vector["flags"]
    header = unpack_header(frame, 0, FILE["message_bytes"])
    body = frame[HEADER_BYTES:]
    assert header == Header(kind, flags, len(body), vector["sequence"], vector["descriptors"])
    what = body_type(kind, flags)
    assert vector["message"] == ("Empty" if what is None else what.__name__)
    message = None
    if what is None:
        assert body == b""
        assert vector["body"] is None
    else:
        message = build(what, vector["body"])
        decoded = decode(what, body)
        assert decoded == message
        assert plain(decoded) == vector["body"]
    encoded = bytearray()
    encode_frame(encoded, kind, flags, vector["sequence"], message, vector["descriptors"])
    assert encoded.hex() == vector["frame_hex"]


def test_all_messages_are_in_the_vectors() -> None:
    assert {vector["kind"] for vector in FILE["vectors"]} == set(Kind)
    messages = {vector["message"] for vector in FILE["vectors"]}
    assert messages >= {
        kind.__name__ for kind in (*REQUESTS.values(), *REPLIES.values(), ErrorReply) if kind is not None
    }


@pytest.mark.parametrize("vector", FILE["refusals"], ids=lambda vector: vector["name"])
def test_golden_refusals(vector: dict[str, Any]) -> None:
    """What arrives is refused, or is a frame that does not end when the connection does."""
    frame = bytes.fromhex(vector["frame_hex"])
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    if frame[6:7] != bytes([Kind.HELLO]):
        connection.most_body_bytes = FILE["message_bytes"]
    sender = threading.Thread(target=theirs.sendall, args=(frame,))
    sender.start()
    whole: list[Frame] = []
    with pytest.raises((ProtocolError, ConnectionLost)) as raised:
        while True:
            connection.wait(0.01)
            if not sender.is_alive():
                theirs.close()
            for arrived in connection.receive():
                whole.append(arrived)
                check_flags(arrived.header)
                what = body_type(arrived.header.kind, arrived.header.flags)
                if what is not None:
                    decode(what, arrived.body)
                elif arrived.body:
                    raise ProtocolError("a body where none belongs")
    connection.close()
    sender.join()
    theirs.close()
    assert len(whole) <= (1 if vector["error"] in ("body", "long", "flags") else 0)
    assert (raised.type is ConnectionLost) == (vector["error"] in ("short", "long"))


@pytest.mark.parametrize(
    ("offset", "value", "word"),
    [
        (0, b"X", "TRRC"),
        (4, b"\2", "version 2"),
        (6, b"\0", "kind 0"),
        (6, b"\xff", "kind 255"),
        (8, b"\2", "flags 0x2"),
        (8, b"\x08", "flags 0x8"),
        (15, b"\1", "at most"),
        (24, b"\3", "descriptors"),
        (26, b"\1", "reserved"),
        (31, b"\1", "reserved"),
    ],
)
def test_a_header_with_one_wrong_byte_is_refused(offset: int, value: bytes, word: str) -> None:
    frame = bytearray()
    encode_frame(frame, Kind.PING, 0, 1, None)
    unpack_header(frame, 0, 0)
    frame[offset : offset + 1] = value
    with pytest.raises(ProtocolError, match=word):
        unpack_header(frame, 0, 1 << 20)


def test_bodies_of_random_bytes_decode_or_are_refused() -> None:
    seed = 20260
    rng = random.Random(seed)
    kinds = [kind for kind in {*REQUESTS.values(), *REPLIES.values()} if kind is not None]
    accepted = 0
    for _ in range(20000):
        body = rng.randbytes(rng.randrange(40))
        kind = rng.choice(kinds)
        try:
            decode(kind, body)
            accepted += 1
        except TerraceError:
            pass
    assert accepted < 20000, "everything was accepted"


def test_a_body_has_neither_more_nor_fewer_fields() -> None:
    body = msgspec.msgpack.encode([5, True])
    assert decode(protocol.CompletedJob, body) == protocol.CompletedJob(5, True)
    for wrong in ([5], [5, True, 1], [-1, True], [5, 1], {"job": 5, "ok": True}):
        with pytest.raises(ProtocolError):
            decode(protocol.CompletedJob, msgspec.msgpack.encode(wrong))
    with pytest.raises(ProtocolError):
        decode(protocol.CompletedJob, body + b"\0")


def test_numbers_travel_little_endian() -> None:
    wire = numbers_to_bytes([1, 0xFFFF_FFFE])
    assert wire == bytes([1, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF])
    assert list(numbers(wire)) == [1, 0xFFFF_FFFE]
    assert numbers_to_bytes(numbers(wire)) == wire
    with pytest.raises(ProtocolError):
        numbers(b"123")
