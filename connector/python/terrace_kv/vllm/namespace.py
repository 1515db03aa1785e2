"""What makes KV bytes interchangeable, from vLLM's configuration.

Two engines share blocks if and only if their namespaces are equal. So whatever changes the bytes of a block is in
here, and nothing else: no sizes of pools, no limits, no ports. Scheduler and workers build it each in its own process
and must come to the same: it is taken from what the user configured and from files, never from what loading a model
may have changed in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import vllm
from vllm.logger import init_logger

from ..protocol import Namespace

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_offload.config import OffloadingConfig

logger = init_logger(__name__)

#: Version of what `layout.py` writes into a slot.
KV_FORMAT = 1
#: Formats that load the same values from the same files.
_SAME_WEIGHTS = frozenset({"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer"})
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".tensors", ".mistral")
#: Files of a model that say how to compute.
_CODE = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "quantization_config.json")
_WEIGHTS_INDEX = ".index.json"


def vllm_namespace(
    config: OffloadingConfig,
    vllm_config: VllmConfig | None,
    *,
    tenant: str = "",
    extra: Mapping[str, str] | None = None,
) -> Namespace:
    """The namespace of an engine.

    Without `vllm_config` it is known to no other engine, not even after a restart: what cannot be seen cannot be
    known to be equal.
    """
    extra = {f"extra.{key}": value for key, value in sorted((extra or {}).items())}
    groups = [(group.group_id, group.tokens_per_block, group.layer_names) for group in config.groups]
    parallel = config.parallel
    layout = {
        "format": KV_FORMAT,
        "layout": config.kv_cache_layout,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "groups": _digest(groups),
        "worker_block_bytes": config.worker_kv_bytes_per_block,
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
    }
    sizes = {
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pcp": parallel.pcp_size,
        "dcp": parallel.dcp_size,
        "world": parallel.world_size,
    }
    engine = "vllm " + ".".join(vllm.__version__.split(".")[:2])
    if vllm_config is None:
        logger.warning(
            "terrace: vLLM's configuration cannot be seen from here: this engine shares blocks with no other."
        )
        return Namespace(
            model=config.model.name,
            dtype=config.model.dtype,
            kv_layout=_text(layout),
            rope=_text({"engine": config.engine_id, **extra}),
            parallel=_text(sizes),
            engine=engine,
            tenant=tenant,
        )
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    name, revision = _model(model, vllm_config.load_config.load_format)
    sizes["interleave"] = getattr(vllm_config.parallel_config, "cp_kv_cache_interleave_size", 1)
    return Namespace(
        model=name,
        revision=revision,
        dtype=_text({"kv": config.model.dtype, "model": str(model.dtype).removeprefix("torch.")}),
        kv_layout=_text({**layout, **_machine(vllm_config)}),
        quantisation=_text(_quantisation(model, cache, config.engine_id)),
        rope=_text({**_values(vllm_config), **extra}),
        parallel=_text(sizes),
        engine=engine,
        tenant=tenant,
    )


def _model(model: Any, load_format: Any) -> tuple[str, str]:
    """Name and revision of a model: of files that are here, what they are."""
    how = str(getattr(load_format, "value", load_format))
    weights = "" if how in _SAME_WEIGHTS else f" loaded as {how}"
    path = _local(model.model, model.revision)
    if path is None:
        return model.model, f"{model.revision or 'main'}{weights}"
    revision = directory_digest(path, with_weights=how != "dummy")
    extra = getattr(model, "hf_config_path", None)
    if extra and os.path.isdir(extra):
        revision += f" config {directory_digest(extra, with_weights=False)}"
    elif extra:
        revision += f" config {extra}"
    return _name(model.model, path), revision + weights


def _name(model: str, path: str) -> str:
    return os.path.basename(os.path.realpath(path)) if os.path.isdir(model) else model


def _local(model: str, revision: str | None) -> str | None:
    """The directory of a model's files, if it is on this machine."""
    if os.path.isdir(model):
        return model
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception as error:  # noqa: BLE001 - the name may be anything: an address, a file, a name of another hub
        logger.debug("terrace: %s is not in the cache of the hub: %s", model, error)
        return None
    return os.path.dirname(found) if isinstance(found, str) else None


