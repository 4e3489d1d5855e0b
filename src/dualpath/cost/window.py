"""How far ahead to prefetch."""

from __future__ import annotations

import math


def lead_s(compute_period_s: float, rtt_s: float) -> float:
    """Return how long before its use a block has to be asked for: one compute period and one round trip.

    The period is that of whatever the prefetch hides behind: a layer in decode, a chunk in prefill.
    """
    return compute_period_s + rtt_s


def window_blocks(
    *, compute_period_s: float, rtt_s: float, drain_bytes_per_s: float, layer_block_bytes: float, budget_bytes: float
) -> int:
    """Return how many layer blocks to keep in flight or waiting.

    `clamp(ceil(lead x drain rate / layer-block bytes), 1, memory budget / layer-block bytes)`, at least 1. The drain
    rate is how fast compute consumes fetched bytes; the budget is what keeps a long context from running out of memory.
    """
    wanted = lead_s(compute_period_s, rtt_s) * drain_bytes_per_s / layer_block_bytes
    most = int(budget_bytes // layer_block_bytes)
    return max(1, most if wanted >= most else math.ceil(wanted))
