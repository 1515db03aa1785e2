"""What the end-to-end tests share: models, what vLLM says alone, and daemons."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Expected:
    """What vLLM says alone. Equal to a list of tokens that begins with all those of it that are sure."""

    tokens: list[int]
    sure: int

    def __eq__(self, said: object) -> bool:
        return (
            isinstance(said, list) and len(said) == len(self.tokens) and said[: self.sure] == self.tokens[: self.sure]
        )


Alone = Callable[..., list[Expected]]


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    """What vLLM says by itself: by model, one engine each with room for everything. Asked once for each prompt."""
    engines: dict[str, Engine] = {}
    known: dict[tuple[str, int, tuple[int, ...]], Expected] = {}

    def ask(model: str, prompts: list[list[int]], max_tokens: int = 8) -> list[Expected]:
        names = [(model, max_tokens, tuple(prompt)) for prompt in prompts]
        new = [prompt for name, prompt in zip(names, prompts) if name not in known]
        if new:
            if model not in engines:
                arguments = {"enable_prefix_caching": False, "block_size": 32}
                engines[model] = Engine(Setup(model, arguments=arguments))
            said = engines[model].run(new, max_tokens)
            for prompt, tokens, sure in zip(new, said.tokens, said.sure):
                known[model, max_tokens, tuple(prompt)] = Expected(tokens, sure)
        expected = [known[name] for name in names]
        assert sum(one.sure for one in expected) >= 2 * len(expected), "these prompts would prove too little"
        return expected

    yield ask
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A daemon for the module."""
    with Host(tmp_path_factory.mktemp("host"), 256 * MIB) as running:
        yield running
