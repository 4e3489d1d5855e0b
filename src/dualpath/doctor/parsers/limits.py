"""`/proc/PID/limits` and the capabilities in `/proc/PID/status`."""

from __future__ import annotations

import re

CAPABILITIES = {"NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24}
"""Bits of `CapEff`, by include/uapi/linux/capability.h; only those that matter to RDMA, pinned memory and tuning."""

_LIMIT = re.compile(r"(Max [a-z ]+?)\s{2,}(unlimited|[0-9]{1,20})\s+(unlimited|[0-9]{1,20})(?:\s+\S+)?\s*")


def parse_limits(text: str) -> dict[str, tuple[int | None, int | None]]:
    """Return soft and hard limit by name (`Max locked memory`), in the unit printed; `None` is unlimited."""
    return {
        match.group(1): (_amount(match.group(2)), _amount(match.group(3)))
        for line in text.splitlines()
        if (match := _LIMIT.fullmatch(line.strip()))
    }


def parse_capabilities(text: str) -> frozenset[str] | None:
    """Return which of `CAPABILITIES` are in effect, out of `/proc/PID/status`; `None` if it does not say."""
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})\s*$", text, re.MULTILINE)
    if match is None:
        return None
    mask = int(match.group(1), 16)
    return frozenset(name for name, bit in CAPABILITIES.items() if mask >> bit & 1)


def _amount(text: str) -> int | None:
    return None if text == "unlimited" else int(text)
