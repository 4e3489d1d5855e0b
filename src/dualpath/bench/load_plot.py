"""One picture of a load, for pages that take images only: time per token of each variant, an SVG of its own. Pure."""

from __future__ import annotations

from typing import Any

from dualpath.page import COLOURS
from dualpath.plots import bars

_NAME_WIDTH = 150
_STYLE = "text { font: 13px system-ui, sans-serif; fill: var(--soft); } .name { fill: var(--ink); }"


def load_svg(result: dict[str, Any]) -> str:
    """Return TPOT P50 and P99 of every variant in milliseconds, of what `run_load` returned. Follows the theme."""
    rows = [
        (row["variant"], f"var(--s{number % 9})", [("P50", row["tpot_ms_p50"]), ("P99", row["tpot_ms_p99"])])
        for number, row in enumerate(result["variants"])
    ]
    drawn = bars(rows, form=lambda value: f"{value:,.0f} ms", left=_NAME_WIDTH)
    end = drawn.index(">") + 1
    return f"{drawn[:end]}<style>{COLOURS}{_STYLE}</style>{drawn[end:]}\n"
