"""Figures over the rounds of a bench, as tables and lines show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dualpath.cli.output import shown, stdout_console

if TYPE_CHECKING:
    from dualpath.bench.spread import Spread


def median_of(value: Spread | None, scale: float) -> float | None:
    """Return the median of a figure over rounds, times `scale`, for a table."""
    return None if value is None else value.median * scale


def range_of(value: Spread | None, scale: float) -> str | None:
    """Return the least and the greatest round of a figure, times `scale`, for a table."""
    return None if value is None else f"{shown(value.low * scale)} to {shown(value.high * scale)}"


def print_ratios(ratios: Mapping[str, Spread | None]) -> None:
    """Print a line for each ratio that is known, by its title: the median, and the least and the greatest round."""
    for title, ratio in ratios.items():
        if ratio is not None:
            stdout_console().print(
                f"{title}: {shown(ratio.median)}  ({range_of(ratio, 1.0)} by round)", markup=False, soft_wrap=True
            )
