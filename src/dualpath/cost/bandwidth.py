"""Bytes over time: what a link needs to carry, and what it can. Decimal: 1 GB/s is 10^9 bytes per second."""

from __future__ import annotations

from collections.abc import Iterable

from dualpath.errors import UsageError

_PCIE: dict[int, tuple[float, float]] = {
    1: (2.5e9, 8 / 10), 2: (5e9, 8 / 10), 3: (8e9, 128 / 130), 4: (16e9, 128 / 130), 5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
}  # fmt: skip
"""Generation: transfers per second and lane, and the share of them that is payload (PCI Express Base Specification:
8b/10b, 128b/130b, and 242 of the 256 bytes of a flit)."""


def bytes_per_s(bits_per_s: float) -> float:
    """Return a link's bytes per second: 400 Gbit/s are 50 GB/s."""
    return bits_per_s / 8


def bits_per_s(bytes_per_s: float) -> float:
    """Return a rate in bits per second: 6.4 GB/s are 51.2 Gbit/s."""
    return bytes_per_s * 8


def transfer_s(total_bytes: float, rate_bytes_per_s: float) -> float:
    """Return the seconds that `total_bytes` take."""
    return total_bytes / rate_bytes_per_s


def needed_bytes_per_s(total_bytes: float, seconds: float) -> float:
    """Return the rate that moves `total_bytes` in `seconds`."""
    return total_bytes / seconds


def new_kv_bytes_per_s(token_bytes: float, tokens_per_s: float) -> float:
    """Return the rate at which decoding *appends* KV: bytes of one token x tokens per second."""
    return token_bytes * tokens_per_s


def reread_bytes_per_s(context_bytes: float, tokens_per_s: float) -> float:
    """Return the rate at which decoding *reads* KV when every token attends to all of `context_bytes`.

    Not to be taken for `new_kv_bytes_per_s`: at 128 Ki tokens the two differ by a factor of 131,072.
    """
    return context_bytes * tokens_per_s


def joined_bytes_per_s(senders: Iterable[float], receiver_bytes_per_s: float) -> float:
    """Return what arrives when all `senders` (bytes per second each) send to one receiver: never more than it takes."""
    return min(sum(senders), receiver_bytes_per_s)


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Return what a PCIe link carries one way after line coding, before packet headers.

    Generation 3 x4: 3.94 GB/s. Raises `UsageError` for a generation or a width that does not exist.
    """
    if generation not in _PCIE or lanes not in (1, 2, 4, 8, 16, 32):
        raise UsageError(f"PCIe generation {generation} with {lanes} lanes?", hint="generations 1 to 6, 1 to 32 lanes")
    transfers_per_s, payload = _PCIE[generation]
    return transfers_per_s * payload * lanes / 8
