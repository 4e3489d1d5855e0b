"""`ibstat` (infiniband-diags): state and rate of every port of every channel adapter."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CA = re.compile(r"\s*CA '([^']{1,64})'")
_PORT = re.compile(r"\s*Port (\d{1,3}):\s*$", re.ASCII)
_RATE = re.compile(r"\d{1,5}(?:\.\d{1,2})?", re.ASCII)


@dataclass(slots=True)
class IbstatPort:
    """One port. `None` and empty mean that it is not said."""

    device: str
    port: int
    model: str = ""
    firmware: str = ""
    state: str = ""
    """`Active`, `Down`, `Initializing`, …"""
    physical_state: str = ""
    """`LinkUp`, `Polling`, `Disabled`, …"""
    rate_bits_per_s: float | None = None
    link_layer: str = ""


def parse_ibstat(text: str) -> list[IbstatPort]:
    """Return the ports in the order printed."""
    ports: list[IbstatPort] = []
    device, model, firmware = "", "", ""
    port: IbstatPort | None = None
    for line in text.splitlines():
        adapter, number = _CA.match(line), _PORT.match(line)
        key, _, value = (part.strip() for part in line.partition(":"))
        if adapter:
            device, model, firmware, port = adapter[1], "", "", None
        elif number and device:
            port = IbstatPort(device, int(number[1]), model, firmware)
            ports.append(port)
        elif port is not None:
            _of_port(port, key, value)
        elif key == "CA type":
            model = value
        elif key == "Firmware version":
            firmware = value
    return ports


def _of_port(port: IbstatPort, key: str, value: str) -> None:
    match key:
        case "State":
            port.state = value
        case "Physical state":
            port.physical_state = value
        case "Rate":
            rate = _RATE.match(value)
            port.rate_bits_per_s = float(rate[0]) * 1e9 if rate else None
        case "Link layer":
            port.link_layer = value
