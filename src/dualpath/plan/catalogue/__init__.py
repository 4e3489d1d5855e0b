"""Models, GPUs and NICs as data: one TOML file of a kind, read when first asked for, every entry with its source."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from dualpath.errors import UnknownModelError, UsageError


@cache
def _table(kind: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(f"{kind}.toml").read_text(encoding="utf-8"))


def names(kind: str) -> tuple[str, ...]:
    """Return the names of all entries of a kind: `models`, `gpus` or `nics`."""
    return tuple(_table(kind))


def entry(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return an entry's name as written in the catalogue, and its values; upper or lower case is the same.

    Raises `UsageError` (`UnknownModelError` for a model) with the names that come close.
    """
    spelt = {known.lower(): known for known in _table(kind)}
    found = spelt.get(name.strip().lower())
    if found is not None:
        return found, dict(_table(kind)[found])
    near = [spelt[match] for match in difflib.get_close_matches(name.lower(), spelt, n=4, cutoff=0.4)]
    error = UnknownModelError if kind == "models" else UsageError
    raise error(
        f"no {name!r} among the {kind} of the catalogue", hint=f"close: {', '.join(near)}" if near else _all(spelt)
    )


def _all(spelt: dict[str, str]) -> str:
    return f"known: {', '.join(sorted(spelt.values()))}"
