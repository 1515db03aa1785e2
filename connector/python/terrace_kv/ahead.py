"""Lookups that were sent before anybody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .protocol import ErrorReply, LookupReply

#: Look-aheads whose reply is out. Replies come in the order of the calls, so only a daemon that stopped gets this far.
MOST_OUT = 1024


class LookAhead(NamedTuple):
    """What a request is going to ask: the arguments of `SchedulerSession.lookup`."""

    request: int
    tiers_mask: int
    queries: Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class Sent:
    """A look-ahead that was sent."""

    sequence: int
    asked: LookAhead
    #: None until it has come.
    reply: LookupReply | ErrorReply | None = None


class LookAheads:
    """The look-aheads of a connection.

    Each is for the step in which the daemon answers it, for its lease ends with that. What was not taken by then is let
    go, and its reply dropped when it comes.
    """

    def __init__(self) -> None:
        self._by_request: dict[int, Sent] = {}
        # Those whose reply has not come; None: nobody will take it.
        self._out: dict[int, Sent | None] = {}

    def __len__(self) -> int:
        """Those that can be taken."""
        return len(self._by_request)

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self._out) < MOST_OUT

    def sent(self, sequence: int, asked: LookAhead) -> None:
        """It was sent as this."""
        self._out[sequence] = self._by_request[asked.request] = Sent(sequence, asked)

    def is_sent(self, request: int) -> bool:
        """Whether there is one for the request in this step."""
        return request in self._by_request

    def is_out(self, sequence: int) -> bool:
        """Whether the reply to this one is still to come."""
        return sequence in self._out

    def arrived(self, sequence: int, reply: LookupReply | ErrorReply) -> None:
        """The reply came."""
        sent = self._out.pop(sequence)
        if sent is not None:
            sent.reply = reply

    def take(self, asked: LookAhead) -> Sent | None:
        """The look-ahead that asked the same, once. A reply that has not come is the caller's to wait for."""
        sent = self._by_request.get(asked.request)
        if sent is None or sent.asked != asked:
            return None
        del self._by_request[asked.request]
        self._out.pop(sent.sequence, None)
        return sent

    def let_go(self) -> None:
        """Nobody will take what is here."""
        if self._by_request:
            self._by_request.clear()
            self._out = dict.fromkeys(self._out)

    def clear(self) -> None:
        """The connection is lost."""
        self._by_request.clear()
        self._out.clear()
