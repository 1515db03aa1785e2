"""The worker: copies between vLLM's pages and the slots of the mapped region.

One thread for each direction, first in, first out. vLLM is always told that a transfer succeeded, because it asserts
that; the truth goes to the daemon, which publishes no block that any worker failed to store, and to
`take_failed_requests`, whose loads vLLM computes again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from ..region import Mapping
from .layout import RegionView, WorkerLayout
from .transfer import TerraceLoadStoreSpec

logger = init_logger(__name__)


class Session(Protocol):
    """What is needed of a `WorkerSession`."""

    def begin(self, job: int, region: int) -> Mapping | None: ...
    def complete(self, jobs: list[tuple[int, bool]]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class _Transfer:
    """A transfer that waits for its turn."""

    job_id: int
    spec: TerraceLoadStoreSpec
    pages: GPULoadStoreSpec
    store: bool


class TerraceWorker(OffloadingWorker):
    """Copies for one rank. `submit_*`, `get_finished` and `wait` are vLLM's; none of them waits for the daemon."""

    def __init__(self, session: Session, layout: WorkerLayout) -> None:
        self._session = session
        self._layout = layout
        self._view: tuple[Mapping, RegionView] | None = None
        self._view_lock = threading.Lock()
        self._results: deque[TransferResult] = deque()
        self._failed: set[str] = set()
        self._failed_lock = threading.Lock()
        self._stores = _Lane("terrace-store", self._run)
        self._loads = _Lane("terrace-load", self._run)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Pages to slots. The pages are read before `wait` for the job returns."""
        assert isinstance(dst_spec, TerraceLoadStoreSpec)
        self._stores.put(_Transfer(job_id, dst_spec, src_spec, store=True))
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Slots to pages. Loads have a thread of their own: `expedited` (0.33) has nothing to overtake but other
        loads, and overtakes none."""
        assert isinstance(src_spec, TerraceLoadStoreSpec)
        self._loads.put(_Transfer(job_id, src_spec, dst_spec, store=False))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Transfers that ended since the last call, all of them successes. Does not wait."""
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
        """Waits until these transfers have ended: for copies in memory, never for the daemon."""
        self._stores.wait(job_ids)
        self._loads.wait(job_ids)

    def shutdown(self) -> None:
        """Ends the copies in order, then the session."""
        self._stores.close()
        self._loads.close()
        self._session.close()
        self._view = None

    def _run(self, transfer: _Transfer) -> None:
        began = time.monotonic()
        copied = self._copy(transfer)
        if copied is None and not transfer.store:
            with self._failed_lock:
                self._failed.add(transfer.spec.request)
        self._results.append(
            TransferResult(
                job_id=transfer.job_id, success=True, transfer_size=copied or 0, transfer_time=time.monotonic() - began
            )
        )

    def _copy(self, transfer: _Transfer) -> int | None:
        """The bytes that were copied; None if they were not."""
        spec, pages = transfer.spec, transfer.pages
        if not spec.job:
            return None if len(pages.block_ids) else 0
        mapping = self._session.begin(spec.job, spec.region)
        if mapping is None:
            logger.info("terrace: job %d is void: its region is not this worker's any more.", spec.job)
            return None
        copied: int | None = None
        try:
            if len(spec.block_ids) and int(spec.block_ids.max()) >= mapping.slots:
                raise ValueError(f"slot {int(spec.block_ids.max())} of a region with {mapping.slots}")
            view = self._view_of(mapping)
            runs = self._layout.runs(pages.block_ids, pages.group_sizes, pages.block_indices, spec.block_ids)
            copied = view.store(runs) if transfer.store else view.load(runs)
        except Exception:
            # Whatever it is, the engine goes on: a store is dropped, a load is computed again.
            logger.exception("terrace: %r was not copied.", spec)
        finally:
            self._session.complete([(spec.job, copied is not None)])
        return copied

    def _view_of(self, mapping: Mapping) -> RegionView:
        with self._view_lock:
            if self._view is None or self._view[0] is not mapping:
                self._view = (
                    mapping,
                    RegionView(self._layout, mapping.memory, mapping.slots, mapping.slot_stride),
                )
            return self._view[1]


class _Lane:
    """A thread that runs transfers in order."""

    def __init__(self, name: str, run: Callable[[_Transfer], None]) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._queue: deque[_Transfer] = deque()
        #: Transfers that are queued or running.
        self._open: set[int] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, transfer: _Transfer) -> None:
        with self._condition:
            self._open.add(transfer.job_id)
            self._queue.append(transfer)
            self._condition.notify_all()

    def wait(self, job_ids: Collection[int]) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._open.isdisjoint(job_ids))

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                transfer = self._queue.popleft()
            try:
                self._run(transfer)
            finally:
                with self._condition:
                    self._open.discard(transfer.job_id)
                    self._condition.notify_all()
