"""The manager of `TerraceOffloadingSpec`, driven by vLLM's own scans, with a scripted session."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadKey, ReqContext, TierFilter, TierMatcher
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm_script import (
    MISS,
    NVME,
    PENDING,
    REMOTE,
    RETRY,
    ScriptedSession,
    end,
    found,
    hit,
    indices,
    key,
    manager_of,
    reply,
    request_of,
)

from terrace_kv.protocol import WANT_EVENTS, EventBatch, JobOutcome, Refusal
from terrace_kv.vllm import manager as manager_module
from terrace_kv.vllm.events import split_keys
from terrace_kv.vllm.manager import TerraceManager
from terrace_kv.vllm.transfer import TerraceLoadStoreSpec

KEYS = [key(number) for number in range(8)]


def prefix_scan(manager: TerraceManager, keys: list[OffloadKey], context: ReqContext) -> int | None:
    """vLLM's own scan of a full-attention group."""
    scheduler = SimpleNamespace(manager=manager, _events_tracker=SimpleNamespace(record_lookup=lambda *_: None))
    scan: Any = OffloadingConnectorScheduler._maximal_prefix_lookup
    return scan(scheduler, keys, context, None, None, 0)


def window_scan(manager: TerraceManager, keys: list[OffloadKey], window: int, context: ReqContext) -> int | None:
    """vLLM's own scan of a sliding-window group."""
    scheduler = SimpleNamespace(manager=manager)
    scan: Any = OffloadingConnectorScheduler._sliding_window_lookup
    return scan(scheduler, keys, window, context)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests are asked for again at once."""
    monkeypatch.setattr(manager_module, "ASK_AGAIN_S", 0.0)


def test_one_round_trip_answers_a_request_in_a_step() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS[:5], hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) == 5
    assert prefix_scan(manager, KEYS, context) == 5
    assert len(session.lookups) == 1
    assert session.lookups[0][2] == [(0, KEYS)]
    end(manager, "request")
    assert prefix_scan(manager, KEYS, context) == 5
    assert len(session.lookups) == 2


def test_keys_before_the_first_that_is_asked_are_left_out_in_all_groups() -> None:
    windowed = [key(number, 1) for number in range(8)]
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()) | dict.fromkeys(windowed, hit()))
    manager, context = manager_of(session, True, False), request_of(*KEYS, *windowed)
    assert prefix_scan(manager, KEYS[3:], context) == 5
    assert window_scan(manager, windowed[3:], 2, context) == 5
    assert session.lookups[0][2] == [(0, KEYS[3:]), (1, windowed[3:])]
    assert len(session.lookups) == 1


def test_a_model_of_windows_alone_is_asked_for_once() -> None:
    session = ScriptedSession(where={KEYS[2]: hit(), KEYS[3]: hit()})
    manager, context = manager_of(session, False), request_of(*KEYS)
    assert window_scan(manager, KEYS, 2, context) == 4
    assert len(session.lookups) == 1


def test_tails_that_come_later_are_asked_for_beside_the_others_and_end_no_prefix() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    tail = key(99)
    assert prefix_scan(manager, KEYS[1:], context) == 7
    context.set_offload_key_position(tail, 40)
    assert manager.lookup(tail, context) is LookupResult.MISS
    assert session.lookups[-1][2] == [(0, KEYS[1:]), (1, [tail])]
    spec = manager.prepare_load(KEYS[1:], context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    assert spec.block_ids.tolist() == [100, 101, 102, 103, 104, 105, 106]
    end(manager)
    assert [lease.lease for lease in session.steps[0].leases] == [1002]
    assert prefix_scan(manager, KEYS[1:], context) == 7
    assert manager.lookup(tail, context) is LookupResult.MISS
    assert len(session.lookups) == 3


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (MISS, LookupResult.MISS),
        (hit(), LookupResult.HIT),
        (hit(1), LookupResult.HIT),
        (PENDING, LookupResult.HIT_PENDING),
        (found(), LookupResult.HIT_PENDING),
        (RETRY, LookupResult.RETRY),
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_each_answer_is_one_of_vllms(answer: int, result: LookupResult, prefix: bool) -> None:
    manager = manager_of(ScriptedSession(where={KEYS[0]: answer}), prefix)
    assert manager.lookup(KEYS[0], request_of(*KEYS)) is result


def test_a_load_takes_its_slots_from_the_lookup_and_is_named_at_the_end_of_the_step() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS[:6], hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    prefix_scan(manager, KEYS, context)
    spec = manager.prepare_load(KEYS[2:6], context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    assert spec.block_ids.tolist() == [102, 103, 104, 105]
    assert (spec.region, spec.request) == (7, "request")
    end(manager, "request")
    (lease,) = session.steps[0].leases
    assert (lease.lease, lease.job, indices(lease.load), lease.wait) == (1001, spec.job, [2, 3, 4, 5], b"")
    copy = pickle.loads(pickle.dumps(spec))
    assert (copy.job, copy.region, copy.block_ids.tolist()) == (spec.job, 7, spec.block_ids.tolist())


def test_a_load_over_several_groups_finds_the_slot_of_each_key() -> None:
    windowed = [key(number, 1) for number in range(8)]
    session = ScriptedSession(where=dict.fromkeys(KEYS[:4], hit()) | {windowed[2]: hit(), windowed[3]: hit()})
    manager, context = manager_of(session, True, False), request_of(*KEYS, *windowed)
    prefix_scan(manager, KEYS, context)
    spec = manager.prepare_load([*KEYS[:4], windowed[2], windowed[3]], context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    assert spec.block_ids.tolist() == [100, 101, 102, 103, 110, 111]
    end(manager)
    assert indices(session.steps[0].leases[0].load) == [0, 1, 2, 3, 10, 11]


def test_what_is_not_loaded_is_let_go() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    prefix_scan(manager, KEYS, context)
    end(manager)
    assert session.steps[0].leases == []


def test_a_deferred_request_waits_for_what_it_asked_and_holds_what_is_there() -> None:
    session = ScriptedSession(
        where={KEYS[0]: hit(), KEYS[1]: found(), KEYS[2]: hit(), KEYS[3]: PENDING, KEYS[5]: found()}
    )
    manager, context = manager_of(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    (lease,) = session.steps[0].leases
    assert (lease.job, lease.load, indices(lease.wait)) == (0, b"", [0, 1, 2, 3])


def test_a_window_waits_for_the_keys_of_the_window_alone() -> None:
    session = ScriptedSession(where={KEYS[1]: hit(), KEYS[4]: found(), KEYS[5]: hit()})
    manager, context = manager_of(session, False), request_of(*KEYS)
    assert window_scan(manager, KEYS, 2, context) is None
    end(manager)
    assert indices(session.steps[0].leases[0].wait) == [4, 5]


def test_a_request_that_was_scheduled_waits_for_nothing() -> None:
    session = ScriptedSession(where={KEYS[0]: found()})
    manager, context = manager_of(session), request_of(*KEYS)
    prefix_scan(manager, KEYS, context)
    end(manager, "request")
    assert session.steps[0].leases == []


def test_a_waiting_request_costs_no_round_trips_and_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "ASK_AGAIN_S", 3600.0)
    windowed = [key(number, 1) for number in range(8)]
    session = ScriptedSession(where=dict.fromkeys(KEYS, found()) | dict.fromkeys(windowed, found()))
    manager, context = manager_of(session, True, False), request_of(*KEYS, *windowed)
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    questions = 0
    plain = manager.lookup

    def counted(one: OffloadKey, context: ReqContext) -> LookupResult:
        nonlocal questions
        questions += 1
        return plain(one, context)

    manager.lookup = counted  # type: ignore[method-assign]
    for _ in range(1000):
        # Twice in a step, as when vLLM's groups have to agree on a length.
        assert prefix_scan(manager, KEYS, context) is None
        assert window_scan(manager, windowed, 3, context) is None
        assert prefix_scan(manager, KEYS, context) is None
        end(manager)
    assert len(session.lookups) == 1
    assert questions == 1000 * (2 + 3 + 2)


@pytest.mark.usefixtures("no_wait")
def test_what_was_brought_for_a_request_came_from_its_tier_and_from_the_host_for_the_next() -> None:
    session = ScriptedSession(where={KEYS[0]: hit(), KEYS[1]: found()}, tiers=(NVME, REMOTE))
    manager, context = manager_of(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    session.where[KEYS[1]] = hit(1)
    assert prefix_scan(manager, KEYS, context) == 2
    manager.prepare_load(KEYS[:2], context)
    assert [manager.get_load_source(one, context) for one in KEYS[:2]] == [CacheHitSource.HOST, CacheHitSource.DISK]
    end(manager)
    other = request_of(*KEYS, name="other")
    prefix_scan(manager, KEYS, other)
    manager.prepare_load(KEYS[:2], other)
    assert manager.get_load_source(KEYS[1], other) is CacheHitSource.HOST


@pytest.mark.usefixtures("no_wait")
def test_what_is_refused_is_a_miss_for_that_request() -> None:
    session = ScriptedSession(where={KEYS[0]: hit(), KEYS[1]: found(), KEYS[2]: found()})
    session.replies = [None, reply(refused=[Refusal(1001, (2).to_bytes(4, "little"))])]
    manager, context, other = manager_of(session), request_of(*KEYS), request_of(*KEYS, name="other")
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    assert prefix_scan(manager, KEYS, context) is None
    session.replies = [reply(refused=[Refusal(1002, (1).to_bytes(4, "little"))])]
    end(manager)
    assert prefix_scan(manager, KEYS, context) == 1
    assert prefix_scan(manager, KEYS, other) is None


@pytest.mark.usefixtures("no_wait")
def test_no_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, PENDING))
    manager, context = manager_of(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    monkeypatch.setattr(manager_module, "LONGEST_WAIT_S", 0.0)
    assert prefix_scan(manager, KEYS, context) == 0


def only(*matchers: TierMatcher) -> TierFilter:
    return TierFilter(matchers=matchers)


@pytest.mark.parametrize(
    ("allowed", "mask", "hits"),
    [
        (TierFilter.ALL, 0b11, [True, True, True]),
        (only(TierMatcher(Medium.CPU, None)), 0b00, [True, True, True]),
        (only(TierMatcher(Medium.STORAGE, None)), 0b11, [False, True, True]),
        (only(TierMatcher(Medium.STORAGE, Locality.LOCAL)), 0b01, [False, True, False]),
        (only(TierMatcher(None, Locality.REMOTE)), 0b10, [False, False, True]),
    ],
)
def test_tiers_that_a_request_does_not_allow(allowed: TierFilter, mask: int, hits: list[bool]) -> None:
    session = ScriptedSession(where={KEYS[0]: hit(), KEYS[1]: hit(1), KEYS[2]: hit(2)}, tiers=(NVME, REMOTE))
    manager, context = manager_of(session, False), request_of(*KEYS, allowed=allowed)
    assert [manager.lookup(one, context) is LookupResult.HIT for one in KEYS[:3]] == hits
    assert session.lookups[0][1] == mask


def test_a_request_that_allows_no_tier_is_not_asked_for() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS, allowed=only())
    assert prefix_scan(manager, KEYS, context) == 0
    assert session.lookups == []


def test_a_connection_that_breaks_between_lookup_and_load_voids_the_load() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    prefix_scan(manager, KEYS, context)
    session.epoch = 2
    spec = manager.prepare_load(KEYS, context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    assert spec.job == 0
    end(manager)
    assert session.steps[0].leases == []
    assert prefix_scan(manager, KEYS, context) == 0, "vLLM is to compute it, not to try again for ever"


def test_a_load_that_could_not_begin_is_void_before_it_leaves_for_the_workers() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    prefix_scan(manager, KEYS, context)
    spec = manager.prepare_load(KEYS, context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    session.replies = [reply(jobs=[JobOutcome(spec.job, False)])]
    end(manager)
    assert spec.job == 0


def test_a_load_that_failed_in_a_worker_is_not_tried_again() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context, other = manager_of(session), request_of(*KEYS), request_of(*KEYS, name="other")
    prefix_scan(manager, KEYS, context)
    spec = manager.prepare_load(KEYS, context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    end(manager)
    session.replies = [reply(jobs=[JobOutcome(spec.job, False)])]
    end(manager)
    assert spec.job, "it left for the workers long ago"
    assert prefix_scan(manager, KEYS, context) == 0
    assert prefix_scan(manager, KEYS, other) == 8


def test_a_store_takes_what_is_new() -> None:
    session = ScriptedSession(where={KEYS[1]: hit()})
    manager, context = manager_of(session), request_of(*KEYS)
    output = manager.prepare_store(KEYS[:4], context)
    assert output is not None
    assert output.keys_to_store == [KEYS[0], KEYS[2], KEYS[3]]
    assert isinstance(output.store_spec, TerraceLoadStoreSpec)
    assert output.store_spec.block_ids.tolist() == [50, 52, 53]
    assert output.store_spec.job


def test_where_there_is_not_room_for_all_the_leading_part_is_stored() -> None:
    manager = manager_of(ScriptedSession(room=3))
    output = manager.prepare_store(KEYS, request_of(*KEYS))
    assert output is not None
    assert output.keys_to_store == KEYS[:3]


def test_no_room_is_vllms_refusal_and_an_absent_daemon_a_store_that_is_over() -> None:
    session = ScriptedSession(room=0)
    manager, context = manager_of(session), request_of(*KEYS)
    assert manager.prepare_store(KEYS, context) is None
    for state in ("away", "stalled"):
        session.state = state
        output = manager.prepare_store(KEYS, context)
        assert output is not None
        assert output.keys_to_store == []
    session.state = "ready"
    assert manager.prepare_store(KEYS, context) is None


def test_a_slow_daemon_defers_and_is_not_asked_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "ASK_AGAIN_S", 3600.0)
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()), slow=True)
    manager, context = manager_of(session), request_of(*KEYS)
    for _ in range(100):
        assert prefix_scan(manager, KEYS, context) is None
        end(manager)
    assert len(session.lookups) == 1


def test_an_ended_request_is_told_with_the_next_step_and_only_then_is_there_work() -> None:
    session = ScriptedSession()
    manager, context, unknown = manager_of(session), request_of(*KEYS), request_of(*KEYS, name="unknown")
    manager.on_new_request(context)
    manager.on_new_request(unknown)
    prefix_scan(manager, KEYS, context)
    end(manager)
    assert not manager.has_pending_work()
    manager.on_request_finished(context)
    manager.on_request_finished(unknown)
    assert manager.has_pending_work()
    end(manager)
    assert not manager.has_pending_work()
    assert session.steps[-1].finished == [1]


def test_late_completions_of_an_ended_request_are_nothing() -> None:
    manager, context = manager_of(ScriptedSession()), request_of(*KEYS)
    manager.prepare_store(KEYS, context)
    manager.on_request_finished(context)
    manager.complete_store(set(KEYS), context)
    manager.complete_load(set(KEYS), context)
    manager.complete_store(set(KEYS), context, success=False)


def test_touched_keys_are_told_the_most_recent_first() -> None:
    session = ScriptedSession()
    manager, context = manager_of(session), request_of(*KEYS)
    manager.touch(KEYS[:2], context)
    manager.touch(KEYS[2:3], context)
    end(manager)
    assert split_keys(session.steps[0].touched, 36) == [KEYS[2], KEYS[1], KEYS[0]]
    manager.touch(KEYS[3:4], context)
    end(manager)
    assert session.steps[1].touched == KEYS[3]


def test_events_name_medium_locality_and_owner() -> None:
    session = ScriptedSession(tiers=(NVME, REMOTE))
    manager = manager_of(session, events=True)
    wire = b"".join(KEYS[:2])
    batches = [
        EventBatch(0, 0, 0, wire),
        EventBatch(0, 1, 1, wire),
        EventBatch(1, 1, 0, wire),
        EventBatch(2, 0, 0, b""),
    ]
    session.replies = [reply(events=batches)]
    end(manager)
    assert session.steps[0].want & WANT_EVENTS
    events = list(manager.take_events())
    seen = [(event.medium, event.locality, event.ownership, event.removed, event.removal_expected) for event in events]
    assert seen == [
        (Medium.CPU, None, None, False, False),
        (Medium.STORAGE, Locality.REMOTE, "objects", False, True),
        (Medium.STORAGE, Locality.LOCAL, "nvme", True, False),
    ]
    assert events[0].keys == KEYS[:2]
    assert list(manager.take_events()) == []


def test_events_are_not_asked_for_unless_vllm_publishes_them() -> None:
    session = ScriptedSession()
    end(manager_of(session))
    assert not session.steps[0].want & WANT_EVENTS


def test_a_reset_leaves_no_events_of_what_it_removed() -> None:
    session = ScriptedSession(replies=[reply(events=[EventBatch(0, 0, 0, KEYS[0])])])
    manager = manager_of(session, events=True)
    end(manager)
    manager.reset_cache()
    assert list(manager.take_events()) == []


def test_nothing_is_a_hit_until_a_reset_is_known_to_be_done() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()), resets=False)
    manager, context = manager_of(session), request_of(*KEYS)
    manager.reset_cache()
    assert prefix_scan(manager, KEYS, context) == 0
    end(manager)
    session.resets = True
    end(manager)
    assert prefix_scan(manager, KEYS, context) == 8


def test_the_calls_of_0_33() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = manager_of(session), request_of(*KEYS)
    with manager.lock:
        manager.on_new_request(context)
    with manager.lock:
        assert prefix_scan(manager, KEYS, context) == 8
    with manager.lock:
        manager.prepare_load(KEYS, context)
        end(manager)
    with manager.lock:
        manager.reset_cache()
        manager.on_reset_flushed()
        assert all(isinstance(value, str) for value in manager.config_info().values())
    manager.shutdown()
    assert session.closed
