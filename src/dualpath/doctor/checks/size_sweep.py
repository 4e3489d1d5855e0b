"""Small blocks fine, large ones slow: the two ends agree to talk, and disagree on what a packet is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.raw import RawRow
from dualpath.units import format_bytes

FALLEN_SHARE = 0.5
LARGE = 4
"""A large block is so many times the one that was fastest, or more."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield each series whose largest blocks get under half of the rate that smaller ones had."""
    raw = host.measured.raw
    series: dict[tuple[str, ...], dict[int, RawRow]] = {}
    for row in raw.relied_on if raw else ():
        named = (row.local_rail, row.remote_rail, row.direction, row.lane, row.transport, row.memory)
        rows = series.setdefault(named, {})
        known = rows.get(row.block_bytes)
        if known is None or row.bits_per_s > known.bits_per_s:  # of several depths, the best
            rows[row.block_bytes] = row
    for (local, remote, direction, lane, transport, memory), rows in series.items():
        best = max(rows.values(), key=lambda row: row.bits_per_s)
        largest = rows[max(rows)]
        if largest.block_bytes < LARGE * best.block_bytes or largest.bits_per_s >= FALLEN_SHARE * best.bits_per_s:
            continue
        roce = transport != "tcp"
        yield Finding(
            level=Level.WARNING,
            symptom=f"{local} to {remote} ({direction}s, {lane}, {transport}, {memory} memory): {_rate(best)}, "
            f"but {_rate(largest)}",
            cause="large packets are lost or cut: MTU differs along the path"
            + (
                ", PFC is off or on the wrong priority, or the ends use different GIDs (RoCE version, VLAN)"
                if roce
                else ""
            ),
            fix=f"ping -M do -s 8972 {shlex.quote(raw.remote_host) if raw else ''}  # fits MTU 9000 over IPv4"
            + ("; then compare show_gids and mlnx_qos of both ends" if roce else ""),
            evidence=tuple(
                f"bench raw: {size} bytes: {rows[size].bits_per_s / 1e9:.3g} Gbit/s" for size in sorted(rows)
            ),
            subject=local,
        )


def _rate(row: RawRow) -> str:
    return f"{row.bits_per_s / 1e9:.3g} Gbit/s with {format_bytes(row.block_bytes)}"


CHECK = Check(
    name="size-sweep",
    title="Large blocks are as fast as small ones",
    reads=("dualpath bench raw --json",),
    reference="https://www.rfc-editor.org/rfc/rfc4821",
    judge=judge,
)
