"""What a user writes in `kv_connector_extra_config`, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from terrace_kv.vllm.settings import Settings

SOCKET = {"terrace_socket": "/run/terrace.sock"}


def test_everything_but_the_socket_has_a_default() -> None:
    settings = Settings.parse({"spec_name": "TerraceOffloadingSpec", "spec_module_path": "terrace_kv.vllm"} | SOCKET)
    assert settings == Settings("/run/terrace.sock", 0.005, "", {})


def test_what_can_be_written() -> None:
    written = {"terrace_call_budget_ms": 2.5, "terrace_tenant": "a", "terrace_namespace_extra": {"adapters": "1"}}
    assert Settings.parse(SOCKET | written) == Settings("/run/terrace.sock", 0.0025, "a", {"adapters": "1"})


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, "'terrace_socket' is missing"),
        ({"terrace_socket": 5}, "found 5"),
        (SOCKET | {"terrace_sokcet": "/x"}, "Did you mean 'terrace_socket'"),
        (SOCKET | {"terrace_budget_ms": 3}, "Did you mean 'terrace_call_budget_ms'"),
        (SOCKET | {"terrace_call_budget_ms": 0}, "terrace_call_budget_ms"),
        (SOCKET | {"terrace_call_budget_ms": True}, "terrace_call_budget_ms"),
        (SOCKET | {"terrace_call_budget_ms": "5"}, "terrace_call_budget_ms"),
        (SOCKET | {"terrace_tenant": 5}, "terrace_tenant"),
        (SOCKET | {"terrace_copy": "gpu"}, "one of auto, daemon, library, host"),
        (SOCKET | {"terrace_copy_library": 5}, "terrace_copy_library"),
        (SOCKET | {"terrace_namespace_extra": {"a": 1}}, "terrace_namespace_extra"),
        (SOCKET | {"terrace_namespace_extra": "a"}, "terrace_namespace_extra"),
        (SOCKET | {"store_threshold": 2}, r"admission\.store_threshold = 2"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_with_what_to_write(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings.parse(extra)


def test_keys_of_the_daemon_are_not_used() -> None:
    assert Settings.parse(SOCKET | {"cpu_bytes_to_use": 1 << 30, "store_threshold": 1}) == Settings("/run/terrace.sock")
