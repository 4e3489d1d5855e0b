"""Link rates as people write them: `1Gbit`, `200Mbit`. Always decimal, as link speeds are."""

from __future__ import annotations

import re

from dualpath.errors import UsageError

_SCALE = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+?)(?:/s|ps)?\s*")


def parse_rate(text: str) -> int:
    """Return the bits per second that `text` names: `2.5Gbit` is 2,500,000,000. Raises `UsageError`."""
    match = _RATE.fullmatch(text)
    scale = _SCALE.get(match.group(2).lower()) if match else None
    bits_per_s = round(float(match.group(1)) * scale) if match and scale else 0
    if bits_per_s <= 0:
        raise UsageError(f"not a rate: {text!r}", hint="write it like 1Gbit, 200Mbit or 2.5Gbit")
    return bits_per_s


def format_rate(bits_per_s: float) -> str:
    """Return a rate with three digits and its unit: `940 Mbit/s`."""
    for unit, scale in (("Tbit", 10**12), ("Gbit", 10**9), ("Mbit", 10**6), ("kbit", 10**3)):
        if bits_per_s >= 0.9995 * scale:
            return f"{bits_per_s / scale:.3g} {unit}/s"
    return f"{bits_per_s:.0f} bit/s"
