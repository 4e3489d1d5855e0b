"""What the parsers share: `label: value` lines, and numbers with something around them. Nothing here raises."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]{1,16}\b|-?[0-9]{1,20}")


def labelled(text: str) -> Iterator[tuple[str, str]]:
    """Yield label and value of every line that has a colon, stripped; the value may be empty (a heading)."""
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        if colon:
            yield label.strip(), value.strip()


def integer(text: str) -> int | None:
    """Return the whole number that `text` begins with (`0x` too); `None` for `n/a` and the like."""
    match = _INTEGER.match(text.strip())
    return int(match.group(), 0 if match.group().lower().startswith("0x") else 10) if match else None


def number(text: str) -> float | None:
    """Return the first finite number in `text`: `0.7943 mW / -1.00 dBm` is 0.7943."""
    match = _NUMBER.search(text)
    value = float(match.group()) if match else math.nan
    return value if math.isfinite(value) else None


def switch(text: str) -> bool | None:
    """Return what `on`, `off`, `yes`, `no` say; `None` for anything else."""
    words = text.lower().split()
    return {"on": True, "yes": True, "off": False, "no": False}.get(words[0] if words else "")
