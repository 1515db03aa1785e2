"""`TerraceTier` under vLLM's own tiering manager, with a daemon that is a dictionary."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from terrace_kv.answers import LookupAnswer, all_missed
from terrace_kv.counters import Counters
from terrace_kv.protocol import WANT_EVENTS, Answer, EndStepReply, EventBatch, RowsDone, TierInfo
from terrace_kv.vllm import TerraceTier
from terrace_kv.vllm import tier as tier_module
from terrace_kv.vllm.region_file import find_region_file

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

PAGE = 4096
END = ScheduleEndContext((), ())


class Daemon:
    """The session and the daemon behind it: keys and their bytes, and copies that end when the test says so."""

    def __init__(self, options: Any, *, region_fd: int, rows: int, row_stride: int, offset_bytes: int = 0) -> None:
        self.options, self.row_stride, self.offset_bytes = options, row_stride, offset_bytes
        self.descriptor = os.dup(region_fd)
        self.blocks: dict[bytes, bytes] = {}
        self.state = "ready"
        self.tiers: tuple[TierInfo, ...] = ()
        self.slow = False
        self.held = False
        #: Lookups are answered, jobs are not taken.
        self.full = False
        #: Keys that are found and cannot be brought.
        self.broken: set[bytes] = set()
        self.asked: list[tuple[int, int, list[bytes]]] = []
        self.jobs: list[tuple[bool, int, list[bytes], list[int]]] = []
        self.ended: list[RowsDone] = []
        self.events: list[EventBatch] = []
        self.finished: list[int] = []
        self.touched = b""
        self.closed = False
        self.counters = asdict(Counters())
        self.last_error = ""

    def split(self, keys: bytes) -> list[bytes]:
        length = self.options.geometry.key_bytes
        return [keys[at : at + length] for at in range(0, len(keys), length)]

    def wait_ready(self, timeout_s: float) -> bool:
        return self.state == "ready"

    def lookup(self, request: int, mask: int, queries: list[tuple[int, bytes]], lease: bool) -> LookupAnswer | None:
        assert not lease, "a tier needs no leases: the daemon copies"
        keys = [key for _, query in queries for key in self.split(query)]
        self.asked.append((request, mask, keys))
        if self.slow:
            return None
        if self.state == "away":
            return all_missed(len(keys))
        known = self.blocks.keys() | self.broken
        return LookupAnswer(
            0, bytes(Answer.FOUND if key in known else Answer.MISS for key in keys), memoryview(b""), 0, 1
        )

    def _begin(self, load: bool, job: int, keys: bytes, rows: bytes) -> bool:
        if self.state == "away" or self.full:
            return False
        self.jobs.append((load, job, self.split(keys), np.frombuffer(rows, "<u4").tolist()))
        return True

    def store_rows(self, request: int, job: int, keys: bytes, rows: bytes) -> bool:
        return self._begin(False, job, keys, rows)

    def load_rows(self, request: int, job: int, keys: bytes, rows: bytes) -> bool:
        return self._begin(True, job, keys, rows)

    def copy(self) -> None:
        """Ends all copies."""
        for load, job, keys, rows in self.jobs:
            done = bytearray()
            for key, row in zip(keys, rows, strict=True):
                at = self.offset_bytes + row * self.row_stride
                if not load:
                    self.blocks[key] = os.pread(self.descriptor, self.row_stride, at)
                elif key in self.blocks:
                    os.pwrite(self.descriptor, self.blocks[key], at)
                done.append(key in self.blocks)
            self.ended.append(RowsDone(job, bytes(done), 5))
        self.jobs.clear()

    def poll(self) -> EndStepReply | None:
        if not self.held:
            self.copy()
        if not self.ended and not self.events:
            return None
        reply = EndStepReply([], 0, self.ended, self.events, 0, [], [])
        self.ended, self.events = [], []
        return reply

    def end_step(self, finished: Any = (), touched: bytes = b"", want: int = 0) -> EndStepReply | None:
        self.finished += finished
        self.touched += touched
        self.want = want
        return self.poll()

    def close(self) -> None:
        self.closed = True
        os.close(self.descriptor)


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> list[Daemon]:
    """The daemons' sides of all sessions that were opened."""
    opened: list[Daemon] = []

    def open_session(*arguments: Any, **named: Any) -> Daemon:
        opened.append(Daemon(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(tier_module, "TierSession", open_session)
    return opened


def config_of(rows: int, tier: dict[str, Any], events: bool = False, groups: int = 1) -> OffloadingConfig:
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(16, (f"layer.{group}",), group) for group in range(groups)),
        worker_kv_bytes_per_block=PAGE,
        enable_kv_cache_events=events,
        extra_config={
            "cpu_bytes_to_use": rows * PAGE,
            "secondary_tiers": [{"type": "TerraceTier", "module_path": "terrace_kv.vllm", "socket": "/nowhere"} | tier],
        },
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig("model", "bfloat16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


class Rig:
    """vLLM's manager, its region, and the tier."""

    def __init__(self, rows: int = 8, events: bool = False, groups: int = 1, **tier: Any) -> None:
        self.spec = TieringOffloadingSpec(config_of(rows, tier, events, groups))
        self.manager: Any = self.spec.get_manager()
        self.tier: TerraceTier = self.manager.secondary_tiers[0]
        self.memory = np.asarray(self.manager.primary_tier.get_kv_memoryview())

    def store(self, context: ReqContext, keys: list[OffloadKey]) -> list[OffloadKey]:
        """Stores what a key demands; what was stored."""
        output = self.manager.prepare_store(keys, context)
        if output is None:
            return []
        for key, row in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
            self.memory[row] = payload(key)
        # As vLLM's connector: the order of a set.
        self.manager.complete_store(set(output.keys_to_store), context)
        return list(output.keys_to_store)

    def load(self, context: ReqContext, keys: list[OffloadKey], steps: int = 50) -> list[OffloadKey]:
        """Looks up step by step until all is known; what hits, after comparing its bytes."""
        for _ in range(steps):
            answers = [self.manager.lookup(key, context) for key in keys]
            if LookupResult.HIT_PENDING not in answers and LookupResult.RETRY not in answers:
                break
            self.manager.on_schedule_end(END)
        else:
            raise AssertionError(f"not known after {steps} steps")
        hits = [key for key, answer in zip(keys, answers, strict=True) if answer is LookupResult.HIT]
        spec = self.manager.prepare_load(hits, context)
        for key, row in zip(hits, spec.block_ids, strict=True):
            assert (self.memory[row] == payload(key)).all(), "wrong bytes"
        self.manager.complete_load(hits, context)
        return hits

    def settle(self) -> None:
        for _ in range(3):
            self.manager.on_schedule_end(END)
            self.manager._maybe_process_finished_jobs()


def payload(key: OffloadKey) -> np.ndarray:
    return np.resize(np.frombuffer(key, np.int8), PAGE)


def keys_of(prefix: int, count: int, group: int = 0) -> list[OffloadKey]:
    return [make_offload_key(prefix.to_bytes(4, "big") + at.to_bytes(28, "big"), group) for at in range(count)]


def request(name: str, *keys: list[OffloadKey]) -> ReqContext:
    context = ReqContext(name)
    for group in keys:
        for at, key in enumerate(group):
            context.set_offload_key_position(key, 16 * (at + 1))
    return context


@pytest.fixture
def rig(daemons: list[Daemon]) -> Iterator[Rig]:
    made = Rig()
    yield made
    made.manager.shutdown()
    assert daemons[-1].closed


def begin(rig: Rig, name: str, *keys: list[OffloadKey]) -> ReqContext:
    context = request(name, *keys)
    rig.manager.on_new_request(context)
    return context


def test_what_vllm_evicted_comes_back_with_its_bytes(rig: Rig, daemons: list[Daemon]) -> None:
    first, second = keys_of(1, 8), keys_of(2, 8)
    one = begin(rig, "one", first)
    assert rig.store(one, first) == first
    rig.settle()
    two = begin(rig, "two", second)
    assert rig.store(two, second) == second, "the copies of the first must have let go of its rows"
    rig.settle()
    assert len(daemons[0].blocks) == 16
    rig.memory[:] = 0x55
    three = begin(rig, "three", first)
    assert rig.load(three, first) == first


def test_the_daemon_gets_keys_in_the_order_of_their_positions(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 8)
    daemons[0].held = True
    rig.store(begin(rig, "one", keys), keys)
    assert [key for _, _, part, _ in daemons[0].jobs for key in part] == keys
    daemons[0].held = False


def test_a_request_asks_once_in_a_step(rig: Rig, daemons: list[Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "_ANSWER_HOLDS_S", 0.0)
    keys = keys_of(1, 100)
    one, two = begin(rig, "one", keys), begin(rig, "two", keys)
    for step in range(1, 4):
        for context in (one, two):
            assert {rig.manager.lookup(key, context) for key in keys} == {LookupResult.MISS}
        assert [asked for _, _, asked in daemons[0].asked] == [keys] * (2 * step)
        rig.manager.on_schedule_end(END)


def test_an_answer_holds_for_a_moment_and_no_longer(
    rig: Rig, daemons: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(1, 3)
    one = begin(rig, "one", keys)
    monkeypatch.setattr(tier_module, "_ANSWER_HOLDS_S", 60.0)
    daemons[0].slow = True
    assert rig.manager.lookup(keys[0], one) is LookupResult.RETRY
    for _ in range(1000):
        rig.manager.on_schedule_end(END)
        assert rig.manager.lookup(keys[0], one) is LookupResult.RETRY
    assert len(daemons[0].asked) == 1
    monkeypatch.setattr(tier_module, "_ANSWER_HOLDS_S", 0.0)
    daemons[0].slow = False
    rig.manager.on_schedule_end(END)
    assert rig.manager.lookup(keys[0], one) is LookupResult.MISS


def test_a_window_that_is_scanned_from_its_end_asks_for_all_at_once(
    rig: Rig, daemons: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "_ANSWER_HOLDS_S", 0.0)
    keys = keys_of(1, 20)
    one = begin(rig, "one", keys)
    for trips in (2, 3, 4):
        for key in reversed(keys):
            rig.manager.lookup(key, one)
        assert len(daemons[0].asked) == trips, "once too often in the first step, then once in each"
        rig.manager.on_schedule_end(END)


def test_groups_are_asked_together(daemons: list[Daemon]) -> None:
    rig = Rig(groups=2)
    full, window = keys_of(1, 5), keys_of(1, 5, group=1)
    one = begin(rig, "one", full, window)
    for key in [*full, *reversed(window)]:
        rig.manager.lookup(key, one)
    assert [asked for _, _, asked in daemons[0].asked] == [full + window]
    rig.manager.shutdown()


def test_away_is_a_miss_and_ends_jobs_at_once(rig: Rig, daemons: list[Daemon]) -> None:
    daemons[0].state = "away"
    keys = keys_of(1, 8)
    one = begin(rig, "one", keys)
    assert rig.store(one, keys) == keys
    rig.settle()
    assert not rig.manager._jobs and not rig.tier.has_pending_work()
    other = keys_of(2, 8)
    assert rig.store(begin(rig, "two", other), other) == other, "failed cascades must not pin rows"
    rig.settle()
    assert rig.load(begin(rig, "three", keys), keys) == []


def test_a_load_that_finds_the_daemon_gone_ends_as_a_miss(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 4)
    daemons[0].blocks = {key: payload(key).tobytes() for key in keys}
    one = begin(rig, "one", keys)
    assert {rig.manager.lookup(key, one) for key in keys} == {LookupResult.HIT_PENDING}
    daemons[0].state = "away"
    rig.settle()
    assert rig.load(one, keys) == []


def test_a_load_that_is_not_taken_is_not_tried_for_ever(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 4)
    daemons[0].blocks = {key: payload(key).tobytes() for key in keys}
    daemons[0].full = True
    assert rig.load(begin(rig, "one", keys), keys) == []


def test_what_cannot_be_brought_is_a_miss_and_the_rest_is_kept(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 6)
    daemons[0].blocks = {key: payload(key).tobytes() for key in keys[:4]}
    daemons[0].broken = set(keys[4:])
    one = begin(rig, "one", keys)
    assert rig.load(one, keys) == keys[:4]
    assert len(daemons[0].asked) <= 3, "a key whose load failed is not asked for again by its request"
    # Another request tries for itself, and ends too.
    assert rig.load(begin(rig, "two", keys), keys) == keys[:4]


def test_a_long_job_is_cut_and_ends_once(daemons: list[Daemon]) -> None:
    rig = Rig(rows=700)
    keys = keys_of(1, 600)
    daemons[0].held = True
    rig.store(begin(rig, "one", keys), keys)
    parts = [part for _, _, part, _ in daemons[0].jobs]
    assert max(map(len, parts)) <= 256 and sum(parts, []) == keys
    daemons[0].copy()
    last = daemons[0].ended.pop()
    rig.manager._process_finished_jobs()
    assert rig.manager._jobs and rig.tier.has_pending_work(), "a part is still being copied"
    daemons[0].ended.append(last)
    rig.manager._process_finished_jobs()
    assert not rig.manager._jobs and not rig.tier.has_pending_work()
    rig.manager.shutdown()


def test_a_reset_waits_for_copies(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 8)
    daemons[0].held = True
    rig.store(begin(rig, "one", keys), keys)
    polls = itertools.count()
    poll = daemons[0].poll

    def late() -> EndStepReply | None:
        if next(polls) == 5:
            daemons[0].held = False
        return poll()

    daemons[0].poll = late  # type: ignore[method-assign]
    rig.manager.reset_cache()
    assert next(polls) > 5 and len(daemons[0].blocks) == 8 and not rig.manager._jobs


def test_a_reset_ends_although_the_daemon_does_not_answer(
    rig: Rig, daemons: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "_DRAIN_S", 0.05)
    keys = keys_of(1, 8)
    daemons[0].held = True
    rig.store(begin(rig, "one", keys), keys)
    rig.manager.reset_cache()
    assert daemons[0].closed, "the connection is what ends the daemon's copies"
    assert not rig.manager._jobs and len(daemons) == 2
    other = keys_of(2, 8)
    assert rig.store(begin(rig, "two", other), other) == other


def test_a_request_is_ended_once_and_only_if_the_daemon_knows_it(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 2)
    asked, silent = begin(rig, "asked", keys), begin(rig, "silent", keys)
    rig.manager.lookup(keys[0], asked)
    for context in (asked, silent):
        rig.manager.on_request_finished(context)
    rig.settle()
    assert daemons[0].finished == [daemons[0].asked[0][0]]


def test_a_request_may_exclude_tiers(rig: Rig, daemons: list[Daemon]) -> None:
    daemons[0].tiers = (TierInfo("nvme", 1, 0), TierInfo("object", 1, 1))
    keys = keys_of(1, 1)
    for name, matcher, mask in (
        ("all", None, 0xFFFF_FFFF),
        ("local", TierMatcher(Medium.STORAGE, Locality.LOCAL), 0b01),
        ("remote", TierMatcher(None, Locality.REMOTE), 0b10),
    ):
        context = request(name, keys)
        if matcher is not None:
            context.load_tier_filter = TierFilter((matcher,))
        rig.manager.on_new_request(context)
        rig.manager.lookup(keys[0], context)
        assert daemons[0].asked[-1][1] == mask
    context = request("primary only", keys)
    context.load_tier_filter = TierFilter((TierMatcher(Medium.CPU),))
    rig.manager.on_new_request(context)
    rig.manager.lookup(keys[0], context)
    assert len(daemons[0].asked) == 3, "vLLM does not ask a tier that the request excludes"


def test_events_tell_what_storage_holds(daemons: list[Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "_EVENTS_EVERY_S", 0.0)
    rig = Rig(events=True)
    keys = keys_of(1, 3)
    daemons[0].events = [
        EventBatch(0, 0, 0, keys[0]),
        EventBatch(0, 1, 0, keys[0] + keys[1]),
        EventBatch(1, 1, 1, keys[2]),
        EventBatch(2, 0, 0, b""),
    ]
    rig.manager.on_schedule_end(END)
    assert daemons[0].want == WANT_EVENTS
    events = list(rig.tier.take_events())
    assert [(e.keys, e.medium, e.removed, e.locality) for e in events] == [
        (keys[:2], Medium.STORAGE, False, Locality.LOCAL),
        (keys[2:], Medium.STORAGE, True, Locality.REMOTE),
    ]
    assert not list(rig.tier.take_events())
    rig.manager.shutdown()


def test_statistics_go_under_names_that_are_defined(rig: Rig, daemons: list[Daemon]) -> None:
    daemons[0].counters |= {"timeouts": 3, "waited_us": 500_000}
    rig.tier._counted_at = time.monotonic() - 10
    stats = rig.tier.get_stats()
    assert stats is not None and stats.reduce() == {
        "vllm:kv_offload_terrace_timeouts": 3,
        "vllm:kv_offload_terrace_wait_seconds": 0.5,
        "vllm:kv_offload_terrace_up": 1.0,
    }
    defined = TieringOffloadingSpec.build_metric_definitions(dict(rig.spec.extra_config))
    assert stats.reduce().keys() <= defined.keys()
    assert rig.tier.get_stats() is None, "once a second"


def test_033_submits_with_another_argument(rig: Rig, daemons: list[Daemon]) -> None:
    keys = keys_of(1, 1)
    context = begin(rig, "one", keys)
    rig.tier.submit_load(TransferJob(77, keys, np.array([0]), True, context), expedited=True)
    assert [result.job_id for result in rig.tier.get_finished_jobs()] == [77]


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        ({"socket": None}, "set 'socket' to the path"),
        ({"sokcet": "/x"}, "did you mean 'socket'"),
        ({"call_budget_ms": 0}, "must be above 0"),
        ({"locality": "near"}, "not LOCAL or REMOTE"),
    ],
)
def test_a_wrong_configuration_says_what_to_write(daemons: list[Daemon], tier: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rig(**tier)


def test_the_region_is_found_without_a_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    import mmap

    path = f"/dev/shm/terrace_test_{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(descriptor, 16 * PAGE)
    with mmap.mmap(descriptor, 12 * PAGE, offset=4 * PAGE) as memory:
        os.unlink(path)
        view = memoryview(np.frombuffer(memory, np.int8).reshape(6, 2 * PAGE))
        found = find_region_file(view)
        assert (found.rows, found.row_stride, found.offset_bytes) == (6, 2 * PAGE, 4 * PAGE)
        os.pwrite(found.descriptor, b"\x07" * 10, found.offset_bytes + 3 * found.row_stride)
        assert bytes(np.asarray(view)[3][:10]) == b"\x07" * 10
        os.close(found.descriptor)
        view.release()
    os.close(descriptor)


def test_memory_that_is_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no shared mapping of a file"):
        find_region_file(memoryview(np.zeros((4, PAGE), np.int8)))


def test_a_file_that_is_too_short_is_refused() -> None:
    import mmap

    path = f"/dev/shm/terrace_test_{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.unlink(path)
    os.ftruncate(descriptor, 4 * PAGE)
    with mmap.mmap(descriptor, 4 * PAGE) as memory:
        view = memoryview(np.frombuffer(memory, np.int8).reshape(4, PAGE))
        os.ftruncate(descriptor, 2 * PAGE)
        with pytest.raises(ValueError, match="ends at byte"):
            find_region_file(view)
        view.release()
    os.close(descriptor)


def test_the_engine_of_each_tier_has_a_name_of_its_own(daemons: list[Daemon]) -> None:
    one, two = Rig(), Rig()
    assert daemons[0].options.engine != daemons[1].options.engine
    assert daemons[0].options.geometry == daemons[1].options.geometry
    assert isinstance(one.tier, TerraceTier) and isinstance(two.tier, TerraceTier)
    for rig in (one, two):
        rig.manager.shutdown()


def test_medium_and_hit_source(rig: Rig) -> None:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    assert rig.tier.medium is Medium.STORAGE and rig.tier.cache_hit_source is CacheHitSource.DISK
