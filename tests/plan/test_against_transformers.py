"""Small models of every architecture, built by transformers: its matrices are the parameters, its cache the state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dualpath.kv.configs import known_model_types
from dualpath.plan.hybrid import hybrid_model_types
from dualpath.plan.model import from_config

pytestmark = pytest.mark.torch

BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
WIDE = {"head_dim": 16}  # independent of hidden_size / heads
WINDOW = {"sliding_window": 8}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEPSEEK = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 32,
}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}
DELTA = {
    **WIDE,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
KIMI = {
    **LATENT,
    "q_lora_rank": None,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "model_max_length": 128,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
}
NEMOTRON = {
    **WIDE,
    "hybrid_override_pattern": "M*-E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
    "n_shared_experts": 1,
    "moe_latent_size": 24,
}
GRANITE = {"layer_types": ["mamba", "attention", "mamba", "mamba"], "shared_intermediate_size": 48}
LLAMA4 = {
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 80,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 32,
}
CASES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [2], **MAMBA2},
    "cohere2": WINDOW,
    "deepseek_v2": {**LATENT, **DEEPSEEK, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, **DEEPSEEK},
    "deepseek_v32": {**LATENT, **DEEPSEEK, **INDEX},
    "falcon_h1": {**WIDE, **MAMBA2, "mamba_d_ssm": 128},
    "gemma2": {**WIDE, **WINDOW},
    "gemma3_text": {**WIDE, **WINDOW},
    "glm4": WIDE,
    "glm4_moe": {**WIDE, **DEEPSEEK},
    "glm_moe_dsa": {**LATENT, **DEEPSEEK, **INDEX, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    "gpt_oss": {**WIDE, **WINDOW, **MIXTRAL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "granite": {},
    "granitemoehybrid": {**GRANITE, **MIXTRAL, **MAMBA2},
    "jamba": {**QWEN, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 5},
    "kimi_linear": KIMI,
    "lfm2": {"full_attn_idxs": [1], "block_multiple_of": 16, "conv_L_cache": 3},
    "llama": {},
    "llama4_text": {
        **WIDE,
        **MIXTRAL,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 80,
        "attention_chunk_size": 32,
    }
    | {"interleave_moe_layer_step": 2},
    "minimax": {**WIDE, **MIXTRAL},
    "minimax_m2": {**WIDE, **MIXTRAL},
    "mistral": {},
    "mixtral": MIXTRAL,
    "nemotron_h": NEMOTRON,
    "olmo2": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {**QWEN, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2},
    "qwen3": WIDE,
    "qwen3_5_moe_text": {**DELTA, **QWEN, "shared_expert_intermediate_size": 40},
    "qwen3_5_text": DELTA,
    "qwen3_moe": {**WIDE, **QWEN, "mlp_only_layers": [0]},
    "qwen3_next": {**DELTA, **QWEN, "shared_expert_intermediate_size": 40},
    "smollm3": {},
    "starcoder2": {},
}


def built(kind: str) -> tuple[dict[str, Any], Any]:
    config = {**BASE, **CASES[kind], "model_type": kind}
    hub = AutoConfig.for_model(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    return config, AutoModelForCausalLM.from_config(hub, dtype=torch.bfloat16).eval()


def test_every_known_architecture_is_built() -> None:
    assert set(CASES) == {*known_model_types(), *hybrid_model_types()} - {"gemma3"}


@pytest.mark.parametrize("kind", CASES)
def test_matrices_are_the_parameters(kind: str) -> None:
    config, model = built(kind)
    matrices = sum(
        values.numel()
        for name, values in model.named_parameters()
        if values.squeeze().dim() > 1 and "norm" not in name and "bias" not in name
    )
    assert from_config(config, name=kind, source="test").parameters == matrices


@pytest.mark.parametrize("kind", hybrid_model_types())
def test_the_cache_holds_what_the_plan_says(kind: str) -> None:
    """After 20 tokens, more than any convolution spans: states as large as planned, KV in the layers planned."""
    config, model = built(kind)
    plan = from_config(config, name=kind, source="test")
    with torch.no_grad():
        out = model(torch.arange(1, 21)[None], use_cache=True)
    cache = getattr(out, "cache", None) or out.past_key_values  # by release of transformers
    states = [state for state in getattr(cache, "linear_cache", []) if isinstance(state, torch.Tensor)]
    for layer in cache.layers:
        kept = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
        states += [state for state in kept if state is not None]
    assert sum(state.numel() * state.element_size() for state in states) == plan.state_bytes
    keys = [getattr(layer, "keys", None) for layer in cache.layers]
    attending = {layer for layer, kept in enumerate(keys) if kept is not None and kept.numel()}
    assert attending == {layer for group in plan.groups for layer in group.layers}
