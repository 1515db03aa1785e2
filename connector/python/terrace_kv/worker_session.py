"""The session of a worker: the region for its copies, and a way to report them."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence

from .connection import Connection, Frame
from .counters import Counters
from .device_copies import CopyUser, Flights
from .errors import ConnectionLost, Overflow, ProtocolError
from .link import Attached, Link
from .options import SessionOptions
from .peer import Peer
from .protocol import (
    DEVICE_COPIES,
    ERROR,
    ONE_WAY,
    REPLY,
    REQUEST,
    AttachReply,
    Complete,
    CompletedJob,
    Copied,
    CopiedJob,
    Copy,
    CopyJob,
    ErrorReply,
    Kind,
    decode,
)
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

    With a `device` the daemon copies: `copy` takes the place of `begin` and `complete`.
    """

    def __init__(self, options: SessionOptions, device: CopyUser | None = None) -> None:
        self.options = options
        self._device = device
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
        # Copies that the daemon makes, those of them that ended and are not told yet, and the daemon that makes them.
        self._flights = Flights()
        self._ended: list[CopiedJob] = []
        self._peer: Peer | None = None
        self._takes_copies = False
        self._attach_sequence = 0
        self._sequence = itertools.count(1)
        features = () if device is None else (DEVICE_COPIES,)
        self._link = Link(options, "worker", self._sequence, self._counters, owner=self, features=features)
        self._link.start()

    @property
    def attached(self) -> bool:
        """Whether a connection is open."""
        return self._connection is not None

    @property
    def takes_copies(self) -> bool:
        """Whether the daemon copies for this worker."""
        return self._takes_copies

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

    def copy(self, store: bool, jobs: Sequence[CopyJob], region: int) -> None:
        """Has the daemon copy: pages to slots (`store`) or slots to pages, all of one step in one message.

        Does not wait. `CopyUser.copied` is called once for each job, here if it cannot be copied, and the daemon is told
        of the outcome.
        """
        with self._lock:
            mapping = self._find(region)
            present = mapping is not None and mapping is self._mapping and not self._greeting and self._takes_copies
            taken = [job for job in jobs if present and job.job >= self._accept_from_ns]
            if len(taken) < len(jobs):
                names = {job.job for job in taken}
                self._refuse([job.job for job in jobs if job.job not in names])
            if taken and self._connection is not None:
                for job in taken:
                    self._flights.begin(job.job, store, self._epoch)
                try:
                    self._connection.send(Kind.COPY, ONE_WAY, next(self._sequence), Copy(store, list(taken)))
                    if self._connection.pending_bytes:
                        self._link.wake()
                except Overflow:
                    self._counters.overflows += 1
                    for job in taken:
                        self._flights.end(job.job, self._epoch)
                    self._refuse([job.job for job in taken])
                except ConnectionLost as error:
                    self._lose(str(error))
            self._send_reports()
        self._tell()

    def give_up(self, jobs: Sequence[int]) -> None:
        """Stores of `copy` that are not waited for: they are not published, and their pages may be written to."""
        with self._lock:
            given_up = [job for job in jobs if self._flights.give_up(job)]
            self._counters.given_up_copies += len(given_up)
            for job in given_up:
                self._report(job, False)
                self._ended.append(CopiedJob(job, False, 0, 0))
            self._send_reports()
        self._tell()

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
        self._tell()

    # What the link's thread calls.

    def may_greet(self) -> bool:
        """See `link.Owner`."""
        with self._lock:
            self._expire()
            self._lose("the daemon closed the connection")
            self._ended += self._flights.settle()
            may = not any(epoch == self._epoch for epoch in self._copying.values())
            self._greeting = may
        self._tell()
        return may

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
            self._peer = Peer(attached.connection.socket)
            self._ended += self._flights.settle(greeted_by=self._peer)
        self._tell()
        if self._device is not None:
            self._attach(self._device, attached.reply.features)

    def not_greeted(self, sent: bool) -> None:
        """See `link.Owner`."""
        with self._lock:
            self._greeting = False
            if sent:
                self._accept_from_ns = time.monotonic_ns()

    def serve(self) -> bool:
        """See `link.Owner`."""
        attached: AttachReply | None = None
        refused: str | None = None
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
                        if frame.header.kind is Kind.ATTACH and frame.header.sequence == self._attach_sequence:
                            refused = refusal.message
                    elif frame.header.kind is Kind.COPIED and frame.header.flags == ONE_WAY:
                        self._copied(frame)
                    elif frame.header.flags == REPLY and frame.header.sequence == self._attach_sequence:
                        attached = decode(AttachReply, frame.body)
                    elif frame.header.kind is not Kind.GOODBYE:
                        raise ProtocolError(f"a frame of kind {frame.header.kind.name} came for no call")
                self._send_reports()
            except ProtocolError as error:
                self._counters.protocol_errors += 1
                log.warning("terrace: the daemon at %s sent what is not valid: %s", self.options.socket, error)
                self._lose(str(error))
            except ConnectionLost as error:
                self._lose(str(error))
            waits = self._connection is not None and (connection.pending_bytes > 0 or bool(self._reports))
        self._tell()
        if self._device is not None and attached is not None:
            self._device.attached(attached)
            with self._lock:
                # Handed out before this moment, copied by it or not at all.
                self._takes_copies = self._connection is connection
        elif self._device is not None and refused is not None:
            self._device.not_attached(refused)
        return waits

    def _attach(self, device: CopyUser, features: Sequence[str]) -> None:
        """Asks the daemon to copy for this worker."""
        if DEVICE_COPIES not in features:
            device.not_attached("it has no GPU, or its configuration says copy.engine = \"host\"")
            return
        message = device.attachment()
        with self._lock:
            if self._connection is None:
                return
            self._attach_sequence = next(self._sequence)
            try:
                self._connection.send(Kind.ATTACH, REQUEST, self._attach_sequence, message)
                self._link.wake()
            except Overflow as error:
                refused = str(error)
            except ConnectionLost as error:
                self._lose(str(error))
                return
            else:
                return
        device.not_attached(refused)

    def _tell(self) -> None:
        """Tells the device what ended. Without the lock."""
        with self._lock:
            ended, self._ended = self._ended, []
        if self._device is not None:
            for job in ended:
                self._device.copied(job)

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

    def _refuse(self, jobs: Sequence[int]) -> None:
        self._counters.refused_copies += len(jobs)
        for job in jobs:
            self._report(job, False)
            self._ended.append(CopiedJob(job, False, 0, 0))

    def _copied(self, frame: Frame) -> None:
        for job in decode(Copied, frame.body).jobs:
            if self._flights.end(job.job, self._epoch):
                self._report(job.job, job.ok)
                self._ended.append(job)

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
        self._takes_copies = False
        if self._peer is not None:
            self._ended += self._flights.lose(self._epoch, self._peer)
            self._peer = None
        self._link.last_error = why
        self._lost_at = time.monotonic()
        self._counters.lost_connections += 1
        self._counters.dropped_reports += len(self._reports)
        self._reports.clear()
