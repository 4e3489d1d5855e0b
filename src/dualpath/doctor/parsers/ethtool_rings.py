"""`ethtool -g NIC`: how many descriptors the receive and transmit rings have, and could have."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.doctor.parsers.labels import integer, labelled


@dataclass(frozen=True, slots=True)
class Rings:
    """Descriptors per ring; `None` for what was not said (`n/a`)."""

    rx: int | None = None
    tx: int | None = None
    rx_max: int | None = None
    tx_max: int | None = None


def parse_rings(text: str) -> Rings:
    """Return the sizes. Both sections have the labels `RX` and `TX`; the headings tell them apart."""
    section, found = "", dict[str, int | None]()
    for label, value in labelled(text):
        heading = label.lower()
        if heading.startswith("pre-set maximum"):
            section = "_max"
        elif heading.startswith("current hardware"):
            section = "now"
        elif heading in ("rx", "tx") and section:
            found[heading + section.removeprefix("now")] = integer(value)
    return Rings(rx=found.get("rx"), tx=found.get("tx"), rx_max=found.get("rx_max"), tx_max=found.get("tx_max"))
