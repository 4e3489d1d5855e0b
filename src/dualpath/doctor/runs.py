"""What `dualpath run --json` says, as far as the doctor judges it. A field that is missing or odd is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ALL_LOCAL = ("hf", "local")
"""Schemes that hold all KV here: no window, no network."""
LARGEST = 1e18
"""No time in milliseconds and no size in bytes is more."""


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """One scheme's row. Times in milliseconds, sizes in bytes; NaN where it does not say."""

    scheme: str
    tpot_ms_p50: float
    tpot_ms_p99: float
    tokens_per_s: float
    stall_ms_per_token: float
    wire_bytes_per_token: float
    wasted_bytes: float
    peak_local_kv_bytes: float

    @property
    def stall_share(self) -> float:
        """Return which share of the mean time per token was waiting for KV or partials; NaN if it cannot be said."""
        return self.stall_ms_per_token * self.tokens_per_s / 1e3


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its rows, and the settings that memory depends on. NaN where it does not say."""

    rows: tuple[SchemeRow, ...]
    hot_bytes: float
    window_bytes: float
    block_tokens: float
    new_tokens: float
    kv_bytes: float
    memory_bytes: float

    @property
    def remote_rows(self) -> tuple[SchemeRow, ...]:
        """Return the rows of the schemes that keep KV elsewhere."""
        return tuple(row for row in self.rows if row.scheme not in ALL_LOCAL)


def read_run(run: Mapping[str, object] | None) -> Run | None:
    """Return the run; `None` if there is none, or it has no rows."""
    listed = (run or {}).get("schemes")
    rows = tuple(_row(entry) for entry in listed if isinstance(entry, Mapping)) if isinstance(listed, list) else ()
    if run is None or not rows:
        return None
    settings, expected, machine = (_table(run, name) for name in ("settings", "expected", "machine"))
    return Run(
        rows,
        hot_bytes=_number(settings, "hot_bytes"),
        window_bytes=_number(settings, "window_bytes"),
        block_tokens=_number(settings, "block_tokens"),
        new_tokens=_number(settings, "new_tokens"),
        kv_bytes=_number(expected, "kv_bytes"),
        memory_bytes=_number(machine, "memory_bytes"),
    )


def _row(entry: Mapping[str, object]) -> SchemeRow:
    return SchemeRow(
        str(entry.get("scheme", "")),
        **{name: _number(entry, name) for name in SchemeRow.__slots__ if name != "scheme"},
    )


def _table(run: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = run.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(table: Mapping[str, object], name: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        return math.nan
    return float(value)
