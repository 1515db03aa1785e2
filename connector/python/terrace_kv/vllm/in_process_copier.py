"""Copies by libterrace_copy.so in this process, for GPU memory that no other process can be handed, and for host memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection
from typing import Any

from vllm.logger import init_logger

from ..copy_library import (
    CUDA,
    FULL,
    HOST,
    LOAD,
    NO_POINT,
    OK,
    STORE,
    STREAM,
    Engine,
    JobLists,
    Library,
    LibraryError,
    Order,
    Pages,
    Slots,
)
from ..region import Mapping
from .copier import Ended, Transfer, numbers_of
from .host_copier import HostSession
from .layout import LayoutError, WorkerLayout

logger = init_logger(__name__)

#: Attempts to find room in the engine's queue, a poll between them.
_ATTEMPTS = 3
#: How long one call waits for copies; they are waited for again.
_WAIT_MS = 1000


class LibraryCopier:
    """All calls belong to vLLM's thread, whose current stream is the model's."""

    def __init__(self, path: str, session: HostSession, layout: WorkerLayout, ended: Ended) -> None:
        """Raises `LayoutError` if the library is not there or cannot copy this cache; the session is closed then."""
        self._session = session
        self._ended = ended
        self._device = layout.device
        self._pending: list[Transfer] = []
        self._running: dict[int, tuple[Transfer, Mapping, float]] = {}
        #: Regions that are registered: their memory must stay.
        self._regions: dict[int, tuple[Mapping, int, int]] = {}
        try:
            device = "" if self._device.type == "cpu" else str(self._device.index or 0)
            self._engine = Engine(Library(path), HOST if self._device.type == "cpu" else CUDA, device)
            self._layout = self._engine.add_layout(
                [[_pages(reference) for reference in group] for group in layout.groups],
                layout.blocks_per_chunk,
                layout.part_offset,
                layout.part_bytes,
                0,
            )
            for group in layout.groups:
                for reference in group:
                    storage = reference.tensor.untyped_storage()
                    self._engine.add_memory(storage.data_ptr(), storage.nbytes())
        except LibraryError as error:
            session.close()
            raise LayoutError(f"this process cannot copy the KV cache on {self._device}: {error}") from error

    def submit(self, transfer: Transfer) -> None:
        """Kept until `flush`."""
        self._pending.append(transfer)

    def flush(self) -> None:
        """One call for all stores, one for all loads."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for store in (True, False):
            steps: dict[int, tuple[Mapping, list[Transfer]]] = {}
            for transfer in pending:
                if transfer.store is not store:
                    continue
                mapping = self._session.begin(transfer.spec.job, transfer.spec.region)
                if mapping is None:
                    logger.info("terrace: job %d is void: its region is not this worker's any more.", transfer.spec.job)
                    self._ended(transfer, None, 0.0)
                else:
                    steps.setdefault(id(mapping), (mapping, []))[1].append(transfer)
            for mapping, transfers in steps.values():
                self._submit(store, mapping, transfers)

    def poll(self) -> None:
        """Tells what ended."""
        if not self._running:
            return
        reports: list[tuple[int, bool]] = []
        for name, ok, size, _ in self._engine.poll():
            transfer, _, began = self._running.pop(name)
            reports.append((name, ok))
            self._ended(transfer, size if ok else None, time.monotonic() - began)
        if reports:
            self._session.complete(reports)

    def wait(self, job_ids: Collection[int]) -> None:
        """Waits for the copies, never for the daemon."""
        names = [name for name, (transfer, _, _) in self._running.items() if transfer.job_id in job_ids]
        while names and not self._engine.wait(names, _WAIT_MS):
            logger.warning("terrace: the engine waits for the copies of the jobs %s.", names[:8])
        self.poll()

    def close(self) -> None:
        """Ends the copies in order, then the session."""
        self._pending.clear()
        self.wait([transfer.job_id for transfer, _, _ in self._running.values()])
        self._engine.close()
        self._session.close()
        self._regions.clear()

    def _submit(self, store: bool, mapping: Mapping, transfers: list[Transfer]) -> None:
        refused = {transfer.spec.job: transfer for transfer in transfers}
        why = ""
        try:
            slots = self._slots(mapping)
            for _ in range(_ATTEMPTS):
                left = list(refused.values())
                codes = self._engine.submit(
                    self._layout, slots, STORE if store else LOAD, [_lists(transfer) for transfer in left], self._order(store)
                )
                why = self._engine.message() if any(codes) else ""
                now = time.monotonic()
                for transfer, code in zip(left, codes):
                    if code == OK:
                        del refused[transfer.spec.job]
                        self._running[transfer.spec.job] = (transfer, mapping, now)
                if FULL not in codes:
                    break
                self.poll()
        except LibraryError as error:
            why = str(error)
        if refused:
            # Whatever it is, the engine goes on: a store is dropped, a load is computed again.
            logger.error("terrace: the jobs %s were not copied: %s", list(refused)[:8], why)
            self._session.complete([(name, False) for name in refused])
            for transfer in refused.values():
                self._ended(transfer, None, 0.0)

    def _slots(self, mapping: Mapping) -> Slots:
        known = self._regions.get(id(mapping))
        if known is None:
            self._forget_regions()
            base = ctypes.addressof(ctypes.c_char.from_buffer(mapping.memory))
            known = (mapping, base, self._engine.register(base, mapping.slots * mapping.slot_stride))
            self._regions[id(mapping)] = known
        return Slots(base=known[1], stride=mapping.slot_stride, slots=mapping.slots)

    def _forget_regions(self) -> None:
        """Regions of a daemon that is gone, once nothing copies to or from them."""
        used = {id(mapping) for _, mapping, _ in self._running.values()}
        for name in [name for name in self._regions if name not in used]:
            self._engine.unregister(self._regions.pop(name)[2])

    def _order(self, store: bool) -> Order:
        if self._device.type == "cpu":
            return Order()
        import torch

        stream = torch.cuda.current_stream(self._device).cuda_stream
        # Both wait for what the model has been told to do; the model waits for loads.
        return Order(
            after_kind=STREAM, after=stream, before_kind=NO_POINT if store else STREAM, before=0 if store else stream
        )


def _pages(reference: Any) -> Pages:
    tensor = reference.tensor
    return Pages(
        base=tensor.data_ptr(),
        page_bytes=reference.page_bytes,
        page_stride=tensor.stride(0) * tensor.element_size(),
        num_blocks=tensor.shape[0],
    )


def _lists(transfer: Transfer) -> JobLists:
    pages = transfer.pages
    return JobLists(
        transfer.spec.job,
        numbers_of(pages.block_ids),
        numbers_of(pages.group_sizes),
        numbers_of(pages.block_indices),
        numbers_of(transfer.spec.block_ids),
    )

