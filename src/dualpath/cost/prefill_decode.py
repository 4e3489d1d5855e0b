"""How many prefill hosts to a decode host leave no link the bottleneck."""

from __future__ import annotations

import msgspec


class RatioBounds(msgspec.Struct, frozen=True):
    """Prefill over decode hosts, both ends included. `lowest > highest`: some link is the bottleneck at any ratio."""

    lowest: float
    highest: float

    @property
    def possible(self) -> bool:
        """Return whether any ratio is without a bottleneck."""
        return self.lowest <= self.highest


def ratio_bounds(*, gpus: int, storage_nics: int, memory_bytes_per_s: float, storage_bytes_per_s: float) -> RatioBounds:
    """Return the ratios P/D at which neither compute NICs nor DRAM slow the reading of KV through both kinds of host.

    `s/(g-s) <= P/D <= min((g-2s)/s, (g-s)/2s, (M/Bs-3)/2)` (arXiv 2602.21548): a host has `gpus` g, each with a compute
    NIC, and `storage_nics` s of the same speed; M is its memory bandwidth, Bs that of its storage NICs together.
    Only for 0 < s < g.
    """
    g, s = gpus, storage_nics
    memory = (memory_bytes_per_s / storage_bytes_per_s - 3) / 2
    return RatioBounds(s / (g - s), min((g - 2 * s) / s, (g - s) / (2 * s), memory))
