"""Numbers as people write them in a plan: tokens, seconds, money. See also `units` and `plan.hardware`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dualpath.errors import UsageError
from dualpath.units import three_digits

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*")
MOST_TOKENS = 1 << 40
_TOKENS = {"": 1, "k": 1 << 10, "ki": 1 << 10, "m": 1 << 20, "mi": 1 << 20}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_FLOP = {"": 1.0, "g": 1e9, "t": 1e12, "p": 1e15}


def parse_tokens(text: str | float) -> int:
    """Return a number of tokens: `128K` is 131,072 and `1M` is 1,048,576 (contexts are sold in binary units)."""
    hint = "write it like 131072, 128K (x 1024) or 1M (x 1024 x 1024)"
    found = _parse(text, _TOKENS, "a number of tokens", hint)
    if found > MOST_TOKENS:
        raise UsageError(f"{text} tokens?", hint=hint)
    return int(found)


def parse_seconds(text: str | float) -> float:
    """Return seconds: `16us`, `20ms`, `10s`, `10`."""
    return _parse(text, _SECONDS, "a time", "write it like 20ms, 16us or 10s")


def parse_flop_per_s(text: str | float) -> float:
    """Return FLOP per second: `3T` is 3e12."""
    return _parse(text, _FLOP, "a rate of arithmetic", "write it like 500G, 3T or 3e12 (FLOP per second)")


def _parse(text: str | float, units: Mapping[str, float], what: str, hint: str) -> float:
    match = _NUMBER.fullmatch(str(text))
    scale = units.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        raise UsageError(f"not {what}: {text!r}", hint=hint)
    found = float(match.group(1)) * scale
    if not math.isfinite(found):
        raise UsageError(f"not {what}: {text!r}", hint=hint)
    return found


def seconds(value: float) -> str:
    """Return a time with three digits in the unit that suits: `45 ms`, `1.37 s`, `16 us`, `2.5 h`, or `for ever`."""
    if math.isinf(value):
        return "for ever"
    if value >= 1000:
        return f"{three_digits(value / 3600)} h"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{three_digits(value / scale)} {unit}"
    return f"{three_digits(value / 1e-6)} us"


def plural(count: int, name: str) -> str:
    """Return a count and what is counted: `1 node`, `4 nodes`."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")
