"""One figure over the rounds of a bench. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of a figure over all rounds, and its least and greatest value in one of them."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of the values that are there; `None` if there are none."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def ratios(over: Iterable[float | None], under: Iterable[float | None]) -> Spread | None:
    """Return the spread of `over / under` round by round, so that a machine that drifts hits both alike."""
    pairs = zip(over, under, strict=True)
    return spread(None if one is None or not other else one / other for one, other in pairs)
