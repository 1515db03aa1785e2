"""The session of a worker: the region for its copies, and a way to report them."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence

from .connection import Connection
from .counters import Counters
from .errors import ConnectionLost, Overflow, ProtocolError
from .link import Attached, Link
from .options import SessionOptions
from .protocol import ERROR, ONE_WAY, Complete, CompletedJob, ErrorReply, Kind, decode
from .region import Mapping

log = logging.getLogger(__name__)

#: How long the mapping of a region is kept after its connection was lost: for the copies that are on their way.
KEEP_MAPPING_S = 30.0
#: Mappings kept beside the present one.
_OLDER = 3
#: Reports in one message.
_REPORTS = 4096


class WorkerSession:
    """The session of one rank. Any thread may call it; nothing waits for the daemon. A thread of its own keeps it
    attached.

    **What must not happen** is a copy to or from a slot that has become another's. When a worker attaches again, the
    daemon counts what was handed to it before as failed, and gives the slots away once all ranks are through. Therefore
    `begin` refuses jobs that were named (`next_job`) before the attachment, and the session does not attach again while
    a copy that began is not completed.
    """

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self._counters = Counters()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._mapping: Mapping | None = None
        self._lost_at: float | None = None
        self._older: list[tuple[float, Mapping]] = []
        self._epoch = 0
        # Jobs named before this moment are not begun.
        self._accept_from_ns = 0
        self._greeting = False
        # Copies that began: job -> the connection they belong to, 0 for one whose daemon is gone.
        self._copying: dict[int, int] = {}
        self._reports: list[CompletedJob] = []
        self._most_reports = _REPORTS
        self._sequence = itertools.count(1)
        self._link = Link(options, "worker", self._sequence, self._counters, owner=self)
        self._link.start()

    @property
    def attached(self) -> bool:
        """Whether a connection is open."""
        return self._connection is not None

    @property
    def region(self) -> int:
        """The region that is mapped at present; 0 if none is."""
        mapping = self._mapping
        return mapping.region if mapping is not None and self._connection is not None else 0

    @property
    def counters(self) -> dict[str, int]:
        """What was counted since the session began, by the names of `Counters`."""
        return self._counters.as_dict()

    @property
    def last_error(self) -> str:
        """Why the daemon was last found to be away; empty if it never was."""
        return self._link.last_error

    def wait_attached(self, timeout_s: float) -> bool:
        """Waits, at most this long, until a connection is open. For the start of an engine and for tests."""
        deadline = time.monotonic() + timeout_s
        while self._connection is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def map(self, region: int) -> Mapping | None:
        """The mapping of a region: the present one's, or that of a connection lost less than `KEEP_MAPPING_S` ago. None
        for others.

        Says nothing of whether its slots may be touched: `begin` does.
        """
        with self._lock:
            self._expire()
            return self._find(region)

    def begin(self, job: int, region: int) -> Mapping | None:
        """A copy begins. `complete` must follow, whatever becomes of it, unless the answer is None.

        None: the copy must not be made, for its slots may be another's; the daemon knows the job as failed, or is told
        so now.
        """
        with self._lock:
            self._expire()
            mapping = self._find(region)
            present = mapping is not None and mapping is self._mapping
            if mapping is None or (present and (self._greeting or job < self._accept_from_ns)):
                self._counters.refused_copies += 1
                self._report(job, False)
                self._send_reports()
                return None
            self._copying[job] = self._epoch if present else 0
            return mapping

    def complete(self, jobs: Sequence[tuple[int, bool]]) -> None:
        """Reports jobs that ended for this rank, and whether all their bytes were copied.

        One way: what the socket does not take is kept, at most one report a job. Reports for a connection that is lost
        are dropped: the daemon counts those jobs as failed.
        """
        with self._lock:
            for job, ok in jobs:
                epoch = self._copying.pop(job, self._epoch)
                if epoch == self._epoch:
                    self._report(job, ok)
                else:
                    self._counters.dropped_reports += 1
            self._send_reports()

    def close(self) -> None:
        """Ends the session in order: nothing is copied for it any more. Waits for its thread, not for the daemon."""
        with self._lock:
            if self._connection is not None:
                self._send_reports()
                try:
                    self._connection.send(Kind.BYE, ONE_WAY, next(self._sequence), None)
                except (ConnectionLost, Overflow):
                    pass
            self._lose("closed")
            self._mapping = None
            self._older.clear()
        self._link.close()
        with self._lock:
            # One that was greeted in between.
            self._lose("closed")
            self._mapping = None

    # What the link's thread calls.

    def may_greet(self) -> bool:
        """See `link.Owner`."""
        with self._lock:
            self._expire()
            self._lose("the daemon closed the connection")
            if any(epoch == self._epoch for epoch in self._copying.values()):
                return False
            self._greeting = True
            return True

    def greeted(self, attached: Attached) -> None:
        """See `link.Owner`."""
        descriptor = attached.descriptor
        if descriptor is None:
            raise ProtocolError("no region came with the greeting")
        try:
            mapping = Mapping(descriptor, attached.reply)
        finally:
            os.close(descriptor)
        with self._lock:
            old = self._mapping
            self._older = [kept for kept in self._older if kept[1].region != mapping.region][-_OLDER:]
            if old is not None and old.region == mapping.region and old.file == mapping.file:
                mapping = old
            elif old is not None and old.region != mapping.region:
                self._older.append((time.monotonic() + KEEP_MAPPING_S, old))
            self._mapping = mapping
            self._most_reports = min(_REPORTS, attached.reply.limits.jobs)
            self._connection = attached.connection
            self._epoch = attached.epoch
            self._accept_from_ns = time.monotonic_ns()
            self._greeting = False

    def not_greeted(self, sent: bool) -> None:
        """See `link.Owner`."""
        with self._lock:
            self._greeting = False
            if sent:
                self._accept_from_ns = time.monotonic_ns()

    def serve(self) -> bool:
        """See `link.Owner`."""
        with self._lock:
            connection = self._connection
            if connection is None:
                return False
            try:
                connection.flush()
                for frame in connection.receive():
                    if frame.header.flags == ERROR:
                        refusal = decode(ErrorReply, frame.body)
                        self._counters.refused += 1
                        self._counters.log_refusal(log, frame.header.kind.name, refusal.code, refusal.message)
                    elif frame.header.kind is not Kind.GOODBYE:
                        raise ProtocolError(f"a frame of kind {frame.header.kind.name} came for no call")
                self._send_reports()
            except ProtocolError as error:
                self._counters.protocol_errors += 1
                log.warning("terrace: the daemon at %s sent what is not valid: %s", self.options.socket, error)
                self._lose(str(error))
            except ConnectionLost as error:
                self._lose(str(error))
            return self._connection is not None and (connection.pending_bytes > 0 or bool(self._reports))

    # Below: with the lock held.

    def _find(self, region: int) -> Mapping | None:
        if self._mapping is not None and self._mapping.region == region:
            return self._mapping
        return next((mapping for _, mapping in self._older if mapping.region == region), None)

    def _expire(self) -> None:
        now = time.monotonic()
        self._older = [(until, mapping) for until, mapping in self._older if until > now]
        if self._connection is None and self._lost_at is not None and now - self._lost_at > KEEP_MAPPING_S:
            self._mapping = None

    def _report(self, job: int, ok: bool) -> None:
        if self._connection is None:
            self._counters.dropped_reports += 1
        else:
            self._reports.append(CompletedJob(job, ok))

    def _send_reports(self) -> None:
        connection = self._connection
        try:
            while connection is not None and self._reports and not connection.pending_bytes:
                part = self._reports[: self._most_reports]
                connection.send(Kind.COMPLETE, ONE_WAY, next(self._sequence), Complete(part))
                del self._reports[: len(part)]
        except Overflow:
            self._counters.overflows += 1
        except ConnectionLost as error:
            self._lose(str(error))
            return
        if connection is not None and connection.pending_bytes:
            self._link.wake()

    def _lose(self, why: str) -> None:
        if self._connection is None:
            return
        self._connection.close()
        self._connection = None
        self._link.last_error = why
        self._lost_at = time.monotonic()
        self._counters.lost_connections += 1
        self._counters.dropped_reports += len(self._reports)
        self._reports.clear()
