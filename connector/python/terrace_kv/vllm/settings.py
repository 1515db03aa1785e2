"""The keys that a user writes in `kv_connector_extra_config`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.logger import init_logger

logger = init_logger(__name__)

_KEYS = (
    "terrace_socket",
    "terrace_call_budget_ms",
    "terrace_tenant",
    "terrace_namespace_extra",
    "terrace_copy",
    "terrace_copy_library",
)
#: Who copies. `auto`: host memory this process, a GPU's the daemon, or this process where the memory cannot be handed
#: over. `library`: this process, through libterrace_copy.so. `daemon`: the daemon. `host`: this process, host memory only.
COPIES = ("auto", "daemon", "library", "host")
#: vLLM's own keys that say what the daemon's configuration says: where that is.
_DAEMONS = {
    "cpu_bytes_to_use": "primary.capacity",
    "eviction_policy": "primary.policy",
    "cache_policy_module_path": "primary.policy",
    "max_tracker_size": "admission.tracker_entries",
    "secondary_tiers": "tiers",
}


@dataclass(frozen=True)
class Settings:
    """What the user said, checked."""

    #: Path of the daemon's socket.
    socket: str
    #: How long one call of the scheduler may wait for the daemon, in seconds.
    call_budget_s: float = 0.005
    #: Tenants never share blocks.
    tenant: str = ""
    #: Whatever else makes bytes differ, by the user's own names.
    namespace_extra: Mapping[str, str] = field(default_factory=dict)

    #: One of `COPIES`.
    copy: str = "auto"
    #: Path of libterrace_copy.so; empty: where the system finds it.
    copy_library: str = ""

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> Settings:
        """Raises `ValueError` that names the key, the value and what to write instead."""
        for key in extra:
            if str(key).startswith("terrace_") and key not in _KEYS:
                near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.0)
                raise ValueError(f"kv_connector_extra_config: {key!r} is no key of Terrace. Did you mean {near[0]!r}?")
        socket = extra.get("terrace_socket")
        if not isinstance(socket, str) or not socket:
            raise ValueError(
                "kv_connector_extra_config: 'terrace_socket' is missing. It is the path of the socket that "
                "`terrace serve` listens on "
                f"(server.socket in its configuration), for example '/run/terrace/terrace.sock'; found {socket!r}."
            )
        if int(extra.get("store_threshold") or 0) > 1:
            raise ValueError(
                "kv_connector_extra_config: 'store_threshold' belongs to the daemon, which counts offers of all "
                "engines: remove it here and set "
                f"admission.store_threshold = {extra['store_threshold']} in the configuration of `terrace serve`."
            )
        for key, place in _DAEMONS.items():
            if extra.get(key):
                logger.warning(
                    "terrace: %s=%r is not used: the daemon decides it (%s in the configuration of `terrace serve`).",
                    key,
                    extra[key],
                    place,
                )
        return cls(
            socket,
            _budget(extra),
            _string(extra, "terrace_tenant"),
            _namespace_extra(extra),
            _copy(extra),
            _string(extra, "terrace_copy_library"),
        )


def _budget(extra: Mapping[str, Any]) -> float:
    value = extra.get("terrace_call_budget_ms", 5)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1000:
        raise ValueError(
            f"kv_connector_extra_config: 'terrace_call_budget_ms' is {value!r}; it is a number of milliseconds, "
            "above 0 and at most 1000."
        )
    return float(value) / 1000


def _string(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"kv_connector_extra_config: {key!r} is {value!r}; it is a string.")
    return value


def _copy(extra: Mapping[str, Any]) -> str:
    value = extra.get("terrace_copy", "auto")
    if value not in COPIES:
        raise ValueError(f"kv_connector_extra_config: 'terrace_copy' is {value!r}; it is one of {', '.join(COPIES)}.")
    return str(value)


def _namespace_extra(extra: Mapping[str, Any]) -> dict[str, str]:
    value = extra.get("terrace_namespace_extra") or {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ValueError(
            f"kv_connector_extra_config: 'terrace_namespace_extra' is {value!r}; it is an object of "
            "strings, for example "
            '{"adapters": "2026-11"}.'
        )
    return dict(value)
