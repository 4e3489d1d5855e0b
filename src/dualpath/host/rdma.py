"""RDMA ports of a host, as sysfs shows them (Documentation/ABI/stable/sysfs-class-infiniband of the kernel)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from dualpath.host.tree import Tree

_CLASS = "/sys/class/infiniband"


@dataclass(frozen=True, slots=True)
class Gid:
    """One filled entry of a port's GID table."""

    index: int
    address: ipaddress.IPv6Address
    version: int | None
    """RoCE version 1 or 2; `None` where the kernel does not say, and on InfiniBand it says 1."""
    netdev: str | None
    """Interface that the entry belongs to: the port's own, a VLAN on it, or a bond."""

    @property
    def ipv4(self) -> ipaddress.IPv4Address | None:
        """Return the IPv4 address that the entry stands for, if it is v4-mapped."""
        return self.address.ipv4_mapped

    @property
    def link_local(self) -> bool:
        """Return whether it is a link-local IPv6 address, which every port has and no router forwards."""
        return self.address.is_link_local


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of one RDMA device. `None` and empty mean that the kernel does not say."""

    device: str
    port: int
    state: str
    """ACTIVE, INIT (physically up, but without a subnet manager), ARMED, DOWN, …"""
    physical_state: str
    """LinkUp, Polling, Disabled, …"""
    link_layer: str
    """InfiniBand or Ethernet; Unknown for EFA."""
    rate_bits_per_s: float | None
    rate: str
    """As printed: `400 Gb/sec (4X NDR)`."""
    pci_address: str | None
    netdevs: tuple[str, ...]
    """Interfaces on the same PCIe function, or the one that a software device sits on."""
    iwarp: bool
    """Whether it is RDMA over TCP, which has neither RoCE versions nor path MTUs."""
    model: str
    """Board and device type, equal for equal cards."""
    firmware: str
    gids: tuple[Gid, ...]

    @property
    def name(self) -> str:
        """Return device and port, as `rdma link` writes them: `mlx5_0/1`."""
        return f"{self.device}/{self.port}"


def rdma_ports(tree: Tree) -> list[RdmaPort]:
    """Return every port of every RDMA device, by name."""
    return [
        _port(tree, device, int(port))
        for device in tree.names(_CLASS)
        for port in tree.names(f"{_CLASS}/{device}/ports")
        if port.isdecimal()
    ]


def parse_gid(text: str) -> ipaddress.IPv6Address | None:
    """Return the address that a GID is written as; `None` for an empty entry and for what is none."""
    try:
        address = ipaddress.IPv6Address(text.strip())
    except ValueError:
        return None
    # fe80:: with no interface part is how an empty entry looks on some drivers
    return address if int(address) not in (0, 0xFE80 << 112) else None


def roce_version(kind: str) -> int | None:
    """Return 1 or 2 of a GID's type, `IB/RoCE v1`, `RoCE v1` or `RoCE v2`; `None` for another."""
    return 2 if "RoCE v2" in kind else 1 if "RoCE v1" in kind else None


def _port(tree: Tree, device: str, port: int) -> RdmaPort:
    base = f"{_CLASS}/{device}"
    at = f"{base}/ports/{port}"
    rate = tree.read(f"{at}/rate") or ""
    number = re.match(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec", rate)
    link = tree.link(f"{base}/device")
    address = link.rpartition("/")[2] if link else ""
    kind = (tree.read(f"{base}/hca_type"), tree.read(f"{base}/board_id"))
    return RdmaPort(
        device=device,
        port=port,
        state=_after_number(tree.read(f"{at}/state")),
        physical_state=_after_number(tree.read(f"{at}/phys_state")),
        link_layer=tree.read(f"{at}/link_layer") or "",
        rate_bits_per_s=float(number[1]) * 1e9 if number else None,
        rate=rate,
        pci_address=address if ":" in address else None,
        netdevs=tuple(tree.names(f"{base}/device/net") or filter(None, [tree.read(f"{base}/parent")])),
        iwarp="RNIC" in (tree.read(f"{base}/node_type") or ""),
        model=" ".join(word for word in kind if word),
        firmware=tree.read(f"{base}/fw_ver") or "",
        gids=tuple(_gids(tree, at)),
    )


def _gids(tree: Tree, at: str) -> list[Gid]:
    found: list[Gid] = []
    for name in sorted((name for name in tree.names(f"{at}/gids") if name.isdecimal()), key=int):
        address = parse_gid(tree.read(f"{at}/gids/{name}") or "")
        if address is not None:
            kind = tree.read(f"{at}/gid_attrs/types/{name}") or ""
            found.append(Gid(int(name), address, roce_version(kind), tree.read(f"{at}/gid_attrs/ndevs/{name}") or None))
    return found


def _after_number(text: str | None) -> str:
    """Return `ACTIVE` of `4: ACTIVE`."""
    return (text or "").rpartition(":")[2].strip()
