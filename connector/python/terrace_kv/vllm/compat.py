"""What vLLM does not hand to an offloading spec, and where its releases differ (0.32.0, 0.33.0)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(__name__)

#: 0.33 calls the manager under `manager.lock`. Ours is called by one thread at a time and needs none.
NO_LOCK = nullcontext()


def log_as_vllm() -> None:
    """Has this package's messages go where vLLM's go, at vLLM's level."""
    ours, theirs = logging.getLogger("terrace_kv"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = theirs.handlers
        ours.setLevel(theirs.level)
        ours.propagate = False


def engine_configs() -> tuple[VllmConfig | None, KVCacheConfig | None]:
    """The engine's configuration and that of its KV cache, as far as they can be found.

    A spec is built by `OffloadingConnector.__init__(vllm_config, role, kv_cache_config)` but is handed only a part of
    them. vLLM sets its "current" configuration around the workers' start, not around the scheduler's, so the
    constructor's own arguments are read from the calling frames first.
    """
    from vllm.config import VllmConfig, get_current_vllm_config_or_none

    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("vllm_config")
        if isinstance(found, VllmConfig):
            return found, frame.f_locals.get("kv_cache_config")
        frame = frame.f_back  # type: ignore[assignment]
    return get_current_vllm_config_or_none(), None


def recompute_failed_loads(vllm_config: VllmConfig | None) -> None:
    """Lets vLLM compute again what could not be loaded, instead of failing the request. A cache has no other sensible
    policy.

    The scheduler reads the setting after it has built its connector, so it can be set from there.
    """
    transfer = vllm_config.kv_transfer_config if vllm_config is not None else None
    if transfer is None or transfer.kv_connector != "OffloadingConnector":
        return
    if getattr(transfer, "kv_load_failure_policy", "recompute") != "recompute":
        transfer.kv_load_failure_policy = "recompute"
        logger.info("terrace: kv_load_failure_policy is set to recompute: a load that fails is computed again.")


def report_failed_loads(take_failed: Callable[[set[str]], set[str]]) -> bool:
    """Has this worker's connector report requests whose load failed. False: this vLLM has no way to be told.

    The offloading connector asserts that its worker's transfers succeed, so they always do; what failed is named
    where the connector hands its results to the engine. `take_failed` says which of the requests that finished
    loading have failed.
    """
    from vllm.distributed import kv_transfer

    if not kv_transfer.has_kv_transfer_group():
        return False
    connector: Any = kv_transfer.get_kv_transfer_group()
    results_of = getattr(connector, "get_transfer_results", None)
    if results_of is None:
        return False

    def get_transfer_results(finished_req_ids: set[str]) -> Any:
        results = results_of(finished_req_ids)
        results.failed_recving |= take_failed(results.finished_recving)
        return results

    connector.get_transfer_results = get_transfer_results
    return True


def flush_in_step(flush: Callable[[], None]) -> bool:
    """Has this worker told when all of a step's transfers are submitted, before the model runs. False: it is not told,
    and has to do with `get_finished`, after the model ran.
    """
    from vllm.distributed import kv_transfer

    if not kv_transfer.has_kv_transfer_group():
        return False
    connector: Any = kv_transfer.get_kv_transfer_group()
    starts = getattr(connector, "start_load_kv", None)
    if starts is None:
        return False

    def start_load_kv(*arguments: Any, **named: Any) -> None:
        starts(*arguments, **named)
        flush()

    connector.start_load_kv = start_load_kv
    return True
