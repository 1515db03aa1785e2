"""The worker: what vLLM asks to be copied between its pages and the slots of the region.

vLLM is always told that a transfer succeeded, because it asserts that; the truth goes to the daemon, which publishes no
block that any worker failed to store, and to `take_failed_requests`, whose loads vLLM computes again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from .copier import Copier, Ended, Transfer
from .transfer import TerraceLoadStoreSpec


class TerraceWorker(OffloadingWorker):
    """Copies for one rank. `submit_*`, `get_finished` and `wait` are vLLM's."""

    def __init__(self, make_copier: Callable[[Ended], Copier]) -> None:
        """`make_copier` is handed what its copier tells the ends of transfers to."""
        self._results: deque[TransferResult] = deque()
        self._failed: set[str] = set()
        self._failed_lock = threading.Lock()
        self._copier = make_copier(self._ended)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Pages to slots. The pages are read before `wait` for the job returns."""
        assert isinstance(dst_spec, TerraceLoadStoreSpec)
        self._submit(Transfer(job_id, dst_spec, src_spec, store=True))
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Slots to pages. Loads have a lane of their own: `expedited` (0.33) has nothing to overtake but other loads,
        and overtakes none."""
        assert isinstance(src_spec, TerraceLoadStoreSpec)
        self._submit(Transfer(job_id, src_spec, dst_spec, store=False))
        return True

    def flush(self) -> None:
        """All transfers of this step are submitted. `get_finished` and `wait` say so as well."""
        self._copier.flush()

    def get_finished(self) -> list[TransferResult]:
        """Transfers that ended since the last call, all of them successes. Does not wait."""
        self._copier.flush()
        self._copier.poll()
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def take_failed_requests(self, finished: set[str]) -> set[str]:
        """Which of these requests' loads, which `get_finished` has named, have failed. Each is named once."""
        with self._failed_lock:
            failed = self._failed & finished
            self._failed -= failed
        return failed

    def wait(self, job_ids: Collection[int]) -> None:
        """Waits until these transfers touch no page any more."""
        self._copier.flush()
        self._copier.wait(job_ids)

    def shutdown(self) -> None:
        """Ends the copies in order, then the session."""
        self._copier.close()

    def _submit(self, transfer: Transfer) -> None:
        if transfer.spec.job:
            self._copier.submit(transfer)
        else:
            # Nothing stands behind it.
            self._ended(transfer, None if len(transfer.pages.block_ids) else 0, 0.0)

    def _ended(self, transfer: Transfer, copied: int | None, seconds: float) -> None:
        if copied is None and not transfer.store:
            with self._failed_lock:
                self._failed.add(transfer.spec.request)
        self._results.append(
            TransferResult(
                job_id=transfer.job_id, success=True, transfer_size=copied or 0, transfer_time=seconds
            )
        )
