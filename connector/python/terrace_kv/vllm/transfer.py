"""What the scheduler tells the workers of a transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from vllm.v1.kv_offload.base import BlockIDsLoadStoreSpec


class TerraceLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots of a region, and the daemon's name for the job. Travels to the workers as a pickle."""

    def __init__(self, region: int, job: int, slots: np.ndarray | Sequence[int], request: str) -> None:
        #: In vLLM's words the chunks; here slots.
        self.block_ids = np.asarray(slots, dtype=np.int32)
        #: The region that the slots lie in.
        self.region = region
        #: The daemon's name of the job; 0: there is nothing behind it, and nothing may be copied.
        self.job = job
        #: vLLM's name of the request.
        self.request = request

    def void(self) -> None:
        """What stands behind the job is gone. To be said before the spec leaves for the workers."""
        self.job = 0

    def __repr__(self) -> str:
        slots = self.block_ids.tolist()
        return f"TerraceLoadStoreSpec({self.region:#x}, job={self.job}, slots={slots}, request={self.request!r})"
