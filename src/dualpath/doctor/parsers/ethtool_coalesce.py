"""`ethtool -c NIC`: how long a NIC collects packets before it interrupts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualpath.doctor.parsers.labels import integer, labelled, switch


@dataclass(frozen=True, slots=True)
class Coalesce:
    """`None` for what was not said or does not apply (`n/a`)."""

    adaptive_rx: bool | None = None
    adaptive_tx: bool | None = None
    rx_us: int | None = None
    rx_frames: int | None = None
    tx_us: int | None = None
    tx_frames: int | None = None


def parse_coalesce(text: str) -> Coalesce:
    """Return the settings. `Adaptive RX: on  TX: on` holds two on one line."""
    found = {label.lower(): integer(value) for label, value in labelled(text)}
    adaptive = re.search(r"Adaptive RX:[ \t]*(\S+)(?:[ \t]+TX:[ \t]*(\S+))?", text, re.IGNORECASE)
    return Coalesce(
        adaptive_rx=switch(adaptive.group(1)) if adaptive else None,
        adaptive_tx=switch(adaptive.group(2) or "") if adaptive else None,
        rx_us=found.get("rx-usecs"),
        rx_frames=found.get("rx-frames"),
        tx_us=found.get("tx-usecs"),
        tx_frames=found.get("tx-frames"),
    )
