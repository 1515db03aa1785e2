"""Terrace as vLLM's KV cache: what `kv_connector_extra_config` names.

`"spec_name": "TerraceOffloadingSpec"` or a secondary tier `"type": "TerraceTier"`, each with the module path
`terrace_kv.vllm`. A name is imported when it is asked for, so that each form needs only what it uses of vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spec import TerraceOffloadingSpec
    from .tier import TerraceTier

__all__ = ["TerraceOffloadingSpec", "TerraceTier"]


def __getattr__(name: str) -> Any:
    if name == "TerraceOffloadingSpec":
        from .spec import TerraceOffloadingSpec

        return TerraceOffloadingSpec
    if name == "TerraceTier":
        from .tier import TerraceTier

        return TerraceTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
