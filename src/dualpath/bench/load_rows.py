"""From what was measured of a load to its rows: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.bench.rows import percentile


@dataclass(frozen=True, kw_only=True)
class Served:
    """One turn of one variant: all of its requests, served at once.

    `step_s`: of every step but the first, which `ttft_s` has. `tokens[i][s]`: token i of sequence s. Counters cover the
    whole turn; `stall_s` and `wire_bytes` the steps after the first. `prefill_tokens` of prompts that arrived meanwhile
    were computed; `prefill_s` are from arrival to end, of each prompt that was done.
    """

    ttft_s: float
    step_s: Sequence[float]
    wall_s: float
    cpu_s: float
    wire_bytes: int
    stall_s: float
    wasted_bytes: int
    peak_local_kv_bytes: int
    control_s: Sequence[float]
    control_failed: int
    tokens: Sequence[Sequence[int]]
    rail_bytes: Sequence[int]
    prefill_tokens: int = 0
    prefill_s: Sequence[float] = ()


BESIDE = "+prefill"
"""Ends the name of a row that decodes beside prompts; the row without it is quiet."""


def add_quiet(rows: Sequence[dict[str, Any]]) -> None:
    """Add to rows that decode beside prompts how their time per token compares with that of the quiet row."""
    by_name = {row["variant"]: row for row in rows}
    for name, row in by_name.items():
        quiet = by_name.get(name.removesuffix(BESIDE))
        if quiet is not None and quiet is not row:
            row["over_quiet"] = {
                field: row[field] / quiet[field] for field in ("tpot_ms_mean", "tpot_ms_p50", "tpot_ms_p99")
            }


def load_row(name: str, rounds: Sequence[Served], reference: Sequence[Served], concurrency: int) -> dict[str, Any]:
    """Return the row of one variant over its rounds. `reference` are the rounds of the variant it is compared with."""
    steps = [step for one in rounds for step in one.step_s]
    control = [trip for one in rounds for trip in one.control_s]
    wall_s = sum(one.wall_s for one in rounds)
    cpu_s = sum(one.cpu_s for one in rounds)
    requests = concurrency * len(rounds)
    count = max(1, len(steps))
    return {
        "variant": name,
        "requests_per_s": requests / wall_s,
        "tokens_per_s": concurrency * len(steps) / sum(steps),
        "ttft_s": sum(one.ttft_s for one in rounds) / len(rounds),
        "tpot_ms_mean": 1e3 * sum(steps) / count,
        "tpot_ms_p50": 1e3 * percentile(steps, 0.5),
        "tpot_ms_p99": 1e3 * percentile(steps, 0.99),
        "tpot_samples": concurrency * len(steps),
        "cpu_percent": 100 * cpu_s / wall_s,
        "cpu_s_per_request": cpu_s / requests,
        "stall_ms_per_step": 1e3 * sum(one.stall_s for one in rounds) / count,
        "wire_bytes_per_step": sum(one.wire_bytes for one in rounds) / count,
        "wasted_bytes": sum(one.wasted_bytes for one in rounds),
        "peak_local_kv_bytes": max(one.peak_local_kv_bytes for one in rounds),
        "control_ms_p50": 1e3 * percentile(control, 0.5) if control else None,
        "control_ms_p99": 1e3 * percentile(control, 0.99) if control else None,
        "control_failed": sum(one.control_failed for one in rounds),
        "identical": all(one.tokens == other.tokens for one, other in zip(rounds, reference, strict=True)),
        "rail_bytes": [sum(each) for each in zip(*(one.rail_bytes for one in rounds), strict=False)],
        "prefill_tokens_per_s": sum(one.prefill_tokens for one in rounds) / sum(steps),
        "prefills": sum(len(one.prefill_s) for one in rounds),
        "round_tpot_ms_mean": [round(1e3 * sum(one.step_s) / max(1, len(one.step_s)), 2) for one in rounds],
    }
