"""`lspci -vvv` (each device with its links, ACS control, NUMA node) and `lspci -tv` (the tree of bridges).

Seen of pciutils 3.5 (no notes behind speed and width) to 3.13 (`(downgraded)`, `(ok)`, `IOMMU group`). Without root's
rights capabilities read `<access denied>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualpath.host.pci import PcieLink

_HEAD = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:]{1,80}): (.*)")
_RATE = re.compile(r"Speed (\d{1,3}(?:\.\d{1,2})?)GT/s[^,]*, Width x(\d{1,2})\b")
_DECIMAL = re.compile(r"\d{1,6}\b", re.ASCII)
_FLAG = re.compile(r"([A-Za-z]+)([+-])(?=\s|$)")

_DRAWN = re.compile(r"[-+|\\ ]*")
_BUS = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]")
_FUNCTION = re.compile(r"([0-9a-f]{2}\.[0-7])(?![0-9a-f])")


@dataclass(slots=True)
class LspciDevice:
    """What `lspci -vvv` says of one function. `None` means that it does not say."""

    address: str
    """With its domain: `0000:3b:00.0`."""
    class_name: str
    """`Ethernet controller`, `PCI bridge`, `3D controller`, …"""
    name: str
    port_type: str = ""
    """`Endpoint`, `Root Port`, `Upstream Port`, `Downstream Port`."""
    capable: PcieLink | None = None
    trained: PcieLink | None = None
    downgraded: bool = False
    """Whether lspci itself says `(downgraded)`."""
    acs: dict[str, bool] | None = None
    """ACS control bits: `SrcValid`, `ReqRedir`, `CmpltRedir`, `UpstreamFwd`, `DirectTrans`, …"""
    numa_node: int | None = None
    iommu_group: int | None = None
    driver: str = ""
    part_number: str = ""
    denied: bool = False
    """Whether capabilities were hidden for want of root's rights."""


def parse_lspci(text: str) -> dict[str, LspciDevice]:
    """Return the devices of `lspci -vvv`, with or without `-D` and `-nn`, by address."""
    devices: dict[str, LspciDevice] = {}
    device: LspciDevice | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            address = head[1] if head[1].count(":") == 2 else f"0000:{head[1]}"
            device = devices[address] = LspciDevice(address, re.sub(r" \[[0-9a-f]{4}\]$", "", head[2]), head[3].strip())
        elif device is not None:
            _detail(device, line.strip())
    return devices


def parse_lspci_tree(text: str) -> dict[str, tuple[str, ...]]:
    """Return, by address, the bridges above each function of `lspci -tv`, the root port first.

    The drawing is read by columns: what stands further right than a bridge, below it, hangs off that bridge.
    """
    paths: dict[str, tuple[str, ...]] = {}
    open_: list[tuple[int, str, str]] = []  # column, "bus" or "function", `0000:3b` or `0000:3a:01.0`
    for line in text.splitlines():
        at = _DRAWN.match(line).end()  # type: ignore[union-attr]  # the pattern matches the empty string
        while open_ and open_[-1][0] >= at:
            open_.pop()
        while at < len(line):
            bus, function = _BUS.match(line, at), _FUNCTION.match(line, at)
            above = next((value for _, kind, value in reversed(open_) if kind == "bus"), None)
            if bus:
                domain = bus[1] or (above.partition(":")[0] if above else "0000")
                open_.append((at, "bus", f"{domain}:{bus[2]}"))
                at = bus.end()
            elif function and above:
                address = f"{above}:{function[1]}"
                paths[address] = tuple(value for _, kind, value in open_ if kind == "function")
                open_.append((at, "function", address))
                at = function.end()
                if not line.startswith("-", at):  # what follows is the device's name
                    break
            else:
                break
            at = _DRAWN.match(line, at).end()  # type: ignore[union-attr]  # as above
    return paths


def _detail(device: LspciDevice, line: str) -> None:
    key, colon, value = line.partition(":")
    value = value.strip()
    match key:
        case "LnkCap":
            device.capable = device.capable or _rate(value)
        case "LnkSta":
            device.trained = device.trained or _rate(value)
            device.downgraded = device.downgraded or "(downgraded)" in value
        case "ACSCtl":
            device.acs = {name: sign == "+" for name, sign in _FLAG.findall(value)}
        case "NUMA node":
            device.numa_node = _integer(value)
        case "IOMMU group":
            device.iommu_group = _integer(value)
        case "Kernel driver in use":
            device.driver = value
        case "[PN] Part number":
            device.part_number = value
        case "Capabilities" if "access denied" in value:
            device.denied = True
        case "Capabilities" if colon and (express := re.search(r"Express (?:\(v\d\) )?([A-Z][A-Za-z -]{2,40})", value)):
            device.port_type = express[1].strip()


def _rate(text: str) -> PcieLink | None:
    rate = _RATE.search(text)
    return PcieLink(float(rate[1]), int(rate[2])) if rate and int(rate[2]) else None


def _integer(text: str) -> int | None:
    number = _DECIMAL.match(text)
    return int(number[0]) if number else None
