"""`dualpath run --concurrency N`: many sequences at once, over each way of I/O."""

from __future__ import annotations

from typing import Any

from dualpath.cli.output import stdout_console, table
from dualpath.units import format_bytes

COLUMNS = (
    ("variant", "variant"),
    ("requests_per_s", "req/s"),
    ("ttft_s", "TTFT s"),
    ("tpot_ms_mean", "TPOT ms"),
    ("tpot_ms_p50", "P50"),
    ("tpot_ms_p99", "P99"),
    ("cpu_percent", "CPU %"),
    ("cpu_s_per_request", "CPU s/req"),
    ("stall_ms_per_step", "stall ms"),
    ("wire", "wire/step"),
    ("wasted", "wasted"),
    ("control_ms_p50", "control P50"),
    ("control_ms_p99", "control P99"),
    ("same", "same output"),
)

RATIOS = (
    ("throughput", "requests_per_s"),
    ("TTFT", "ttft_s"),
    ("TPOT", "tpot_ms_mean"),
    ("P50", "tpot_ms_p50"),
    ("P99", "tpot_ms_p99"),
    ("CPU per request", "cpu_s_per_request"),
)


def print_load(result: dict[str, Any]) -> None:
    """Print the table of a load, and its ratios to the first variant."""
    settings, rows = result["settings"], result["variants"]
    kind = "cold" if settings["cold"] else "prefix in the pool"
    table(
        f"{settings['concurrency']} sequences of {settings['context']:,} tokens, {kind}; "
        f"{settings['rounds']} rounds of {settings['new_tokens']} tokens; hot {format_bytes(settings['hot_bytes'])}",
        [title for _, title in COLUMNS],
        [[_cell(name, row) for name, _ in COLUMNS] for row in rows],
    )
    for row in rows[1:]:
        parts = [f"{title} {row[name] / rows[0][name]:.2f}" for title, name in RATIOS]
        stdout_console().print(f"{row['variant']} / {rows[0]['variant']}: {', '.join(parts)}", soft_wrap=True)
    for row in rows:
        if "over_quiet" in row:
            over = row["over_quiet"]
            beside = ", ".join(f"{title} {over[name]:.2f}" for title, name in RATIOS if name in over)
            stdout_console().print(
                f"{row['variant']}: {beside} of quiet; {row['prefill_tokens_per_s']:.0f} prompt tokens a second, "
                f"{row['prefills']} prompts of {settings['prefill_tokens']:,} tokens done",
                soft_wrap=True,
            )


def _cell(name: str, row: dict[str, Any]) -> object:
    if name == "wire":
        return format_bytes(row["wire_bytes_per_step"])
    if name == "wasted":
        return format_bytes(row["wasted_bytes"])
    if name == "same":
        return "yes" if row["identical"] else "no"
    return row[name]
