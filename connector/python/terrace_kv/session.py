"""Sessions with the daemon, as an engine uses them.

A scheduler session asks and decides, worker sessions report what was copied; `terrace_kv.worker_session` and
`terrace_kv.tier_session` hold the other two roles. No call raises for an absent or sick daemon: then lookups miss and
stores are dropped.

States of a scheduler session:

- **away**: no connection. Lookups are misses, stores are dropped, nothing waits. A thread of the session's own
  reconnects.
- **ready**: calls wait for their reply, at most `call_budget_s`.
- **stalled**: a reply is overdue. No call waits until all overdue replies are in: lookups say "ask again" (None) for
  `stall_patience_s` and then "miss", stores are dropped, the ends of steps are kept and sent later as one.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from typing import TypeVar

from .ahead import LookAhead, LookAheads, Sent
from .answers import LookupAnswer, StoreAnswer, all_missed, lookup_answer, store_answer
from .connection import Connection, Frame
from .counters import Counters
from .errors import ConnectionLost, Overflow, ProtocolError
from .link import Attached, Link
from .options import Geometry, Namespace, SessionOptions
from .protocol import (
    ERROR,
    ONE_WAY,
    REPLY,
    REQUEST,
    CompletedJob,
    EndStepReply,
    ErrorCode,
    ErrorReply,
    ForeignRegion,
    HelloReply,
    Kind,
    LeaseEnd,
    Lookup,
    LookupReply,
    Message,
    Pin,
    PinReply,
    PrepareStore,
    PrepareStoreReply,
    Query,
    StatsReply,
    TierInfo,
    Unpin,
    WireLimits,
    decode,
)
from .steps import Steps
from .worker_session import WorkerSession

__all__ = [
    "CompletedJob",
    "EndStepReply",
    "Geometry",
    "LeaseEnd",
    "LookAhead",
    "LookupAnswer",
    "Namespace",
    "SchedulerSession",
    "SessionOptions",
    "StoreAnswer",
    "TierInfo",
    "WorkerSession",
    "next_job",
]

log = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Message)

_last_job = 0


def next_job() -> int:
    """A name for a job: not 0, ascending, and taken from the clock that all processes of the host share.

    `WorkerSession.begin` needs that clock: it tells a job that was handed out before the worker attached from one that
    came after. One thread calls this.
    """
    global _last_job
    _last_job = max(_last_job + 1, time.monotonic_ns())
    return _last_job


class SchedulerSession:
    """The session of an engine's scheduler.

    One thread at a time calls it. The constructor returns at once, away; a thread connects. `counters` may be read by
    any thread.
    """

    _role = "scheduler"

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self._counters = Counters()
        self._sequence = itertools.count(1)
        self._link = self._make_link()
        self._connection: Connection | None = None
        self._welcome: HelloReply | None = None
        self._epoch = 0
        self._steps = Steps(options.geometry.key_bytes)
        # Calls whose reply did not come in time: sequence -> (kind, job).
        self._overdue: dict[int, tuple[Kind, int]] = {}
        self._ahead = LookAheads()
        # Since when no reply came in time.
        self._trouble_since: float | None = None
        self._link.start()

    def _make_link(self, foreign: ForeignRegion | None = None, descriptor: int | None = None) -> Link:
        return Link(self.options, self._role, self._sequence, self._counters, foreign, descriptor)

    # What is known of the daemon.

    @property
    def state(self) -> str:
        """ "away", "ready" or "stalled". Does not wait. Takes over a new connection, and replies that came late."""
        return "away" if not self._settle() else "stalled" if self._stalled() else "ready"

    @property
    def epoch(self) -> int:
        """Number of the present connection, 0 while away. Leases and slots of an answer with another epoch are void:
        what holds them may be over.
        """
        self._settle()
        return self._epoch

    @property
    def region(self) -> int:
        """The region that slots lie in at present; 0 while away."""
        self._settle()
        return self._welcome.region if self._welcome else 0

    @property
    def slots(self) -> int:
        """Slots of the pool; 0 while away."""
        self._settle()
        return self._welcome.slots if self._welcome else 0

    @property
    def tiers(self) -> tuple[TierInfo, ...]:
        """Secondary tiers, in the order of the bits of a tier mask; none while away."""
        self._settle()
        return self._welcome.tiers if self._welcome else ()

    @property
    def limits(self) -> WireLimits | None:
        """What the daemon allows this session; None while away."""
        self._settle()
        return self._welcome.limits if self._welcome else None

    @property
    def untaken(self) -> int:
        """Requests that were asked ahead for this step and not looked up yet."""
        return len(self._ahead)

    @property
    def counters(self) -> dict[str, int]:
        """What was counted since the session began, by the names of `Counters`."""
        return self._counters.as_dict()

    @property
    def last_error(self) -> str:
        """Why the daemon was last found to be away; empty if it never was."""
        return self._link.last_error

    def wait_ready(self, timeout_s: float) -> bool:
        """Waits, at most this long, until the session is ready. For the start of an engine and for tests: the other
        calls never wait for a connection.
        """
        deadline = time.monotonic() + timeout_s
        while self.state != "ready":
            if not self._link.wait(min(0.05, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return False
                if self._connection is not None:
                    time.sleep(0.001)
        return True

    # Calls of a step.

    def lookup(
        self,
        request: int,
        tiers_mask: int,
        queries: Sequence[tuple[int, bytes]],
        lease: bool = True,
        fresh: bool = False,
    ) -> LookupAnswer | None:
        """Where are the keys of a request? One round trip, or the reply to what was asked ahead for this step.

        `queries` are pairs of a `Scan` and keys, one after the other, all `geometry.key_bytes` long. Waits at most
        `call_budget_s`. None: ask again in a later step. Away: all are misses. With `lease`, the hits stay readable
        until the next `end_step`. `fresh`: what was asked ahead is not good enough.
        """
        key_bytes = self.options.geometry.key_bytes
        total = sum(len(keys) for _, keys in queries) // key_bytes
        counters = self._counters
        counters.lookups += 1
        counters.lookup_keys += total
        if not self._settle():
            counters.away += 1
            return all_missed(total)
        sent = self._ahead.take(LookAhead(request, tiers_mask, queries)) if lease and not fresh else None
        reply: LookupReply | ErrorReply | bool | None
        if sent is not None:
            reply = self._reply_ahead(sent)
        elif self._stalled() or not self._send_step():
            reply = None
        else:
            welcome = self._welcome
            if welcome is None or not self._steps.open_request(request, welcome.limits.requests):
                counters.over_limit += 1
                return all_missed(total)
            if total > welcome.limits.keys_per_message:
                queries = _leading(queries, welcome.limits.keys_per_message, key_bytes)
                counters.over_limit += 1
            message = Lookup(request, tiers_mask, lease, [Query(scan, keys) for scan, keys in queries])
            reply = self._call(Kind.LOOKUP, message, LookupReply)
        welcome = self._welcome
        if isinstance(reply, LookupReply) and welcome is not None:
            try:
                asked = [(scan, len(keys) // key_bytes) for scan, keys in queries]
                answer = lookup_answer(reply, asked, total, welcome.region, self._epoch)
            except ProtocolError as error:
                self._broken(error)
                return all_missed(total)
            self._steps.leased(answer.lease)
            return answer
        if isinstance(reply, ErrorReply):
            return None if reply.code == ErrorCode.RETRY else all_missed(total)
        return self._trouble_answer(total)

    def look_ahead(self, asked: LookAhead) -> None:
        """A `lookup` of the same is about to be called in this step: sends it, without waiting. As `ahead` of
        `end_step`; a second time in a step it does nothing.
        """
        if not self._settle() or self._stalled() or self._ahead.is_sent(asked.request):
            return
        connection, welcome = self._connection, self._welcome
        if connection is None or welcome is None or not self._send_step():
            return
        try:
            self._look_ahead(connection, welcome.limits, asked)
        except ConnectionLost as error:
            self._broken(error)

    def prepare_store(self, request: int, job: int, keys: bytes, allow_partial: bool = True) -> StoreAnswer | None:
        """Reserves slots. One round trip, at most `call_budget_s`.

        `job` comes from `next_job`. None: no room, away or stalled; the job does not exist then. An answer without
        slots: all keys are stored already, and the job does not exist either.
        """
        counters = self._counters
        counters.stores += 1
        if not self._settle() or self._stalled() or not self._send_step():
            counters.dropped_stores += 1
            return None
        welcome = self._welcome
        if (
            welcome is None
            or len(keys) > welcome.limits.keys_per_message * self.options.geometry.key_bytes
            or not self._steps.open_request(request, welcome.limits.requests)
        ):
            counters.over_limit += 1
            counters.dropped_stores += 1
            return None
        reply = self._call(Kind.PREPARE_STORE, PrepareStore(request, job, allow_partial, keys), PrepareStoreReply, job)
        if not isinstance(reply, PrepareStoreReply):
            counters.dropped_stores += 1
            return None
        try:
            answer = store_answer(reply, len(keys) // self.options.geometry.key_bytes, welcome.region, self._epoch)
        except ProtocolError as error:
            self._broken(error)
            return None
        if not reply.room:
            counters.no_room += 1
            return None
        return answer

    def end_step(
        self,
        leases: Sequence[LeaseEnd] = (),
        completed: Sequence[CompletedJob] = (),
        finished: Sequence[int] = (),
        touched: bytes = b"",
        want: int = 0,
        ahead: Sequence[LookAhead] = (),
    ) -> EndStepReply | None:
        """Ends a step, without waiting. Ends all leases; one that is not named simply ends. Names each at most once; a
        load has a job.

        `ahead` is asked for the step that begins now, also without waiting: a `lookup` of the same in that step takes
        the reply. It knows nothing of what was stored after this call. What no `lookup` takes ends with the step.
        Nothing is asked ahead while stalled, nor for a request that is not open or that this step finishes.

        Returns what replies to EARLIER ends of steps brought since the last call, in one, or None. A load whose lease
        is void (another epoch) is not begun: it comes back as a `JobOutcome` that is not ok, at once. While stalled,
        what is said here is kept and sent later.
        """
        steps = self._steps
        if self._settle():
            self._take_in()
        self._gather()
        steps.end(leases, completed, finished, touched, want, self._counters)
        self._ahead.let_go()
        if self._connection is None:
            steps.forget()
        elif not self._stalled():
            self._send_step_and(ahead)
        return steps.take_merged()

    def poll(self) -> EndStepReply | None:
        """What replies to ends of steps brought since the last call, in one, or None. Sends nothing and does not
        wait.
        """
        if self._settle():
            self._take_in()
        self._gather()
        return self._steps.take_merged()

    # Calls that are rare.

    def reset(self) -> bool:
        """Empties the primary of the namespace. True: done. False: away, stalled, refused, or not known to be done
        within the budget.
        """
        self._ahead.let_go()
        return self._ask(Kind.RESET)

    def pin(self, request: int, keys: bytes, ttl_s: float) -> int:
        """Keeps blocks in the primary, at most this long, for a request that is open. The number that is pinned; 0 if
        the daemon does not answer.
        """
        # To name a request that is not open is a fault in the daemon's eyes, and too many of them end the connection.
        if not self._may_ask() or not self._steps.is_open(request):
            return 0
        ttl_ms = min(max(0, round(ttl_s * 1000)), 0xFFFF_FFFF)
        reply = self._call(Kind.PIN, Pin(request, ttl_ms, keys), PinReply)
        return reply.pinned if isinstance(reply, PinReply) else 0

    def unpin(self, request: int, keys: bytes) -> bool:
        """Ends pins. False if the daemon does not answer: they end by themselves."""
        return self._settle() and self._steps.is_open(request) and self._ask(Kind.UNPIN, Unpin(request, keys))

    def ping(self) -> float | None:
        """Seconds that an empty round trip took; None while away or stalled."""
        if not self._may_ask():
            return None
        began = time.perf_counter()
        return time.perf_counter() - began if self._call(Kind.PING, None, None) is True else None

    def stats(self) -> dict[str, float] | None:
        """Statistics of the pool by name; None while away or stalled."""
        if not self._may_ask():
            return None
        reply = self._call(Kind.STATS, None, StatsReply)
        return dict(reply.values) if isinstance(reply, StatsReply) else None

    def close(self) -> None:
        """Ends the session in order: nothing copies for it any more. Waits for its thread, not for the daemon."""
        if self._connection is not None:
            try:
                self._connection.send(Kind.BYE, ONE_WAY, next(self._sequence), None)
            except (ConnectionLost, Overflow):
                pass
            self._forget_connection()
        self._link.close()

    # Below: how it is done.

    def _may_ask(self) -> bool:
        return self._settle() and not self._stalled() and self._send_step()

    def _ask(self, kind: Kind, message: Message | None = None) -> bool:
        return self._may_ask() and self._call(kind, message, None) is True

    def _settle(self) -> bool:
        """Takes over a new connection, and late replies. Whether there is a connection."""
        offered = self._link.take()
        if offered is not None:
            self._adopt(offered)
        if self._connection is None:
            return False
        over = self._link.over_epoch >= self._epoch
        if over or self._stalled():
            self._take_in()
        if over and self._connection is not None:
            # What came before the end is taken in; nothing else will come.
            self._broken(ConnectionLost("the daemon closed the connection"))
        return self._connection is not None

    def _stalled(self) -> bool:
        return bool(self._overdue) or (self._connection is not None and self._connection.pending_bytes > 0)

    def _adopt(self, attached: Attached) -> None:
        if self._connection is not None:
            self._forget_connection()
        self._connection = attached.connection
        self._welcome = attached.reply
        self._epoch = attached.epoch

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._counters.lost_connections += 1
        self._connection = None
        self._welcome = None
        self._epoch = 0
        for _, job in self._overdue.values():
            if job:
                self._steps.give_up(job)
        self._overdue.clear()
        self._ahead.clear()
        self._trouble_since = None
        self._steps.forget()

    def _broken(self, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            self._counters.protocol_errors += 1
            log.warning("terrace: the daemon at %s sent what is not valid: %s", self.options.socket, error)
        else:
            log.info("terrace: the daemon at %s is away: %s", self.options.socket, error)
        self._link.last_error = str(error)
        self._forget_connection()

    def _trouble_answer(self, keys: int) -> LookupAnswer | None:
        if self._connection is None:
            self._counters.away += 1
            return all_missed(keys)
        now = time.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
        if now - self._trouble_since < self.options.stall_patience_s:
            self._counters.retries += 1
            return None
        self._counters.given_up += 1
        return all_missed(keys)

    def _call(
        self, kind: Kind, message: Message | None, reply_type: type[_M] | None, job: int = 0
    ) -> _M | ErrorReply | bool | None:
        """One round trip. The reply (True for an empty one), the refusal, or None: it is late, or the connection is
        lost.
        """
        connection = self._connection
        if connection is None:
            return None
        sequence = next(self._sequence)
        began = time.monotonic()
        try:
            connection.send(kind, REQUEST, sequence, message)
        except Overflow as error:
            self._counters.overflows += 1
            log.debug("terrace: %s", error)
            return None
        except ConnectionLost as error:
            if job:
                self._steps.give_up(job)
            self._broken(error)
            return None
        # From here on a reply comes, also if the wait for it is interrupted.
        self._overdue[sequence] = (kind, job)
        return self._reply(connection, kind, sequence, began, reply_type)

    def _reply_ahead(self, sent: Sent) -> LookupReply | ErrorReply | bool | None:
        """The reply to a look-ahead, as that of `_call`: nearly always it is here already."""
        counters, connection = self._counters, self._connection
        counters.taken_ahead += 1
        if sent.reply is not None:
            counters.round_trips += 1
            self._trouble_since = None
            return sent.reply
        stalled = self._stalled()
        self._overdue[sent.sequence] = (Kind.LOOKUP, 0)
        if stalled or connection is None:
            return None
        return self._reply(connection, Kind.LOOKUP, sent.sequence, time.monotonic(), LookupReply)

    def _reply(
        self, connection: Connection, kind: Kind, sequence: int, began: float, reply_type: type[_M] | None
    ) -> _M | ErrorReply | bool | None:
        """Waits for a reply that is entered as overdue, until the budget of a call that began then is spent."""
        counters = self._counters
        deadline = began + self.options.call_budget_s
        try:
            while True:
                reply: Frame | None = None
                for frame in connection.receive():
                    if frame.header.sequence == sequence and frame.header.kind is kind and frame.header.flags & REPLY:
                        reply = frame
                    else:
                        self._take(frame)
                if reply is not None:
                    self._overdue.pop(sequence, None)
                    break
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    counters.timeouts += 1
                    counters.waited(time.monotonic() - began)
                    if self._trouble_since is None:
                        self._trouble_since = began
                    return None
                connection.wait(remaining)
            counters.round_trips += 1
            counters.waited(time.monotonic() - began)
            self._trouble_since = None
            if reply.header.flags == ERROR:
                return self._refused(reply)
            if reply_type is None:
                if reply.body:
                    raise ProtocolError(f"{len(reply.body)} bytes in the reply to {kind.name}, which has none")
                return True
            return decode(reply_type, reply.body)
        except (ConnectionLost, ProtocolError) as error:
            self._broken(error)
        return None

    def _refused(self, frame: Frame) -> ErrorReply:
        refusal = decode(ErrorReply, frame.body)
        self._counters.refused += 1
        if refusal.code not in (ErrorCode.RETRY, ErrorCode.CLOSING):
            self._counters.log_refusal(log, frame.header.kind.name, refusal.code, refusal.message)
        return refusal

    def _take_in(self) -> None:
        """Takes in what has arrived, and sends what waits before the socket. Does not wait."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.flush()
            for frame in connection.receive():
                self._take(frame)
        except (ConnectionLost, ProtocolError) as error:
            self._broken(error)

    def _take(self, frame: Frame) -> None:
        """A frame that no call waits for."""
        kind, flags, sequence = frame.header.kind, frame.header.flags, frame.header.sequence
        if kind is Kind.GOODBYE:
            log.info("terrace: the daemon at %s says goodbye", self.options.socket)
            return
        if not flags & REPLY:
            raise ProtocolError(f"{kind.name} came from the daemon, and not as a reply")
        late = self._overdue.pop(sequence, None)
        ahead = self._ahead.is_out(sequence)
        if flags == ERROR:
            refusal = self._refused(frame)
            if ahead:
                self._ahead.arrived(sequence, refusal)
            else:
                self._one_way_refused(sequence, refusal)
            return
        if ahead:
            if kind is not Kind.LOOKUP:
                raise ProtocolError(f"a reply to {kind.name} came for a lookup")
            self._ahead.arrived(sequence, decode(LookupReply, frame.body))
            return
        if late is not None:
            self._counters.late_replies += 1
            if kind is not late[0]:
                raise ProtocolError(f"a reply to {kind.name} came for a call of {late[0].name}")
            if kind is Kind.PREPARE_STORE and decode(PrepareStoreReply, frame.body).slots:
                self._steps.give_up(late[1])
            # A late lookup's lease ends with the next end of a step, which does not name it.
            return
        if kind is not Kind.END_STEP or not self._steps.answered(sequence):
            raise ProtocolError(f"a reply to {kind.name} with sequence {sequence} came for no call")
        self._merge(decode(EndStepReply, frame.body))

    def _gather(self) -> None:
        """At the end of a step: for what a role knows without being told."""

    def _merge(self, reply: EndStepReply) -> None:
        self._steps.merge(reply)

    def _one_way_refused(self, sequence: int, refusal: ErrorReply) -> None:
        self._steps.refused(sequence)

    def _send_step_and(self, ahead: Sequence[LookAhead]) -> None:
        """Sends the ends of steps that are kept, and behind them, in the same write, what is asked ahead."""
        connection, welcome = self._connection, self._welcome
        if not ahead or connection is None or welcome is None:
            self._send_step()
            return
        connection.cork()
        if self._send_step():
            for asked in ahead:
                self._look_ahead(connection, welcome.limits, asked)
        if self._connection is not connection:
            return
        try:
            connection.uncork()
        except ConnectionLost as error:
            self._broken(error)

    def _look_ahead(self, connection: Connection, limits: WireLimits, asked: LookAhead) -> None:
        if not self._steps.is_open(asked.request):
            return
        most_bytes = limits.keys_per_message * self.options.geometry.key_bytes
        if sum(len(keys) for _, keys in asked.queries) > most_bytes or not self._ahead.has_room:
            self._counters.over_limit += 1
            return
        sequence = next(self._sequence)
        queries = [Query(scan, keys) for scan, keys in asked.queries]
        try:
            connection.send(Kind.LOOKUP, REQUEST, sequence, Lookup(asked.request, asked.tiers_mask, True, queries))
        except Overflow:
            self._counters.overflows += 1
            return
        self._ahead.sent(sequence, asked)
        self._counters.asked_ahead += 1

    def _send_step(self) -> bool:
        """Sends the ends of steps that are kept, as one. Whether calls may follow."""
        connection, welcome = self._connection, self._welcome
        if connection is None or welcome is None:
            return False
        message = self._steps.message(welcome.limits.keys_per_message, welcome.limits.jobs)
        if message is None:
            return True
        sequence = next(self._sequence)
        try:
            connection.send(Kind.END_STEP, REQUEST, sequence, message)
        except Overflow as error:
            self._counters.overflows += 1
            if not connection.pending_bytes:
                # It is longer than the daemon allows, and will not become shorter.
                self._broken(ConnectionLost(str(error)))
            return False
        except ConnectionLost as error:
            self._broken(error)
            return False
        self._steps.sent(sequence)
        return not connection.pending_bytes


def _leading(queries: Sequence[tuple[int, bytes]], keys: int, key_bytes: int) -> list[tuple[int, bytes]]:
    """The leading `keys` keys of the queries."""
    leading: list[tuple[int, bytes]] = []
    for scan, wire in queries:
        part = wire[: keys * key_bytes]
        keys -= len(part) // key_bytes
        leading.append((scan, part))
    return leading
