"""vLLM's offloading manager, answered by the daemon.

vLLM asks key by key; the daemon is asked once for each request and step, when the first key comes. What vLLM then
loads or waits for is said at the end of the step, in one message that nobody waits for. No call waits for longer than
the session's budget, and none raises for an absent or sick daemon.

A request that was answered and not scheduled will be asked for again. So it is asked ahead, and its answer is here when
vLLM wants it: behind the end of the step for those that vLLM asked for in this one, and in the middle of a step for the
next in line once vLLM is seen to go through its queue. The answer is at most one step old: its hits are leased and stay
true, and where this engine itself has stored what was missing, the daemon is asked again. What other engines have
stored during that step is not seen. And where a step has nothing to tell and all that is waited for is there, nothing
is said at all: the leases go on, and the answers hold.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np
from typing_extensions import override
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..ahead import LookAhead
from ..answers import all_missed
from ..protocol import ANSWER_MASK, ORIGIN_SHIFT, WANT_EVENTS, WANT_STATS, Answer, EndStepReply, LeaseEnd
from ..session import next_job
from .compat import NO_LOCK
from .events import LOCALITIES, MEDIA, MOST_BATCHES, offloading_events
from .requests import Asked, Group, Question, RequestState
from .session import Session
from .stats import Statistics
from .transfer import TerraceLoadStoreSpec

logger = init_logger(__name__)

#: A request that waits is not asked for again before this time.
ASK_AGAIN_S = 0.001
#: A request that has waited for this long waits no more: what is not ready is a miss. The daemon's own deadlines are
#: shorter.
LONGEST_WAIT_S = 30.0
#: How often the daemon's statistics are asked for.
STATS_EVERY_S = 5.0
#: Keys of `touch` that are remembered until the end of a step.
MOST_TOUCHED = 65536
#: Requests that are asked ahead, at most, and that are remembered for it.
MOST_AHEAD = 64
#: Bytes of keys that are asked ahead at the end of a step: what a socket takes at once, for stores are asked for right
#: behind.
MOST_AHEAD_BYTES = 64 << 10
#: One in so many slots of the pool may be leased by what is asked ahead at the end of a step, for they stay leased for
#: the length of a step.
AHEAD_SLOTS = 8
#: How long an answer holds without being asked again. It bounds how late the reset of another engine is seen.
HOLDS_S = 0.05

_RESULTS = {
    Answer.MISS: LookupResult.MISS,
    Answer.HIT: LookupResult.HIT,
    Answer.PENDING: LookupResult.HIT_PENDING,
    Answer.FOUND: LookupResult.HIT_PENDING,
    Answer.RETRY: LookupResult.RETRY,
}
#: vLLM's result for each answer byte.
_ALL_TIERS = tuple(
    _RESULTS.get(Answer(byte & ANSWER_MASK) if byte & ANSWER_MASK <= 4 else Answer.MISS, LookupResult.MISS)
    for byte in range(256)
)
#: Answer bytes that are final.
_FINAL = bytes(byte for byte in range(256) if _ALL_TIERS[byte] in (LookupResult.HIT, LookupResult.MISS))


class TerraceManager(OffloadingManager):
    """One engine's manager. One thread at a time calls it."""

    #: 0.33 calls everything but `shutdown` under this.
    lock = NO_LOCK

    def __init__(
        self,
        session: Session,
        groups: Sequence[Group],
        *,
        key_bytes: int,
        block_bytes: int,
        events: bool = False,
        about: str = "",
    ) -> None:
        """`groups` in vLLM's order; `events` whether vLLM publishes KV events; `about` what `config_info` says."""
        self._session = session
        self._groups = tuple(groups)
        self._place = {group.index: at for at, group in enumerate(groups)}
        self._key_bytes = key_bytes
        self._about = about
        self._requests = 0
        # Requests that were looked up in this step.
        self._touched_states: list[RequestState] = []
        # Requests that have an answer and wait to be scheduled, by their number, the first asked first.
        self._line: dict[int, RequestState] = {}
        # Keys that this engine has stored since the last step ended; None: nothing was asked ahead then.
        self._stored: set[OffloadKey] | None = None
        # Leases of lookups since the daemon was last told the end of a step. 0: some that are not wanted.
        self._leased: set[int] = set()
        self._finished: list[int] = []
        self._touched: list[OffloadKey] = []
        # Leases that requests wait under, and loads that have not ended: what the daemon says of them concerns these.
        self._waits: dict[int, tuple[RequestState, list[OffloadKey]]] = {}
        self._loads: dict[int, RequestState] = {}
        # Loads of this step: they can still be made void.
        self._step_loads: dict[int, TerraceLoadStoreSpec] = {}
        self._events: deque[OffloadingEvent] | None = deque(maxlen=MOST_BATCHES) if events else None
        self._stats = Statistics(block_bytes)
        self._stats_at = 0.0
        self._reset_pending = False
        self._no_room = 0

    # Lookups.

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A request arrives. Nothing is sent."""
        self._state(req_context)
        return RequestOffloadingContext()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Where a key is. The first of a request in a step makes one round trip for all its keys."""
        state = req_context._state.get(RequestState)
        if state is None:
            state = self._state(req_context)
        return state.ready.get(key) or self._lookup(key, req_context, state)

    def _lookup(self, key: OffloadKey, req_context: ReqContext, state: RequestState) -> LookupResult:
        if state.loads_nothing or self._reset_pending:
            return LookupResult.MISS
        asked = state.asked
        if asked is None or key not in asked.question.index:
            now = time.monotonic()
            if asked is None and now < state.not_before:
                return self._still_waiting(key, state)
            asked = self._ask(key, req_context, state)
            if asked is None:
                state.not_before = now + ASK_AGAIN_S
                return self._still_waiting(key, state)
            if (ready := state.ready.get(key)) is not None:
                return ready
        index = asked.question.index.get(key)
        if index is None:
            return LookupResult.MISS
        result = state.results[asked.answer.answers[index]]
        if result is LookupResult.HIT:
            asked.wanted.append(index)
        elif result is not LookupResult.MISS:
            if key in state.refused or (
                state.waiting_since and time.monotonic() - state.waiting_since > LONGEST_WAIT_S
            ):
                return LookupResult.MISS
            asked.wanted.append(index)
            asked.unready = True
        return result

    def _still_waiting(self, key: OffloadKey, state: RequestState) -> LookupResult:
        """vLLM is to defer the request once more, with as few questions as possible."""
        if not state.first_asked:
            self._touched_states.append(state)
        place = self._place.get(int.from_bytes(key[-4:], "big"), 0)
        if state.first_asked.setdefault(place, key) == key or not self._groups[place].prefix:
            return LookupResult.HIT_PENDING
        return LookupResult.MISS

    def _ask(self, key: OffloadKey, req_context: ReqContext, state: RequestState) -> Asked | None:
        """The one round trip, or what was asked ahead, or what still holds. None: the daemon is slow, ask again."""
        ahead, state.ahead = state.ahead, None
        held, state.held = state.held, None
        self._restrict(state, req_context)
        asked: Asked | None
        if held is not None and key in held.question.index and self._is_leased(held):
            asked = held
            self._answer_is(state, held)
        elif ahead is not None and key in ahead.index:
            asked = self._answered(state, ahead)
        else:
            asked = self._answered(state, self._question(key, req_context, state))
        if asked is not None and self._stored and asked.lacks(self._stored):
            asked = self._answered(state, asked.question, fresh=True)
        if asked is not None and len(self._touched_states) > 1:
            self._foresee(state)
        return asked

    def _foresee(self, state: RequestState) -> None:
        """vLLM goes through its queue: it will ask for the next in line at once."""
        for other in self._line.values():
            if other.number > state.number and other.ahead is not None:
                self._session.look_ahead(LookAhead(other.number, other.mask, other.ahead.queries))
                return

    def _question(self, key: OffloadKey, req_context: ReqContext, state: RequestState) -> Question:
        """Everything that vLLM may want to know of a request in this step."""
        positions = req_context._offload_key_positions
        state.learn(positions, self._place, self._groups)
        place = self._place.get(int.from_bytes(key[-4:], "big"), 0)
        first = self._groups[place]
        # A window is looked for from the end: what vLLM has already is not known then.
        start = max(0, positions.get(key, 0) - first.tokens_per_chunk) if first.prefix else 0
        if state.asked is not None:
            start = min(start, state.asked.question.start)
        return state.question(self._groups, start, self._key_bytes)

    def _answered(self, state: RequestState, question: Question, fresh: bool = False) -> Asked | None:
        if not question.parts:
            return Asked(question, all_missed(0), 0.0)
        state.opened = True
        answer = self._session.lookup(state.number, state.mask, question.queries, fresh=fresh)
        if answer is None:
            return None
        asked = Asked(question, answer, time.monotonic())
        if answer.lease:
            self._leased.add(answer.lease)
        self._answer_is(state, asked)
        return asked

    def _answer_is(self, state: RequestState, asked: Asked) -> None:
        if state.asked is None:
            self._touched_states.append(state)
        state.asked = asked
        self._take_ready(state, asked)

    def _take_ready(self, state: RequestState, asked: Asked) -> None:
        """What most calls of `lookup` will ask for, at the cost of one dictionary."""
        answers, keys, results = asked.answer.answers, asked.question.keys, state.results
        ready: dict[OffloadKey, LookupResult] = {}
        for part in asked.question.parts:
            if not part.group.prefix:
                continue
            miss = answers.find(0, part.first, part.end)
            end = part.end if miss < 0 else miss + 1
            span = answers[part.first : end]
            if span.translate(None, _FINAL):
                final = [byte in _FINAL for byte in span]
                ready.update(
                    zip(compress(keys[part.first : end], final), map(results.__getitem__, compress(span, final)))
                )
            else:
                ready.update(zip(keys[part.first : end], map(results.__getitem__, span)))
        state.ready = ready

    def _restrict(self, state: RequestState, req_context: ReqContext) -> None:
        """Which tiers the request may load from, of those that the daemon has at present."""
        epoch = self._session.epoch
        if state.mask_epoch == epoch:
            return
        state.mask_epoch = epoch
        allowed = req_context.load_tier_filter
        mask = 0
        for index, tier in enumerate(self._session.tiers):
            if tier.medium < len(MEDIA) and tier.locality < len(LOCALITIES):
                mask |= int(allowed.allows(MEDIA[tier.medium], LOCALITIES[tier.locality])) << index
        state.mask = mask
        state.results = _ALL_TIERS
        if not allowed.allows(Medium.CPU, Locality.LOCAL):
            # The primary is no source for it; what a tier that is one has brought there, is.
            state.results = tuple(
                LookupResult.MISS
                if byte & ANSWER_MASK == Answer.HIT
                and not (byte >> ORIGIN_SHIFT and mask >> (byte >> ORIGIN_SHIFT) - 1 & 1)
                else _ALL_TIERS[byte]
                for byte in range(256)
            )

    @override
    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Where a key that is loaded came from: a tier if it was brought for this request, else the primary."""
        state = req_context._state.get(RequestState)
        tier = state.sources.get(key) if state is not None and state.sources else None
        if tier is None:
            return CacheHitSource.HOST
        tiers = self._session.tiers
        if tier >= len(tiers) or tiers[tier].locality:
            return CacheHitSource.EXTERNAL_UNSPECIFIED
        return CacheHitSource.DISK if tiers[tier].medium else CacheHitSource.HOST

    # Loads and stores.

    @override
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """A load of keys that this step's lookup found. Local: their slots came with the answer, and are leased."""
        state = self._state(req_context)
        asked, wanted = state.asked, list(keys)
        found = asked.slots_of(wanted) if asked is not None and asked.answer.epoch == self._session.epoch else None
        if asked is None or found is None:
            # The connection broke in the middle of the step. The worker does not copy, and vLLM computes the blocks
            # again.
            self._stats.loads_void += 1
            state.loads_nothing = bool(wanted)
            return TerraceLoadStoreSpec(0, 0, (), state.name)
        indices, slots, origins = found
        asked.job = next_job()
        asked.load = indices.astype("<u4").tobytes()
        if state.waited and origins.any():
            state.sources = {
                key: int(origin) - 1 for key, origin in zip(wanted, origins) if origin and key in state.waited
            }
        else:
            state.sources = {}
        spec = TerraceLoadStoreSpec(asked.answer.region, asked.job, slots, state.name)
        self._step_loads[asked.job] = spec
        self._loads[asked.job] = state
        self._foresee(state)
        return spec

    @override
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Slots for what is worth storing: one round trip. Where there is not room for all, the leading part is
        stored."""
        state = self._state(req_context)
        offered = list(keys)
        # It runs.
        self._line.pop(state.number, None)
        job = next_job()
        state.opened = True
        answer = self._session.prepare_store(state.number, job, b"".join(offered))
        if answer is None:
            no_room = self._session.counters["no_room"]
            refused, self._no_room = no_room != self._no_room, no_room
            if refused:
                return None
            # Away or slow: dropped at once, so that vLLM does not offer it again in each step.
            self._stats.stores_dropped += len(offered)
            return PrepareStoreOutput([], TerraceLoadStoreSpec(0, 0, (), state.name), [])
        chosen = [offered[index] for index in answer.store]
        if chosen:
            self._stats.allocated(len(chosen))
        spec = TerraceLoadStoreSpec(answer.region, job, np.asarray(answer.slots), state.name)
        return PrepareStoreOutput(chosen, spec, [])

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Remembers keys as used, until the end of the step."""
        if len(self._touched) < MOST_TOUCHED:
            self._touched += keys

    # What ends. Workers report to the daemon themselves, so `complete_load` and `complete_store` tell it nothing.

    @override
    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """What was asked ahead does not know of these keys."""
        if success and self._stored is not None:
            self._stored.update(keys)

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        """Told to the daemon with the end of the next step."""
        state = req_context._state.pop(RequestState, None)
        if state is None:
            return
        self._forget_waits(state)
        self._line.pop(state.number, None)
        state.loads_nothing = True
        if state.opened:
            self._finished.append(state.number)

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """The end of a step: what is loaded, what is waited for, what is over, and what will be asked next. One write,
        not waited for; none if there is nothing to tell."""
        if self._reset_pending and self._session.reset():
            self._reset_pending = False
        now = time.monotonic()
        leases, waiting = self._leases(context.new_req_ids, now)
        finished, self._finished = self._finished, []
        # vLLM names the most recent last, the daemon wants it first.
        touched = b"".join(reversed(self._touched)) if self._touched else b""
        self._touched = []
        want = WANT_EVENTS if self._events is not None else 0
        if now - self._stats_at >= STATS_EVERY_S:
            self._stats_at = now
            want |= WANT_STATS
        # How loads have ended is heard with the replies: a load that failed is not to be tried again.
        if not (leases or finished or touched or want or self._loads) and self._holds(waiting, now):
            if self._waits and (reply := self._session.poll()) is not None:
                self._take(reply)
            return
        self._leased.clear()
        ahead = self._look_ahead(waiting)
        reply = self._session.end_step(leases, finished=finished, touched=touched, want=want, ahead=ahead)
        if reply is not None:
            self._take(reply)
        self._step_loads.clear()

    def _leases(
        self, started: Collection[str], now: float
    ) -> tuple[list[LeaseEnd], list[tuple[RequestState, Asked]]]:
        """What becomes of this step's leases, and the requests that will be asked for again in the next."""
        leases: list[LeaseEnd] = []
        waiting: list[tuple[RequestState, Asked]] = []
        short = False
        for state in self._touched_states:
            state.first_asked.clear()
            asked = state.asked
            if asked is None:
                continue
            state.asked = None
            state.ready = {}
            state.not_before = 0.0
            self._line.pop(state.number, None)
            # There is no room, or a tier is slow. Who is asked after this one must not be leased slots before it.
            short = short or Answer.RETRY in asked.answer.answers
            if asked.job:
                leases.append(LeaseEnd(asked.answer.lease, asked.job, asked.load, b""))
            elif state.name not in started:
                if asked.unready:
                    self._wait(state, asked, now, leases)
                    continue
                if asked.answer.epoch and not state.loads_nothing and len(self._line) < MOST_AHEAD:
                    self._line[state.number] = state
                    state.ahead = asked.question
                    if not short:
                        waiting.append((state, asked))
            state.waiting_since = 0.0
            self._forget_waits(state)
            if not state.counted or asked.job:
                self._count(state, asked)
        self._touched_states.clear()
        return leases, waiting

    def _holds(self, waiting: Sequence[tuple[RequestState, Asked]], now: float) -> bool:
        """Whether all leases are those of waiting requests that miss nothing. Then their answers stay."""
        slots = 0
        for _, asked in waiting:
            if not asked.is_whole or now - asked.at > HOLDS_S:
                return False
            slots += len(asked.answer.slots)
        leased = {asked.answer.lease for _, asked in waiting}
        if leased != self._leased or self._session.untaken or slots > self._session.slots // AHEAD_SLOTS:
            return False
        for state, asked in waiting:
            asked.wanted.clear()
            state.held = asked
        return True

    def _is_leased(self, asked: Asked) -> bool:
        return asked.answer.lease in self._leased and asked.answer.epoch == self._session.epoch

    def _look_ahead(self, waiting: Sequence[tuple[RequestState, Asked]]) -> list[LookAhead]:
        """What is asked ahead: as much as is good for others."""
        slots, key_bytes = self._session.slots // AHEAD_SLOTS, MOST_AHEAD_BYTES
        ahead: list[LookAhead] = []
        for state, asked in waiting:
            slots -= len(asked.answer.slots)
            key_bytes -= asked.question.key_bytes
            if slots < 0 or key_bytes < 0:
                break
            ahead.append(LookAhead(state.number, state.mask, asked.question.queries))
        self._stored = set() if ahead else None
        return ahead

    def _wait(self, state: RequestState, asked: Asked, now: float, leases: list[LeaseEnd]) -> None:
        """vLLM has deferred the request: what it asked for is to be brought, and held."""
        state.not_before = now + ASK_AGAIN_S
        state.waiting_since = state.waiting_since or now
        self._forget_waits(state)
        waits = asked.waited_for()
        if not waits or not asked.answer.lease:
            return
        leases.append(LeaseEnd(asked.answer.lease, 0, b"", np.asarray(waits, dtype="<u4").tobytes()))
        state.waited.update(
            asked.question.keys[index] for index in waits if asked.answer.answers[index] & ANSWER_MASK != Answer.HIT
        )
        state.waits_under = asked.answer.lease
        self._waits[asked.answer.lease] = (state, asked.question.keys)

    def _forget_waits(self, state: RequestState) -> None:
        self._waits.pop(state.waits_under, None)
        state.waits_under = 0

    def _take(self, reply: EndStepReply) -> None:
        """What the daemon has said since the last step."""
        for refusal in reply.refused:
            known = self._waits.get(refusal.lease)
            if known is None:
                continue
            state, keys = known
            refused = np.frombuffer(refusal.keys, dtype="<u4")
            state.refused.update(keys[index] for index in refused if index < len(keys))
            state.not_before = 0.0
            self._stats.promotions_refused += len(refused)
        for outcome in reply.jobs:
            loading = self._loads.pop(outcome.job, None)
            if outcome.ok or loading is None:
                continue
            # vLLM computes the request; it is not to be lured into the same load again.
            loading.loads_nothing = True
            if (spec := self._step_loads.get(outcome.job)) is not None:
                spec.void()
                self._stats.loads_void += 1
            else:
                self._stats.loads_failed += 1
        if self._events is not None and reply.events:
            self._events.extend(offloading_events(reply.events, self._session.tiers, self._key_bytes))
        if reply.stats:
            self._stats.pool(reply.stats)
        self._stats.events_lost = reply.events_lost

    # What vLLM reads and resets.

    @override
    def take_events(self) -> Iterable[OffloadingEvent]:
        """Events of the pool since the last call, those of other engines among them."""
        while self._events:
            yield self._events.popleft()

    @override
    def has_pending_work(self) -> bool:
        """Only what the daemon is still to be told: everything else goes on in the daemon without steps."""
        return bool(self._finished)

    @override
    def reset_cache(self) -> None:
        """Empties the primary, for all engines of the namespace. Until the daemon has said that it is done,
        everything is a miss."""
        self._reset_pending = not self._session.reset()
        if self._events is not None:
            self._events.clear()
        for state in {id(state): state for state in self._loads.values()}.values():
            self._forget_waits(state)
        self._loads.clear()
        self._step_loads.clear()
        for state in self._touched_states:
            state.asked = None
            state.ready = {}
        self._touched_states.clear()
        self._stored = None
        self._leased = {0}
        for state, _ in self._waits.values():
            state.waits_under = 0
            state.not_before = 0.0
        self._waits.clear()

    def on_reset_flushed(self) -> None:
        """0.33: the workers have ended what was on its way when the cache was reset. They have told the daemon, too."""

    def config_info(self) -> dict[str, str]:
        """0.33: what is configured, for vLLM's information metric."""
        return {"backend": "terrace", "namespace": self._about}

    @override
    def get_stats(self) -> OffloadingConnectorStats | None:
        """Under vLLM's metric names; None if it is not time yet."""
        return self._stats.take(self._session)

    @override
    def shutdown(self) -> None:
        """Ends the session."""
        self._session.close()

    # Below: small things.

    def _state(self, req_context: ReqContext) -> RequestState:
        state: Any = req_context._state.get(RequestState)
        if state is None:
            self._requests += 1
            state = RequestState(self._requests, req_context.req_id, len(self._groups))
            state.results = _ALL_TIERS
            # Nothing is allowed: nothing needs to be asked.
            state.loads_nothing = not req_context.load_tier_filter.matchers
            req_context._state[RequestState] = state
        return state

    def _count(self, state: RequestState, asked: Asked) -> None:
        """Counts a lookup that vLLM has an answer to, once for each request."""
        if state.counted:
            return
        state.counted = True
        self._stats.resolved(state, asked)
