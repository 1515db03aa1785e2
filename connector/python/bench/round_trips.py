"""What calls of the Python client cost against the real daemon. Prints one JSON object.

    PYTHONPATH=connector/python:connector/python/tests python connector/python/bench/round_trips.py [--seconds N]

Starts `terrace serve` (TERRACE_BIN, or where `make build` puts it) with room for all keys, stores 1,000 blocks, and
takes the calls in turns, so that all of them see the same machine. Times are microseconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from daemon import Daemon, Engine
from fake import keys

from terrace_kv import CompletedJob, Scan, next_job

KEYS = 1000


def micros(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e6


def spread(times: list[float]) -> dict[str, float]:
    """Quantiles, rounded to a tenth."""
    ordered = sorted(times)
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {"count": len(ordered)} | {
        name: round(ordered[int(len(ordered) * part)], 1) for name, part in places.items()
    }


def measure(engine: Engine, seconds: float) -> dict[str, list[float]]:
    """Takes the calls in turns."""
    scheduler = engine.scheduler
    asked = keys(*range(KEYS))
    new = KEYS
    times: dict[str, list[float]] = {name: [] for name in ("ping", "lookup", "end_step", "prepare_store")}
    end = time.perf_counter() + seconds
    request = engine.request()
    while time.perf_counter() < end:
        for _ in range(4):
            times["ping"].append(micros(scheduler.ping))
            times["lookup"].append(micros(lambda: scheduler.lookup(request, 0, [(Scan.PREFIX, asked)])))
            times["end_step"].append(micros(scheduler.end_step))
        job = next_job()
        fresh = keys(*range(new, new + 64))
        new += 64
        times["prepare_store"].append(micros(lambda: scheduler.prepare_store(request, job, fresh)))
        # Given up at once, so that the pool does not fill.
        scheduler.end_step(completed=[CompletedJob(job, False)])
        if engine.worker is not None:
            engine.worker.complete([(job, False)])
    return times


def main() -> None:
    """Runs the bench."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0)
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="terrace-"))
    daemon = Daemon(folder, blocks=4096)
    engine = Engine(daemon.socket, "bench", call_budget_s=1.0)
    try:
        engine.wait_ready()
        for first in range(0, KEYS, 100):
            assert engine.store(keys(*range(first, first + 100))), "the blocks of the bench are not stored"
        assert engine.load(keys(*range(KEYS))) == KEYS
        measure(engine, min(1.0, chosen.seconds))
        times = measure(engine, chosen.seconds)
        counters = engine.scheduler.counters
    finally:
        engine.close()
        daemon.end(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)
    result = {name: spread(values) for name, values in times.items()}
    ping, lookup = result["ping"]["p50"], result["lookup"]["p50"]
    json.dump(
        {
            "what": "terrace_kv against `terrace serve`, microseconds a call",
            "python": sys.version.split()[0],
            "keys": KEYS,
            "calls": result,
            "lookup_over_ping": round(lookup / ping, 2),
            "timeouts": counters["timeouts"],
            "refused": counters["refused"],
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
