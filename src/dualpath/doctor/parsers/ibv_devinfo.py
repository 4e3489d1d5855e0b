"""`ibv_devinfo -v` (rdma-core's ibverbs-utils): RDMA devices and their ports, with the path MTU in use."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PAIR = re.compile(r"\s*([A-Za-z_][\w ]{0,40}?):\s*(.*)")
_GID = re.compile(r"\s*GID\[\s*(\d{1,4})\]:\s*([0-9a-fA-F:.]{2,45})(?:,\s*(.*))?", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(slots=True)
class VerbsPort:
    """One port. `None` and empty mean that it is not said."""

    port: int
    state: str = ""
    """`PORT_ACTIVE`, `PORT_DOWN`, `PORT_INIT`, …"""
    link_layer: str = ""
    active_mtu: int | None = None
    """Payload bytes of one RDMA packet, as the link allows now."""
    max_mtu: int | None = None
    active_width: str = ""
    """`4X`."""
    active_speed: str = ""
    """Of one lane: `25.0 Gbps`."""
    physical_state: str = ""
    gids: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By index: address, and `RoCE v1`, `RoCE v2` or empty."""


@dataclass(slots=True)
class VerbsDevice:
    """One RDMA device."""

    name: str
    transport: str = ""
    firmware: str = ""
    board_id: str = ""
    ports: dict[int, VerbsPort] = field(default_factory=dict)


def parse_ibv_devinfo(text: str) -> dict[str, VerbsDevice]:
    """Return the devices by name."""
    devices: dict[str, VerbsDevice] = {}
    device: VerbsDevice | None = None
    port: VerbsPort | None = None
    for line in text.splitlines():
        gid = _GID.match(line)
        pair = _PAIR.match(line)
        if gid and port is not None:
            port.gids[int(gid[1])] = (gid[2], (gid[3] or "").strip())
        elif pair and pair[1] == "hca_id" and pair[2]:
            device, port = devices.setdefault(pair[2].strip(), VerbsDevice(pair[2].strip())), None
        elif pair and device is not None:
            number = _NUMBER.fullmatch(pair[2].strip())
            if pair[1] == "port" and number:
                port = device.ports.setdefault(int(number[0]), VerbsPort(int(number[0])))
            elif port is not None:
                _of_port(port, pair[1], pair[2])
            else:
                _of_device(device, pair[1], pair[2])
    return devices


def _of_device(device: VerbsDevice, key: str, value: str) -> None:
    match key:
        case "transport":
            device.transport = value.partition(" (")[0]
        case "fw_ver":
            device.firmware = value.strip()
        case "board_id":
            device.board_id = value.strip()


def _of_port(port: VerbsPort, key: str, value: str) -> None:
    word = value.partition(" (")[0].strip()
    number = _NUMBER.match(value)
    match key:
        case "state":
            port.state = word
        case "link_layer":
            port.link_layer = word
        case "active_mtu":
            port.active_mtu = int(number[0]) if number else None
        case "max_mtu":
            port.max_mtu = int(number[0]) if number else None
        case "active_width":
            port.active_width = word
        case "active_speed":
            port.active_speed = word
        case "phys_state":
            port.physical_state = word
