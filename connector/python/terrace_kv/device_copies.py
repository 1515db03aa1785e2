"""Copies that the daemon makes between a worker's GPU memory and slots."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from .peer import Peer
from .protocol import Attach, AttachReply, CopiedJob

#: How long loads of a lost connection are waited for where the daemon's process cannot be watched.
UNWATCHED_S = 30.0


class CopyUser(Protocol):
    """Who has copies made. Called on any thread, without a lock of the session; must not wait."""

    def attachment(self) -> Attach:
        """What the daemon is to know of the memory. Asked for each connection."""

    def attached(self, reply: AttachReply) -> None:
        """Copies are taken from now on."""

    def not_attached(self, why: str) -> None:
        """This daemon takes no copies."""

    def copied(self, job: CopiedJob) -> None:
        """Nothing is copied for the job any more. Once for each job of `WorkerSession.copy`. Of a store only the daemon
        is touched after it; pages of a load are the engine's again."""


class _Flight(NamedTuple):
    store: bool
    epoch: int


class _Lost(NamedTuple):
    """A connection that ended with loads under way."""

    peer: Peer
    until: float
    loads: list[int]


class Flights:
    """Copies that were asked for and have not ended. Not thread-safe: the session's lock guards it."""

    def __init__(self) -> None:
        self._flying: dict[int, _Flight] = {}
        self._lost: list[_Lost] = []

    def begin(self, job: int, store: bool, epoch: int) -> None:
        """A copy is asked for over the connection `epoch`."""
        self._flying[job] = _Flight(store, epoch)

    def end(self, job: int, epoch: int) -> bool:
        """The daemon says that it ended, over that connection. False: nobody waits for it (any more)."""
        flight = self._flying.get(job)
        if flight is None or flight.epoch != epoch:
            return False
        del self._flying[job]
        return True

    def give_up(self, job: int) -> bool:
        """A store is not waited for any more. False: it is none that is under way."""
        flight = self._flying.get(job)
        if flight is None or not flight.store:
            return False
        del self._flying[job]
        return True

    def lose(self, epoch: int, peer: Peer) -> list[CopiedJob]:
        """The connection is lost. What ended with it: its stores, which are not published. Its loads may still be written
        to."""
        mine = {job: flight for job, flight in self._flying.items() if flight.epoch == epoch}
        for job in mine:
            del self._flying[job]
        loads = [job for job, flight in mine.items() if not flight.store]
        if loads:
            self._lost.append(_Lost(peer, time.monotonic() + UNWATCHED_S, loads))
        return [_failed(job) for job, flight in mine.items() if flight.store]

    def settle(self, greeted_by: Peer | None = None) -> list[CopiedJob]:
        """Loads of lost connections that have ended: their daemon is gone, or has greeted this rank again."""
        now = time.monotonic()
        ended: list[CopiedJob] = []
        kept: list[_Lost] = []
        for lost in self._lost:
            again = greeted_by is not None and greeted_by.pid == lost.peer.pid
            if again or lost.peer.gone() or (not lost.peer.watched and now >= lost.until):
                ended += [_failed(job) for job in lost.loads]
            else:
                kept.append(lost)
        self._lost = kept
        return ended

    @property
    def waits(self) -> bool:
        """Whether `settle` may find something."""
        return bool(self._lost)


def _failed(job: int) -> CopiedJob:
    return CopiedJob(job, False, 0, 0)
