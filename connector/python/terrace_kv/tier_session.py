"""The session of a secondary tier: the daemon itself copies between the engine's region and the pool."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence

from .connection import Connection
from .errors import ConnectionLost, Overflow
from .link import Attached, Link
from .options import SessionOptions
from .protocol import (
    ONE_WAY,
    EndStepReply,
    ErrorReply,
    ForeignRegion,
    Kind,
    LoadRows,
    Numbers,
    RowsDone,
    StoreRows,
    numbers_to_bytes,
)
from .session import SchedulerSession

#: How long row copies of a lost connection count as running where it cannot be seen that the daemon is gone.
LOST_ROWS_S = 10.0
_CREDENTIALS = struct.Struct("3i")


class TierSession(SchedulerSession):
    """A scheduler session that also stores and loads rows of a region of the engine's own.

    The end of each row job is told as a `RowsDone` by a later `end_step` or `poll`, once, also when the connection is
    lost: then every key of it failed. That is told only when the daemon cannot be copying any more, for until then the
    rows may change: its process is gone, or `LOST_ROWS_S` have passed.
    """

    _role = "tier"

    def __init__(
        self, options: SessionOptions, *, region_fd: int, rows: int, row_stride: int, offset_bytes: int = 0
    ) -> None:
        """`region_fd` is of the engine's region, a file on tmpfs; it stays the caller's. Row `i` begins at
        `offset_bytes + i * row_stride`.
        """
        self._foreign = ForeignRegion(rows, row_stride, offset_bytes)
        self._descriptor = os.dup(region_fd)
        # Row jobs of the present connection: job -> keys; and by the sequence that began them.
        self._row_jobs: dict[int, int] = {}
        self._row_sequences: dict[int, int] = {}
        # Row jobs of connections that were lost: (until, the daemon's process or -1, jobs).
        self._lost_rows: list[tuple[float, int, dict[int, int]]] = []
        self._daemon = -1
        super().__init__(options)

    def _make_link(self, foreign: ForeignRegion | None = None, descriptor: int | None = None) -> Link:
        return super()._make_link(self._foreign, self._descriptor)

    @property
    def row_jobs(self) -> int:
        """Row jobs whose end was not told yet."""
        return len(self._row_jobs) + sum(len(jobs) for _, _, jobs in self._lost_rows)

    def store_rows(self, request: int, job: int, keys: bytes, rows: bytes | Numbers | Sequence[int]) -> bool:
        """Begins to copy rows into the pool and on to all tiers. One way. `rows` has one number for each key; `job`
        comes from `next_job`.

        False: dropped, and the job does not exist: the daemon is away or slow, or a limit is reached.
        """
        self._counters.stores += 1
        done = self._send_rows(Kind.STORE_ROWS, request, job, keys, rows, StoreRows)
        self._counters.dropped_stores += not done
        return done

    def load_rows(self, request: int, job: int, keys: bytes, rows: bytes | Numbers | Sequence[int]) -> bool:
        """Begins to bring blocks into rows. As `store_rows`."""
        return self._send_rows(Kind.LOAD_ROWS, request, job, keys, rows, LoadRows)

    def close(self) -> None:
        super().close()
        for _, daemon, _ in self._lost_rows:
            if daemon >= 0:
                os.close(daemon)
        self._lost_rows.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # Below: how it is done.

    def _send_rows(
        self,
        kind: Kind,
        request: int,
        job: int,
        keys: bytes,
        rows: bytes | Numbers | Sequence[int],
        message: type[StoreRows] | type[LoadRows],
    ) -> bool:
        if not self._may_ask():
            return False
        connection, welcome = self._connection, self._welcome
        count = len(keys) // self.options.geometry.key_bytes
        if (
            connection is None
            or welcome is None
            or count > welcome.limits.keys_per_message
            or len(self._row_jobs) >= welcome.limits.jobs
            or not self._steps.open_request(request, welcome.limits.requests)
        ):
            self._counters.over_limit += 1
            return False
        sequence = next(self._sequence)
        try:
            connection.send(kind, ONE_WAY, sequence, message(request, job, keys, numbers_to_bytes(rows)))
        except Overflow:
            self._counters.overflows += 1
            return False
        except ConnectionLost as error:
            self._broken(error)
            return False
        self._row_jobs[job] = count
        self._row_sequences[sequence] = job
        return True

    def _adopt(self, attached: Attached) -> None:
        super()._adopt(attached)
        self._daemon = _process_of(attached.connection)

    def _forget_connection(self) -> None:
        super()._forget_connection()
        if self._row_jobs:
            self._lost_rows.append((time.monotonic() + LOST_ROWS_S, self._daemon, self._row_jobs))
        elif self._daemon >= 0:
            os.close(self._daemon)
        self._daemon = -1
        self._row_jobs, self._row_sequences = {}, {}

    def _gather(self) -> None:
        """Tells the end of row jobs of lost connections."""
        running: list[tuple[float, int, dict[int, int]]] = []
        for until, daemon, jobs in self._lost_rows:
            if time.monotonic() < until and not _is_over(daemon):
                running.append((until, daemon, jobs))
                continue
            self._steps.rows().extend(RowsDone(job, bytes(count), 0) for job, count in jobs.items())
            if daemon >= 0:
                os.close(daemon)
        self._lost_rows = running

    def _merge(self, reply: EndStepReply) -> None:
        for done in reply.rows:
            self._row_jobs.pop(done.job, None)
        if len(self._row_sequences) > 2 * len(self._row_jobs) + 64:
            self._row_sequences = {seq: job for seq, job in self._row_sequences.items() if job in self._row_jobs}
        super()._merge(reply)

    def _one_way_refused(self, sequence: int, refusal: ErrorReply) -> None:
        super()._one_way_refused(sequence, refusal)
        job = self._row_sequences.pop(sequence, 0)
        count = self._row_jobs.pop(job, None)
        if count is not None:
            self._steps.rows().append(RowsDone(job, bytes(count), 0))


def _process_of(connection: Connection) -> int:
    """A descriptor of the daemon's process; -1 where there is none to be had (another process namespace, an old
    kernel).
    """
    try:
        pid, _, _ = _CREDENTIALS.unpack(
            connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return os.pidfd_open(pid) if pid > 0 else -1
    except OSError:
        return -1


def _is_over(process: int) -> bool:
    """Whether it is seen that this process is gone."""
    if process < 0:
        return False
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
