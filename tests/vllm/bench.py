"""vLLM's own tiering and fs tier beside Terrace: the same prompts, the same GPU pool that is too small for them, the
same DRAM, the same disk.

    python bench.py [--terrace PATH] [--directory DIR] [--rounds N] [--json FILE] [--profile DIR]

Two engines, each a process with one vLLM 0.32.0 on CPU and a tiny model: `vllm` with `TieringOffloadingSpec`, a plain
host-copy worker and the `fs` tier; `terrace` with `TerraceOffloadingSpec` on `terrace serve` with an NVMe tier. They
take turns, round by round, and each begins a round as often as the other. Before each round vLLM's own prefix cache
is emptied, so that what is found again comes from the connector. Two settings: all prompts fit into the DRAM
(`dram`), and half of them do (`nvme`). The first round of each is cold and is not counted.

Measured: wall and CPU time in what the scheduler calls on its connector, per step and per round, and the time of the
whole prompt set. Medians of the rounds. Outputs of both must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from typing import Any

from models import LLAMA, prompts, write_model
from tier_daemon import Daemon, terrace_binary
from tier_engine import Engine, Round, Setup

#: Bytes of a chunk: 32 tokens, 4 layers, keys and values of 2 heads of 64, 4 bytes each.
CHUNK_BYTES = 32 * 4 * 2 * 2 * 64 * 4
SIDES = ("vllm", "terrace")


def parse() -> argparse.Namespace:
    cache = os.environ.get("TERRACE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "terrace"
    )
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--terrace", help="the binary; else TERRACE_BIN or that of the target directory")
    options.add_argument(
        "--directory", default=cache, help="where the files of both tiers go: the disk that is measured"
    )
    options.add_argument("--rounds", type=int, default=5, help="counted rounds of each engine and setting")
    options.add_argument("--prompts", type=int, default=16)
    options.add_argument("--tokens", type=int, default=1504, help="of a prompt")
    options.add_argument("--shared", type=int, default=480, help="of them, at the head, the same in all prompts")
    options.add_argument("--settings", default="dram,nvme")
    options.add_argument("--json", help="a file to write the figures to; - is the standard output")
    options.add_argument("--profile", help="a folder to write one profile of each engine to")
    return options.parse_args()


def connector(side: str, folder: pathlib.Path, socket: str, dram_bytes: int) -> dict[str, Any]:
    if side == "terrace":
        return {
            "spec_name": "TerraceOffloadingSpec",
            "spec_module_path": "terrace_kv.vllm",
            "terrace_socket": socket,
        }
    return {
        "spec_name": "HostTieringSpec",
        "spec_module_path": "tier_host_worker",
        "cpu_bytes_to_use": dram_bytes,
        "secondary_tiers": [{"type": "fs", "root_dir": str(folder / "fs")}],
    }


def run_setting(options: argparse.Namespace, name: str, folder: pathlib.Path, model: str) -> dict[str, Any]:
    asked = prompts(7, options.prompts, options.tokens, options.shared)
    own = (options.tokens - options.shared) // 32
    set_bytes = (options.shared // 32 + options.prompts * own) * CHUNK_BYTES
    dram_bytes = {"dram": 2 * set_bytes, "nvme": set_bytes // 2}[name]
    dram_bytes -= dram_bytes % CHUNK_BYTES
    rounds: dict[str, list[Round]] = {side: [] for side in SIDES}
    with Daemon(folder / "terrace", dram_bytes, binary=options.terrace) as daemon:
        socket = daemon.socket
        engines: dict[str, Engine] = {}
        try:
            for side in SIDES:
                engines[side] = Engine(
                    Setup(
                        model,
                        connector(side, folder, socket, dram_bytes),
                        # Two prompts and a half.
                        gpu_blocks=options.tokens * 5 // 64,
                        tokens_per_block=32,
                        max_model_len=options.tokens + 64,
                        measure=True,
                        profile=os.path.join(options.profile, f"{name}-{side}.prof") if options.profile else "",
                    )
                )
            for number in range(options.rounds + 1):
                for side in SIDES if number % 2 else SIDES[::-1]:
                    engines[side].forget_gpu()
                    rounds[side].append(engines[side].run(asked))
                    last = rounds[side][-1]
                    print(
                        f"{name} round {number} {side:8} {last.seconds:7.3f} s, {last.steps} steps, "
                        f"{1e3 * spent(last, 1):.1f} ms in the connector, {sum(last.cached)} tokens cached",
                        file=sys.stderr,
                        flush=True,
                    )
            for engine in engines.values():
                engine.close()
        except BaseException:
            for engine in engines.values():
                engine.kill()
            raise
    outputs = {json.dumps(each.tokens) for side in SIDES for each in rounds[side]}
    if len(outputs) != 1:
        sys.exit(f"{name}: the outputs of the rounds differ")
    return {
        "set_bytes": set_bytes,
        "dram_bytes": dram_bytes,
        **{side: figures(rounds[side][1:]) for side in SIDES},
    }


def spent(of: Round, column: int) -> float:
    """Seconds in the connector's calls: 1 is wall, 2 is CPU."""
    return sum(call[column] for call in of.calls.values())


