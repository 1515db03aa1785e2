"""Copies that the daemon makes on the worker's GPU: one message a step and direction.

The daemon opens the KV cache once, by handles of the CUDA driver, and copies between it and the region on streams of its
own. Order is kept by events that both processes know: this side records one behind the model's work before it asks
for copies, the daemon one behind its copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from vllm.logger import init_logger

from ..protocol import Attach, AttachReply, CopiedJob, CopyJob, DeviceMemory, DevicePages
from .copier import Ended, Transfer, numbers_of
from .layout import WorkerLayout

logger = init_logger(__name__)

#: How often a wait for loads says what it waits for.
_TELL_S = 5.0


class Device(Protocol):
    """A GPU, as far as it is shared with the daemon. Events are named by their handles."""

    def uuid(self) -> bytes:
        """16 bytes."""

    def export(self, address: int) -> tuple[bytes, int, int]:
        """The handle of the allocation that holds the address, the address's offset in it, and its length. Raises
        `DeviceError` for memory that cannot be handed over."""

    def make_event(self) -> bytes:
        """A new event; its handle."""

    def record(self, event: bytes) -> None:
        """Records an event of `make_event` behind the work of the current stream. Does not wait."""

    def hold_back(self, event: bytes) -> None:
        """What the current stream does from now on waits for the daemon's event. The host does not wait."""


class DeviceSession(Protocol):
    """What is needed of a `WorkerSession`."""

    def copy(self, store: bool, jobs: Sequence[CopyJob], region: int) -> None: ...
    def give_up(self, jobs: Sequence[int]) -> None: ...
    def close(self) -> None: ...


class DeviceCopier:
    """Also the `CopyUser` of the worker's session. `submit`, `flush`, `poll` and `wait` belong to vLLM's thread, whose
    current stream is the model's."""

    def __init__(self, device: Device, layout: WorkerLayout, ended: Ended, flush_budget_s: float) -> None:
        """`flush_budget_s`: how long `wait` waits for stores. Raises `DeviceError` if the KV cache cannot be handed to
        the daemon."""
        self._device = device
        self._ended = ended
        self._budget_s = flush_budget_s
        self._ready = {store: device.make_event() for store in (True, False)}
        self._attach = _attachment(device, layout, self._ready[True], self._ready[False])
        self._session: DeviceSession | None = None
        self._pending: list[Transfer] = []
        # The transfers that are asked for, by the daemon's names. The lock is never held in a call of the session.
        self._running: dict[int, tuple[Transfer, float]] = {}
        self._condition = threading.Condition()
        # The daemon's event behind its loads, and whether a load has ended that the model has not waited for.
        self._loaded: bytes | None = None
        self._has_loaded = False

    def use(self, session: DeviceSession) -> None:
        """The session that asks the daemon. Before anything is submitted."""
        self._session = session

    # What the session calls.

    def attachment(self) -> Attach:
        """See `CopyUser`."""
        return self._attach

    def attached(self, reply: AttachReply) -> None:
        """See `CopyUser`."""
        self._loaded = reply.loaded
        logger.info("terrace: the daemon copies for this worker.")

    def not_attached(self, why: str) -> None:
        """See `CopyUser`."""
        logger.error(
            "terrace: nothing is stored or loaded, for the daemon does not copy on this worker's GPU: %s. With "
            "'terrace_copy': 'library' in kv_connector_extra_config this process copies.",
            why,
        )

    def copied(self, job: CopiedJob) -> None:
        """See `CopyUser`."""
        with self._condition:
            found = self._running.pop(job.job, None)
            if found is None:
                return
            transfer, began = found
            self._has_loaded |= job.ok and not transfer.store
            self._condition.notify_all()
        self._ended(transfer, job.bytes if job.ok else None, time.monotonic() - began)

    # What the worker calls.

    def submit(self, transfer: Transfer) -> None:
        """Kept until `flush`."""
        self._pending.append(transfer)

    def flush(self) -> None:
        """One message for all stores, one for all loads."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        now = time.monotonic()
        with self._condition:
            for transfer in pending:
                self._running[transfer.spec.job] = (transfer, now)
        for store in (True, False):
            regions: dict[int, list[Transfer]] = {}
            for transfer in pending:
                if transfer.store is store:
                    regions.setdefault(transfer.spec.region, []).append(transfer)
            if regions:
                self._device.record(self._ready[store])
            # Jobs of an older region are refused by the session: as a rule there is one.
            for region, transfers in regions.items():
                assert self._session is not None
                self._session.copy(store, [_job(transfer) for transfer in transfers], region)

    def poll(self) -> None:
        """The model's stream waits for what was loaded."""
        with self._condition:
            loaded, self._has_loaded = self._has_loaded, False
        if loaded and self._loaded is not None:
            self._device.hold_back(self._loaded)

    def wait(self, job_ids: Collection[int]) -> None:
        """Stores that do not end within the budget are given up: the daemon may go on reading their pages, and throws away
        what it read. Pages that are loaded to belong to the daemon until it says so or is gone: for them this waits."""
        deadline = time.monotonic() + self._budget_s
        while True:
            with self._condition:
                self._condition.wait_for(lambda: not self._open(job_ids, True), deadline - time.monotonic())
                late = self._open(job_ids, True)
            if not late:
                break
            assert self._session is not None
            self._session.give_up(late)
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: not self._open(job_ids, False), _TELL_S):
                    return
                waited = self._open(job_ids, False)
            logger.warning("terrace: the engine waits for the daemon, which is to end the loads %s.", waited[:8])

    def close(self) -> None:
        """Nothing more is asked for. What the daemon copies goes on until it sees that the session is over."""
        self._pending.clear()
        if self._session is not None:
            self._session.close()

    def _open(self, job_ids: Collection[int], store: bool) -> list[int]:
        return [
            job
            for job, (transfer, _) in self._running.items()
            if transfer.store is store and transfer.job_id in job_ids
        ]


def _attachment(device: Device, layout: WorkerLayout, store_ready: bytes, load_ready: bytes) -> Attach:
    memories: list[DeviceMemory] = []
    #: Exported addresses and their bytes: tensors often share an allocation.
    exported: list[tuple[int, int]] = []
    groups: list[list[DevicePages]] = []
    for references in layout.groups:
        pages = []
        for reference in references:
            tensor = reference.tensor
            address, stride = tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
            found = next((i for i, (base, size) in enumerate(exported) if base <= address < base + size), None)
            if found is None:
                handle, offset, allocation_bytes = device.export(address)
                found = len(memories)
                memories.append(DeviceMemory(handle, 0, allocation_bytes))
                exported.append((address - offset, allocation_bytes))
            pages.append(
                DevicePages(found, address - exported[found][0], tensor.shape[0], reference.page_bytes, stride)
            )
        groups.append(pages)
    return Attach(
        device.uuid(), memories, groups, layout.part_offset, layout.part_bytes, 0, store_ready, load_ready
    )


def _job(transfer: Transfer) -> CopyJob:
    pages = transfer.pages
    return CopyJob(
        transfer.spec.job,
        numbers_of(pages.block_ids),
        numbers_of(pages.group_sizes),
        numbers_of(pages.block_indices),
        numbers_of(transfer.spec.block_ids),
    )

