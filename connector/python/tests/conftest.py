"""Fixtures: a socket path that is short enough, a fake daemon, and sessions that are closed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from terrace_kv import link

from fake import Fake


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Waits for what another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {timeout_s} s: {what}"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits two seconds for a reconnection here."""
    monkeypatch.setattr(link, "BACKOFF_FIRST_S", 0.002)
    monkeypatch.setattr(link, "BACKOFF_LAST_S", 0.03)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that a socket address holds."""
    path = tempfile.mkdtemp(prefix="terrace-")
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def path(folder: Path) -> str:
    """Where a daemon listens."""
    return str(folder / "s")


@pytest.fixture
def fake(path: str) -> Iterator[Fake]:
    """A fake daemon that listens."""
    daemon = Fake(path)
    yield daemon
    if not daemon._ended:
        daemon.end()
