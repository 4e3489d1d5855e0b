"""What `dualpath bench raw --json` says: measured bandwidth and latency between two hosts.

The bench writes it; the planner takes its rates in place of nominal ones; the doctor judges it.
"""

from __future__ import annotations

import msgspec


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: blocks of `block_bytes` moved one way over one pair of rails in one lane."""

    local_rail: str
    """NIC at the end that reads."""
    remote_rail: str
    lane: str
    """`realtime`, `prefetch` or `bulk`."""
    transport: str
    """`tcp`, …"""
    memory: str = "host"
    """Where the bytes lay and landed: `host` or `gpu`."""
    block_bytes: int
    in_flight: int
    bytes_sent: int
    """Payload bytes counted at the sending end, after warm-up."""
    bytes_received: int
    """Payload bytes counted at the receiving end, after warm-up."""
    seconds: float
    bits_per_s: float
    """`8 x bytes_received / seconds`."""
    nominal_bits_per_s: float | None = None
    """The slower of the two links' nominal speeds; `None` where neither says."""
    latency_p50_s: float
    """Of one block asked for alone, from asking to its last byte."""
    latency_p99_s: float
    interface_bytes: int | None = None
    """Bytes that the receiving NIC counted meanwhile, headers and foreign traffic included."""


class RawReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run of `dualpath bench raw`."""

    method: str
    """How it was measured, in a sentence or two."""
    local_host: str
    remote_host: str
    rows: tuple[RawRow, ...]
    findings: tuple[str, ...] = ()
    """What the rows show, in words: under half of nominal, small fine and large slow."""
