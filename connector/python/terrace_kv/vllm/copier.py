"""What makes a worker's copies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from .transfer import TerraceLoadStoreSpec


@dataclass(frozen=True)
class Transfer:
    """One job of vLLM: pages of the GPU pool, and slots of the region."""

    job_id: int
    spec: TerraceLoadStoreSpec
    pages: GPULoadStoreSpec
    #: Pages to slots.
    store: bool


#: Told of each transfer once, on any thread: the bytes that were copied, None if they were not, and the seconds it took.
Ended = Callable[[Transfer, "int | None", float], None]


class Copier(Protocol):
    """Copies, and reports each job to the daemon when it ended. No call waits for the daemon but as `wait` says."""

    def submit(self, transfer: Transfer) -> None:
        """Takes a transfer, which copies from `flush` on at the latest."""

    def flush(self) -> None:
        """All transfers of this step are submitted."""

    def poll(self) -> None:
        """Has transfers that ended told, where nobody else does it."""

    def wait(self, job_ids: Collection[int]) -> None:
        """Returns when these transfers touch no page any more."""

    def close(self) -> None:
        """Ends the copies in order, then the session."""


def numbers_of(values: Any) -> bytes:
    """Numbers as little-endian 32 bits each."""
    return np.asarray(values).astype("<u4").tobytes()
