"""Statistics: under names that the spec has defined, with the labels that go with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm_script import ScriptedSession, end, found, hit, key, manager_of, reply, request_of

from terrace_kv.vllm import manager as manager_module
from terrace_kv.vllm import stats as stats_module
from terrace_kv.vllm.manager import TerraceManager
from terrace_kv.vllm.spec import TerraceOffloadingSpec

KEYS = [key(number) for number in range(8)]
TIERING = "vllm:kv_offload_tiering_"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(manager_module, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(stats_module, "EVERY_S", 0.0)
    yield


def values(manager: TerraceManager) -> dict[str, dict[tuple[str, ...], float]]:
    """What the manager hands to vLLM, each of it defined."""
    stats = manager.get_stats()
    assert isinstance(stats, OffloadingConnectorStats)
    definitions = TerraceOffloadingSpec.build_metric_definitions({})
    for name, by_label in stats._values.items():
        assert name in definitions
        assert all(len(labels) == len(definitions[name].labelnames) for labels in by_label)
        kind = stats._types[name]
        assert kind in type(definitions[name]).__name__.lower()
    return stats._values


def scan(manager: TerraceManager, context: object) -> None:
    for one in KEYS:
        if manager.lookup(one, context).name == "MISS":  # type: ignore[arg-type]
            break


def test_hits_and_queries_by_tier() -> None:
    session = ScriptedSession(where={KEYS[0]: hit(), KEYS[1]: found(), KEYS[2]: found()})
    manager, context = manager_of(session), request_of(*KEYS)
    scan(manager, context)
    end(manager)
    assert TIERING + "chunk_queries" not in values(manager), "it is not resolved"
    session.where[KEYS[1]] = session.where[KEYS[2]] = hit(1)
    scan(manager, context)
    manager.prepare_load(KEYS[:3], context)
    end(manager, "request")
    seen = values(manager)
    assert seen[TIERING + "chunk_queries"] == {("0:primary",): 4, ("1:nvme",): 3}
    assert seen[TIERING + "chunk_hits"] == {("0:primary",): 1, ("1:nvme",): 2}
    assert seen[TIERING + "read_bytes"] == {("1:nvme",): 2 * 4096}
    assert TIERING + "chunk_queries" not in values(manager), "it is counted once"


def test_gauges_are_of_the_daemons_figures() -> None:
    session = ScriptedSession(slots=100)
    pool = [
        ('terrace_primary_slots{pool="x",state="writing"}', 10.0),
        ('terrace_primary_slots{pool="x",state="in_use"}', 30.0),
    ]
    session.replies = [reply(stats=pool)]
    manager = manager_of(session)
    end(manager)
    seen = values(manager)
    assert seen["vllm:kv_offload_cpu_cache_usage_perc"] == {(): 0.4}
    assert seen["vllm:kv_offload_cpu_cache_write_usage_perc"] == {(): 0.1}
    assert seen["vllm:kv_offload_cpu_cache_read_usage_perc"] == {(): 0.3}


def test_counters_of_the_session_are_told_as_differences() -> None:
    session = ScriptedSession(counters={"no_room": 0, "round_trips": 5, "waited_us": 2_000_000})
    manager = manager_of(session)
    seen = values(manager)
    assert seen["vllm:kv_offload_terrace_round_trips"] == {(): 5}
    assert seen["vllm:kv_offload_terrace_wait_seconds"] == {(): 2.0}
    session.counters["round_trips"] = 7
    session.state = "away"
    seen = values(manager)
    assert seen["vllm:kv_offload_terrace_round_trips"] == {(): 2}
    assert seen["vllm:kv_offload_terrace_up"] == {(): 0.0}


def test_stores_are_counted() -> None:
    session = ScriptedSession()
    manager = manager_of(session)
    manager.prepare_store(KEYS, request_of(*KEYS))
    session.state = "away"
    manager.prepare_store(KEYS[:3], request_of(*KEYS))
    seen = values(manager)
    assert seen["vllm:kv_offload_cpu_allocation_size"] == {(): [8]}
    assert seen["vllm:kv_offload_terrace_stores_dropped"] == {(): 3}
