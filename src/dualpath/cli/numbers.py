"""Options that are lists of numbers."""

from __future__ import annotations

import math

from dualpath.cli.output import words
from dualpath.errors import UsageError


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Return the numbers between the commas of `text`. Raises `UsageError`, which names `option`."""
    try:
        found = tuple(float(word) for word in words(text))
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise UsageError(f"{option} is {text!r}, not numbers", hint=f"write it like {option} 0.5,1")
    return found


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """As `numbers`, of whole ones."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(f"{option} is {text!r}, not whole numbers", hint=f"write it like {option} 1,2") from None
