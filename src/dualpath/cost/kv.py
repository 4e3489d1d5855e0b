"""Bytes of KV that a model keeps and reads: by layer, by token, by context.

| attention | bytes of one token and layer |
|---|---|
| MHA, GQA, MQA | `2 x kv_heads x head_dim x element` (K and V) |
| MLA | `(latent + rope) x element` (one row, K and V are both in it; DeepSeek-V2, arXiv 2405.04434, section 2.1) |
| sliding window | as MHA or GQA, but only the last `window` tokens are kept |
| recurrent | nothing by token: a fixed state per sequence |

A quantised element is one byte, and every block of `block_tokens` tokens has the scales of its channels, as `kv.layout`
says: with them a head's K or V is larger by `2 / block_tokens` of it, and by the padding of both parts.
"""

from __future__ import annotations

import math

import msgspec

from dualpath.errors import UsageError
from dualpath.kv.layout import FLOAT_BYTES, KV_DTYPES, LayerGroup, LayerKind, Parts

QUANTISED = tuple(name for name, stored in KV_DTYPES.items() if stored)
"""What users call the dtypes of one byte."""
DTYPES = (*FLOAT_BYTES, *QUANTISED)
"""What KV can be stored as."""


class KVShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a model keeps of a sequence.

    `groups` are the layers that keep KV by token, `dtype` the stored type (one of `DTYPES`), `state_bytes` the
    recurrent state of one sequence over all layers. With sparse attention a query reads the `index_bytes_per_token`
    of every token (over all layers) and then the KV of `index_top_k` tokens only; 0 means it reads all. `expanded_dim`
    is a latent layer's width of q·k and p·v by head where its KV is expanded, as for prompts; 0: as it is stored.
    """

    groups: tuple[LayerGroup, ...]
    dtype: str
    state_bytes: int = 0
    index_bytes_per_token: int = 0
    index_top_k: int = 0
    expanded_dim: int = 0
    block_tokens: int = 256


def layer_bytes(group: LayerGroup, tokens: int, dtype: str, *, block_tokens: int = 256) -> int:
    """Return the bytes that one layer of `group` keeps of `tokens` tokens, the window not applied.

    Of a block that is not full, its tokens count, and its scales whole. Raises `UsageError` for a dtype that is not in
    `DTYPES`.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown KV dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    streams = group.kv_heads * (1 if group.kind is LayerKind.LATENT else 2)
    block = Parts.of(streams, block_tokens, group.head_dim, KV_DTYPES.get(dtype, dtype))
    scales = math.ceil(tokens / block_tokens) * (block.bytes - block.data_bytes)
    return tokens * (block.data_bytes // block_tokens) + scales


def bytes_per_token(shape: KVShape) -> float:
    """Return the bytes that one more token adds over all layers: sliding layers in full, scales in proportion."""
    span = shape.block_tokens  # the scales of a whole block, divided among its tokens
    total = sum(len(group.layers) * layer_bytes(group, span, shape.dtype, block_tokens=span) for group in shape.groups)
    return total / span + shape.index_bytes_per_token


def held_bytes(shape: KVShape, context: int) -> int:
    """Return the bytes that a sequence of `context` tokens keeps: windows applied, index and state included."""
    return _groups_bytes(shape, context, context) + shape.index_bytes_per_token * context + shape.state_bytes


def read_bytes(shape: KVShape, context: int) -> int:
    """Return the bytes that one decoded token reads at `context` tokens: less than is held if attention is sparse."""
    seen = min(context, shape.index_top_k) if shape.index_top_k else context
    return _groups_bytes(shape, seen, context) + shape.index_bytes_per_token * context + shape.state_bytes


def attention_flop(shape: KVShape, context: int) -> int:
    """Return the FLOP of attention for one query token at `context` tokens, over all layers.

    `2 x query_heads x (key width + value width)` for each token seen: q·k and p·v, a multiply and an add each. A latent
    layer's widths are those of the absorbed form.
    """
    seen = min(context, shape.index_top_k) if shape.index_top_k else context
    return sum(
        2 * len(group.layers) * group.query_heads * (group.head_dim + group.value_dim) * visible_tokens(group, seen)
        for group in shape.groups
    )


def prompt_attention_flop(shape: KVShape, context: int) -> int:
    """Return the FLOP of attention over a prompt of `context` tokens, which see half as many each on the mean.

    Latent layers expand their KV for it where `expanded_dim` says how wide: that is less arithmetic.
    """
    groups = shape.groups
    if shape.expanded_dim:
        groups = tuple(
            msgspec.structs.replace(group, head_dim=shape.expanded_dim, value_dim=0)
            if group.kind is LayerKind.LATENT
            else group
            for group in groups
        )
    return context * attention_flop(msgspec.structs.replace(shape, groups=groups), context // 2)


def query_bytes(shape: KVShape) -> int:
    """Return the bytes of one token's queries to one node over all layers: float32 `[query_heads, head_dim]` each."""
    return sum(4 * len(group.layers) * group.query_heads * group.head_dim for group in shape.groups)


def partial_bytes(shape: KVShape) -> int:
    """Return the bytes of a token's `(out, lse)` from one node over all layers: float32 `[heads, value_dim + 1]`."""
    return sum(4 * len(group.layers) * group.query_heads * (group.value_dim + 1) for group in shape.groups)


def visible_tokens(group: LayerGroup, context: int) -> int:
    """Return how many tokens a query at `context` tokens sees in a layer of `group`."""
    return min(context, group.window) if group.kind is LayerKind.SLIDING else context


def _groups_bytes(shape: KVShape, tokens: int, context: int) -> int:
    return sum(
        len(group.layers)
        * layer_bytes(group, min(tokens, visible_tokens(group, context)), shape.dtype, block_tokens=shape.block_tokens)
        for group in shape.groups
    )
