"""Form (b) end to end: real vLLM with its own `TieringOffloadingSpec`, a primary that is too small, and `TerraceTier`
on a real `terrace serve`.

What an engine says with Terrace must be, token for token, what vLLM says alone.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from models import LLAMA, prompts, write_model
from tier_daemon import Daemon
from tier_engine import Engine, Round, Setup

TOKENS_PER_BLOCK = 32
#: 32 tokens, 4 layers, keys and values of 2 heads of 64, 4 bytes each.
BLOCK_BYTES = TOKENS_PER_BLOCK * 4 * 2 * 2 * 64 * 4
TOKENS = 500
#: What can be found again of a prompt: whole blocks, and the last token is always computed.
FOUND = (TOKENS - 1) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
#: Two prompts and a half.
GPU_BLOCKS = 40
#: vLLM's primary holds one prompt and a half of the six.
PRIMARY_BYTES = 24 * BLOCK_BYTES
PROMPTS = prompts(11, 6, TOKENS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"), LLAMA)


@pytest.fixture(scope="module")
def alone(model: str) -> Round:
    """What vLLM says by itself."""
    with Engine(setup(model, None)) as engine:
        return engine.run(PROMPTS)


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    # A primary of its own that is smaller than the prompts: what comes back comes from the files, too.
    with Daemon(tmp_path, 32 * BLOCK_BYTES) as running:
        yield running


def setup(model: str, daemon: Daemon | None, **more: Any) -> Setup:
    connector = None
    chunk = more.pop("blocks_per_chunk", 1)
    if daemon is not None:
        connector = {
            "spec_name": "HostTieringSpec",
            "spec_module_path": "tier_host_worker",
            "cpu_bytes_to_use": PRIMARY_BYTES,
            "blocks_per_chunk": chunk,
            "secondary_tiers": [{"type": "TerraceTier", "module_path": "terrace_kv.vllm", "socket": daemon.socket}],
        }
    return Setup(model, connector, gpu_blocks=GPU_BLOCKS, tokens_per_block=TOKENS_PER_BLOCK, max_model_len=1024, **more)


def stored() -> None:
    """Gives the daemon time to write the last blocks to its files: it goes on between rounds, without the engine."""
    time.sleep(1.0)


def connected() -> None:
    """Gives the session time to find a daemon that is there again: it looks every two seconds at the latest."""
    time.sleep(3.0)


def one_by_one(engine: Engine) -> Round:
    """The prompts, one after the other: each has vLLM's whole primary."""
    rounds = [engine.run([prompt]) for prompt in PROMPTS]
    return Round([r.tokens[0] for r in rounds], [r.cached[0] for r in rounds], sum(r.seconds for r in rounds))


def store_all(engine: Engine, alone: Round) -> None:
    """Has all prompts in the daemon's files. All at once are more than its primary has room for, and what finds no
    room is not stored: so one after the other, with time for the files between them.
    """
    engine.forget_gpu(external=True)
    for prompt, tokens in zip(PROMPTS, alone.tokens, strict=True):
        assert engine.run([prompt]).tokens == [tokens]
        time.sleep(0.5)
    stored()


def test_prompts_are_found_again(model: str, alone: Round, daemon: Daemon) -> None:
    """Warm prompts, a fresh vLLM on a warm daemon, a daemon started again on warm files."""
    with Engine(setup(model, daemon)) as engine:
        cold = engine.run(PROMPTS)
        assert cold.tokens == alone.tokens
        store_all(engine, alone)
        engine.forget_gpu()
        warm = one_by_one(engine)
        assert warm.tokens == alone.tokens
        assert warm.cached == [FOUND] * len(PROMPTS), "vLLM's primary holds one prompt: the others come from Terrace"
        engine.forget_gpu()
        together = engine.run(PROMPTS)
        assert together.tokens == alone.tokens
        assert sum(together.cached) > sum(cold.cached)
    with Engine(setup(model, daemon)) as engine:
        fresh = one_by_one(engine)
        assert fresh.tokens == alone.tokens
        assert fresh.cached == [FOUND] * len(PROMPTS), "a fresh vLLM on a warm daemon"
        daemon.stop()
        daemon.start()
        time.sleep(3.0)
        engine.forget_gpu(external=True)
        again = one_by_one(engine)
        assert again.tokens == alone.tokens
        assert again.cached == [FOUND] * len(PROMPTS), "a fresh daemon on warm files"


def test_a_daemon_that_is_not_there_dies_comes_back_and_is_stopped(
    model: str, alone: Round, tmp_path: pathlib.Path
) -> None:
    daemon = Daemon(tmp_path, 32 * BLOCK_BYTES)
    with Engine(setup(model, daemon)) as engine, contextlib.ExitStack() as stack:
        assert engine.run(PROMPTS).tokens == alone.tokens, "no daemon yet"
        stack.enter_context(daemon)
        connected()
        engine.forget_gpu(external=True)
        engine.send(PROMPTS)
        time.sleep(1.0)
        daemon.kill()
        assert engine.receive().tokens == alone.tokens, "killed while prompts were stored"
        daemon.start()
        connected()
        store_all(engine, alone)
        engine.forget_gpu(external=True)
        back = one_by_one(engine)
        assert back.tokens == alone.tokens
        assert back.cached == [FOUND] * len(PROMPTS), "what was stored since it came back is found"
        engine.forget_gpu(external=True)
        engine.send(PROMPTS)
        time.sleep(0.2)
        daemon.kill()
        assert engine.receive().tokens == alone.tokens, "killed while prompts were loaded"
        daemon.start()
        connected()
        engine.forget_gpu(external=True)
        daemon.send(signal.SIGSTOP)
        assert engine.run(PROMPTS).tokens == alone.tokens, "stopped"
        daemon.send(signal.SIGCONT)
        time.sleep(1.0)
        engine.forget_gpu(external=True)
        went_on = one_by_one(engine)
        assert went_on.tokens == alone.tokens
        assert went_on.cached == [FOUND] * len(PROMPTS), "it goes on where it was"


def test_chunks_of_two_blocks_in_processes_of_their_own(model: str, alone: Round, daemon: Daemon) -> None:
    found = (TOKENS - 1) // (2 * TOKENS_PER_BLOCK) * 2 * TOKENS_PER_BLOCK
    with Engine(setup(model, daemon, multiprocessing=True, blocks_per_chunk=2)) as engine:
        assert engine.run(PROMPTS).tokens == alone.tokens
        store_all(engine, alone)
        engine.forget_gpu()
        warm = one_by_one(engine)
        assert warm.tokens == alone.tokens
        assert warm.cached == [found] * len(PROMPTS)
