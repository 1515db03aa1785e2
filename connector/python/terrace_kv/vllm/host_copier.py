"""Copies in host memory, by two threads of this process: one for each direction, first in, first out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from vllm.logger import init_logger

from ..region import Mapping
from .copier import Ended, Transfer
from .layout import RegionView, WorkerLayout

logger = init_logger(__name__)


class HostSession(Protocol):
    """What is needed of a `WorkerSession`."""

    def begin(self, job: int, region: int) -> Mapping | None: ...
    def complete(self, jobs: list[tuple[int, bool]]) -> None: ...
    def close(self) -> None: ...


class HostCopier:
    """For vLLM's CPU backend."""

    def __init__(self, session: HostSession, layout: WorkerLayout, ended: Ended) -> None:
        self._session = session
        self._layout = layout
        self._ended = ended
        self._view: tuple[Mapping, RegionView] | None = None
        self._view_lock = threading.Lock()
        self._stores = _Lane("terrace-store", self._run)
        self._loads = _Lane("terrace-load", self._run)

    def submit(self, transfer: Transfer) -> None:
        """The copy begins when its turn comes."""
        (self._stores if transfer.store else self._loads).put(transfer)

    def flush(self) -> None:
        """Nothing: what is submitted copies already."""

    def poll(self) -> None:
        """Nothing: the threads tell."""

    def wait(self, job_ids: Collection[int]) -> None:
        """Waits for copies in memory, never for the daemon."""
        self._stores.wait(job_ids)
        self._loads.wait(job_ids)

    def close(self) -> None:
        """Ends the copies in order, then the session."""
        self._stores.close()
        self._loads.close()
        self._session.close()
        self._view = None

    def _run(self, transfer: Transfer) -> None:
        began = time.monotonic()
        copied = self._copy(transfer)
        self._ended(transfer, copied, time.monotonic() - began)

    def _copy(self, transfer: Transfer) -> int | None:
        """The bytes that were copied; None if they were not."""
        spec, pages = transfer.spec, transfer.pages
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

    def __init__(self, name: str, run: Callable[[Transfer], None]) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._queue: deque[Transfer] = deque()
        #: Transfers that are queued or running.
        self._open: set[int] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, transfer: Transfer) -> None:
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
