"""Tiny random models, one per kind of attention, and a reference to hold generation against."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.15,
}
MLA: dict[str, Any] = {
    **BASE,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
HYBRID = ["sliding_attention", "sliding_attention", "full_attention"]


def make(name: str, dtype: str = "float32") -> Any:
    """Return a seeded random model of a kind."""
    import torch
    import transformers as hf

    configs = {
        "llama": lambda: hf.LlamaConfig(**BASE),
        "qwen3": lambda: hf.Qwen3Config(**BASE, head_dim=32),
        "mistral": lambda: hf.MistralConfig(**BASE, sliding_window=96),
        "gemma2": lambda: hf.Gemma2Config(**BASE, head_dim=32, sliding_window=96),
        "gemma3": lambda: hf.Gemma3TextConfig(**BASE, head_dim=32, sliding_window=96, layer_types=HYBRID),
        "gpt_oss": lambda: hf.GptOssConfig(
            **BASE, head_dim=32, sliding_window=96, num_local_experts=4, num_experts_per_tok=2, layer_types=HYBRID
        ),
        "deepseek_v2": lambda: hf.DeepseekV2Config(**MLA),
        "deepseek_v3": lambda: hf.DeepseekV3Config(**MLA),
    }
    torch.manual_seed(1)
    model = hf.AutoModelForCausalLM.from_config(configs[name](), dtype=getattr(torch, dtype)).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    model.set_attn_implementation("eager" if name in ("gemma2", "gpt_oss") else "sdpa")
    return model


NAMES = ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "deepseek_v2", "deepseek_v3")
