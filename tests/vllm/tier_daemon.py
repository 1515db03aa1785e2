"""`terrace serve` for the tests of `TerraceTier` and for the bench: one NVMe tier in a folder."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time


def terrace_binary() -> str:
    """The binary: `TERRACE_BIN`, else that of the target directory. Raises `AssertionError` if it is not there."""
    cache = os.environ.get("TERRACE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "terrace"
    )
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(cache, "target")
    binary = os.environ.get("TERRACE_BIN") or os.path.join(target, "release", "terrace")
    if not os.access(binary, os.X_OK):
        raise AssertionError(f"{binary} is not there: build it with `make build`, or name it in TERRACE_BIN")
    return binary


class Daemon:
    """A daemon that can be killed, stopped and started again on the same files."""

    def __init__(
        self, folder: pathlib.Path, primary_bytes: int, nvme_bytes: int = 4 << 30, binary: str | None = None
    ) -> None:
        self._binary = binary or terrace_binary()
        self._folder = folder
        self.socket = str(folder / "terrace.sock")
        (folder / "nvme").mkdir(parents=True)
        self._config = folder / "terrace.toml"
        self._config.write_text(
            f'[primary]\ncapacity = "{primary_bytes}B"\n\n'
            f'[[tier]]\ntype = "nvme"\npaths = ["{folder / "nvme"}"]\ncapacity = "{nvme_bytes}B"\n\n'
            f'[server]\nsocket = "{self.socket}"\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it wrote since it was first started."""
        return (self._folder / "terrace.log").read_text()

    def files(self) -> int:
        """Blocks in its files."""
        return sum(1 for _ in (self._folder / "nvme").rglob("*.blk"))

    def wait_for_files(self, count: int, timeout_s: float = 30.0) -> None:
        """Waits until so many blocks are in its files. Raises `AssertionError` when they do not come."""
        deadline = time.monotonic() + timeout_s
        while (found := self.files()) < count:
            assert time.monotonic() < deadline, f"{found} blocks of {count} are in the files:\n{self.log}"
            time.sleep(0.05)

    def start(self) -> Daemon:
        """Starts it, and waits until it listens."""
        before = len(self.log) if (self._folder / "terrace.log").exists() else 0
        with open(self._folder / "terrace.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "serve", "--config", str(self._config)], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 20
        while self.socket not in self.log[before:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"terrace serve did not begin:\n{self.log}")
            time.sleep(0.02)
        return self

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it in order."""
        assert self._process is not None
        self.send(signal.SIGTERM)
        status = self._process.wait(40)
        if status != 0:
            raise AssertionError(f"terrace serve ended with status {status}:\n{self.log}")

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.kill()
