"""One vLLM in a process of its own, driven by lines of JSON.

`Engine` starts this file with the Python that runs it. The child reads one request a line from its standard input and
writes one answer a line to a pipe of its own, since vLLM prints what it likes. Used by the tests of `TerraceTier` and
by the bench.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "connector" / "python"

#: What a scheduler calls on its connector, in the order of a step.
SCHEDULER_CALLS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "get_external_cache_hit_sources",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "take_events",
    "has_pending_push_work",
    "get_kv_connector_stats",
)


@dataclass
class Setup:
    """What an engine is started with."""

    model: str
    #: `kv_connector_extra_config`; None: vLLM alone.
    connector: dict[str, Any] | None = None
    gpu_blocks: int = 40
    tokens_per_block: int = 128
    max_model_len: int = 4096
    #: Whether scheduler and worker have a process of their own.
    multiprocessing: bool = False
    #: Whether the time in the scheduler's calls of the connector is taken; needs one process.
    measure: bool = False
    #: A file to write a profile of all rounds to; needs one process.
    profile: str = ""


@dataclass
class Round:
    """What came of a set of prompts."""

    tokens: list[list[int]]
    #: Prompt tokens of each request that were not computed.
    cached: list[int]
    seconds: float
    #: Engine steps; 0 if not measured.
    steps: int = 0
    #: Call -> (times called, wall seconds, CPU seconds of the calling thread).
    calls: dict[str, tuple[int, float, float]] = field(default_factory=dict)


class Engine:
    """A child process with one vLLM. Ends with `close`, or with `kill`."""

    def __init__(self, setup: Setup, start_s: float = 180.0) -> None:
        answers, theirs = os.pipe()
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if setup.multiprocessing else "0",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(PACKAGE), os.environ.get("PYTHONPATH", "")]),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "tier_engine.py"), json.dumps(asdict(setup)), str(theirs)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            pass_fds=(theirs,),
            env=environment,
            start_new_session=True,
            text=True,
        )
        os.close(theirs)
        self._answers = os.fdopen(answers)
        self._read(start_s)

    @property
    def pid(self) -> int:
        """The child's process; with multiprocessing, the one that has the engine core as its child."""
        return self._process.pid

    def send(self, prompts: list[list[int]], max_tokens: int = 8) -> None:
        """Begins a round; `receive` ends it."""
        self._write({"prompts": prompts, "max_tokens": max_tokens})

    def receive(self, timeout_s: float = 300.0) -> Round:
        """What came of the round."""
        answer = self._read(timeout_s)
        return Round(**answer)

    def run(self, prompts: list[list[int]], max_tokens: int = 8, timeout_s: float = 300.0) -> Round:
        """A round."""
        self.send(prompts, max_tokens)
        return self.receive(timeout_s)

    def forget_gpu(self, external: bool = False) -> None:
        """Empties vLLM's own prefix cache; with `external`, the connector's cache too."""
        self._write({"reset": True, "external": external})
        if not self._read(60.0)["reset"]:
            raise AssertionError("vLLM did not reset its prefix cache")

    def close(self) -> None:
        """Ends the engine in order."""
        if self._process.poll() is None:
            self._write({"exit": True})
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the engine did not end within 60 s") from None
        self._answers.close()

    def kill(self) -> None:
        """Ends the child and what it started, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._answers.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._answers.closed:
            return
        if kind is None:
            self.close()
        else:
            self.kill()

    def _write(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        import select

        if not select.select([self._answers], [], [], timeout_s)[0]:
            self.kill()
            raise AssertionError(f"the engine did not answer within {timeout_s} s")
        line = self._answers.readline()
        if not line:
            raise AssertionError(f"the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Meter:
    """Adds up the time in the scheduler's calls of vLLM's connector."""

    def __init__(self) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

        self.calls: dict[str, list[float]] = {}
        for name in SCHEDULER_CALLS:
            setattr(OffloadingConnector, name, self._timed(name, getattr(OffloadingConnector, name)))

    def _timed(self, name: str, call: Any) -> Any:
        def timed(connector: Any, *arguments: Any, **named: Any) -> Any:
            if connector.connector_scheduler is None:
                return call(connector, *arguments, **named)
            sums = self.calls.setdefault(name, [0, 0.0, 0.0])
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                answer = call(connector, *arguments, **named)
                # A generator does its work when it is read.
                return list(answer) if name == "take_events" else answer
            finally:
                sums[0] += 1
                sums[1] += time.perf_counter() - wall
                sums[2] += time.thread_time() - cpu

        return timed

    def take(self) -> dict[str, list[float]]:
        calls, self.calls = self.calls, {}
        return calls


def _child(setup: Setup, out: Any) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    meter = _Meter() if setup.measure else None
    transfer = None
    if setup.connector is not None:
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=setup.connector
        )
    llm = LLM(
        model=setup.model,
        # vLLM would take bfloat16 for a model of float32, and greedy tokens would then differ from batch to batch.
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=setup.max_model_len,
        num_gpu_blocks_override=setup.gpu_blocks,
        block_size=setup.tokens_per_block,
        enable_prefix_caching=True,
        disable_log_stats=True,
        kv_transfer_config=transfer,
    )
    profile = None
    if setup.profile:
        import cProfile

        profile = cProfile.Profile()

    def answer(what: dict[str, Any]) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("exit"):
            break
        if request.get("reset"):
            done = llm.reset_prefix_cache(reset_connector=request["external"])
            answer({"reset": done is not False})
            continue
        parameters = SamplingParams(temperature=0, max_tokens=request["max_tokens"], detokenize=False, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        if meter is not None:
            meter.take()
        if profile is not None:
            profile.enable()
        begin = time.perf_counter()
        outputs = llm.generate(asked, parameters, use_tqdm=False)
        seconds = time.perf_counter() - begin
        if profile is not None:
            profile.disable()
        calls = meter.take() if meter is not None else {}
        answer(
            {
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "cached": [output.num_cached_tokens or 0 for output in outputs],
                "seconds": seconds,
                "steps": int(calls.get("build_connector_meta", [0])[0]),
                "calls": calls,
            }
        )
    if profile is not None:
        profile.dump_stats(setup.profile)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as pipe:
        _child(Setup(**json.loads(sys.argv[1])), pipe)
