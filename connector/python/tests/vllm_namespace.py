"""Two engines share blocks exactly when their bytes are interchangeable: each setting changes the namespace, or does
not."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from terrace_kv.protocol import Namespace
from terrace_kv.vllm.namespace import directory_digest, vllm_namespace

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}


def model(folder: pathlib.Path, **changes: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | changes))
    return str(folder)


def offloading(**changes: Any) -> OffloadingConfig:
    """What vLLM hands to a spec."""
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(128, ("layers.0", "layers.1"), 0),),
        worker_kv_bytes_per_block=65536,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig("model", "bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=128, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
        kv_cache_layout="LBHNC",
    )
    return replace(config, **changes)


def namespace(
    path: str,
    config: OffloadingConfig | None = None,
    tenant: str = "",
    extra: dict[str, str] | None = None,
    **settings: Any,
) -> Namespace:
    """The namespace of an engine with these settings."""
    arguments = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 4096,
    } | settings
    engine = EngineArgs(model=path, **arguments).create_engine_config()
    return vllm_namespace(config or offloading(), engine, tenant=tenant, extra=extra)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def plain(path: str) -> Namespace:
    return namespace(path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gpu_memory_utilization": 0.5},
        {"max_model_len": 2048},
        {"max_num_seqs": 3},
        {"num_gpu_blocks_override": 40},
        {"seed": 7},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
        {"served_model_name": "another"},
        {
            "kv_transfer_config": KVTransferConfig(
                kv_connector="OffloadingConnector", kv_role="kv_both", engine_id="x", kv_port=7
            )
        },
        {"max_logprobs": 3},
        {"disable_log_stats": True},
        {"scheduling_policy": "priority"},
    ],
    ids=str,
)
def test_settings_that_leave_bytes_alone(path: str, plain: Namespace, settings: dict[str, Any]) -> None:
    assert namespace(path, **settings) == plain


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"hf_overrides": {"rope_theta": 500000.0}},
        {"hf_overrides": {"sliding_window": 256}},
        {"load_format": "auto"},
        {"prefix_caching_hash_algo": "sha256_cbor"},
        {"disable_sliding_window": True},
        {"model_impl": "transformers"},
        {"code_revision": "abc"},
        {"kv_cache_dtype_skip_layers": ["0"]},
    ],
    ids=str,
)
def test_settings_that_change_bytes(path: str, plain: Namespace, settings: dict[str, Any]) -> None:
    assert namespace(path, **settings) != plain


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": (OffloadingGroupConfig(64, ("layers.0", "layers.1"), 0),)},
        {"groups": (OffloadingGroupConfig(128, ("layers.0",), 0), OffloadingGroupConfig(128, ("layers.1",), 1))},
        {"worker_kv_bytes_per_block": 131072},
        {"model": OffloadingModelConfig("model", "fp8_e4m3")},
        {"cache": OffloadingCacheConfig(tokens_per_hash=64, blocks_per_chunk=1)},
        {"parallel": OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, True)},
        {"parallel": OffloadingParallelConfig(0, 2, 1, 2, 1, 1, 0, 1, None, False)},
        {"parallel": OffloadingParallelConfig(0, 2, 2, 1, 1, 2, 0, 1, None, False)},
        {"replicated_layout": True},
        {"kv_cache_layout": "BLHNC"},
    ],
    ids=str,
)
def test_layouts_that_change_bytes(path: str, plain: Namespace, changes: dict[str, Any]) -> None:
    assert namespace(path, offloading(**changes)) != plain


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_id": "another"},
        {"enable_kv_cache_events": True},
        {"extra_config": {"terrace_socket": "/other", "offload_prompt_only": False}},
        # Ranks, and replicas of data parallelism.
        {"parallel": OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 3, 4, None, True)},
    ],
    ids=str,
)
def test_layouts_that_leave_bytes_alone(path: str, plain: Namespace, changes: dict[str, Any]) -> None:
    assert namespace(path, offloading(**changes)) == plain


def test_all_ranks_of_an_engine_have_one_namespace(path: str) -> None:
    ranks = [offloading(parallel=OffloadingParallelConfig(rank, 2, 2, 1, 1, 1, 0, 1, None, True)) for rank in range(2)]
    assert namespace(path, ranks[0]) == namespace(path, ranks[1])


def test_tenants_and_what_the_user_adds_keep_apart(path: str, plain: Namespace) -> None:
    assert namespace(path, tenant="a") != plain
    assert namespace(path, extra={"adapters": "1"}) != plain
    assert namespace(path, extra={"adapters": "1"}) != namespace(path, extra={"adapters": "2"})
    assert namespace(path, extra={"a": "1", "b": "2"}) == namespace(path, extra={"b": "2", "a": "1"})


def test_the_seed_of_hashes_keeps_apart(path: str, plain: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert namespace(path) != plain


def test_the_longest_request_matters_where_rope_depends_on_it(tmp_path: pathlib.Path) -> None:
    factors = [1.0] * 32
    rope = {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": 4096,
        "factor": 2.0,
    }
    path = model(tmp_path / "long", rope_scaling=rope)
    assert namespace(path, max_model_len=2048) != namespace(path, max_model_len=8192)


@pytest.mark.parametrize(
    "changes",
    [{"rope_theta": 500000.0}, {"rms_norm_eps": 1e-6}, {"partial_rotary_factor": 0.5}],
    ids=str,
)
def test_another_configuration_of_the_model(tmp_path: pathlib.Path, plain: Namespace, changes: dict[str, Any]) -> None:
    assert namespace(model(tmp_path / "tiny", **changes)) != plain


def test_the_same_files_under_another_path_are_the_same_model(
    tmp_path: pathlib.Path, path: str, plain: Namespace
) -> None:
    (tmp_path / "link").symlink_to(path)
    assert namespace(str(tmp_path / "link")) == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.write_bytes(b"12345"),
        lambda weights: os.utime(weights, ns=(1, 1)),
        lambda weights: weights.rename(weights.with_name("model-2.safetensors")),
        lambda weights: weights.with_name("extra.safetensors").write_bytes(b"1"),
        lambda weights: weights.with_name("config.json").write_text("{}"),
        lambda weights: weights.with_name("modeling.py").write_text("x = 1"),
    ],
    ids=["size", "time", "name", "more", "configuration", "code"],
)
def test_weights_are_told_apart(tmp_path: pathlib.Path, change: Callable[[pathlib.Path], object]) -> None:
    path = pathlib.Path(model(tmp_path / "tiny"))
    weights = path / "model.safetensors"
    weights.write_bytes(b"1234")
    before = directory_digest(str(path), with_weights=True)
    (path / "README.md").write_text("nothing")
    assert directory_digest(str(path), with_weights=True) == before
    change(weights)
    assert directory_digest(str(path), with_weights=True) != before


def test_an_engine_that_cannot_be_seen_shares_with_nobody() -> None:
    ours = [vllm_namespace(offloading(engine_id=name), None) for name in ("a", "b", "a")]
    assert ours[0] != ours[1]
    assert ours[0] == ours[2], "scheduler and workers of one engine must agree"


def test_fields_are_short_enough_for_a_greeting(path: str) -> None:
    spaces = namespace(path, extra={"long": "x" * 100000}, hf_overrides={"rope_theta": 1.5, "long": "y" * 10000})
    assert all(len(getattr(spaces, name)) < 1024 for name in spaces.__struct_fields__)
