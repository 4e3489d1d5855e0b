"""The window's byte budget under memory pressure. Pure.

    budget = min(limit, held + headroom - reserve)        headroom: what this process may still take

Held bytes are resident already; beyond them the window may grow into what is left, but for a reserve that belongs to
everybody else: activations, the allocator, the page cache's working set.
"""

from __future__ import annotations

RESERVE_BYTES = 256 << 20
PERIOD_S = 0.25
"""How often the headroom is asked for."""


def budget_bytes(limit: int, held: int, headroom: int | None, *, reserve: int = RESERVE_BYTES) -> int:
    """Return how many bytes the window may hold: at most `limit`; `held` are in use now. Never negative."""
    if headroom is None:
        return limit
    return max(0, min(limit, held + headroom - reserve))
