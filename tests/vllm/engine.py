"""One vLLM in a process of its own, driven by lines of JSON: for the end-to-end tests of `TerraceOffloadingSpec`.

`Engine` starts this file with the Python that runs it. The child reads one request a line from its standard input,
and writes one answer a line to a pipe of its own, since vLLM prints what it likes.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "connector" / "python"


@dataclass
class Setup:
    """What an engine is started with."""

    model: str
    #: Socket of the daemon; empty: vLLM alone.
    socket: str = ""
    #: More of `kv_connector_extra_config`.
    connector: dict[str, Any] = field(default_factory=dict)
    #: Whether scheduler and workers have processes of their own.
    processes: bool = False
    #: More arguments of `LLM`.
    arguments: dict[str, Any] = field(default_factory=dict)
    #: Where KV events are published; empty: nowhere.
    events: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Round:
    """What came of a set of prompts."""

    tokens: list[list[int]]
    #: Prompt tokens of each request that were not computed.
    cached: list[int]
    #: By how much the logarithm of probability of each answer's tokens was ahead of the next best one's, at least.
    lead: list[float]


class Engine:
    """A child process with one vLLM. Ends with `close`, or with `kill`."""

    def __init__(self, setup: Setup, start_s: float = 240.0) -> None:
        answers, theirs = os.pipe()
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if setup.processes else "0",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(PACKAGE)]),
            **setup.environment,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "engine.py"), json.dumps(asdict(setup)), str(theirs)],
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

    def send(
        self, prompts: list[list[int]], max_tokens: int = 8, transfer: list[dict[str, Any] | None] | None = None
    ) -> None:
        """Begins a round; `receive` ends it. `transfer`: `kv_transfer_params` of each prompt."""
        self._write({"do": "generate", "prompts": prompts, "max_tokens": max_tokens, "transfer": transfer})

    def receive(self, timeout_s: float = 300.0) -> Round:
        """What came of the round."""
        return Round(**self._read(timeout_s))

    @property
    def answered(self) -> bool:
        """Whether the round has ended."""
        return bool(select.select([self._answers], [], [], 0)[0])

    def run(
        self, prompts: list[list[int]], max_tokens: int = 8, transfer: list[dict[str, Any] | None] | None = None
    ) -> Round:
        """A round."""
        self.send(prompts, max_tokens, transfer)
        return self.receive()

    def ask(self, what: str, **more: Any) -> Any:
        """Asks for one of the things in `_Child`."""
        self._write({"do": what, **more})
        return self._read(60.0)["answer"]

    def close(self) -> None:
        """Ends the engine in order."""
        if self._process.poll() is None:
            self._write({"do": "exit"})
        try:
            status = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the engine did not end within 60 s") from None
        self._answers.close()
        assert status == 0, f"the engine ended with status {status}"

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
        if not select.select([self._answers], [], [], timeout_s)[0]:
            self.kill()
            raise AssertionError(f"the engine did not answer within {timeout_s} s")
        line = self._answers.readline()
        if not line:
            raise AssertionError(f"the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Child:
    """What the child does."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM
        from vllm.config import KVEventsConfig, KVTransferConfig

        arguments: dict[str, Any] = {
            "model": setup.model,
            # vLLM would take bfloat16 for a model of float32, and greedy tokens would then differ from batch to batch.
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 4096,
            "disable_log_stats": False,
        }
        if setup.socket:
            extra = {
                "spec_name": "TerraceOffloadingSpec",
                "spec_module_path": "terrace_kv.vllm",
                "terrace_socket": setup.socket,
                # Two cores for everything: a daemon that does not get one for a few milliseconds is not what these
                # tests are about.
                "terrace_call_budget_ms": 250,
            } | setup.connector
            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
            )
        if setup.events:
            arguments["kv_events_config"] = KVEventsConfig(
                enable_kv_cache_events=True, publisher="zmq", endpoint=setup.events
            )
        self.llm = LLM(**(arguments | setup.arguments))

    def generate(self, prompts: list[list[int]], max_tokens: int, transfer: list[dict[str, Any] | None] | None) -> Any:
        from vllm import SamplingParams

        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=max_tokens,
                detokenize=False,
                ignore_eos=True,
                logprobs=2,
                extra_args={"kv_transfer_params": params} if params is not None else None,
            )
            for params in transfer or [None] * len(prompts)
        ]
        asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(asked, sampling, use_tqdm=False)
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens or 0 for output in outputs],
            "lead": [_lead(output.outputs[0].logprobs) for output in outputs],
        }

    def forget(self, external: bool) -> Any:
        """Empties vLLM's own prefix cache, and with `external` the connector's."""
        return self.llm.reset_prefix_cache(reset_connector=external)

    def counters(self) -> Any:
        """The scheduler session's counters; needs one process."""
        return self._manager()._session.counters

    def ready(self) -> Any:
        """Waits until the daemon serves this engine; needs one process."""
        return self._manager()._session.wait_ready(20.0)

    def pending(self) -> Any:
        """Whether the manager wants more steps; needs one process."""
        return self._manager().has_pending_work()

    def hinder_loads(self, hinder: bool) -> Any:
        """The worker finds no region; needs one process."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector: Any = get_kv_transfer_group()
        session = connector.connector_worker.worker._copier._session
        if not hinder:
            session.__dict__.pop("begin", None)
            return True

        def begin(job: int, region: int) -> None:
            session.__class__.begin(session, job, region)
            session.complete([(job, False)])

        session.begin = begin
        return True

    def metrics(self) -> Any:
        """Names and values of vLLM's metrics."""
        return {metric.name: getattr(metric, "value", None) for metric in self.llm.get_metrics()}

    def _manager(self) -> Any:
        core: Any = self.llm.llm_engine.engine_core
        return core.engine_core.scheduler.connector.connector_scheduler.manager


def _lead(steps: Any) -> float:
    """By how much the chosen tokens were ahead, at least."""
    best_two = [sorted((entry.logprob for entry in step.values()), reverse=True)[:2] for step in steps]
    return min(best - second for best, second in best_two)


def _main(setup: Setup, out: Any) -> None:
    child = _Child(setup)

    def answer(what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    answer({})
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "exit":
            break
        done = getattr(child, what)(**request)
        answer(done if what == "generate" else {"answer": done})
    child.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as pipe:
        _main(Setup(**json.loads(sys.argv[1])), pipe)
