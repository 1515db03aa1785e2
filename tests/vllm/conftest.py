"""What the end-to-end tests share: models, what vLLM says alone, and daemons."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import pytest
from daemon import Host
from engine import Engine, Setup
from models import HYBRID, LLAMA, write_model

MIB = 1 << 20


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def llama(folder: pathlib.Path) -> str:
    return write_model(folder / "llama", LLAMA)


@pytest.fixture(scope="session")
def hybrid(folder: pathlib.Path) -> str:
    return write_model(folder / "hybrid", HYBRID)


Alone = Callable[..., list[list[int]]]

#: vLLM computes in another order with another batch, another block size, or a part of the prompt found, with Terrace
#: and without. In float32 that moves logarithms of probability by 1e-5; tokens that win by more than this are sure.
SURE = 1e-4


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    """What vLLM says by itself: by model, one engine each with room for everything. Asked once for each prompt."""
    engines: dict[str, Engine] = {}
    known: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}

    def ask(model: str, prompts: list[list[int]], max_tokens: int = 8) -> list[list[int]]:
        names = [(model, max_tokens, tuple(prompt)) for prompt in prompts]
        new = [prompt for name, prompt in zip(names, prompts) if name not in known]
        if new:
            if model not in engines:
                arguments = {"enable_prefix_caching": False, "block_size": 32}
                engines[model] = Engine(Setup(model, arguments=arguments))
            said = engines[model].run(new, max_tokens)
            assert min(said.lead) > SURE, "rounding may decide a token of these prompts: take others"
            known.update(zip([name for name in names if name not in known], said.tokens))
        return [known[name] for name in names]

    yield ask
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A daemon for the module."""
    with Host(tmp_path_factory.mktemp("host"), 256 * MIB) as running:
        yield running
