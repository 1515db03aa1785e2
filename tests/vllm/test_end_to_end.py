"""Form (a) end to end: real vLLM on the CPU, `TerraceOffloadingSpec`, a real `terrace serve`.

What an engine says with Terrace must be, token for token, what vLLM says alone. Engines take half a minute to start,
so tests share them.
"""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Alone
from daemon import Host
from engine import Engine, Setup
from models import prompts

MIB = 1 << 20
BLOCK = 32
TOKENS = 700
#: What can be found again of a prompt: whole blocks, and the last token is always computed.
FOUND = (TOKENS - 1) // BLOCK * BLOCK
#: The pool holds one prompt of 700 tokens, and a little more.
SMALL: dict[str, Any] = {"block_size": BLOCK, "num_gpu_blocks_override": 40, "max_model_len": 1024}
#: Tokens of an answer that takes its time, and of one that takes seconds.
WORDS = 20
MANY_WORDS = 60


@pytest.fixture(scope="module")
def engine(llama: str, host: Host) -> Iterator[Engine]:
    """Scheduler and worker in one process."""
    with Engine(Setup(llama, host.socket, arguments=SMALL)) as running:
        assert running.ask("ready")
        yield running


def store(engine: Engine, asked: list[list[int]]) -> None:
    """Has prompts computed and stored, and vLLM's own cache empty."""
    engine.run(asked)
    settle(engine)
    assert engine.ask("forget", external=False)


def settle(engine: Engine) -> None:
    """Stores are submitted a step after they were prepared: another request makes the steps."""
    engine.run([[5, 6, 7]], 2)


def test_the_models_look_at_each_block_of_a_prompt(llama: str, hybrid: str, alone: Alone) -> None:
    whole = prompts(1, 1, TOKENS)[0]
    changed = []
    for at in range(0, TOKENS - BLOCK, 5 * BLOCK):
        prompt = list(whole)
        prompt[at : at + BLOCK] = prompts(2 + at, 1, BLOCK)[0]
        changed.append(prompt)
    for model in (llama, hybrid):
        said = alone(model, [whole, *changed])
        assert all(one != said[0] for one in said[1:])


def test_cold_and_warm(engine: Engine, llama: str, alone: Alone) -> None:
    asked = prompts(10, 3, TOKENS)
    cold = engine.run(asked)
    assert cold.tokens == alone(llama, asked)
    assert cold.cached == [0, 0, 0]
    assert engine.ask("forget", external=False)
    warm = engine.run(asked)
    assert warm.tokens == alone(llama, asked)
    assert warm.cached == [FOUND] * 3


