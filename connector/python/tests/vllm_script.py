"""A scripted session: what the daemon would say, said by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, ScheduleEndContext, TierFilter, make_offload_key

from terrace_kv.ahead import LookAhead
from terrace_kv.answers import LookupAnswer, StoreAnswer
from terrace_kv.protocol import EndStepReply, LeaseEnd, TierInfo, numbers
from terrace_kv.vllm.manager import TerraceManager
from terrace_kv.vllm.requests import Group

MISS, PENDING, RETRY = 0, 2, 4
NVME = TierInfo("nvme", 1, 0)
REMOTE = TierInfo("objects", 1, 1)


def hit(origin: int = 0) -> int:
    """A hit, by tier `origin - 1`."""
    return 1 | origin << 3


def found(tier: int = 0) -> int:
    """In a tier."""
    return 3 | tier << 3


def key(number: int, group: int = 0) -> OffloadKey:
    """A key."""
    return make_offload_key(number.to_bytes(32, "big"), group)


def _split(queries: Sequence[tuple[int, bytes]]) -> list[tuple[int, list[bytes]]]:
    return [(int(scan), [wire[at : at + 36] for at in range(0, len(wire), 36)]) for scan, wire in queries]


def indices(wire: bytes) -> list[int]:
    """Numbers of a string of numbers."""
    return list(numbers(wire))


@dataclass
class Step:
    """One `end_step`."""

    leases: list[LeaseEnd]
    finished: list[int]
    touched: bytes
    want: int
    ahead: list[LookAhead]


@dataclass
class ScriptedSession:
    """Answers from `where`; remembers what it was told."""

    where: dict[bytes, int] = field(default_factory=dict)
    tiers: tuple[TierInfo, ...] = (NVME,)
    state: str = "ready"
    epoch: int = 1
    slots: int = 1000
    #: Answered to the next `lookup` with None: the daemon is slow.
    slow: bool = False
    #: Keys that a store may take.
    room: int = 1 << 30
    resets: bool = True
    lookups: list[tuple[int, int, list[tuple[int, list[bytes]]]]] = field(default_factory=list)
    #: What the end of the last step asked ahead and nobody took yet, with its answer of then.
    ahead: list[tuple[LookAhead, LookupAnswer]] = field(default_factory=list)
    #: Answers that were asked ahead and taken.
    taken: int = 0
    leases: int = 1000
    steps: list[Step] = field(default_factory=list)
    replies: list[EndStepReply | None] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: {"no_room": 0})
    closed: bool = False

    def lookup(
        self, request: int, tiers_mask: int, queries: Sequence[tuple[int, bytes]], *, fresh: bool = False
    ) -> LookupAnswer | None:
        for one, answer in self.ahead:
            if not fresh and one == LookAhead(request, tiers_mask, queries):
                self.ahead.remove((one, answer))
                self.taken += 1
                return None if self.slow else answer
        self.lookups.append((request, tiers_mask, _split(queries)))
        return None if self.slow else self._answer(queries)

    def _answer(self, queries: Sequence[tuple[int, bytes]]) -> LookupAnswer:
        answers = b""
        for scan, keys in _split(queries):
            part = bytes(self.where.get(one, MISS) for one in keys)
            if scan == 0 and (miss := part.find(0)) >= 0:
                part = part[:miss].ljust(len(keys), b"\0")
            answers += part
        slots = [100 + at for at, byte in enumerate(answers) if byte & 7 == 1]
        self.leases += 1
        return LookupAnswer(
            self.leases, answers, numbers(b"".join(slot.to_bytes(4, "little") for slot in slots)), 7, self.epoch
        )

    def prepare_store(self, request: int, job: int, keys: bytes) -> StoreAnswer | None:
        if self.state != "ready":
            return None
        if not self.room:
            self.counters["no_room"] += 1
            return None
        new = [at for at in range(len(keys) // 36) if keys[at * 36 : at * 36 + 36] not in self.where][: self.room]
        wire = b"".join(at.to_bytes(4, "little") for at in new)
        return StoreAnswer(
            numbers(wire), numbers(b"".join((at + 50).to_bytes(4, "little") for at in new)), 7, self.epoch
        )

    def end_step(
        self,
        leases: Sequence[LeaseEnd],
        *,
        finished: Sequence[int],
        touched: bytes,
        want: int,
        ahead: Sequence[LookAhead] = (),
    ) -> EndStepReply | None:
        self.steps.append(Step(list(leases), list(finished), touched, want, list(ahead)))
        self.ahead = [(one, self._answer(one.queries)) for one in ahead]
        return self.replies.pop(0) if self.replies else None

    def poll(self) -> EndStepReply | None:
        return self.replies.pop(0) if self.replies else None

    @property
    def untaken(self) -> int:
        return len(self.ahead)

    def look_ahead(self, asked: LookAhead) -> None:
        if all(one.request != asked.request for one, _ in self.ahead):
            self.ahead.append((asked, self._answer(asked.queries)))

    def reset(self) -> bool:
        self.ahead.clear()
        return self.resets

    def close(self) -> None:
        self.closed = True


def manager_of(
    session: ScriptedSession, *prefix: bool, events: bool = False, tokens_per_chunk: int = 16
) -> TerraceManager:
    """A manager with one group for each argument: whether it is looked up as a prefix."""
    groups = [Group(index, tokens_per_chunk, kind) for index, kind in enumerate(prefix or (True,))]
    return TerraceManager(session, groups, key_bytes=36, block_bytes=4096, events=events)


def request_of(
    *keys: OffloadKey, name: str = "request", tokens_per_chunk: int = 16, allowed: TierFilter = TierFilter.ALL
) -> ReqContext:
    """A request with these keys, as vLLM records them: group by group, in the order of their positions."""
    context = ReqContext(req_id=name, load_tier_filter=allowed)
    counts: dict[bytes, int] = {}
    for one in keys:
        counts[one[-4:]] = counts.get(one[-4:], 0) + 1
        context.set_offload_key_position(one, counts[one[-4:]] * tokens_per_chunk)
    return context


def end(manager: TerraceManager, *started: str) -> None:
    """The end of a step in which these requests started."""
    manager.on_schedule_end(ScheduleEndContext(new_req_ids=list(started), preempted_req_ids=[]))


def reply(**fields: object) -> EndStepReply:
    """An `EndStepReply`."""
    blank: dict[str, object] = {
        "refused": [],
        "workers": 1,
        "rows": [],
        "events": [],
        "events_lost": 0,
        "stats": [],
        "jobs": [],
    }
    return EndStepReply(**(blank | fields))  # type: ignore[arg-type]
