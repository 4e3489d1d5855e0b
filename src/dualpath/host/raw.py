"""What `dualpath bench raw --json` says: measured bandwidth and latency between two hosts.

The bench writes it; the planner takes its rates in place of nominal ones; the doctor judges it.
"""

from __future__ import annotations

import msgspec


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: blocks of `block_bytes` moved one way over one pair of rails in one lane."""

    local_rail: str
    """NIC of the host that measured; the reading end, unless `direction` is `write`."""
    remote_rail: str
    """Address of the node's NIC, `host:port`."""
    lane: str
    """`realtime`, `prefetch` or `bulk`."""
    direction: str = "read"
    """`read`: from the node to the host that measured; `write`: to the node."""
    transport: str
    """`tcp`, …"""
    memory: str = "host"
    """Where the bytes lay and landed: `host` or `gpu`."""
    block_bytes: int
    in_flight: int
    """Blocks, at most."""
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
    latency_samples: int = 0
    """How many blocks were asked for alone; of fewer than 100, the P99 is the slowest."""
    interface_bytes: int | None = None
    """Bytes that the NIC of the host that measured counted meanwhile in this direction, headers and foreign traffic
    included."""
    rail_bytes: dict[str, int] | None = None
    """Where several rails worked together: payload bytes by rail."""
    doubt: str = ""
    """Why this row is not to be relied on: the counts at the two ends do not agree. Empty if they do."""


class RawBeside(msgspec.Struct, frozen=True, kw_only=True):
    """Round trips of an empty real-time call over one pair of rails: alone, and beside a prefetch at full rate."""

    local_rail: str
    remote_rail: str
    block_bytes: int
    """Of the prefetch."""
    prefetch_bits_per_s: float
    idle_p50_s: float
    idle_p99_s: float
    idle_samples: int
    beside_p50_s: float
    beside_p99_s: float
    beside_samples: int


class RawReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run of `dualpath bench raw`."""

    method: str
    """How it was measured, in a sentence or two."""
    local_host: str
    remote_host: str
    rows: tuple[RawRow, ...]
    """Each pair of rails alone."""
    together: tuple[RawRow, ...] = ()
    """All rails at once; `local_rail` and `remote_rail` name them all, with `+` between. None where there is one."""
    beside: tuple[RawBeside, ...] = ()
    """What a prefetch at full rate does to real-time round trips, for each pair of rails."""
    findings: tuple[str, ...] = ()
    """What the rows show, in words: under half of nominal, small fine and large slow."""

    @property
    def relied_on(self) -> tuple[RawRow, ...]:
        """Return those of `rows` that are not in doubt: a number that is wrong is worse than none."""
        return tuple(row for row in self.rows if not row.doubt)
