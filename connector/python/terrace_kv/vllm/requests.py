"""What the manager knows of one request: its keys by group, and what its last lookup was answered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, OffloadKey

from ..answers import LookupAnswer
from ..protocol import ANSWER_MASK, Answer, Scan

_HIT = int(Answer.HIT)


@dataclass(frozen=True)
class Group:
    """A KV-cache group, as lookups see it."""

    index: int
    tokens_per_chunk: int
    #: Whether keys are wanted from the first on up to a miss. Else a window is looked for from the end.
    prefix: bool

    @property
    def scan(self) -> Scan:
        """How the daemon is asked."""
        return Scan.PREFIX if self.prefix else Scan.EACH


class GroupKeys:
    """The keys of one request in one group, in the order of their positions."""

    __slots__ = ("ends", "keys", "wire")

    def __init__(self) -> None:
        self.keys: list[OffloadKey] = []
        #: End of each key's chunk, in tokens.
        self.ends: list[int] = []
        #: All keys, one after the other.
        self.wire = bytearray()

    def add(self, key: OffloadKey, end: int) -> None:
        """A key that was not here. Nearly always the last; a partial chunk's key may come late."""
        if not self.ends or end >= self.ends[-1]:
            self.keys.append(key)
            self.ends.append(end)
            self.wire += key
            return
        at = bisect_right(self.ends, end)
        self.keys.insert(at, key)
        self.ends.insert(at, end)
        self.wire[at * len(key) : at * len(key)] = key


@dataclass(slots=True)
class Part:
    """One group's keys in a lookup: `first <= index < end` of the flat list."""

    group: Group
    first: int
    end: int


@dataclass(slots=True)
class Question:
    """What a lookup asks for one request."""

    #: As the session takes them: pairs of a `Scan` and keys, one after the other. One for each part.
    queries: list[tuple[int, bytes]]
    #: The keys of all queries.
    keys: list[OffloadKey]
    parts: list[Part]
    #: Keys of chunks that end at or before this token were left out.
    start: int
    _index: dict[OffloadKey, int] | None = None

    @property
    def index(self) -> dict[OffloadKey, int]:
        """Where each key stands."""
        if self._index is None:
            self._index = dict(zip(self.keys, range(len(self.keys))))
        return self._index

    @property
    def key_bytes(self) -> int:
        """Length of all keys."""
        return sum(len(wire) for _, wire in self.queries)


@dataclass(slots=True)
class Asked:
    """A lookup of this step and its answer."""

    question: Question
    answer: LookupAnswer
    #: When the answer was taken.
    at: float
    #: The daemon's name of the load that starts from it; 0 for none.
    job: int = 0
    #: Indices of the keys that are loaded.
    load: bytes = b""
    #: Indices of the keys that vLLM asked for of those that are not ready or that lie in a windowed group.
    wanted: list[int] = field(default_factory=list)
    #: Whether one of these is not ready: then vLLM defers.
    unready: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every key is a leased hit: no later answer can be better."""
        return bool(self.answer.lease) and len(self.answer.slots) == len(self.answer.answers)

    def lacks(self, keys: Collection[OffloadKey]) -> bool:
        """Whether one of these keys, if it were there now, would make another answer."""
        answers, asked = self.answer.answers, self.question.keys
        for part in self.question.parts:
            miss = answers.find(0, part.first, part.end)
            while miss >= 0:
                if asked[miss] in keys:
                    return True
                # What lies behind the first miss of a prefix is of no use.
                miss = -1 if part.group.prefix else answers.find(0, miss + 1, part.end)
        return False

    def slots_of(self, keys: Sequence[OffloadKey]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Indices, slots and origins of keys, all of which must be hits; else None."""
        index = self.question.index
        try:
            wanted = np.fromiter(map(index.__getitem__, keys), dtype=np.int64, count=len(keys))
        except KeyError:
            return None
        answers = np.frombuffer(self.answer.answers, dtype=np.uint8)
        hits = (answers & ANSWER_MASK) == _HIT
        if not hits[wanted].all():
            return None
        rank = np.cumsum(hits) - 1
        slots = np.asarray(self.answer.slots)[rank[wanted]]
        return wanted, slots, answers[wanted] >> 3

    def waited_for(self) -> list[int]:
        """Indices of what the request waits for, and of the hits that it needs beside them.

        vLLM scans a prefix group up to a miss and a window from the end, so what it wants follows from what it asked
        for.
        """
        answers = self.answer.answers
        waits: list[int] = []
        wanted = sorted(set(self.wanted))
        for part in self.question.parts:
            asked = [index for index in wanted if part.first <= index < part.end]
            if not part.group.prefix:
                waits += [index for index in asked if answers[index]]
                continue
            miss = answers.find(0, part.first, part.end)
            end = part.end if miss < 0 else miss
            if asked:
                end = min(end, asked[-1] + 1)
            waits += range(part.first, end)
        return waits


