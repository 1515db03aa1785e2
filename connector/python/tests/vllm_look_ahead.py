"""What the manager asks ahead, when an answer holds, and when neither is good enough."""

from __future__ import annotations

import pytest
from vllm.v1.kv_offload.base import ReqContext
from vllm_manager import prefix_scan, window_scan
from vllm_script import RETRY, ScriptedSession, end, found, hit, indices, key, manager_of, reply, request_of

from terrace_kv.ahead import LookAhead
from terrace_kv.protocol import JobOutcome
from terrace_kv.vllm import manager as manager_module
from terrace_kv.vllm.manager import TerraceManager
from terrace_kv.vllm.transfer import TerraceLoadStoreSpec

KEYS = [key(number) for number in range(8)]
WIRE = b"".join(KEYS)


@pytest.fixture(autouse=True)
def holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is not to matter."""
    monkeypatch.setattr(manager_module, "HOLDS_S", 3600.0)


def begun(session: ScriptedSession, *prefix: bool) -> TerraceManager:
    """A manager whose first step is over: in that it asks for statistics."""
    manager = manager_of(session, *prefix)
    end(manager)
    session.steps.clear()
    return manager


def line_of(count: int) -> list[ReqContext]:
    """Requests in the order of their arrival, with keys of their own."""
    return [request_of(*own(number), name=f"request {number}") for number in range(count)]


def own(number: int) -> list:
    return [key(100 * number + at) for at in range(4)]


def hits_of(count: int) -> dict[bytes, int]:
    return {one: hit() for number in range(count) for one in own(number)}


def test_what_waits_is_asked_ahead_and_not_again() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS[:5], hit()))
    manager, context = begun(session), request_of(*KEYS)
    for step in range(1, 4):
        assert prefix_scan(manager, KEYS, context) == 5
        end(manager)
        assert session.steps[-1].ahead == [LookAhead(1, 1, [(0, WIRE)])]
        assert (len(session.lookups), session.taken, len(session.steps)) == (1, step - 1, step)
    assert prefix_scan(manager, KEYS, context) == 5
    spec = manager.prepare_load(KEYS[:5], context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    end(manager, "request")
    (lease,) = session.steps[-1].leases
    assert (lease.lease, lease.job, indices(lease.load)) == (1004, spec.job, [0, 1, 2, 3, 4])
    assert session.steps[-1].ahead == [], "it was scheduled"


def test_who_waits_for_a_tier_or_was_scheduled_is_not_asked_ahead() -> None:
    session = ScriptedSession(where={KEYS[0]: hit(), KEYS[1]: found()})
    manager, context = begun(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) is None
    end(manager)
    other = request_of(*KEYS[:1], name="other")
    assert prefix_scan(manager, KEYS[:1], other) == 1
    end(manager, "other")
    assert [step.ahead for step in session.steps] == [[], []]


def test_more_keys_than_were_asked_ahead_are_asked_for() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS[2:6], hit()))
    manager, context = begun(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS[2:], context) == 4
    end(manager)
    session.where[KEYS[1]] = hit()
    assert prefix_scan(manager, KEYS[1:], context) == 5
    assert [asked for _, _, asked in session.lookups] == [[(0, KEYS[2:])], [(0, KEYS[1:])]]


def test_what_this_engine_has_stored_meanwhile_is_seen() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS[:5], hit()))
    manager, context, other = begun(session), request_of(*KEYS), request_of(*KEYS, name="other")
    assert prefix_scan(manager, KEYS, context) == 5
    end(manager)
    session.where |= dict.fromkeys(KEYS[5:7], hit())
    manager.complete_store(KEYS[6:7], other)
    manager.complete_store(KEYS[5:6], other, success=False)
    assert prefix_scan(manager, KEYS, context) == 5, "what is missing first was not stored by this engine"
    end(manager)
    session.ahead = [(one, session._answer([(0, b"".join(KEYS[:5] + KEYS[7:]))])) for one, _ in session.ahead]
    manager.complete_store(KEYS[5:7], other)
    assert prefix_scan(manager, KEYS, context) == 7
    assert len(session.lookups) == 2


def test_stored_keys_of_a_window_are_seen_wherever_they_lie() -> None:
    session = ScriptedSession(where={KEYS[2]: hit(), KEYS[3]: hit()})
    manager, context, other = begun(session, False), request_of(*KEYS), request_of(*KEYS, name="other")
    assert window_scan(manager, KEYS, 2, context) == 4
    end(manager)
    session.where |= {KEYS[6]: hit(), KEYS[7]: hit()}
    manager.complete_store(KEYS[6:], other)
    assert window_scan(manager, KEYS, 2, context) == 8


def test_a_step_with_nothing_to_tell_is_not_told_and_the_lease_goes_on() -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = begun(session), request_of(*KEYS)
    for _ in range(5):
        assert prefix_scan(manager, KEYS, context) == 8
        end(manager)
    assert (len(session.lookups), session.taken, session.steps) == (1, 0, [])
    assert prefix_scan(manager, KEYS[1:], context) == 7
    spec = manager.prepare_load(KEYS[1:], context)
    assert isinstance(spec, TerraceLoadStoreSpec)
    assert spec.block_ids.tolist() == list(range(101, 108))
    end(manager, "request")
    (lease,) = session.steps[0].leases
    assert (lease.lease, indices(lease.load)) == (session.leases, list(range(1, 8)))
    end(manager)
    assert len(session.steps) == 2, "a load is on its way: the daemon says how it ended"
    session.replies = [reply(jobs=[JobOutcome(spec.job, True)])]
    end(manager)
    end(manager)
    assert len(session.steps) == 3


def test_an_answer_does_not_hold_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "HOLDS_S", -1.0)
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = begun(session), request_of(*KEYS)
    for _ in range(3):
        assert prefix_scan(manager, KEYS, context) == 8
        end(manager)
    assert (len(session.lookups), session.taken, len(session.steps)) == (1, 2, 3)


@pytest.mark.parametrize("how", ["finished", "not asked", "scheduled", "loaded by another", "reset", "not taken"])
def test_a_lease_that_nobody_wants_is_ended(how: str) -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()) | hits_of(1))
    manager, context, other = begun(session), request_of(*KEYS), request_of(*own(0), name="other")
    assert prefix_scan(manager, KEYS, context) == 8
    end(manager)
    assert session.steps == []
    if how == "finished":
        manager.on_request_finished(context)
    elif how == "scheduled":
        assert prefix_scan(manager, KEYS, context) == 8
    elif how == "loaded by another":
        assert prefix_scan(manager, own(0), other) == 4
        manager.prepare_load(own(0), other)
    elif how == "reset":
        manager.reset_cache()
    elif how == "not taken":
        assert prefix_scan(manager, KEYS, context) == 8
        session.look_ahead(LookAhead(1, 1, [(0, WIRE)]))
    end(manager, *(["request"] if how == "scheduled" else []))
    assert len(session.steps) == 1
    assert session.lookups and all(lease.lease != 1001 for lease in session.steps[0].leases)
    session.steps.clear()
    if how != "finished":
        asked = len(session.lookups) + session.taken
        assert prefix_scan(manager, KEYS, context) == 8
        assert len(session.lookups) + session.taken == asked + 1, "what was held is void"


@pytest.mark.parametrize("change", ["epoch", "away"])
def test_nothing_holds_over_a_lost_connection(change: str) -> None:
    session = ScriptedSession(where=dict.fromkeys(KEYS, hit()))
    manager, context = begun(session), request_of(*KEYS)
    assert prefix_scan(manager, KEYS, context) == 8
    end(manager)
    session.epoch = 2 if change == "epoch" else 0
    session.where = dict.fromkeys(KEYS[:3], hit())
    assert prefix_scan(manager, KEYS, context) == 3


def test_vllm_going_through_its_queue_is_foreseen() -> None:
    session = ScriptedSession(where=hits_of(5))
    manager, line = begun(session), line_of(5)
    for number, context in enumerate(line):
        assert prefix_scan(manager, own(number), context) == 4
    assert len(session.lookups) == 5
    manager.on_request_finished(line[3])
    end(manager)
    session.lookups.clear()
    taken = session.taken
    assert prefix_scan(manager, own(0), line[0]) == 4
    manager.prepare_load(own(0), line[0])
    for number in (1, 2, 4):
        assert prefix_scan(manager, own(number), line[number]) == 4
        manager.prepare_load(own(number), line[number])
    assert (session.lookups, session.taken - taken) == ([], 4)
    assert session.untaken == 0, "nothing is asked for that is finished or scheduled"


def test_a_request_that_runs_is_not_foreseen() -> None:
    session = ScriptedSession(where=hits_of(2))
    manager, line = begun(session), line_of(2)
    for number, context in enumerate(line):
        assert prefix_scan(manager, own(number), context) == 4
    end(manager)
    session.ahead.clear()
    manager.prepare_store(own(1), line[1])
    assert prefix_scan(manager, own(0), line[0]) == 4
    manager.prepare_load(own(0), line[0])
    assert session.untaken == 0


def test_what_is_asked_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_ahead() -> list[int]:
        session = ScriptedSession(where=hits_of(6), slots=8 * 12)
        for number in range(6):
            del session.where[own(number)[3]]
        manager = begun(session)
        for number, context in enumerate(line_of(6)):
            assert prefix_scan(manager, own(number), context) == 3
        end(manager)
        return [asked.request for asked in session.steps[-1].ahead]

    assert asked_ahead() == [1, 2, 3, 4], "three slots each of an eighth of the pool"
    monkeypatch.setattr(manager_module, "MOST_AHEAD_BYTES", 3 * 4 * 36)
    assert asked_ahead() == [1, 2, 3]
    monkeypatch.setattr(manager_module, "MOST_AHEAD", 2)
    assert asked_ahead() == [1, 2]


def test_who_lacks_room_goes_before_what_is_asked_ahead() -> None:
    """Else slots that are leased for others would keep it waiting in each step."""
    session = ScriptedSession(where=hits_of(3) | {own(1)[1]: RETRY, own(0)[3]: 0, own(2)[3]: 0})
    manager, line = begun(session), line_of(3)
    for number, context in enumerate(line):
        prefix_scan(manager, own(number), context)
    end(manager)
    assert [asked.request for asked in session.steps[-1].ahead] == [1]