def directory_digest(path: str, *, with_weights: bool) -> str:
    """What a model's files are: the content of those that say how to compute, names, sizes and times of change of
    those that hold weights."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(path)):
        file = os.path.join(path, name)
        if name in _CODE or name.endswith(".py") or (with_weights and name.endswith(_WEIGHTS_INDEX)):
            with open(file, "rb") as opened:
                digest.update(f"{name}\0".encode() + hashlib.sha256(opened.read()).digest())
        elif with_weights and name.endswith(_WEIGHTS):
            about = os.stat(file)
            digest.update(f"{name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]


def _machine(vllm_config: VllmConfig) -> dict[str, Any]:
    """What of the machine and of the kernels decides how a page is laid out."""
    from vllm.platforms import current_platform

    attention = vllm_config.attention_config
    about: dict[str, Any] = {
        "device": current_platform.device_type,
        "backend": _plain(getattr(attention, "backend", None)),
        "backends": _plain(getattr(attention, "backend_per_kind", None)),
        "flash_attn": getattr(attention, "flash_attn_version", None),
        "indexer": _plain(getattr(attention, "indexer_kv_dtype", None)),
        "mla": vllm_config.model_config.use_mla,
        "runner2": bool(vllm_config.use_v2_model_runner),
    }
    if current_platform.is_cpu():
        import torch

        # The CPU kernels pack keys for the instruction set.
        about["cpu"] = platform.machine()
        about["amx"] = torch.cpu._is_amx_tile_supported()
    else:
        about["capability"] = str(current_platform.get_device_capability())
    return about


def _quantisation(model: Any, cache: Any, engine_id: str) -> dict[str, Any]:
    about = {
        "method": model.quantization,
        "config": _digest(_plain(getattr(model, "quantization_config", None))),
        "skipped_layers": list(getattr(cache, "kv_cache_dtype_skip_layers", None) or []),
    }
    if getattr(cache, "calculate_kv_scales", False):
        # Scales come from the first prompt that an engine happens to see.
        about["scales_of"] = engine_id
    return about


def _values(vllm_config: VllmConfig) -> dict[str, Any]:
    """RoPE, and whatever else changes the values themselves."""
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    about: dict[str, Any] = {
        "overrides": _overrides(model.hf_overrides),
        "classes": _plain(getattr(model, "model_class_overrides", None)),
        "impl": _plain(getattr(model, "model_impl", None)),
        "format": _plain(getattr(model, "config_format", None)),
        "code": model.code_revision,
        "no_window": bool(model.disable_sliding_window),
        "window": getattr(cache, "sliding_window", None),
        "mamba": [
            _plain(getattr(cache, f"mamba_{name}", None)) for name in ("cache_mode", "cache_dtype", "ssm_cache_dtype")
        ],
        "replayssm": bool(getattr(cache, "use_replayssm", False)),
        "fast_prefill": bool(getattr(cache, "kv_sharing_fast_prefill", False)),
        "hash": _plain(getattr(cache, "prefix_caching_hash_algo", None)),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
        "drafter": _drafter(vllm_config),
    }
    if _rope_depends_on_length(model.hf_config):
        about["max_model_len"] = model.max_model_len
    pruning = getattr(getattr(model, "multimodal_config", None), "video_pruning_rate", None)
    if pruning:
        about["video_pruning"] = pruning
    return about


def _rope_depends_on_length(hf_config: Any) -> bool:
    """Whether the longest request that is allowed chooses among factors (LongRoPE)."""
    for config in (hf_config, getattr(hf_config, "text_config", None)):
        for name in ("rope_parameters", "rope_scaling"):
            rope = getattr(config, name, None)
            if isinstance(rope, Mapping) and "longrope" in (rope.get("rope_type"), rope.get("type")):
                return True
    return False


def _drafter(vllm_config: VllmConfig) -> dict[str, Any] | None:
    """The drafter of speculative decoding: its layers have KV of their own."""
    drafter = vllm_config.speculative_config
    if drafter is None:
        return None
    about: dict[str, Any] = {
        "method": drafter.method,
        "quantisation": _plain(drafter.quantization),
        "kv": _plain(getattr(drafter, "kv_cache_dtype", None)),
    }
    model = drafter.draft_model_config
    if model is not None:
        load = getattr(drafter, "draft_load_config", None) or vllm_config.load_config
        about["model"] = _model(model, load.load_format)
    return about


def _overrides(overrides: Any) -> Any:
    if callable(overrides):
        return f"{getattr(overrides, '__module__', '')}.{getattr(overrides, '__qualname__', repr(type(overrides)))}"
    return _plain(overrides) or {}


def _plain(value: Any) -> Any:
    """As what JSON can say, the same in all processes."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return getattr(value, "value", value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    fields = getattr(value, "__dict__", None)
    return _plain(fields) if fields else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def _text(fields: Mapping[str, Any]) -> str:
    """Readable, and short: long values as their digest."""
    parts = []
    for key in sorted(fields):
        value = fields[key]
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
        parts.append(f"{key}={text if len(text) <= 64 else _digest(text)}")
    return "; ".join(parts)
