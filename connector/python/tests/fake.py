"""A daemon that does what a test tells it to, over real sockets and with a real region."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from terrace_kv import Geometry, Namespace, SessionOptions, TierInfo
from terrace_kv.connection import Connection, Frame
from terrace_kv.errors import TerraceError
from terrace_kv.protocol import (
    ERROR,
    REPLY,
    EndStepReply,
    ErrorReply,
    Hello,
    HelloReply,
    Kind,
    Lookup,
    LookupReply,
    Message,
    PrepareStore,
    PrepareStoreReply,
    Query,
    WireLimits,
    decode,
    encode_frame,
    numbers_to_bytes,
)

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
GEOMETRY = Geometry(4096, 16, 1, 1, 32)
KEY_BYTES = GEOMETRY.key_bytes
LIMITS = WireLimits(1 << 20, 4096, 64, 64, 64)


def key(number: int) -> bytes:
    """A key of its own for each number."""
    return number.to_bytes(32, "big") + bytes(4)


def keys(*numbers: int) -> bytes:
    """Several keys, one after the other."""
    return b"".join(key(number) for number in numbers)


def options(path: str, **changes: Any) -> SessionOptions:
    """Options with a budget that a loaded machine does not exceed by itself."""
    given: dict[str, Any] = {
        "socket": path,
        "engine": "engine",
        "namespace": Namespace("model"),
        "geometry": GEOMETRY,
        "call_budget_s": 2.0,
    }
    return SessionOptions(**(given | changes))


def region_file(length: int, sealed: bool = True) -> int:
    """A memfd."""
    descriptor = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)
    if sealed:
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)
    return descriptor


class Peer:
    """The daemon's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def send(
        self,
        kind: Kind,
        flags: int,
        sequence: int,
        message: Message | None,
        descriptors: tuple[int, ...] = (),
        announced: int | None = None,
    ) -> None:
        """Sends a frame; `announced` descriptors if the header is to lie."""
        frame = bytearray()
        encode_frame(frame, kind, flags, sequence, message, len(descriptors) if announced is None else announced)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self.socket.sendmsg([frame], rights)
        if sent < len(frame):
            self.socket.sendall(memoryview(frame)[sent:])

    def reply(self, frame: Frame, message: Message | None) -> None:
        """Answers."""
        self.send(frame.header.kind, REPLY, frame.header.sequence, message)

    def refuse(self, frame: Frame, code: int, message: str = "no") -> None:
        """Answers with an error."""
        self.send(frame.header.kind, ERROR, frame.header.sequence, ErrorReply(code, message))

    def close(self) -> None:
        """Ends the connection."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


Handler = Callable[[Peer, Frame], None]


class Fake:
    """Listens from the start. `on` says what is done with a kind of frame; without, lookups hit, stores have room,
    steps are answered.
    """

    def __init__(self, path: str, slots: int = 8, region: int = 7) -> None:
        self.path = path
        self.region = region_file(slots * 4096)
        self.greeting = HelloReply(
            1, [], 1, region, bytes(32), slots, 4096, slots * 4096, (TierInfo("nvme", 1, 0),), LIMITS
        )
        self.on: dict[Kind, Handler] = {
            Kind.HELLO: self.hello,
            Kind.LOOKUP: self.hits,
            Kind.PREPARE_STORE: self.room,
            Kind.END_STEP: lambda peer, frame: peer.reply(frame, EndStepReply([], 0, [], [], 0, [], [])),
            Kind.PING: lambda peer, frame: peer.reply(frame, None),
        }
        self.peers: list[Peer] = []
        self.frames: list[Frame] = []
        self.arrived = threading.Condition()
        self._ended = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(16)
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    # What it does by default.

    def hello(self, peer: Peer, frame: Frame) -> None:
        """Opens the session."""
        role = decode_hello_role(frame)
        peer.send(Kind.HELLO, REPLY, frame.header.sequence, self.greeting, () if role == "tier" else (self.region,))

    def hits(self, peer: Peer, frame: Frame) -> None:
        """Each key is a hit in slot 0, 1, ..."""
        count = sum(len(query.keys) for query in queries_of(frame)) // KEY_BYTES
        peer.reply(frame, LookupReply(frame.header.sequence, b"\1" * count, numbers_to_bytes(range(count))))

    def room(self, peer: Peer, frame: Frame) -> None:
        """Each key gets a slot."""
        count = len(decode(PrepareStore, frame.body).keys) // KEY_BYTES
        peer.reply(frame, PrepareStoreReply(True, numbers_to_bytes(range(count)), numbers_to_bytes(range(count))))

    # What a test asks.

    def seen(self, kind: Kind) -> list[Frame]:
        """Frames of a kind that have arrived."""
        with self.arrived:
            return [frame for frame in self.frames if frame.header.kind is kind]

    def wait_seen(self, kind: Kind, count: int) -> list[Frame]:
        """Waits until so many have arrived; fails after ten seconds."""
        with self.arrived:
            found = self.arrived.wait_for(
                lambda: sum(frame.header.kind is kind for frame in self.frames) >= count, timeout=10
            )
        assert found, f"{len(self.seen(kind))} frames of kind {kind.name} arrived, {count} were expected"
        return self.seen(kind)

    def end(self) -> None:
        """Closes everything, as a daemon that dies."""
        self._ended = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        if os.path.exists(self.path):
            os.unlink(self.path)
        for peer in self.peers:
            peer.close()
        # They close their sockets; a socket that is left to the collector is a warning, and fails some later test.
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout=10)
        os.close(self.region)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(sock)
            self.peers.append(peer)
            self._start(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        # The client's framing serves here too: `tests/protocol/vectors.json` holds it to the daemon's.
        connection = Connection(os_dup(peer.socket))
        connection.most_body_bytes = 1 << 24
        try:
            while not self._ended:
                connection.wait(0.1)
                frames, descriptors = connection.receive_descriptors()
                for descriptor in descriptors:
                    os.close(descriptor)
                for frame in frames:
                    with self.arrived:
                        self.frames.append(frame)
                        self.arrived.notify_all()
                    handler = self.on.get(frame.header.kind)
                    if handler is not None:
                        peer.socket.settimeout(10)
                        handler(peer, frame)
        except (OSError, TerraceError):
            pass
        finally:
            peer.close()
            connection.close()
            peer.socket.close()


def os_dup(sock: socket.socket) -> socket.socket:
    """Another descriptor of a socket."""
    return socket.socket(fileno=os.dup(sock.fileno()))


def queries_of(frame: Frame) -> list[Query]:
    """The queries of a lookup."""
    return decode(Lookup, frame.body).queries


def decode_hello_role(frame: Frame) -> str:
    """The role of a greeting."""
    return decode(Hello, frame.body).role
