"""One connection: frames over a non-blocking Unix socket."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Sequence
from typing import NamedTuple

from .errors import ConnectionLost, Overflow, ProtocolError
from .protocol import HEADER_BYTES, MAX_HELLO_BYTES, Header, Kind, Message, encode_frame, unpack_header

#: Bytes that may wait before the socket. A message that is longer is taken if nothing else waits.
PENDING_BYTES = 1 << 20
_READ_BYTES = 64 << 10
_DESCRIPTOR_BYTES = array.array("i").itemsize


class Frame(NamedTuple):
    """A frame that arrived."""

    header: Header
    body: bytes


class Connection:
    """A connection, owned by one thread at a time. Nothing but `wait` ever waits."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes over a connected Unix stream socket."""
        sock.setblocking(False)
        self._socket = sock
        #: Longest body, either way. The greeting has its own bound; then the daemon's applies.
        self.most_body_bytes = MAX_HELLO_BYTES
        self._out = bytearray(HEADER_BYTES)
        self._pending = bytearray()
        self._corked = False
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = 0
        self._end = 0
        self._closed = False
        self._poll_in = select.poll()
        self._poll_in.register(sock, select.POLLIN)
        self._poll_both = select.poll()
        self._poll_both.register(sock, select.POLLIN | select.POLLOUT)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait because the daemon does not read."""
        return 0 if self._corked else len(self._pending)

    @property
    def socket(self) -> socket.socket:
        """The socket, for those who watch it."""
        return self._socket

    def send(
        self, kind: Kind, flags: int, sequence: int, message: Message | None, descriptors: Sequence[int] = ()
    ) -> None:
        """Sends a frame, or keeps what the socket does not take now.

        Raises `Overflow`, with nothing sent, for a body that is too long and when too much is kept already, and
        `ConnectionLost`.
        """
        encode_frame(self._out, kind, flags, sequence, message, len(descriptors))
        length = len(self._out)
        if length - HEADER_BYTES > self.most_body_bytes:
            raise Overflow(f"{kind.name} has {length - HEADER_BYTES} bytes, at most {self.most_body_bytes} are taken")
        if self._pending or self._corked:
            if self._pending and len(self._pending) + length > PENDING_BYTES:
                raise Overflow(f"{len(self._pending)} bytes wait for the daemon already")
            self._pending += self._out
            if not self._corked:
                self.flush()
            return
        sent = 0
        try:
            if descriptors:
                sent = socket.send_fds(self._socket, [self._out], list(descriptors), socket.MSG_NOSIGNAL)
            else:
                sent = self._socket.send(self._out, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            if descriptors:
                raise ConnectionLost("the socket does not even take the greeting") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if sent < length:
            self._pending += memoryview(self._out)[sent:]

    def cork(self) -> None:
        """Keeps what is sent from here on, up to `uncork`: several frames in one write."""
        self._corked = True

    def uncork(self) -> None:
        """Sends it, as far as the socket takes it. Raises `ConnectionLost`."""
        self._corked = False
        self.flush()

    def flush(self) -> None:
        """Sends what was kept, as far as the socket takes it. Raises `ConnectionLost`."""
        while self._pending:
            try:
                sent = self._socket.send(self._pending, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            del self._pending[:sent]

    def receive(self) -> list[Frame]:
        """The frames that are there.

        Raises `ProtocolError`, and `ConnectionLost` at the end of the stream: then frames that came before it are given
        first.
        """
        frames: list[Frame] = []
        while True:
            self._make_room()
            room = len(self._buffer) - self._end
            try:
                count = self._socket.recv_into(self._view[self._end :])
            except (BlockingIOError, InterruptedError):
                return frames
            except OSError as error:
                if frames:
                    return frames
                raise ConnectionLost(str(error)) from error
            if count == 0:
                if frames:
                    return frames
                raise ConnectionLost("the daemon closed the connection")
            self._end += count
            self._parse(frames)
            if count < room:
                return frames

    def receive_descriptors(self) -> tuple[list[Frame], list[int]]:
        """As `receive`, once, with the descriptors that came along, which are the caller's then. For the greeting:
        later frames carry none.
        """
        frames: list[Frame] = []
        self._make_room()
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                len(self._buffer) - self._end, socket.CMSG_SPACE(4 * _DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return frames, []
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        descriptors = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % _DESCRIPTOR_BYTES])
        received = list(descriptors)
        try:
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError("more descriptors came than fit")
            if not data and not received:
                raise ConnectionLost("the daemon closed the connection")
            self._view[self._end : self._end + len(data)] = data
            self._end += len(data)
            self._parse(frames)
        except BaseException:
            close_all(received)
            raise
        return frames, received

    def wait(self, seconds: float) -> None:
        """Waits until something arrives, or can be sent if something is kept; at most this long."""
        poll = self._poll_both if self._pending else self._poll_in
        if poll.poll(seconds * 1000) and self._pending:
            self.flush()

    def close(self) -> None:
        """Closes the connection. Who watches a duplicate of the socket sees it end."""
        if not self._closed:
            self._closed = True
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is over already.
            self._socket.close()

    def _make_room(self) -> None:
        """Room for at least one byte more, and for all of the frame that has begun to arrive."""
        have = self._end - self._begin
        if have == 0:
            self._begin = self._end = 0
        need = _READ_BYTES
        if have >= HEADER_BYTES:
            header = unpack_header(self._buffer, self._begin, self.most_body_bytes)
            need = max(need, HEADER_BYTES + header.body_bytes)
        if self._end < len(self._buffer) and self._begin + need <= len(self._buffer):
            return
        if self._begin:
            self._view[:have] = bytes(self._view[self._begin : self._end])
            self._begin, self._end = 0, have
        if self._end == len(self._buffer):
            # Doubled as bytes arrive: a length alone takes no memory.
            larger = bytearray(min(need, 2 * len(self._buffer)))
            larger[:have] = self._view
            self._buffer, self._view = larger, memoryview(larger)

    def _parse(self, frames: list[Frame]) -> None:
        while self._end - self._begin >= HEADER_BYTES:
            header = unpack_header(self._buffer, self._begin, self.most_body_bytes)
            if header.descriptors and header.kind is not Kind.HELLO:
                raise ProtocolError(f"a descriptor came with a frame of kind {header.kind.name}")
            body = self._begin + HEADER_BYTES
            end = body + header.body_bytes
            if end > self._end:
                return
            frames.append(Frame(header, bytes(self._view[body:end])))
            self._begin = end


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors that came and are not wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
