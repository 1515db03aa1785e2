"""Statistics under the names of vLLM's own offloading metrics.

Lookups, hits and bytes that were brought are this engine's own. Gauges of the pool are the daemon's, the same in all
engines of a namespace.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)
from vllm.v1.kv_offload.cpu.common import CPUOffloadingMetrics
from vllm.v1.kv_offload.tiering.base import TieringOffloadingMetrics

from ..protocol import ANSWER_MASK, ORIGIN_SHIFT, Answer, TierInfo

if TYPE_CHECKING:
    from .requests import Asked, RequestState
    from .session import Session

#: How often vLLM is handed statistics.
EVERY_S = 0.25
_PREFIX = "vllm:kv_offload_terrace_"
_PRIMARY = ("0:primary",)
#: Our own counters: name, what it is, the session's counter that it is taken from ("" for the manager's).
_OWN = (
    ("round_trips", "Calls of the daemon that were answered in time.", "round_trips"),
    ("timeouts", "Calls of the daemon that ran into their budget.", "timeouts"),
    ("wait_seconds", "Time that the scheduler waited for the daemon, in seconds.", "waited_us"),
    ("reconnects", "Connections made to the daemon, the first included.", "connections"),
    ("lookups_away", "Lookups that were misses because the daemon was away.", "away"),
    ("lookups_given_up", "Lookups that were misses because the daemon was slow.", "given_up"),
    ("stores_dropped", "Chunks that were not stored because the daemon was away or slow.", ""),
    ("loads_void", "Loads given up before any byte was copied, because the connection broke.", ""),
    ("loads_failed", "Loads that failed in a worker; their tokens were computed again.", ""),
    ("promotions_refused", "Chunks that were not brought from a tier, for want of room.", ""),
)
_UP = _PREFIX + "up"
_EVENTS_LOST = _PREFIX + "events_lost"
#: vLLM's gauges, and how they follow from the daemon's figures.
_GAUGES = {
    CPUOffloadingMetrics.CPU_CACHE_USAGE_PERC: "Fraction of the pool's slots that active transfers hold.",
    CPUOffloadingMetrics.CPU_CACHE_WRITE_USAGE_PERC: "Fraction of the pool's slots that are being written.",
    CPUOffloadingMetrics.CPU_CACHE_READ_USAGE_PERC: "Fraction of the pool's slots that are being read.",
}


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Everything that `Statistics` hands to vLLM."""
    tier = ("tier",)
    counters = {
        TieringOffloadingMetrics.CHUNK_QUERIES: ("Chunks that were asked for, by tier.", tier),
        TieringOffloadingMetrics.CHUNK_HITS: ("Chunks that were found, by tier.", tier),
        TieringOffloadingMetrics.READ_BYTES: ("Bytes that a tier brought for requests of this engine.", tier),
    }
    definitions: dict[str, OffloadingMetricMetadata] = {
        name: OffloadingCounterMetadata(documentation=text, labelnames=labels)
        for name, (text, labels) in counters.items()
    }
    for name, text in _GAUGES.items():
        definitions[name] = OffloadingGaugeMetadata(documentation=text)
    definitions[CPUOffloadingMetrics.CPU_ALLOCATION_SIZE] = OffloadingHistogramMetadata(
        documentation="Chunks that one call of prepare_store was given slots for.",
        buckets=(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144),
    )
    for name, text, _ in _OWN:
        definitions[_PREFIX + name] = OffloadingCounterMetadata(documentation=text)
    definitions[_UP] = OffloadingGaugeMetadata(
        documentation="1 while the daemon answers, 0.5 while it is slow, 0 while it is away."
    )
    definitions[_EVENTS_LOST] = OffloadingGaugeMetadata(
        documentation="KV events that were lost since the session opened."
    )
    return definitions


