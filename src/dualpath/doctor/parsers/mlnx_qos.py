"""`mlnx_qos -i NIC` (package mlnx-tools, or DOCA-OFED): trust, priorities, PFC and buffers of a ConnectX."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TC = re.compile(r"tc:\s*([0-9]{1,2})\b(?:.*\btsa:\s*(\w+))?(?:.*\bbw:\s*([0-9]{1,3})%)?", re.IGNORECASE)
_DSCP = re.compile(r"prio:\s*([0-7])\s+dscp:([0-9,\s]*)", re.IGNORECASE)
_PRIORITY = re.compile(r"priority:\s+([0-7])\s*", re.IGNORECASE)
_ROW = re.compile(r"(enabled|buffer)\s+((?:[0-9]+\s+){7}[0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """`tsa`: ets, strict or vendor; `percent`: the guaranteed share, `None` for strict."""

    tsa: str
    percent: int | None


@dataclass(frozen=True, slots=True)
class MlnxQos:
    """What was not said is empty or `None`."""

    dcbx: str = ""
    """`os` or `firmware`: who may change these settings."""
    trust: str = ""
    """`dscp`, `pcp` or `both`."""
    priority_of_dscp: dict[int, int] = field(default_factory=dict)
    pfc: frozenset[int] | None = None
    """Priorities that are lossless."""
    buffer_of_priority: tuple[int, ...] = ()
    buffer_bytes: tuple[int, ...] = ()
    class_of_priority: dict[int, int] = field(default_factory=dict)
    classes: dict[int, TrafficClass] = field(default_factory=dict)


def parse_mlnx_qos(text: str) -> MlnxQos:
    """Return the settings. The DSCP table is printed only with trust `dscp`, buffers only by ConnectX-5 and later."""
    rows: dict[str, tuple[int, ...]] = {}
    priorities: dict[int, int] = {}
    classes: dict[int, TrafficClass] = {}
    class_of: dict[int, int] = {}
    current: int | None = None
    for line in text.splitlines():
        if match := _DSCP.search(line):
            priorities.update(dict.fromkeys(_integers(match.group(2), ","), int(match.group(1))))
        elif match := _ROW.fullmatch(line.strip()):
            rows[match.group(1).lower()] = tuple(_integers(match.group(2), None))
        elif match := _TC.match(line.strip()):
            current = int(match.group(1))
            classes[current] = TrafficClass(
                (match.group(2) or "").lower(), int(match.group(3)) if match.group(3) else None
            )
        elif (match := _PRIORITY.fullmatch(line.strip())) and current is not None:
            class_of[int(match.group(1))] = current
    trust = re.search(r"Priority trust (?:state|mode):\s*(\w+)", text, re.IGNORECASE)
    dcbx = re.search(r"DCBX mode:\s*(\w+)", text, re.IGNORECASE)
    buffers = re.search(r"Receive buffer size \(bytes\):\s*([0-9,]+)", text, re.IGNORECASE)
    return MlnxQos(
        dcbx=dcbx.group(1).lower() if dcbx else "",
        trust=trust.group(1).lower() if trust else "",
        priority_of_dscp=priorities,
        pfc=frozenset(p for p, on in enumerate(rows["enabled"]) if on) if "enabled" in rows else None,
        buffer_of_priority=rows.get("buffer", ()),
        buffer_bytes=tuple(_integers(buffers.group(1), ","))[:8] if buffers else (),
        class_of_priority=class_of,
        classes=classes,
    )


def _integers(text: str, separator: str | None) -> list[int]:
    words = (word.strip() for word in text.split(separator))
    return [int(word[:12]) for word in words if word.isascii() and word.isdigit()]
