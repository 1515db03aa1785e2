"""Keeps a session connected: a thread that connects, greets, hands the connection over and watches for its end."""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from .connection import Connection
from .counters import Counters
from .errors import TerraceError
from .greeting import connect, greet
from .options import SessionOptions
from .protocol import ForeignRegion, HelloReply

log = logging.getLogger(__name__)

#: Back-off between attempts, doubled from the first to the last, of which a random half is waited at least.
BACKOFF_FIRST_S, BACKOFF_LAST_S = 0.05, 2.0
#: A connection that lived this long was a good one: the back-off begins anew.
_GOOD_S = 2.0
_OVER = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class Attached(NamedTuple):
    """A connection over which a session is open."""

    connection: Connection
    reply: HelloReply
    #: Of the region; the taker's to close. None for the role "tier".
    descriptor: int | None
    #: 1 for the first connection, then ascending.
    epoch: int


class Owner(Protocol):
    """A session that is served by the link's own thread; all of these are called on it."""

    def may_greet(self) -> bool:
        """Whether a connection may be opened now. After True one of the next two follows."""

    def greeted(self, attached: Attached) -> None:
        """A connection is open. Raises `TerraceError` to refuse it."""

    def not_greeted(self, sent: bool) -> None:
        """No connection came of it; `sent`: but the daemon may have seen the greeting."""

    def serve(self) -> bool:
        """Something arrived or can be sent. Whether something waits to be sent."""


class Link:
    """Without an owner, a new connection waits in `take` for the thread that uses the session."""

    def __init__(
        self,
        options: SessionOptions,
        role: str,
        sequence: Iterator[int],
        counters: Counters,
        foreign: ForeignRegion | None = None,
        foreign_descriptor: int | None = None,
        owner: Owner | None = None,
        features: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._role = role
        self._sequence = sequence
        self._counters = counters
        self._foreign = foreign
        self._foreign_descriptor = foreign_descriptor
        self._owner = owner
        self._features = features
        #: Why the last attempt or connection failed.
        self.last_error = ""
        self._epoch = 0
        #: The last connection that is seen to be over.
        self.over_epoch = 0
        self._lock = threading.Lock()
        self._offered: Attached | None = None
        self._has_offer = threading.Event()
        self._closing = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"terrace-{role}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def take(self) -> Attached | None:
        """The new connection, if there is one; once."""
        if self._offered is None:
            return None
        with self._lock:
            offered, self._offered = self._offered, None
            self._has_offer.clear()
        if offered is not None and offered.descriptor is not None:
            # A scheduler does not touch bytes.
            os.close(offered.descriptor)
        return offered

    def wait(self, timeout_s: float) -> bool:
        """Waits for a new connection, at most this long."""
        return self._has_offer.wait(timeout_s)

    def wake(self) -> None:
        """The owner has something to send that the socket did not take."""
        try:
            os.eventfd_write(self._wake, 1)
        except (BlockingIOError, OSError):
            pass  # It is awake already, or gone.

    def close(self) -> None:
        """Ends the thread, and a connection that nobody took. Waits for the thread, a few seconds at most."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        offered = self.take()
        if offered is not None:
            offered.connection.close()
        if not self._thread.is_alive():
            os.close(self._wake)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                if self._attach_and_watch() and time.monotonic() - began >= _GOOD_S:
                    failures = 0
            except Exception:
                # A fault of ours must cost the engine hits, not its life.
                log.exception("terrace: the session with %s failed", self._options.socket)
            delay = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2 ** min(failures, 10))
            failures += 1
            self._closing.wait(delay * random.uniform(0.5, 1.0))

    def _attach_and_watch(self) -> bool:
        """One attempt, and the life of the connection that came of it. Whether one did."""
        owner = self._owner
        if owner is not None and not owner.may_greet():
            return False
        sent = False
        try:
            connection = connect(self._options.socket)
            sent = True
            greeting = greet(
                connection,
                self._options,
                self._role,
                self._sequence,
                self._foreign,
                self._foreign_descriptor,
                self._features,
                self._closing.is_set,
            )
        except (OSError, TerraceError) as error:
            self._failed(error)
            if owner is not None:
                owner.not_greeted(sent)
            return False
        # The watcher's own descriptor: the owner may close the connection at any time.
        watched = os.dup(connection.socket.fileno())
        try:
            self._epoch += 1
            attached = Attached(connection, greeting.reply, greeting.descriptor, self._epoch)
            if owner is None:
                self._offer(attached)
            else:
                try:
                    owner.greeted(attached)
                except TerraceError as error:
                    connection.close()
                    self._failed(error)
                    owner.not_greeted(True)
                    return False
            self._counters.connections += 1
            log.info("terrace: connected to %s as session %d", self._options.socket, greeting.reply.session)
            self._watch(watched)
            self.over_epoch = attached.epoch
        finally:
            os.close(watched)
        return True

    def _failed(self, error: Exception) -> None:
        self._counters.failed_attempts += 1
        text = str(error)
        if text != self.last_error:
            self.last_error = text
            log.warning("terrace: no session with the daemon at %s: %s", self._options.socket, text)

    def _offer(self, attached: Attached) -> None:
        with self._lock:
            stale, self._offered = self._offered, attached
            self._has_offer.set()
        if stale is not None:
            stale.connection.close()
            if stale.descriptor is not None:
                os.close(stale.descriptor)

    def _watch(self, watched: int) -> None:
        owner = self._owner
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(watched, select.POLLRDHUP if owner is None else select.POLLRDHUP | select.POLLIN)
        while not self._closing.is_set():
            over = False
            for descriptor, events in poll.poll():
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif events & _OVER:
                    over = True
            if owner is not None:
                wants = select.POLLRDHUP | select.POLLIN | (select.POLLOUT if owner.serve() else 0)
                poll.modify(watched, wants)
            if over:
                return