class Statistics:
    """What the manager counts, until vLLM takes it."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self.stores_dropped = 0
        self.loads_void = 0
        self.loads_failed = 0
        self.promotions_refused = 0
        self.events_lost = 0
        self._allocated: list[int] = []
        # By the origin of a hit: 0 the primary, t + 1 tier t.
        self._hits: dict[int, int] = {}
        self._brought: dict[int, int] = {}
        self._scanned = 0
        self._pool: dict[str, float] = {}
        self._told: dict[str, int] = {}
        self._at = 0.0

    def allocated(self, chunks: int) -> None:
        """A store was given slots for so many chunks."""
        self._allocated.append(chunks)

    def pool(self, values: Iterable[tuple[str, float]]) -> None:
        """The daemon's figures."""
        self._pool = dict(values)

    def resolved(self, state: RequestState, asked: Asked) -> None:
        """A request's lookup has its answer."""
        answers = asked.answer.answers
        for part in asked.question.parts:
            if part.group.prefix:
                miss = answers.find(0, part.first, part.end)
                indices = range(part.first, part.end if miss < 0 else miss + 1)
            else:
                indices = range(part.first, part.end)
            self._scanned += len(indices)
            span = np.frombuffer(answers, dtype=np.uint8)[indices.start : indices.stop]
            hits = (span & ANSWER_MASK) == Answer.HIT
            here = int(hits.sum())
            if state.waited:
                for at in np.flatnonzero(hits & (span >> ORIGIN_SHIFT > 0)):
                    if asked.question.keys[part.first + int(at)] in state.waited:
                        here -= 1
                        origin = int(span[at]) >> ORIGIN_SHIFT
                        self._hits[origin] = self._hits.get(origin, 0) + 1
                        self._brought[origin] = self._brought.get(origin, 0) + 1
            self._hits[0] = self._hits.get(0, 0) + here

    def take(self, session: Session) -> OffloadingConnectorStats | None:
        """What vLLM is to add up; None if it is not time yet."""
        now = time.monotonic()
        if now - self._at < EVERY_S:
            return None
        self._at = now
        stats = OffloadingConnectorStats()
        self._own(stats, session)
        self._lookups(stats, session.tiers)
        for chunks in self._allocated:
            stats.observe_histogram(CPUOffloadingMetrics.CPU_ALLOCATION_SIZE, chunks)
        self._allocated.clear()
        self._gauges(stats, session.slots)
        return stats

    def _own(self, stats: OffloadingConnectorStats, session: Session) -> None:
        counters = session.counters
        for name, _, counter in _OWN:
            value = counters.get(counter, 0) if counter else getattr(self, name)
            more = value - self._told.get(name, 0)
            self._told[name] = value
            if more:
                stats.increase_counter(_PREFIX + name, more / 1e6 if counter.endswith("_us") else more)
        stats.set_gauge(_UP, {"ready": 1.0, "stalled": 0.5}.get(session.state, 0.0))
        stats.set_gauge(_EVENTS_LOST, self.events_lost)

    def _lookups(self, stats: OffloadingConnectorStats, tiers: tuple[TierInfo, ...]) -> None:
        if not self._scanned:
            return
        rest = self._scanned
        for origin in range(len(tiers) + 1):
            label = _PRIMARY if not origin else (f"{origin}:{tiers[origin - 1].name}",)
            hits = self._hits.get(origin, 0)
            stats.increase_counter(TieringOffloadingMetrics.CHUNK_QUERIES, rest, label)
            stats.increase_counter(TieringOffloadingMetrics.CHUNK_HITS, hits, label)
            rest -= hits
            if brought := self._brought.get(origin):
                stats.increase_counter(TieringOffloadingMetrics.READ_BYTES, brought * self._block_bytes, label)
        self._scanned = 0
        self._hits.clear()
        self._brought.clear()

    def _gauges(self, stats: OffloadingConnectorStats, slots: int) -> None:
        writing, reading = _slots(self._pool, "writing"), _slots(self._pool, "in_use")
        if not slots or writing is None or reading is None:
            return
        for name, value in zip(_GAUGES, (writing + reading, writing, reading)):
            stats.set_gauge(name, value / slots)


def _slots(pool: dict[str, float], state: str) -> float | None:
    """The primary's slots in a state, of the daemon's figures, whatever other labels they have."""
    found = [
        value for key, value in pool.items() if key.startswith("terrace_primary_slots{") and f'state="{state}"' in key
    ]
    return sum(found) if found else None
