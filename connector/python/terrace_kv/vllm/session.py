"""What the manager needs of the daemon's session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..ahead import LookAhead
from ..answers import LookupAnswer, StoreAnswer
from ..protocol import EndStepReply, LeaseEnd, TierInfo


class Session(Protocol):
    """What is needed of a `SchedulerSession`."""

    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def tiers(self) -> tuple[TierInfo, ...]: ...
    @property
    def slots(self) -> int: ...
    @property
    def untaken(self) -> int: ...
    @property
    def counters(self) -> dict[str, int]: ...
    def lookup(
        self, request: int, tiers_mask: int, queries: Sequence[tuple[int, bytes]], *, fresh: bool
    ) -> LookupAnswer | None: ...
    def look_ahead(self, asked: LookAhead) -> None: ...
    def prepare_store(self, request: int, job: int, keys: bytes) -> StoreAnswer | None: ...
    def end_step(
        self,
        leases: Sequence[LeaseEnd],
        *,
        finished: Sequence[int],
        touched: bytes,
        want: int,
        ahead: Sequence[LookAhead],
    ) -> EndStepReply | None: ...
    def poll(self) -> EndStepReply | None: ...
    def reset(self) -> bool: ...
    def close(self) -> None: ...
