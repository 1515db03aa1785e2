"""Requests that have their answer and wait to be scheduled, and the leases under which that answer stays true.

vLLM asks for the first of them again in each step. Leases end when the daemon is told the end of a step, so while
requests wait, what can wait is not told (`may_wait`): then leases go on and answers are used again. What was stored by
this engine since makes an answer useless that lacks it; what others have stored since is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm.v1.kv_offload.base import OffloadKey

from ..ahead import LookAhead

if TYPE_CHECKING:
    from .requests import Asked, RequestState

#: How long leases go on. It bounds how late is seen what other engines have stored, and that they have reset the cache.
HOLDS_S = 0.05
#: Requests whose answers are remembered.
MOST_WAITING = 64
#: Of these, so many may be scheduled next, whether they were asked for in this step or not.
FIRST_IN_LINE = 2
#: Bytes of keys that are asked ahead at the end of a step: what a socket takes at once, for stores are asked for right
#: behind.
MOST_AHEAD_BYTES = 64 << 10
#: Keys that are remembered as stored, at least; beyond, the step that ends next is told.
MOST_STORED = 65536
#: One in so many slots of the pool may stay leased for what waits, from one step to the next.
LEASED_SLOTS = 8


class Line:
    """The requests that wait, and the leases of all answers since the daemon was last told the end of a step."""

    def __init__(self) -> None:
        # By their number; the first asked first.
        self._waiting: dict[int, RequestState] = {}
        self._leased: set[int] = set()
        # Slots of these leases, those of look-aheads as many as the answer before had.
        self._slots = 0
        # Requests whose look-ahead is to be taken, and the slots that were counted for it.
        self._ahead: dict[int, int] = {}
        # Leases are to be ended, whoever waits.
        self._unwanted = False
        self._told_at = 0.0
        # What this engine has stored since, while requests waited, and when.
        self._stored: dict[OffloadKey, float] = {}

    # Answers.

    def leased(self, state: RequestState, asked: Asked) -> None:
        """The daemon has answered; `asked.at` is set to the time that the answer is of."""
        counted = self._ahead.pop(state.number, None)
        if counted is not None:
            asked.at = min(asked.at, self._told_at)
        self._slots += len(asked.answer.slots) - (counted or 0)
        if asked.answer.lease:
            self._leased.add(asked.answer.lease)

    def is_leased(self, asked: Asked) -> bool:
        """Whether an answer of this connection is still true, as to its hits."""
        return asked.answer.lease in self._leased

    def lacks(self, asked: Asked) -> bool:
        """Whether the answer would be another one for what this engine has stored since."""
        return bool(self._stored) and asked.lacks(self._stored)

    def stored(self, keys: Iterable[OffloadKey], now: float) -> None:
        """This engine has stored these keys."""
        if self._waiting:
            self._stored.update(dict.fromkeys(keys, now))
            # Forgotten with the end of a step that is told.
            self._unwanted |= len(self._stored) > MOST_STORED

    # Who waits.

    def add(self, state: RequestState, asked: Asked) -> bool:
        """A request was answered and not scheduled. False: too many are."""
        if len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting[state.number] = state
        state.held = asked
        return True

    def remove(self, state: RequestState) -> None:
        """It was scheduled, or is over, or has no answer any more."""
        self._waiting.pop(state.number, None)

    def behind(self, state: RequestState) -> LookAhead | None:
        """The next in line, if it has to be asked for again."""
        for other in self._waiting.values():
            if other.number > state.number and (held := other.held) is not None:
                if other.number in self._ahead or self.is_leased(held):
                    return None
                return self._look_ahead(other, held)
        return None

    # The ends of steps.

    def is_time(self, now: float) -> bool:
        """Whether the daemon was told nothing for as long as leases go on."""
        return now - self._told_at >= HOLDS_S

    def may_wait(self, waiting: bool, slots: int, now: float) -> bool:
        """Whether the leases may go on, in a pool of so many slots: requests wait, and it is not for long, and not for
        much."""
        if not waiting:
            return not (self._leased or self._ahead or self._unwanted)
        return not self._unwanted and not self.is_time(now) and self._slots <= slots // LEASED_SLOTS

    def told(
        self, waiting: Sequence[tuple[RequestState, Asked]], slots: int, now: float, first: bool
    ) -> list[LookAhead]:
        """The daemon is told the end of a step, which ends all leases. What is asked ahead right behind it, in a pool of
        so many slots: of what was asked for in this step and waits, and with `first` of the first in line, as much as
        is good for others."""
        self._told_at = now
        self._unwanted = False
        self._stored.clear()
        self.let_go()
        slots, key_bytes = slots // LEASED_SLOTS, MOST_AHEAD_BYTES
        ahead: list[LookAhead] = []
        candidates = {state.number: (state, asked) for state, asked in waiting}
        for number in sorted(self._waiting)[:FIRST_IN_LINE] if first and waiting else ():
            state = self._waiting[number]
            if state.held is not None:
                candidates[number] = (state, state.held)
        for _, (state, asked) in sorted(candidates.items()):
            slots -= len(asked.answer.slots)
            key_bytes -= asked.question.key_bytes
            if slots < 0 or key_bytes < 0:
                break
            ahead.append(self._look_ahead(state, asked))
        return ahead

    def _look_ahead(self, state: RequestState, asked: Asked) -> LookAhead:
        self._ahead[state.number] = count = len(asked.answer.slots)
        self._slots += count
        return LookAhead(state.number, state.mask, asked.question.queries)

    def let_go(self) -> None:
        """No answer is leased any more."""
        self._leased.clear()
        self._ahead.clear()
        self._slots = 0

    def reset(self) -> None:
        """The cache is emptied: no answer is good."""
        self.let_go()
        self._stored.clear()
        self._unwanted = True
        for state in self._waiting.values():
            state.held = None
        self._waiting.clear()
