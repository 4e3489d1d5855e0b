"""How many tokens a block should hold."""

from __future__ import annotations


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
