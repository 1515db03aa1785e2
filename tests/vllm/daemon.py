"""`terrace serve` for several engines: more than one pool."""

from __future__ import annotations

import pathlib

from tier_daemon import Daemon


class Host(Daemon):
    """A daemon with a pool for each of a few models; each has an equal part of every capacity."""

    POOLS = 4

    def __init__(self, folder: pathlib.Path, primary_bytes: int, nvme_bytes: int = 1 << 30) -> None:
        """`primary_bytes` and `nvme_bytes`: of one pool."""
        super().__init__(folder, primary_bytes * self.POOLS, nvme_bytes * self.POOLS)
        # The server's section is the last one.
        self._config.write_text(self._config.read_text() + f"pools = {self.POOLS}\n")
