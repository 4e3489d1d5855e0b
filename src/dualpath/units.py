"""Byte counts and rates as people write them.

Binary units are powers of 1024 (KiB, MiB, GiB), decimal of 1000 (KB, MB, GB). Rates are decimal, as links are sold.
"""

from __future__ import annotations

import re

from dualpath.errors import UsageError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SCALE = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SCALE[f"{_letter}ib"] = 1024**_power
    _SCALE[f"{_letter}b"] = 1000**_power
_BIT_SCALE = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_BIT_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+?)(?:/s|ps)?\s*")
_DECIMAL = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
LARGEST_BYTES = 1 << 62
"""What a size may be at most."""


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
    count = float(match.group(1)) * scale
    if count > LARGEST_BYTES:
        raise UsageError(f"{text.strip()[:40]} is more than any machine has", hint=f"at most {LARGEST_BYTES} bytes")
    return int(count)


def format_bytes(count: float) -> str:
    """Return `count` bytes in binary units with three digits, four from 1000 on: `16 MiB`, `1020 KiB`."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{three_digits(value)} {_BINARY[unit]}"


def three_digits(value: float) -> str:
    """Return `value` with three digits, or all of its whole part where that has more: `1.37`, `55`, `1020`."""
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def parse_bits_per_s(text: str) -> int:
    """Return the bits per second that `text` names: `2.5Gbit` and `2.5 Gbit/s` are 2,500,000,000.

    Raises `UsageError` for anything else; `1G` is refused, since it does not say bits or bytes.
    """
    match = _BIT_RATE.fullmatch(text)
    scale = _BIT_SCALE.get(match.group(2).lower()) if match else None
    bits_per_s = round(float(match.group(1)) * scale) if match and scale else 0
    if bits_per_s <= 0:
        raise UsageError(f"not a rate: {text!r}", hint="write it like 1Gbit, 200Mbit or 2.5Gbit")
    return bits_per_s


def format_bits_per_s(bits_per_s: float) -> str:
    """Return a rate of a link with three digits: `940 Mbit/s`, `51.2 Gbit/s`."""
    return _format_rate(bits_per_s, "bit/s")


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Return a rate over memory or of a link with three digits: `850 MB/s`, `6.4 GB/s`, `1.37 TB/s`."""
    return _format_rate(bytes_per_s, "B/s")


def _format_rate(value: float, unit: str) -> str:
    for letter, scale in _DECIMAL:
        if value >= 0.9995 * scale:
            return f"{three_digits(value / scale)} {letter}{unit}"
    return f"{value:.0f} {unit}"
