"""The NICs of a host, as sysfs shows them (Documentation/ABI/testing/sysfs-class-net of the kernel).

Rails are chosen among them, and the doctor judges them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.host.tree import Tree

_CLASS = "/sys/class/net"


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface. `None` means that the kernel does not say."""

    name: str
    speed_bits_per_s: int | None
    """Nominal speed of the link; drivers of virtual NICs mostly do not say."""
    state: str
    """`operstate`: up, down, lowerlayerdown, dormant, testing, notpresent or unknown."""
    carrier: bool | None
    mtu: int | None
    numa_node: int | None
    """NUMA node of its PCIe device; `None` where there is one node only, or the NIC is virtual."""
    pci_address: str | None
    """Such as `0000:3b:00.0`; `None` for what is not on PCIe."""
    driver: str | None
    rdma_devices: tuple[str, ...]
    """RDMA devices on the same PCIe function, such as `mlx5_0`."""
    kind: str
    """`physical` (on a bus), `virtual` (veth, bridge, tunnel, …), `loopback`, `bond` or `member` of a bond."""

    @property
    def up(self) -> bool:
        """Whether it can carry traffic: a driver that does not report its state counts as up with a carrier."""
        return self.state == "up" or (self.state == "unknown" and self.carrier is not False)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a NIC has counted since its driver was loaded, both directions."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    rx_dropped: int
    tx_dropped: int
    rx_errors: int
    tx_errors: int


def nics(tree: Tree) -> list[Nic]:
    """Return every interface of the host, by name."""
    return [nic(tree, name) for name in tree.names(_CLASS) if tree.read(f"{_CLASS}/{name}/mtu") is not None]


def nic(tree: Tree, name: str) -> Nic:
    """Return the interface called `name`; fields that cannot be read are `None`."""
    base = f"{_CLASS}/{name}"
    megabits = _integer(tree.read(f"{base}/speed"))
    node = _integer(tree.read(f"{base}/device/numa_node"))
    device = tree.link(f"{base}/device")
    bus = (tree.link(f"{base}/device/subsystem") or "").rpartition("/")[2]
    driver = tree.link(f"{base}/device/driver")
    return Nic(
        name=name,
        speed_bits_per_s=megabits * 1_000_000 if megabits is not None and megabits > 0 else None,
        state=tree.read(f"{base}/operstate") or "unknown",
        carrier={"1": True, "0": False}.get(tree.read(f"{base}/carrier") or ""),
        mtu=_integer(tree.read(f"{base}/mtu")),
        numa_node=node if node is not None and node >= 0 else None,
        pci_address=device.rpartition("/")[2] if device and bus in ("", "pci") and ":" in device else None,
        driver=driver.rpartition("/")[2] if driver else None,
        rdma_devices=tuple(tree.names(f"{base}/device/infiniband")),
        kind=_kind(tree, base),
    )


def counters(tree: Tree, name: str) -> Counters | None:
    """Return the counters of the interface called `name`; `None` if there is no such interface."""
    base = f"{_CLASS}/{name}/statistics"
    values = {field: _integer(tree.read(f"{base}/{field}")) for field in Counters.__slots__}
    known = {field: value for field, value in values.items() if value is not None}
    return Counters(**known) if len(known) == len(values) else None


def _kind(tree: Tree, base: str) -> str:
    if tree.read(f"{base}/type") == "772":  # ARPHRD_LOOPBACK
        return "loopback"
    if "bonding" in tree.names(base):
        return "bond"
    if "bonding_slave" in tree.names(base):
        return "member"
    return "physical" if "device" in tree.names(base) else "virtual"


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None
