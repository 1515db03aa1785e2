"""Terrace as a secondary tier of vLLM's own tiering: vLLM keeps its primary, Terrace is what lies below.

The daemon has vLLM's region file and copies rows by itself, so nothing but decisions happens here, on the scheduler's
thread:

- A request's first `lookup` of a step asks the daemon for all its keys in one round trip; the others of that step are
  answered from it.
- Stores and loads are announced, one way; their results come with the reply to the end of a step.
- While the daemon is away all lookups miss and all jobs fail at once. While it is slow, see `terrace_kv.session`.

In `kv_connector_extra_config` of `TieringOffloadingSpec`: `"secondary_tiers": [{"type": "TerraceTier", "module_path":
"terrace_kv.vllm", "socket": PATH}]`.
"""

from __future__ import annotations

import difflib
import itertools
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TierFilter,
)
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobId, JobResult, SecondaryTierManager, TransferJob

from ..options import Geometry, SessionOptions
from ..protocol import WANT_EVENTS, EndStepReply, RowsDone, Scan
from ..session import next_job
from ..tier_session import TierSession
from .compat import engine_configs
from .namespace import vllm_namespace
from .region_file import find_region_file

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_offload.base import OffloadingSpec

__all__ = ["TerraceTier"]

logger = init_logger(__name__)

#: How a row of vLLM's region is laid out: part of the namespace. Another layout of vLLM's is another name.
_ROW_LAYOUT = "vllm-row-1"
#: How long an answer is used in later steps: an engine that has nothing to compute steps many times in a millisecond.
_ANSWER_HOLDS_S = 0.001
#: Keys of one job as the daemon sees it. A longer one of vLLM's is cut: what fits is stored even if the rest finds no
#: room.
_KEYS_PER_JOB = 256
#: How long the start of an engine waits for the daemon. Without it, it starts all the same.
_START_S = 1.0
#: How long `drain_jobs` waits.
_DRAIN_S = 30.0
#: How often statistics go to vLLM, and events are asked for where nothing else is said.
_STATS_EVERY_S = 1.0
_EVENTS_EVERY_S = 0.02
#: Events that are kept for vLLM to take.
_EVENTS_KEPT = 4096
_ALL_TIERS = 0xFFFF_FFFF

#: The low three bits of an answer byte to vLLM's answer. Pending and Found are hits: a load brings the block,
#: whatever tier it is in.
_RESULTS = (
    LookupResult.MISS,
    LookupResult.HIT,
    LookupResult.HIT,
    LookupResult.HIT,
    LookupResult.RETRY,
    LookupResult.MISS,
    LookupResult.MISS,
    LookupResult.MISS,
)

_PREFIX = "vllm:kv_offload_terrace_"
#: Counters of ours: name, what it is, the session's counter that it is taken from. As those of `TerraceOffloadingSpec`.
_COUNTERS = (
    ("round_trips", "Calls of the daemon that were answered in time.", "round_trips"),
    ("timeouts", "Calls of the daemon that ran into their budget.", "timeouts"),
    ("wait_seconds", "Time that the scheduler waited for the daemon, in seconds.", "waited_us"),
    ("reconnects", "Connections made to the daemon, the first included.", "connections"),
    ("lookups_away", "Lookups that were misses because the daemon was away.", "away"),
    ("lookups_given_up", "Lookups that were misses because the daemon was slow.", "given_up"),
    (
        "stores_dropped",
        "Stores that the daemon was not asked for, because it was away, slow or full.",
        "dropped_stores",
    ),
)
_UP = f"{_PREFIX}up"


class _Request:
    """What is known for a request that the daemon has heard of."""

    __slots__ = ("answers", "asked_at", "failed", "number", "step", "whole")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: dict[OffloadKey, LookupResult] = {}
        self.step = -1
        self.asked_at = 0.0
        #: Keys whose load failed: misses for this request, or it would load them for ever.
        self.failed: set[OffloadKey] = set()
        #: Whether keys before the first one asked for were wanted too: windows are scanned from their end.
        self.whole = False


class _Job:
    """A job of vLLM's, in parts."""

    __slots__ = ("began", "done", "job_id", "keys", "open_parts", "request")

    def __init__(self, job_id: JobId, keys: int, request: _Request | None) -> None:
        self.job_id = job_id
        self.keys = keys
        #: Of a load: whose it is.
        self.request = request
        self.done: list[OffloadKey] = []
        self.open_parts = 0
        self.began = time.monotonic()


