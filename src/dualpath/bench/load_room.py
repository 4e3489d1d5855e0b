"""Whether many sequences fit: their open blocks the hot region, all of their KV this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.errors import CapacityError
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from dualpath.bench.load import LoadConfig
    from dualpath.kv import KVLayout


def check_room(config: LoadConfig, layout: KVLayout, available_bytes: int) -> None:
    """Raise `CapacityError` for more KV, here and at nodes here, than there is memory, or than the hot region takes."""
    tails = config.concurrency * layout.open.block_bytes
    if config.hot_bytes < tails:
        raise CapacityError(
            f"the open blocks of {config.concurrency} sequences take {format_bytes(tails)}, the hot region has "
            f"{format_bytes(config.hot_bytes)}",
            hint=f"use --hot {format_bytes(2 * tails).replace(' ', '')} or more, or a smaller --block-tokens",
        )
    tokens = config.concurrency * (config.context + config.new_tokens)
    here = min(config.hot_bytes, tokens * layout.open.bytes_per_token) + config.window_bytes
    there = 0 if config.pool else tokens * layout.bytes_per_token
    if here + there > 0.9 * available_bytes:
        raise CapacityError(
            f"{format_bytes(there)} of KV at nodes on this machine and {format_bytes(here)} here do not fit the "
            f"{format_bytes(available_bytes)} of free memory",
            hint="use a smaller --concurrency, --context or --hot, --dtype bfloat16, or nodes elsewhere with --pool",
        )
