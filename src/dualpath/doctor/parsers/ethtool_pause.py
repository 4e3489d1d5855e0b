"""`ethtool -a NIC`: link-wide pause (IEEE 802.3x), which stops all priorities at once; PFC is another setting."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.doctor.parsers.labels import labelled, switch


@dataclass(frozen=True, slots=True)
class Pause:
    """`None` for what was not said."""

    autonegotiate: bool | None = None
    rx: bool | None = None
    tx: bool | None = None


def parse_pause(text: str) -> Pause:
    """Return the settings; what was negotiated counts more than what was asked for (newer ethtool says both)."""
    found: dict[str, bool | None] = {label.lower(): switch(value) for label, value in labelled(text)}
    return Pause(
        autonegotiate=found.get("autonegotiate"),
        rx=found.get("rx negotiated", found.get("rx")),
        tx=found.get("tx negotiated", found.get("tx")),
    )