def figures(rounds: list[Round]) -> dict[str, Any]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    calls = sorted({name for each in rounds for name in each.calls})
    return {
        "seconds": median([each.seconds for each in rounds]),
        "steps": median([each.steps for each in rounds]),
        "cached_tokens": median([sum(each.cached) for each in rounds]),
        "connector_ms": median([1e3 * spent(each, 1) for each in rounds]),
        "connector_cpu_ms": median([1e3 * spent(each, 2) for each in rounds]),
        "connector_us_per_step": median([1e6 * spent(each, 1) / max(1, each.steps) for each in rounds]),
        "connector_cpu_us_per_step": median([1e6 * spent(each, 2) / max(1, each.steps) for each in rounds]),
        "calls_ms": {name: median([1e3 * each.calls.get(name, (0, 0, 0))[1] for each in rounds]) for name in calls},
        "all_seconds": [each.seconds for each in rounds],
    }


ROWS = (
    ("prompt set, s", "seconds", "{:.3f}"),
    ("steps", "steps", "{:.0f}"),
    ("prompt tokens not computed", "cached_tokens", "{:.0f}"),
    ("connector calls of a step, us", "connector_us_per_step", "{:.0f}"),
    ("  of that CPU, us", "connector_cpu_us_per_step", "{:.0f}"),
    ("connector calls of a round, ms", "connector_ms", "{:.1f}"),
    ("  of that CPU, ms", "connector_cpu_ms", "{:.1f}"),
)


def table(result: dict[str, Any]) -> str:
    lines = []
    for name, setting in result["settings"].items():
        lines.append(
            f"{name}: {setting['set_bytes'] / 2**20:.0f} MiB of KV, "
            f"{setting['dram_bytes'] / 2**20:.0f} MiB of DRAM each"
        )
        lines.append(f"{'':34}{'vLLM + fs':>12}{'Terrace':>12}{'ratio':>8}")
        for label, key, form in ROWS:
            theirs, ours = setting["vllm"][key], setting["terrace"][key]
            ratio = f"{ours / theirs:.2f}" if theirs else ""
            lines.append(f"{label:34}{form.format(theirs):>12}{form.format(ours):>12}{ratio:>8}")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    options = parse()
    options.terrace = options.terrace or terrace_binary()
    import vllm

    result: dict[str, Any] = {
        "vllm": vllm.__version__,
        "rounds": options.rounds,
        "prompts": options.prompts,
        "tokens": options.tokens,
        "shared": options.shared,
        "settings": {},
    }
    if options.profile:
        os.makedirs(options.profile, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-bench-", dir=options.directory))
    try:
        model = write_model(folder / "model", LLAMA)
        for name in options.settings.split(","):
            inside = folder / name
            inside.mkdir()
            result["settings"][name] = run_setting(options, name, inside, model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(result), file=sys.stderr if options.json == "-" else sys.stdout)
    if options.json == "-":
        print(json.dumps(result, indent=1))
    elif options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
