"""Tiny models of random weights, large enough that what is said depends on each block of the prompt.

vLLM's own dummy weights will not do: they are so small that a model with them looks at nothing but its last tokens,
and says the same whatever lies in its KV cache. `test_end_to_end.py` checks that these here do not. Float32, so that
rounding does not decide between two tokens.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

VOCABULARY = 4096

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Two layers with a window of 96 tokens, two of full attention.
HYBRID: dict[str, Any] = LLAMA | {
    "sliding_window": 96,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}


def write_model(folder: pathlib.Path, config: dict[str, Any]) -> str:
    """Writes a model's directory: the same weights for each call."""
    import torch
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(1)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn((rows, columns), generator=draw) * (scale / columns**0.5)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, hidden**0.5),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(VOCABULARY, hidden, 4.0),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        weights |= {
            # Sharp attention: single tokens count.
            at + "self_attn.q_proj.weight": matrix(queries, hidden, 1.6),
            at + "self_attn.k_proj.weight": matrix(keys, hidden, 1.6),
            at + "self_attn.v_proj.weight": matrix(keys, hidden, 2.0),
            at + "self_attn.o_proj.weight": matrix(hidden, queries, 2.0),
            at + "mlp.gate_proj.weight": matrix(inner, hidden),
            at + "mlp.up_proj.weight": matrix(inner, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, inner),
            at + "input_layernorm.weight": torch.ones(hidden),
            at + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def prompts(seed: int, count: int, tokens: int, shared: int = 0) -> list[list[int]]:
    """Prompts of random tokens; the first `shared` of each are the same."""
    draw = random.Random(seed)
    head = [draw.randrange(10, VOCABULARY) for _ in range(shared)]
    return [head + [draw.randrange(10, VOCABULARY) for _ in range(tokens - shared)] for _ in range(count)]
