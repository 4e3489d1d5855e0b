"""What `dualpath bench raw --json` measured, as rates of the planner's own terms. Pure: bytes in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dualpath.errors import UsageError
from dualpath.host.raw import RawReport, RawRow
from dualpath.plan.quantities import seconds
from dualpath.units import format_bits_per_s, format_bytes_per_s

BULK_LANES = ("prefetch", "bulk")
"""Lanes whose rate is a link's, best first."""


@dataclass(frozen=True, slots=True)
class RawRates:
    """Payload bytes per second of one rail (the slowest of the rails' best), and the shortest median round trip.

    KV is read; what was written counts only where nothing was read.
    """

    link_bytes_per_s: float
    round_trip_s: float
    rails: int
    notes: tuple[str, ...]


def parse_raw(text: bytes, *, name: str) -> RawRates:
    """Return the rates in a report. Raises `UsageError` if it is none, or says nothing of a rate."""
    try:
        report = msgspec.json.decode(text, type=RawReport)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"{name} is no report of raw bandwidth: {error}", hint="write it with `dualpath bench raw --json`"
        ) from None
    if report.rows and not report.relied_on:
        raise UsageError(
            f"not one row of {name} is to be relied on: {report.rows[0].doubt}",
            hint="measure again, on a quiet node and quiet NICs",
        )
    read = [row for row in report.relied_on if row.direction == "read"] or list(report.relied_on)
    moving = [row for row in _of_best_lane(read) if row.bits_per_s > 0]
    if not moving:
        raise UsageError(f"{name} has no row with a rate", hint="write it with `dualpath bench raw --json`")
    best: dict[str, float] = {}
    for row in moving:
        best[row.local_rail] = max(best.get(row.local_rail, 0.0), row.bits_per_s / 8)
    slowest = min(best.values())
    round_trip_s = min(row.latency_p50_s for row in read)
    return RawRates(slowest, round_trip_s, len(best), _notes(report, moving, slowest, round_trip_s, len(best)))


def _of_best_lane(rows: Sequence[RawRow]) -> list[RawRow]:
    """Return the rows that speak of KV on its way: of a lane for it, and into GPU memory where that was measured."""
    by_lane = ([row for row in rows if row.lane == lane] for lane in BULK_LANES)
    found = next((lane for lane in by_lane if lane), list(rows))
    return [row for row in found if row.memory == "gpu"] or found


def _notes(report: RawReport, rows: list[RawRow], slowest: float, round_trip_s: float, rails: int) -> tuple[str, ...]:
    nominal = [row.nominal_bits_per_s / 8 for row in rows if row.nominal_bits_per_s]
    against = f", nominal {format_bits_per_s(8 * min(nominal))}" if nominal else ""
    found = [
        f"Measured between {report.local_host} and {report.remote_host} over {rails} rail{'s' if rails != 1 else ''}: "
        f"{format_bytes_per_s(slowest)} = {format_bits_per_s(8 * slowest)} a rail{against}; "
        f"round trip {seconds(round_trip_s)}."
    ]
    if nominal and slowest < min(nominal) / 2:
        found.append("That is under half of nominal: check PCIe and NUMA before planning (`dualpath doctor`).")
    return tuple(found)
