"""Layers that keep a state instead of KV: how large the state of one sequence is, and how many weights the layer has.

Sizes are those that transformers keeps (`cache_utils.LinearAttentionLayer`): a recurrent state, and the last
`kernel` inputs of a short convolution in the model's dtype. Biases and norms are left out of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.errors import UsageError
from dualpath.kv.layout import DTYPE_BYTES
from dualpath.plan.fields import Config, count, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One layer: elements of its recurrent state and of its convolution's window, and its weights.

    `state_dtype` is what the recurrent state is kept in; empty means the model's dtype.
    """

    state: int
    window: int
    weights: int
    state_dtype: str = "float32"

    def state_bytes(self, dtype: str) -> int:
        """Return the bytes of one sequence in this layer, in a model of `dtype`."""
        return self.state * DTYPE_BYTES[self.state_dtype or dtype] + self.window * DTYPE_BYTES[dtype]


def mamba1(config: Config) -> Recurrence:
    """Mamba (arXiv 2312.00752): state [inner, d_state]. Source: transformers `jamba`, JambaMambaMixer."""
    hidden, states = number(config, "hidden_size"), number(config, "mamba_d_state", default=16)
    inner = number(config, "mamba_expand", default=2) * hidden
    kernel = number(config, "mamba_d_conv", default=4)
    rank = config.get("mamba_dt_rank", "auto")
    rank = -(-hidden // 16) if rank == "auto" else number(config, "mamba_dt_rank")
    project = hidden * 2 * inner + inner * (rank + 2 * states) + rank * inner + inner * hidden
    weights = project + inner * kernel + inner * states
    return Recurrence(state=inner * states, window=inner * kernel, weights=weights)


def mamba2(config: Config) -> Recurrence:
    """Mamba-2 (arXiv 2405.21060): state [heads, head_dim, d_state], convolution over x, B and C.

    Source: transformers `bamba`, `falcon_h1`, `granitemoehybrid`, `nemotron_h` and `zamba2`, their Mamba2 mixers,
    which differ in the names of the fields.
    """
    hidden, expand = number(config, "hidden_size"), number(config, "mamba_expand", "expand", default=2)
    heads = number(config, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    if isinstance(width := config.get("mamba_d_head", config.get("mamba_head_dim", "auto")), str):
        inner = count(config, "mamba_d_ssm") or expand * hidden
        width = inner // heads
    inner = heads * int(width)
    if inner < 1:
        raise UsageError(f"{heads} Mamba heads of width {width}?", hint="a head has a width of at least 1")
    states = number(config, "mamba_d_state", "ssm_state_size")
    groups = number(config, "mamba_n_groups", "n_groups", "mamba_ngroups", default=1)
    kernel = number(config, "mamba_d_conv", "conv_kernel", default=4)
    convolved = inner + 2 * groups * states
    weights = hidden * (inner + convolved + heads) + convolved * kernel + inner * hidden
    return Recurrence(state=inner * states, window=convolved * kernel, weights=weights)


def gated_delta(config: Config) -> Recurrence:
    """Gated DeltaNet (arXiv 2412.06464): state [value heads, key width, value width].

    Source: transformers `qwen3_next`, Qwen3NextGatedDeltaNet; `qwen3_5` splits the same projections.
    """
    hidden, kernel = number(config, "hidden_size"), number(config, "linear_conv_kernel_dim", default=4)
    key_heads = number(config, "linear_num_key_heads", default=16)
    heads = number(config, "linear_num_value_heads", default=32)
    key, value = (number(config, f"linear_{name}_head_dim", default=128) for name in ("key", "value"))
    convolved = 2 * key_heads * key + heads * value
    weights = hidden * (convolved + heads * value + 2 * heads) + convolved * kernel + heads * value * hidden
    return Recurrence(state=heads * key * value, window=convolved * kernel, weights=weights)


def kimi_delta(config: Config) -> Recurrence:
    """Kimi Delta Attention (arXiv 2510.26692): state [heads, width, width], convolution over q, k and v.

    Source: transformers `kimi_linear`, KimiLinearDeltaAttention. The checkpoint nests the fields in
    `linear_attn_config`.
    """
    linear = config.get("linear_attn_config") or {
        "num_heads": config.get("linear_num_heads", 32),
        "head_dim": config.get("linear_head_dim", 128),
        "short_conv_kernel_size": config.get("linear_conv_kernel_dim", 4),
    }
    hidden, heads, width = number(config, "hidden_size"), number(linear, "num_heads"), number(linear, "head_dim")
    kernel, inner = number(linear, "short_conv_kernel_size", default=4), heads * width
    gates = 2 * (hidden * width + width * inner) + hidden * heads
    weights = 3 * hidden * inner + gates + 3 * inner * kernel + inner * hidden
    return Recurrence(state=heads * width * width, window=3 * inner * kernel, weights=weights)


def lightning(config: Config) -> Recurrence:
    """Lightning attention (arXiv 2501.08313): state [heads, head_dim, head_dim], no convolution.

    Source: transformers `minimax`, MiniMaxLightningAttention, which keeps the state in the model's dtype.
    """
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    width = number(config, "head_dim", default=hidden // heads)
    return Recurrence(state=heads * width * width, window=0, weights=5 * hidden * heads * width, state_dtype="")


def short_convolution(config: Config) -> Recurrence:
    """Gated short convolution over the hidden state. Source: transformers `lfm2`, Lfm2ShortConv."""
    hidden, kernel = number(config, "hidden_size"), number(config, "conv_L_cache", default=3)
    return Recurrence(state=0, window=hidden * kernel, weights=4 * hidden * hidden + hidden * kernel)
