"""How many tokens a block should hold."""

from __future__ import annotations

from typing import Any

from dualpath.kv import KVLayout


def layout_that_fits(
    config: Any, *, dtype: str, hot_bytes: int, block_tokens: int = 0, model: str = "", kv_dtype: str = ""
) -> KVLayout:
    """Return the layout of a model by its config; `block_tokens` 0 chooses what suits a hot region of `hot_bytes`.

    `kv_dtype` is what sealed blocks are kept in; empty: `dtype`. The open block, which must fit, is never quantised.
    """
    if not block_tokens:
        one = KVLayout.from_config(config, dtype=dtype, block_tokens=1)
        block_tokens = block_tokens_that_fit(one.bytes_per_token, hot_bytes)
    return KVLayout.from_config(config, dtype=dtype, block_tokens=block_tokens, model=model, kv_dtype=kv_dtype)


def block_tokens_that_fit(bytes_per_token: int, hot_bytes: int, *, largest: int = 256, smallest: int = 16) -> int:
    """Return the largest power of two of tokens, within `[smallest, largest]`, whose block fits the hot region.

    `bytes_per_token` is over all layers. The open tail of a sequence is always local, so a block of every layer
    must fit beside nothing else. If not even `smallest` tokens fit, `smallest` is returned: it is for the caller
    to say so.
    """
    tokens = largest
    while tokens > smallest and tokens * bytes_per_token > hot_bytes:
        tokens //= 2
    return max(tokens, smallest)