class RequestState:
    """One request of vLLM."""

    __slots__ = (
        "ahead",
        "asked",
        "counted",
        "first_asked",
        "groups",
        "held",
        "loads_nothing",
        "mask",
        "mask_epoch",
        "name",
        "not_before",
        "number",
        "opened",
        "partials",
        "ready",
        "refused",
        "results",
        "seen",
        "sources",
        "waited",
        "waiting_since",
        "waits_under",
    )

    def __init__(self, number: int, name: str, groups: int) -> None:
        #: The daemon's name.
        self.number = number
        #: vLLM's name.
        self.name = name
        #: Whether the daemon has heard of it.
        self.opened = False
        self.groups: list[GroupKeys] = [GroupKeys() for _ in range(groups)]
        #: Keys of chunks that are not full: the tails of recurrent states. A miss among them ends no prefix.
        self.partials: list[GroupKeys] = [GroupKeys() for _ in range(groups)]
        #: Keys of vLLM's record that are here.
        self.seen = 0
        #: Tiers that may be asked, for one connection.
        self.mask = 0
        self.mask_epoch = -1
        #: Answers of this step that are final and in prefix groups: what most calls of `lookup` need.
        self.ready: dict[OffloadKey, LookupResult] = {}
        self.asked: Asked | None = None
        #: While it waits with an answer: what it asked, and will ask again.
        self.ahead: Question | None = None
        #: The answer, if it holds.
        self.held: Asked | None = None
        #: While it waits, it is not asked again before this moment; 0: it does not wait.
        self.not_before = 0.0
        self.waiting_since = 0.0
        #: While it waits: the first key of each group that was asked in the present step.
        self.first_asked: dict[int, OffloadKey] = {}
        #: Keys that it has waited for.
        self.waited: set[OffloadKey] = set()
        #: Keys that will not be brought for it.
        self.refused: set[OffloadKey] = set()
        #: Tier of the keys that were brought for it.
        self.sources: dict[OffloadKey, int] = {}
        #: Whether its lookups are counted already.
        self.counted = False
        #: It loads nothing: a load of it failed, or no tier is allowed.
        self.loads_nothing = False
        #: The lease that it waits under; 0: none.
        self.waits_under = 0
        #: vLLM's result for each answer byte.
        self.results: Sequence[LookupResult] = ()

    def learn(self, positions: Mapping[OffloadKey, int], place: Mapping[int, int], groups: Sequence[Group]) -> None:
        """Takes in keys that vLLM has recorded since. `place` says where a group index stands among the groups."""
        if self.seen == len(positions):
            return
        for key, end in islice(positions.items(), self.seen, None):
            at = place.get(int.from_bytes(key[-4:], "big"))
            if at is not None:
                (self.partials if end % groups[at].tokens_per_chunk else self.groups)[at].add(key, end)
        self.seen = len(positions)

    def question(self, groups: Sequence[Group], start: int, key_bytes: int) -> Question:
        """All keys of chunks that end behind this token."""
        question = Question([], [], [], start)
        for group, known in self._known(groups):
            at = bisect_right(known.ends, start) if start else 0
            if at == len(known.keys):
                continue
            question.queries.append((group.scan, bytes(memoryview(known.wire)[at * key_bytes :])))
            before = len(question.keys)
            question.keys += known.keys[at:] if at else known.keys
            question.parts.append(Part(group, before, len(question.keys)))
        return question

    def _known(self, groups: Sequence[Group]) -> Iterator[tuple[Group, GroupKeys]]:
        """All keys, with how they are looked up."""
        yield from zip(groups, self.groups)
        for group, keys in zip(groups, self.partials):
            if keys.keys:
                yield Group(group.index, group.tokens_per_chunk, prefix=False), keys
