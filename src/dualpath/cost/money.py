"""Prices to cost per token. US dollars, or whatever the prices are in."""

from __future__ import annotations

HOURS_PER_YEAR = 8766
"""365.25 days."""


def per_hour(price: float, lifetime_years: float) -> float:
    """Return the hourly cost of something bought at `price` and written off evenly over its lifetime."""
    return price / (lifetime_years * HOURS_PER_YEAR)


def per_million_tokens(cost_per_hour: float, tokens_per_s: float) -> float:
    """Return the cost of 10^6 output tokens of a deployment that is never idle."""
    return cost_per_hour / (tokens_per_s * 3600) * 1e6
