"""PCI devices of a host, as sysfs shows them (Documentation/ABI/testing/sysfs-bus-pci of the kernel).

A device's path is read off its link: `/sys/bus/pci/devices/0000:3b:00.0` points to
`../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0`, bridges from the root down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualpath.host.tree import Tree

PCI_DEVICES = "/sys/bus/pci/devices"

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_LANE_BYTES_PER_S = {
    2.5: 2.5e9 / 8 * 8 / 10,
    5.0: 5e9 / 8 * 8 / 10,
    8.0: 8e9 / 8 * 128 / 130,
    16.0: 16e9 / 8 * 128 / 130,
    32.0: 32e9 / 8 * 128 / 130,
    64.0: 64e9 / 8 * 236 / 256,
}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True, slots=True, order=True)
class PcieLink:
    """A PCIe link's speed and width, as trained or as capable."""

    gt_per_s: float
    width: int

    @property
    def generation(self) -> int | None:
        """Return 1 to 6; `None` for a speed that no generation has."""
        return _GENERATIONS.get(self.gt_per_s)

    @property
    def bytes_per_s(self) -> float | None:
        """Return what the link carries one way, after line coding and before TLP headers (5 to 15 % more).

        PCI Express Base Specification: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 236 TLP bytes in each flit of 256
        at 64 GT/s. Gen3 x4 is 3.94e9.
        """
        lane = _LANE_BYTES_PER_S.get(self.gt_per_s)
        return None if lane is None else lane * self.width

    def __str__(self) -> str:
        speed = f"Gen{self.generation}" if self.generation else f"{self.gt_per_s:g} GT/s"
        return f"{speed} x{self.width}"


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function. `None` means that the kernel does not say."""

    address: str
    """Such as `0000:3b:00.0`."""
    class_code: int | None
    """Base class, subclass and interface: 0x020000 is Ethernet, 0x030200 a GPU without display, 0x060400 a bridge."""
    vendor: int | None
    device: int | None
    driver: str | None
    numa_node: int | None
    bridges: tuple[str, ...]
    """Addresses of the bridges above it, the root port first; empty also where the path is not known."""
    trained: PcieLink | None
    capable: PcieLink | None


def pci_devices(tree: Tree) -> list[PciDevice]:
    """Return every PCI function, by address."""
    return [pci_device(tree, name) for name in tree.names(PCI_DEVICES) if _ADDRESS.fullmatch(name)]


def pci_device(tree: Tree, address: str) -> PciDevice:
    """Return the function at `address`; what cannot be read is `None`."""
    base = f"{PCI_DEVICES}/{address}"
    path = _ADDRESS.findall(tree.link(base) or "")
    driver = tree.link(f"{base}/driver")
    node = _number(tree.read(f"{base}/numa_node"), 10)
    return PciDevice(
        address=address,
        class_code=_number(tree.read(f"{base}/class"), 16),
        vendor=_number(tree.read(f"{base}/vendor"), 16),
        device=_number(tree.read(f"{base}/device"), 16),
        driver=driver.rpartition("/")[2] if driver else None,
        numa_node=node if node is not None and node >= 0 else None,
        bridges=tuple(path[:-1]) if path and path[-1] == address else (),
        trained=_link(tree, base, "current"),
        capable=_link(tree, base, "max"),
    )


def _link(tree: Tree, base: str, which: str) -> PcieLink | None:
    # "16.0 GT/s PCIe" since 5.7, "16 GT/s" before; what has no link (a virtual function): "Unknown", width 0 or 255
    speed = re.match(r"\s*([\d.]{1,8})\s*GT/s", tree.read(f"{base}/{which}_link_speed") or "")
    width = _number(tree.read(f"{base}/{which}_link_width"), 10)
    if not speed or width is None or not 0 < width <= 32:
        return None
    try:
        return PcieLink(float(speed[1]), width)
    except ValueError:
        return None


def _number(text: str | None, base: int) -> int | None:
    try:
        return int(text, base) if text else None
    except ValueError:
        return None
