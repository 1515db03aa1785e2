"""What a scheduler session has open, and the ends of steps that are on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .counters import Counters
from .protocol import CompletedJob, EndStep, EndStepReply, JobOutcome, LeaseEnd, RowsDone

#: Ends of jobs that no daemon has confirmed, at most: the oldest are forgotten, and their slots come back with the process.
_OWED_ENDS = 65536
#: Keys whose use is remembered until it can be told.
_TOUCHED_KEYS = 65536


class Steps:
    """Gathers what is to be said at the end of a step, and what was answered.

    What it keeps while nothing can be sent is bounded by what the daemon allows to be open: only leases and requests of the present connection
    are named. Ends of jobs are told until they are confirmed, on whatever connection: the daemon keeps a job's slots until then.
    """

    def __init__(self, key_bytes: int) -> None:
        self._key_bytes = key_bytes
        self._requests: set[int] = set()
        self._open_leases: set[int] = set()
        # Ends that were sent, and the loads that each began.
        self._unanswered: dict[int, list[int]] = {}
        self._merged: EndStepReply | None = None
        self._workers = 0
        self._events_lost = 0
        # Steps that ended and were not sent. What else is below goes with the next end, never by itself: an end ends
        # all leases.
        self._kept = 0
        self._leases: list[LeaseEnd] = []
        self._finished: list[int] = []
        self._touched = b""
        self._want = 0
        # Jobs that ended: whether well, and the end of a step that said so, 0 before.
        self._ends: dict[int, tuple[bool, int]] = {}
        # Those that the last message names.
        self._named: list[int] = []

    def open_request(self, request: int, limit: int) -> bool:
        """A call names this request. False: `limit` are open already."""
        if request not in self._requests:
            if len(self._requests) >= limit:
                return False
            self._requests.add(request)
        return True

    def is_open(self, request: int) -> bool:
        """Whether a call of this connection named the request, and no end of a step finished it."""
        return request in self._requests

    def leased(self, lease: int) -> None:
        """A lookup was answered with this lease; 0 is none."""
        if lease:
            self._open_leases.add(lease)

    def give_up(self, job: int) -> None:
        """The store of this name was prepared too late to be used, or perhaps, before its connection was lost."""
        self._ended(job, False)

    def end(
        self,
        leases: Sequence[LeaseEnd],
        completed: Sequence[CompletedJob],
        finished: Sequence[int],
        touched: bytes,
        want: int,
        counters: Counters,
    ) -> None:
        """A step ends. Loads from leases that are void fail at once."""
        for end in leases:
            if end.lease in self._open_leases:
                self._leases.append(end)
            elif end.job:
                counters.void_loads += 1
                self._outcomes().append(JobOutcome(end.job, False))
        self._open_leases.clear()
        for each in completed:
            self._ended(each.job, each.ok)
        for request in finished:
            if request in self._requests:
                self._requests.discard(request)
                self._finished.append(request)
        if touched:
            self._touched = (touched + self._touched)[: _TOUCHED_KEYS * self._key_bytes]
        self._want |= want
        if self._kept:
            counters.kept_steps += 1
        self._kept += 1

    def message(self, most_keys: int, most_jobs: int) -> EndStep | None:
        """What is to be sent; None if nothing is."""
        if not self._kept:
            return None
        touched = self._touched[: most_keys * self._key_bytes]
        self._named = [job for job, (_, told) in self._ends.items() if not told][:most_jobs]
        completed = [CompletedJob(job, self._ends[job][0]) for job in self._named]
        return EndStep(self._leases, completed, self._finished, touched, self._want)

    def sent(self, sequence: int) -> None:
        """The message was sent as this."""
        self._unanswered[sequence] = [end.job for end in self._leases if end.job]
        for job in self._named:
            self._ends[job] = (self._ends[job][0], sequence)
        self._clear()

    def answered(self, sequence: int) -> bool:
        """A reply came. False: it is none to an end of a step."""
        if self._ends:
            self._ends = {job: end for job, end in self._ends.items() if end[1] != sequence}
        return self._unanswered.pop(sequence, None) is not None

    def refused(self, sequence: int) -> None:
        """An end of a step was refused, whole: the loads that it named have failed."""
        self._tell_again(lambda told: told == sequence)
        for job in self._unanswered.pop(sequence, ()):
            self._outcomes().append(JobOutcome(job, False))

    def merge(self, reply: EndStepReply) -> None:
        """Takes in a reply."""
        self._workers, self._events_lost = reply.workers, reply.events_lost
        merged = self._merged
        if merged is None:
            self._merged = reply
            return
        merged.refused += reply.refused
        merged.workers = reply.workers
        merged.rows += reply.rows
        merged.events += reply.events
        merged.events_lost = reply.events_lost
        merged.stats = reply.stats or merged.stats
        merged.jobs += reply.jobs

    def take_merged(self) -> EndStepReply | None:
        """What was taken in since the last call."""
        merged, self._merged = self._merged, None
        return merged

    def forget(self) -> None:
        """The connection is lost, and with it all that was open. Loads that were to begin have failed."""
        failed = [JobOutcome(end.job, False) for end in self._leases if end.job]
        if failed:
            self._outcomes().extend(failed)
        self._requests.clear()
        self._open_leases.clear()
        self._unanswered.clear()
        self._tell_again(lambda told: True)
        self._workers = self._events_lost = 0
        self._clear()

    def rows(self) -> list[RowsDone]:
        """Where a session adds row copies whose end it knows by itself."""
        return self._synthetic().rows

    def _ended(self, job: int, ok: bool) -> None:
        self._ends[job] = (ok, 0)
        if len(self._ends) > _OWED_ENDS:
            del self._ends[next(iter(self._ends))]

    def _tell_again(self, which: Callable[[int], bool]) -> None:
        self._ends = {job: (ok, 0 if which(told) else told) for job, (ok, told) in self._ends.items()}

    def _outcomes(self) -> list[JobOutcome]:
        return self._synthetic().jobs

    def _synthetic(self) -> EndStepReply:
        if self._merged is None:
            self._merged = EndStepReply([], self._workers, [], [], self._events_lost, [], [])
        return self._merged

    def _clear(self) -> None:
        self._kept = 0
        self._leases, self._finished, self._named = [], [], []
        self._touched, self._want = b"", 0