class TerraceTier(SecondaryTierManager):
    """A secondary tier whose blocks lie in a Terrace daemon.

    Called by the scheduler's thread only. No call waits longer than `call_budget_ms`, except `drain_jobs`; none
    raises for an absent or sick daemon.
    """

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        socket: str | None = None,
        call_budget_ms: float = 5.0,
        tenant: str = "",
        namespace_extra: Mapping[str, str] | None = None,
        enable_kv_events: bool = True,
        locality: str | None = None,
        **unknown: Any,
    ) -> None:
        """The keys of the tier's configuration, beside `type` and `module_path`:

        - `socket`: path of the daemon's socket. Required.
        - `call_budget_ms`: how long one call may wait for the daemon.
        - `tenant`, `namespace_extra`: set blocks apart from those of other users; engines share blocks only where
          these are equal.
        - `enable_kv_events`: whether vLLM's KV events, where they are on, tell what the daemon's storage holds.
        - `locality`: "LOCAL" or "REMOTE", for `kv_load_tiers` of a request that asks for one of them.

        Raises `ValueError` for a key or a value that cannot be used, and if vLLM's region is no file.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        _refuse_unknown(unknown)
        if not socket or not isinstance(socket, str):
            raise ValueError(
                f"secondary tier {tier_type}: set 'socket' to the path of the daemon's socket, not {socket!r}"
            )
        if not call_budget_ms > 0:
            raise ValueError(f"secondary tier {tier_type}: call_budget_ms is {call_budget_ms}, it must be above 0")
        if locality is not None:
            try:
                self.locality = Locality(locality.upper())
            except ValueError:
                raise ValueError(f"secondary tier {tier_type}: locality is {locality!r}, not LOCAL or REMOTE") from None
        self._want_events = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        region = find_region_file(primary_kv_view)
        vllm_config, _ = engine_configs()
        config = offloading_spec.config
        namespace = vllm_namespace(config, vllm_config, tenant=tenant, extra=namespace_extra)
        hash_bytes = _hash_bytes(vllm_config)
        self._key_bytes = hash_bytes + 4
        options = SessionOptions(
            socket=socket,
            # A name that no other tier has: an engine may list several, and a process that is started again is
            # another engine.
            engine=f"{config.engine_id}.tier.{os.getpid()}.{next(_tiers)}",
            namespace=msgspec.structs.replace(namespace, kv_layout=f"{_ROW_LAYOUT}; {namespace.kv_layout}"),
            geometry=Geometry(
                block_bytes=region.row_stride,
                tokens_per_block=config.groups[0].tokens_per_block,
                blocks_per_chunk=config.cache.blocks_per_chunk,
                groups=max(group.group_id for group in config.groups) + 1,
                hash_bytes=hash_bytes,
            ),
            call_budget_s=call_budget_ms / 1000,
            client="terrace-kv vllm tier",
        )
        self._region = region
        self._options = options
        self._session = self._open_session()
        self._requests: dict[str, _Request] = {}
        self._numbers = itertools.count(1)
        self._step = 0
        #: Name of a part, as the daemon knows it -> the job, and the part's keys.
        self._parts: dict[int, tuple[_Job, list[OffloadKey]]] = {}
        self._results: list[JobResult] = []
        self._finished: list[int] = []
        self._touched: list[OffloadKey] = []
        self._events: list[OffloadingEvent] = []
        self._events_lost = 0
        self._events_asked_at = 0.0
        self._counted: dict[str, int] = {}
        self._counted_at = 0.0
        if not self._session.wait_ready(_START_S):
            logger.warning(
                "terrace: no daemon at %s (%s): its blocks are misses until it is there",
                socket,
                self._session.last_error,
            )

    def _open_session(self) -> TierSession:
        region = self._region
        return TierSession(
            self._options,
            region_fd=region.descriptor,
            rows=region.rows,
            row_stride=region.row_stride,
            offset_bytes=region.offset_bytes,
        )

    # Lookups.

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Blocks are stored as they are computed."""
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """One round trip for a request's first key in a step, none for the others."""
        request = self._requests.get(req_context.req_id)
        if request is None:
            request = self._requests[req_context.req_id] = _Request(next(self._numbers))
        elif key in request.failed:
            return LookupResult.MISS
        if request.step == self._step:
            answer = request.answers.get(key)
            if answer is not None:
                return answer
            # A key before the first one asked for. Next time all are asked for at once.
            request.whole = True
        elif key in request.answers and time.monotonic() - request.asked_at < _ANSWER_HOLDS_S:
            return request.answers[key]
        else:
            request.answers.clear()
        self._ask(request, key, req_context)
        return request.answers.get(key, LookupResult.MISS)

    def _ask(self, request: _Request, key: OffloadKey, req_context: ReqContext) -> None:
        keys, queries = _queries(key, req_context, request.whole)
        answer = self._session.lookup(request.number, self._mask(req_context.load_tier_filter), queries, lease=False)
        request.step, request.asked_at = self._step, time.monotonic()
        if answer is None:
            request.answers.update(dict.fromkeys(keys, LookupResult.RETRY))
        else:
            request.answers.update(zip(keys, (_RESULTS[byte & 7] for byte in answer.answers), strict=True))

    def _mask(self, wanted: TierFilter) -> int:
        """The daemon's tiers that the request may be served from."""
        if wanted is TierFilter.ALL:
            return _ALL_TIERS
        mask = 0
        for index, tier in enumerate(self._session.tiers):
            medium = Medium.STORAGE if tier.medium else Medium.CPU
            if wanted.allows(medium, Locality.REMOTE if tier.locality else Locality.LOCAL):
                mask |= 1 << index
        return mask

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Told with the end of the step."""
        self._touched.extend(keys)

    # Jobs.

    def submit_store(self, job_metadata: TransferJob) -> None:
        """The daemon copies rows into its pool, and on to all its tiers. Fails at once while it is away."""
        position = _position_in(job_metadata.req_context)
        order = sorted(zip(job_metadata.keys, job_metadata.chunk_ids, strict=True), key=lambda pair: position(pair[0]))
        self._submit(job_metadata, [key for key, _ in order], np.array([row for _, row in order]), load=False)

    def submit_load(self, job_metadata: TransferJob, expedited: bool = False) -> None:
        """The daemon copies blocks into rows, after bringing them from below.

        Fails at once while it is away. `expedited` changes nothing: a load goes first.
        """
        self._submit(job_metadata, list(job_metadata.keys), np.asarray(job_metadata.chunk_ids), load=True)

    def _submit(self, metadata: TransferJob, keys: list[OffloadKey], rows: np.ndarray, load: bool) -> None:
        request = self._requests.get(metadata.req_context.req_id)
        if request is None:
            request = self._requests[metadata.req_context.req_id] = _Request(next(self._numbers))
        job = _Job(metadata.job_id, len(keys), request if load else None)
        send = self._session.load_rows if load else self._session.store_rows
        row_bytes = rows.astype("<u4").tobytes()
        for first in range(0, len(keys), _KEYS_PER_JOB):
            part = keys[first : first + _KEYS_PER_JOB]
            name = next_job()
            if send(request.number, name, b"".join(part), row_bytes[4 * first : 4 * (first + len(part))]):
                self._parts[name] = (job, part)
                job.open_parts += 1
            elif load:
                request.failed.update(part)
        if not job.open_parts:
            self._end(job)

    def _part_ended(self, rows: RowsDone) -> None:
        job, part = self._parts.pop(rows.job, (None, []))
        if job is None:
            return
        done = [key for key, ok in zip(part, rows.ok, strict=False) if ok]
        job.done += done
        if job.request is not None and len(done) < len(part):
            job.request.failed.update(part)
            job.request.failed.difference_update(done)
        job.open_parts -= 1
        if not job.open_parts:
            self._end(job)

    def _end(self, job: _Job) -> None:
        success = len(job.done) == job.keys
        self._results.append(
            JobResult(
                job_id=job.job_id,
                success=success,
                successful_keys=tuple(job.done) if job.done and not success and job.request is not None else None,
                transfer_time=time.monotonic() - job.began,
                transfer_bytes=len(job.done) * self._block_size_bytes,
            )
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that ended since the last call."""
        self._take_in(self._session.poll())
        results, self._results = self._results, []
        return results

    def has_pending_work(self) -> bool:
        """Whether jobs run, or results wait to be taken."""
        return bool(self._parts or self._results)

    def drain_jobs(self) -> None:
        """Waits until no row is copied any more, half a minute at most. The results are there for `get_finished_jobs`.

        A daemon that has not answered by then is given up: the connection is closed, which ends its copies, and the
        jobs have failed.
        """
        deadline = time.monotonic() + _DRAIN_S
        while self._parts and time.monotonic() < deadline:
            self._take_in(self._session.end_step())
            self._take_in(self._session.poll())
            if self._parts:
                time.sleep(0.0005)
        if self._parts:
            logger.error(
                "terrace: %d row copies did not end within %g s: the daemon is given up", len(self._parts), _DRAIN_S
            )
            self._session.close()
            self._session = self._open_session()
            for name, (_, part) in list(self._parts.items()):
                self._part_ended(RowsDone(name, bytes(len(part)), 0))

    # The step.

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Says what the step brought, without waiting."""
        self._step += 1
        want = 0
        if self._want_events:
            now = time.monotonic()
            if now - self._events_asked_at >= _EVENTS_EVERY_S:
                self._events_asked_at, want = now, WANT_EVENTS
        if not (self._parts or self._finished or self._touched or want):
            return
        finished, self._finished = self._finished, []
        touched, self._touched = b"".join(self._touched), []
        self._take_in(self._session.end_step(finished=finished, touched=touched, want=want))

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Told with the end of the step. Jobs of the request may still run."""
        request = self._requests.pop(req_context.req_id, None)
        if request is not None:
            self._finished.append(request.number)

    def _take_in(self, reply: EndStepReply | None) -> None:
        if reply is None:
            return
        for rows in reply.rows:
            self._part_ended(rows)
        if self._want_events:
            for batch in reply.events:
                # What the daemon keeps in memory is no business of vLLM's; clearing that is none either.
                if batch.medium and batch.what < 2:
                    locality = Locality.REMOTE if batch.locality else Locality.LOCAL
                    self._add_event(batch.keys, batch.what == 1, locality)

    def _add_event(self, keys: bytes, removed: bool, locality: Locality) -> None:
        if len(self._events) >= _EVENTS_KEPT:
            self._events_lost += 1
            return
        length = self._key_bytes
        split = [OffloadKey(keys[at : at + length]) for at in range(0, len(keys), length)]
        self._events.append(OffloadingEvent(split, Medium.STORAGE, removed, locality))

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What the daemon's storage took up and gave up."""
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """What `get_stats` brings, beside what vLLM counts for each tier by itself."""
        definitions: dict[str, OffloadingMetricMetadata] = {
            _PREFIX + name: OffloadingCounterMetadata(documentation=text) for name, text, _ in _COUNTERS
        }
        about = "1 while the daemon answers, 0.5 while it is slow, 0 while it is away."
        definitions[_UP] = OffloadingGaugeMetadata(documentation=about)
        return definitions

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What was counted since the last time, once a second."""
        now = time.monotonic()
        if now - self._counted_at < _STATS_EVERY_S:
            return None
        self._counted_at = now
        stats = OffloadingConnectorStats()
        counters = self._session.counters
        for name, _, counter in _COUNTERS:
            more = counters[counter] - self._counted.get(counter, 0)
            if more:
                stats.increase_counter(_PREFIX + name, more / 1e6 if counter.endswith("_us") else more)
        self._counted = counters
        stats.set_gauge(_UP, {"ready": 1.0, "stalled": 0.5}.get(self._session.state, 0.0))
        return stats

    def shutdown(self) -> None:
        """Ends the session. The daemon copies nothing more for it."""
        self._session.close()
        os.close(self._region.descriptor)


_tiers = itertools.count(1)


def _position_in(req_context: ReqContext) -> Any:
    """Where a key ends in the request; 0 for one that vLLM did not place."""
    return lambda key: req_context.get_offload_key_position(key) or 0


def _queries(key: OffloadKey, req_context: ReqContext, whole: bool) -> tuple[list[OffloadKey], list[tuple[int, bytes]]]:
    """All keys of the request from the one asked for on, group by group, in the order of their positions; and the
    queries for them.
    """
    position = req_context.get_offload_key_position(key)
    # vLLM has no other way to list them.
    positions = req_context._offload_key_positions if position is not None else {key: 0}
    first = 0 if whole or position is None else position
    groups: dict[bytes, list[OffloadKey]] = {}
    for candidate, at in positions.items():
        if at >= first:
            groups.setdefault(candidate[-4:], []).append(candidate)
    keys: list[OffloadKey] = []
    queries: list[tuple[int, bytes]] = []
    for group in groups.values():
        group.sort(key=positions.__getitem__)
        keys += group
        # Each, not Prefix: what misses here may lie in vLLM's primary, and the scan goes on behind it.
        queries.append((Scan.EACH, b"".join(group)))
    return keys, queries


def _hash_bytes(vllm_config: VllmConfig | None) -> int:
    """Length of vLLM's block hashes."""
    if vllm_config is None:
        return 32
    return len(get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)(b""))


def _refuse_unknown(unknown: Mapping[str, Any]) -> None:
    known: Sequence[str] = ("socket", "call_budget_ms", "tenant", "namespace_extra", "enable_kv_events", "locality")
    for key in unknown:
        near = difflib.get_close_matches(key, known, 1)
        hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(known)}"
        raise ValueError(f"secondary tier TerraceTier has no key {key!r}{hint}")
