"""Byte counts as people write them. Binary units are powers of 1024 (KiB, MiB, GiB), decimal of 1000 (KB, MB, GB)."""

from __future__ import annotations

import re

from dualpath.errors import UsageError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SCALE = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SCALE[f"{_letter}ib"] = 1024**_power
    _SCALE[f"{_letter}b"] = 1000**_power
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return the bytes that `text` names: `64MiB` = 67,108,864; `64MB` = 64,000,000; a bare number is bytes.

    Raises `UsageError` for anything else; `64M` is refused, since it does not say binary or decimal.
    """
    if isinstance(text, int):
        return text
    match = _NUMBER.fullmatch(text)
    scale = _SCALE.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        raise UsageError(f"not a size: {text!r}", hint="write it like 64MiB (binary) or 64MB (decimal)")
    return int(float(match.group(1)) * scale)


def format_bytes(count: float) -> str:
    """Return `count` bytes in binary units with three digits, four from 1000 on: `16 MiB`, `1020 KiB`."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    digits = f"{value:.0f}" if unit == 0 or abs(value) >= 999.5 else f"{value:.3g}"
    return f"{digits} {_BINARY[unit]}"
