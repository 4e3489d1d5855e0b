"""`dcb pfc|ets|app|buffer|apptrust show dev NIC` (iproute2 5.11 and later), plain or `-j`.

Plain output is `name key:value key:value ...`, of which versions break the lines differently; DSCPs are numbers with
`-N` and names (`AF31`, `CS6`, `EF`) without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

DSCP_NAMES = {
    "default": 0,
    "EF": 46,
    "VA": 44,
    "LE": 1,
    **{f"CS{n}": 8 * n for n in range(8)},
    **{f"AF{c}{d}": 8 * c + 2 * d for c in range(1, 5) for d in range(1, 4)},
}
"""RFC 2474, 2597, 3246, 5865, 8622, as `/etc/iproute2/rt_dsfield` names them."""

_PAIR = re.compile(r"^([A-Za-z0-9]+):([A-Za-z0-9.]+)$")


def parse_pfc(text: str) -> frozenset[int] | None:
    """Return the priorities with PFC; `None` if it does not say."""
    pairs = [(key, value) for key, value in _pairs(text, "prio-pfc") if key.isdigit()]
    return frozenset(int(key[:3]) for key, value in pairs if value in ("on", "true", "True")) if pairs else None


def parse_dscp_priorities(text: str) -> dict[int, int]:
    """Return priority by DSCP, out of `dcb app show`; empty if no DSCP is mapped."""
    found = {}
    for key, value in _pairs(text, "dscp-prio"):
        dscp = DSCP_NAMES.get(key, DSCP_NAMES.get(key.upper()))
        if dscp is None and key.isdigit():
            dscp = int(key[:4])
        if dscp is not None and dscp < 64 and value.isdigit():
            found[dscp] = int(value[:2])
    return found


def parse_default_priority(text: str) -> int | None:
    """Return the priority of what nothing else sorts, out of `dcb app show`."""
    match = re.search(r"\bdefault-prio\s+([0-7])\b", text)
    return int(match.group(1)) if match else None


def parse_prio_tc(text: str) -> dict[int, int]:
    """Return traffic class by priority, out of `dcb ets show`."""
    return _numbers(text, "prio-tc")


def parse_tc_bandwidth(text: str) -> dict[int, int]:
    """Return percent by traffic class, out of `dcb ets show`."""
    return _numbers(text, "tc-bw")


def parse_tc_algorithms(text: str) -> dict[int, str]:
    """Return `ets`, `strict`, `cbs` or `vendor` by traffic class, out of `dcb ets show`."""
    return {int(key[:3]): value for key, value in _pairs(text, "tc-tsa") if key.isdigit()}


def parse_prio_buffer(text: str) -> dict[int, int]:
    """Return buffer by priority, out of `dcb buffer show`."""
    return _numbers(text, "prio-buffer")


def parse_buffer_bytes(text: str) -> dict[int, int]:
    """Return bytes by buffer, out of `dcb buffer show`; `262016b`, `256Kb` and `16KiB` are all understood."""
    found = {}
    for key, value in _pairs(text, "buffer-size"):
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(?:([KkMm])(i?))?[Bb]?(?:ytes)?", value)
        if key.isdigit() and match:
            scale = {"": 1, "k": 1000, "m": 1000_000}[(match.group(2) or "").lower()]
            if match.group(3):
                scale = {1000: 1024, 1000_000: 1024**2}[scale]
            found[int(key[:3])] = int(float(match.group(1)) * scale)
    return found


def parse_trust(text: str) -> tuple[str, ...]:
    """Return in which order headers are trusted (`dscp`, `pcp`), out of `dcb apptrust show`."""
    match = re.search(r"\border:?\s+((?:(?:ethtype|stream-port|dgram-port|port|dscp|pcp)\b[ \t]*)+)", text)
    return tuple(match.group(1).split()) if match else ()


def _numbers(text: str, table: str) -> dict[int, int]:
    return {int(key[:3]): int(value[:9]) for key, value in _pairs(text, table) if key.isdigit() and value.isdigit()}


def _pairs(text: str, table: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of the words after `table`, up to the first word that is no pair."""
    words = iter(text.split())
    for word in words:
        if word.rstrip(":") != table:
            continue
        for pair in words:
            match = _PAIR.match(pair) if pair.isascii() else None
            if match is None:
                break
            yield match.group(1), match.group(2)
        return
