"""Bytes per token and layer groups of real configs, computed by hand from the model cards."""

from __future__ import annotations

from typing import Any

import pytest

from dualpath.errors import UnknownModelError, UsageError
from dualpath.kv import KVLayout, LayerKind
from dualpath.kv.configs import known_model_types, layer_groups

FULL, SLIDING = "full_attention", "sliding_attention"

# name: (config, bf16 KV bytes per token over all layers, {(kind, window): number of layers})
CASES: dict[str, tuple[dict[str, Any], int, dict[tuple[str, int], int]]] = {
    "smollm2-135m": (
        {
            "model_type": "llama",
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
        },
        30 * 2 * 3 * 64 * 2,
        {("full", 0): 30},
    ),
    "llama-7b, no kv heads given": (
        {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
        512 * 1024,
        {("full", 0): 32},
    ),
    "llama-3-8b": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": None,
        },
        128 * 1024,
        {("full", 0): 32},
    ),
    "mistral-7b v0.1": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        128 * 1024,
        {("sliding", 4096): 32},
    ),
    "mistral-7b v0.3": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": None,
        },
        128 * 1024,
        {("full", 0): 32},
    ),
    "mistral-nemo": (
        {
            "model_type": "mistral",
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": None,
        },
        40 * 2 * 8 * 128 * 2,
        {("full", 0): 40},
    ),
    "mixtral-8x7b": (
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": None,
        },
        128 * 1024,
        {("full", 0): 32},
    ),
    "qwen2.5-7b, sliding off": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "use_sliding_window": False,
            "sliding_window": 131072,
            "max_window_layers": 28,
        },
        28 * 2 * 4 * 128 * 2,
        {("full", 0): 28},
    ),
    "qwen2, upper layers slide": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "use_sliding_window": True,
            "sliding_window": 1024,
            "max_window_layers": 20,
        },
        28 * 2 * 4 * 128 * 2,
        {("full", 0): 20, ("sliding", 1024): 8},
    ),
    "qwen3-8b, default head_dim": (
        {
            "model_type": "qwen3",
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "use_sliding_window": False,
        },
        36 * 2 * 8 * 128 * 2,
        {("full", 0): 36},
    ),
    "qwen3-30b-a3b": (
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "sliding_window": None,
        },
        48 * 2 * 4 * 128 * 2,
        {("full", 0): 48},
    ),
    "qwen1.5-moe": (
        {
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "use_sliding_window": True,
            "sliding_window": 512,
            "max_window_layers": 21,
        },
        24 * 2 * 16 * 128 * 2,
        {("sliding", 512): 11, ("full", 0): 13},  # even layers 0..20 slide
    ),
    "gemma-2-2b": (
        {
            "model_type": "gemma2",
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
        },
        26 * 2 * 4 * 256 * 2,
        {("sliding", 4096): 13, ("full", 0): 13},
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        26 * 2 * 1 * 256 * 2,
        {("sliding", 512): 22, ("full", 0): 4},
    ),
    "gemma-3-4b, text inside, heads by default": (
        {
            "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
        },
        34 * 2 * 4 * 256 * 2,
        {("sliding", 1024): 29, ("full", 0): 5},
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": [SLIDING, FULL] * 12,
        },
        24 * 2 * 8 * 64 * 2,
        {("sliding", 128): 12, ("full", 0): 12},
    ),
    "deepseek-v2-lite": (
        {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        27 * 576 * 2,
        {("latent", 0): 27},
    ),
    "deepseek-v3": (
        {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        61 * 1152,
        {("latent", 0): 61},
    ),
    "phi-3-mini": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "sliding_window": 2047,
        },
        32 * 2 * 32 * 96 * 2,
        {("sliding", 2047): 32},
    ),
    "smollm3": (
        {
            "model_type": "smollm3",
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "use_sliding_window": False,
        },
        36 * 2 * 4 * 128 * 2,
        {("full", 0): 36},
    ),
    "command-r7b": (
        {
            "model_type": "cohere2",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        128 * 1024,
        {("sliding", 4096): 24, ("full", 0): 8},
    ),
    "glm-4-9b": (
        {
            "model_type": "glm4",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
        },
        40 * 2 * 2 * 128 * 2,
        {("full", 0): 40},
    ),
    "glm-4.5": (
        {
            "model_type": "glm4_moe",
            "hidden_size": 5120,
            "num_hidden_layers": 92,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        92 * 2 * 8 * 128 * 2,
        {("full", 0): 92},
    ),
    "minimax-m2": (
        {
            "model_type": "minimax_m2",
            "hidden_size": 3072,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": None,
        },
        62 * 2 * 8 * 128 * 2,
        {("full", 0): 62},
    ),
    "starcoder2-3b": (
        {
            "model_type": "starcoder2",
            "hidden_size": 3072,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "sliding_window": 4096,
        },
        30 * 2 * 2 * 128 * 2,
        {("sliding", 4096): 30},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_per_token_and_groups(name: str) -> None:
    config, bytes_per_token, groups = CASES[name]
    layout = KVLayout.from_config(config, dtype="bfloat16", block_tokens=256, model=name)
    assert layout.bytes_per_token == bytes_per_token
    assert {(g.kind.value, g.window): len(g.layers) for g in layout.groups} == groups
    assert sorted(layer for g in layout.groups for layer in g.layers) == list(range(layout.layers))


def test_float32_takes_twice_the_bytes() -> None:
    config = CASES["smollm2-135m"][0]
    assert KVLayout.from_config(config, dtype="float32").bytes_per_token == 2 * 23040


def test_latent_rows_hold_latent_and_rope() -> None:
    (group,) = layer_groups(CASES["deepseek-v3"][0])
    assert (group.kind, group.query_heads, group.kv_heads) == (LayerKind.LATENT, 128, 1)
    assert (group.head_dim, group.value_dim) == (576, 512)


def test_gemma3_slides_in_all_but_every_sixth_layer() -> None:
    groups = layer_groups(CASES["gemma-3-1b"][0])
    assert next(g.layers for g in groups if g.kind is LayerKind.FULL) == (5, 11, 17, 23)


def test_smollm3_slides_where_there_is_no_rope() -> None:
    config = {**CASES["smollm3"][0], "use_sliding_window": True, "sliding_window": 64}
    groups = layer_groups(config)
    assert next(g.layers for g in groups if g.kind is LayerKind.SLIDING) == tuple(range(3, 36, 4))


def test_anything_with_to_dict_will_do() -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return CASES["llama-3-8b"][0]

    assert layer_groups(Config()) == layer_groups(CASES["llama-3-8b"][0])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "mamba2"}, "'mamba2' is not known"),
        ({}, "'(none)' is not known"),
        ({"model_type": "llama4_text"}, "not known"),
        ({"model_type": "llama", "attention_chunk_size": 8192}, "chunked attention"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma2", "num_kv_shared_layers": 4}, "share KV"),
        (
            {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["linear_attention", FULL]},
            "linear_att",
        ),
        ({"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": [FULL]}, "lists 1 layers"),
        (
            {
                "model_type": "gemma2",
                "sliding_window": None,
                "num_hidden_layers": 2,
                "layer_types": [SLIDING] * 2,
            },
            "no sliding_window",
        ),
        ({"model_type": "mistral", "num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}, "contradict"),
        ({"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 2}, "evenly"),
        ({"model_type": "llama", "num_attention_heads": "four"}, "impossible field"),
        ({"model_type": "llama", "num_attention_heads": 0}, "impossible field"),
        ({"model_type": "llama", "num_hidden_layers": None}, "impossible field"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "no layers"),
        ({"model_type": "llama", "hidden_size": -64}, "no size"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": [1]}, "impossible field"),
        ({"model_type": "deepseek_v3", "num_hidden_layers": -1}, "no layers"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        layer_groups(config)
    assert says in str(caught.value)
    assert all(name in caught.value.hint for name in known_model_types())


def test_dtype_and_block_size_are_checked() -> None:
    config = CASES["smollm2-135m"][0]
    with pytest.raises(UsageError, match="dtype"):
        KVLayout.from_config(config, dtype="int8")
    with pytest.raises(UsageError, match="at least one token"):
        KVLayout.from_config(config, dtype="float32", block_tokens=0)


@pytest.mark.torch
@pytest.mark.parametrize("name", [n for n in known_model_types() if n != "gemma3"])
def test_defaults_agree_with_transformers(name: str) -> None:
    """A config with nothing set gives the layout of the same config with every default filled in."""
    transformers = pytest.importorskip("transformers", reason="needs the torch extra")
    assert layer_groups({"model_type": name}) == layer_groups(transformers.AutoConfig.for_model(name))


LLAMA = CASES["smollm2-135m"][0]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        {"rope_parameters": {FULL: {"rope_type": "default"}, SLIDING: {"rope_type": "dynamic", "factor": 8.0}}},
        {"rope_scaling": {"type": "su", "short_factor": [1.0]}},
    ],
)
def test_kv_that_would_change_as_a_text_grows_is_not_kept(rope: dict[str, Any]) -> None:
    assert layer_groups({**LLAMA, **rope})  # its size is known all the same: it can be planned for
    with pytest.raises(UnknownModelError, match="rotations that depend on the length of the text"):
        KVLayout.from_config({**LLAMA, **rope}, dtype="float32")


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rotations_that_stay_are_kept(kind: str) -> None:
    for field in ("rope_parameters", "rope_scaling"):
        assert KVLayout.from_config({**LLAMA, field: {"rope_type": kind, "factor": 8.0}}, dtype="float32").groups
    assert KVLayout.from_config({**LLAMA, "rope_scaling": None}, dtype="float32").groups