def test_one_round_trip_for_each_request_and_step(engine: Engine) -> None:
    asked = prompts(11, 4, TOKENS)
    store(engine, asked)
    before = engine.ask("counters")
    # One at a time, and in DRAM: each request is looked up in one step.
    for prompt in asked:
        assert engine.run([prompt]).cached == [FOUND]
    after = engine.ask("counters")
    assert after["lookups"] - before["lookups"] == 4
    assert after["lookup_keys"] - before["lookup_keys"] == 4 * (TOKENS // BLOCK)
    # Beside the lookup, one more for each time that blocks are offered.
    assert after["round_trips"] - before["round_trips"] <= 2 * 4


def test_a_shared_head_is_found_and_the_rest_computed(engine: Engine, llama: str, alone: Alone) -> None:
    asked = prompts(12, 3, TOKENS, shared=400)
    store(engine, asked[:1])
    said = engine.run(asked[1:])
    assert said.tokens == alone(llama, asked[1:])
    assert min(said.cached) >= 400 // BLOCK * BLOCK


def test_a_pool_too_small_preempts(engine: Engine, llama: str, alone: Alone) -> None:
    # Two of these fill the pool, and outgrow it with the first words.
    asked = prompts(13, 4, 638)
    before = engine.ask("metrics")["vllm:num_preemptions"]
    for _ in range(2):
        said = engine.run(asked, WORDS)
        assert said.tokens == alone(llama, asked, WORDS)
    assert engine.ask("metrics")["vllm:num_preemptions"] > before


def test_a_load_that_fails_is_computed_again(engine: Engine, llama: str, alone: Alone) -> None:
    asked = prompts(14, 2, TOKENS)
    store(engine, asked)
    engine.ask("hinder_loads", hinder=True)
    try:
        assert engine.run(asked).tokens == alone(llama, asked)
    finally:
        engine.ask("hinder_loads", hinder=False)
    assert engine.ask("forget", external=False)
    again = engine.run(asked)
    assert again.tokens == alone(llama, asked)
    assert again.cached == [FOUND] * 2


def test_a_request_says_where_it_may_load_from(engine: Engine, llama: str, alone: Alone) -> None:
    asked = prompts(15, 1, TOKENS)
    store(engine, asked)
    cases: list[tuple[dict[str, Any], int]] = [
        ({"kv_load_tiers": []}, 0),
        ({"kv_load_tiers": [{"medium": "STORAGE"}]}, 0),
        ({"max_load_tokens": 320}, 320),
        ({"kv_load_tiers": [{"medium": "CPU"}]}, FOUND),
    ]
    for transfer, cached in cases:
        said = engine.run(asked, 8, [transfer])
        assert said.tokens == alone(llama, asked)
        assert said.cached == [cached], transfer
        assert engine.ask("forget", external=False)


def test_a_reset_empties_the_primary(engine: Engine, llama: str, alone: Alone) -> None:
    asked = prompts(16, 1, TOKENS)
    store(engine, asked)
    assert engine.ask("forget", external=True)
    said = engine.run(asked)
    assert said.tokens == alone(llama, asked)
    assert engine.ask("forget", external=False)
    assert engine.run(asked).cached == [FOUND]


def test_statistics_are_under_vllms_names(engine: Engine) -> None:
    time.sleep(0.3)
    settle(engine)
    metrics = engine.ask("metrics")
    for name in (
        "vllm:kv_offload_load_bytes",
        "vllm:kv_offload_store_bytes",
        "vllm:kv_offload_tiering_chunk_queries",
        "vllm:kv_offload_tiering_chunk_hits",
        "vllm:kv_offload_terrace_round_trips",
    ):
        assert metrics[name] > 0, name
    assert metrics["vllm:kv_offload_terrace_up"] == 1.0


def test_nothing_is_left_to_do_when_nobody_asks(engine: Engine) -> None:
    settle(engine)
    assert engine.ask("pending") is False


def test_a_stopped_daemon_is_waited_for_within_the_budget(engine: Engine, host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(17, 4, TOKENS)
    store(engine, asked[:2])
    before = engine.ask("counters")
    host.send(signal.SIGSTOP)
    try:
        said = engine.run(asked)
        after = engine.ask("counters")
    finally:
        host.send(signal.SIGCONT)
    assert said.tokens == alone(llama, asked)
    # Each call that waited in vain waited once; until the daemon answers, no other call waits at all.
    assert 1 <= after["timeouts"] - before["timeouts"] <= 2
    assert engine.ask("ready")
    assert engine.ask("forget", external=False)
    assert engine.run(asked[:2]).cached == [FOUND] * 2


def test_a_daemon_stopped_in_mid_run(engine: Engine, host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(18, 6, TOKENS)
    store(engine, asked[:2])
    engine.send(asked, MANY_WORDS)
    for _ in range(4):
        time.sleep(0.2)
        host.send(signal.SIGSTOP)
        time.sleep(0.3)
        host.send(signal.SIGCONT)
    assert not engine.answered, "the daemon was to be stopped while the engine works"
    assert engine.receive().tokens == alone(llama, asked, MANY_WORDS)


def test_a_fresh_engine_on_a_warm_daemon_and_two_engines_at_once(
    engine: Engine, host: Host, llama: str, alone: Alone
) -> None:
    asked = prompts(19, 3, TOKENS)
    store(engine, asked)
    # Processes of its own for scheduler and worker: they must name the same namespace, and the same as the other
    # engine.
    with Engine(Setup(llama, host.socket, arguments=SMALL, processes=True)) as fresh:
        warm = run_when_attached(fresh, asked)
        assert warm.tokens == alone(llama, asked)
        assert warm.cached == [FOUND] * 3
        shared = prompts(20, 6, TOKENS, shared=600)
        fresh.run(shared[:1])
        settle(fresh)
        fresh.send(shared[1:4], WORDS)
        engine.send(shared[3:], WORDS)
        for running, part in ((fresh, shared[1:4]), (engine, shared[3:])):
            said = running.receive()
            assert said.tokens == alone(llama, part, WORDS)
            assert min(said.cached) >= 600 // BLOCK * BLOCK
        assert fresh.ask("forget", external=False)
        # Killed in the middle of its work: the other engine does not notice.
        fresh.send(prompts(21, 4, TOKENS), 50)
        time.sleep(0.5)
        assert not fresh.answered
        fresh.kill()
        said = engine.run(shared)
        assert said.tokens == alone(llama, shared)


def run_when_attached(engine: Engine, asked: list[list[int]]) -> Any:
    """Waits until the engine's sessions are open, which vLLM does not show: until a short prompt is found again."""
    probe = prompts(99, 1, 3 * BLOCK + 5)
    deadline = time.monotonic() + 120
    while True:
        engine.run(probe)
        settle(engine)
        assert engine.ask("forget", external=False)
        if engine.run(probe).cached == [3 * BLOCK]:
            break
        assert time.monotonic() < deadline, "the engine's sessions did not open"
    assert engine.ask("forget", external=False)
    return engine.run(asked)


def test_a_daemon_killed_and_restarted_in_mid_generation(engine: Engine, host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(22, 6, TOKENS)
    before = host.files()
    store(engine, asked)
    host.wait_for_files(before + 6 * FOUND // BLOCK)
    engine.send(asked, MANY_WORDS)
    time.sleep(0.5)
    host.kill()
    time.sleep(0.5)
    host.start()
    assert not engine.answered, "the daemon was to come back while the engine works"
    assert engine.receive().tokens == alone(llama, asked, MANY_WORDS)
    # The engine finds the new daemon by itself, and the daemon its files.
    assert engine.ask("ready")
    assert engine.ask("forget", external=False)
    again = engine.run(asked)
    assert again.tokens == alone(llama, asked)
    assert again.cached == [FOUND] * 6


def test_an_absent_daemon_is_a_miss(engine: Engine, host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(23, 2, TOKENS)
    host.kill()
    try:
        for _ in range(2):
            assert engine.ask("forget", external=False)
            said = engine.run(asked)
            assert said.tokens == alone(llama, asked)
            assert said.cached == [0, 0]
    finally:
        host.start()
    assert engine.ask("ready")


@pytest.mark.parametrize("chunk", [2])
def test_chunks_of_several_blocks(host: Host, llama: str, alone: Alone, chunk: int) -> None:
    asked = prompts(30, 3, TOKENS)
    connector = {"blocks_per_chunk": chunk}
    with Engine(Setup(llama, host.socket, connector, arguments=SMALL)) as engine:
        assert engine.ask("ready")
        cold = engine.run(asked)
        settle(engine)
        assert engine.ask("forget", external=False)
        # A head that ends within a chunk is in vLLM's own cache: the first chunk is loaded in part.
        engine.run([asked[0][: 3 * BLOCK + 1]])
        warm = engine.run(asked)
    assert cold.tokens == alone(llama, asked)
    assert warm.tokens == alone(llama, asked)
    assert min(warm.cached) >= FOUND // (chunk * BLOCK) * chunk * BLOCK


def test_large_blocks_and_prompts_of_3000_tokens(host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(31, 2, 3000)
    with Engine(Setup(llama, host.socket, arguments={"num_gpu_blocks_override": 40})) as engine:
        assert engine.ask("ready")
        assert engine.run(asked).tokens == alone(llama, asked)
        again = engine.run(asked)
    assert again.tokens == alone(llama, asked)
    assert max(again.cached) == 2944


def test_the_copy_library_in_the_workers_process(host: Host, llama: str, alone: Alone) -> None:
    copies = {"terrace_copy": "library", "terrace_copy_library": os.environ["TERRACE_COPY_LIBRARY"]}
    asked = prompts(31, 4, 638)
    with Engine(Setup(llama, host.socket, connector=copies, arguments=SMALL)) as running:
        before = running.ask("metrics")["vllm:num_preemptions"]
        for _ in range(2):
            assert running.run(asked, WORDS).tokens == alone(llama, asked, WORDS)
        assert running.ask("metrics")["vllm:num_preemptions"] > before
        settle(running)
        assert running.ask("forget", external=False)
        found = running.run(asked[:1])
        assert found.cached == [(638 - 1) // BLOCK * BLOCK]
        assert found.tokens == alone(llama, asked[:1])


def test_windows_beside_full_attention(host: Host, hybrid: str, alone: Alone) -> None:
    asked = prompts(32, 3, TOKENS)
    arguments = SMALL | {"num_gpu_blocks_override": 80}
    with Engine(Setup(hybrid, host.socket, arguments=arguments)) as engine:
        assert engine.ask("ready")
        cold = engine.run(asked, WORDS)
        settle(engine)
        assert engine.ask("forget", external=False)
        warm = engine.run(asked, WORDS)
    assert cold.tokens == alone(hybrid, asked, WORDS)
    assert warm.tokens == alone(hybrid, asked, WORDS)
    assert warm.cached == [FOUND] * 3


def test_two_ranks_write_their_parts_of_a_slot(host: Host, llama: str, alone: Alone) -> None:
    asked = prompts(33, 2, TOKENS)
    cores = sorted(os.sched_getaffinity(0))[:2]
    setup = Setup(
        llama,
        host.socket,
        arguments=SMALL | {"tensor_parallel_size": 2},
        processes=True,
        # One core for each rank: vLLM wants a NUMA node for each otherwise.
        environment={"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"},
    )
    with Engine(setup) as engine:
        run_when_attached(engine, prompts(34, 1, BLOCK))
        cold = engine.run(asked)
        # Two ranks leave no core to the daemon, and an answer that is late is a miss: what this is not about.
        for _ in range(5):
            settle(engine)
            assert engine.ask("forget", external=False)
            warm = engine.run(asked)
            if warm.cached == [FOUND] * 2:
                break
    assert cold.tokens == alone(llama, asked)
    assert warm.tokens == alone(llama, asked)
    assert warm.cached == [FOUND] * 2


def test_events_are_published(tmp_path: pathlib.Path, host: Host, llama: str) -> None:
    import msgspec
    import zmq

    endpoint = f"ipc://{tmp_path}/events"
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(b"")
    asked = prompts(35, 1, TOKENS)
    seen: list[dict[str, Any]] = []
    with Engine(Setup(llama, host.socket, arguments=SMALL, events=endpoint)) as engine:
        socket.connect(endpoint)
        assert engine.ask("ready")
        engine.run(asked)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not {"CPU", "STORAGE"} <= {event.get("medium") for event in seen}:
            settle(engine)
            while socket.poll(50):
                seen += msgspec.msgpack.decode(socket.recv_multipart()[2])[1]
    socket.close()
    stored = [event for event in seen if event["type"] == "BlockStored"]
    below = {event["locality"] for event in stored if event["medium"] == "STORAGE"}
    assert {event["medium"] for event in stored} >= {"GPU", "CPU", "STORAGE"}
    assert below == {"LOCAL"}
