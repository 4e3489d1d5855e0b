"""Which NICs a check is about, and their counters at two times.

Most rules hold for some NICs only: optics for those with a port, PFC for those that speak RoCE. A check that asks here
stays silent about the others: a virtual machine is not told to enable PFC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dualpath.doctor.base import Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_counters import moved, parse_counters
from dualpath.doctor.parsers.labels import integer
from dualpath.host.nics import Nic

GIGABIT_PER_S = 1_000_000_000
FAST_BITS_PER_S = 10 * GIGABIT_PER_S
"""From here on a NIC can be a rail, and its tuning matters."""

_GIVEN_BY_A_HYPERVISOR = frozenset(
    {"virtio_net", "vmxnet3", "hv_netvsc", "ena", "gve", "xen-netfront", "vif", "netvsc", "e1000", "e1000e", "8139cp"}
)

_INFINIBAND = "/sys/class/infiniband"


@dataclass(frozen=True, slots=True)
class RoceNic:
    """A NIC, and the RDMA device on it whose port is Ethernet."""

    nic: Nic
    device: str

    @property
    def name(self) -> str:
        """Return the interface's name."""
        return self.nic.name


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one NIC by the driver's names; `after` is `None` if they were read once."""

    before: Mapping[str, int]
    after: Mapping[str, int] | None
    seconds: float

    @property
    def latest(self) -> Mapping[str, int]:
        """Return the newer reading."""
        return self.before if self.after is None else self.after

    @property
    def moved(self) -> dict[str, int]:
        """Return how far each counter moved meanwhile; empty if there is one reading only."""
        return {} if self.after is None else moved(self.before, self.after)


def hardware_nics(host: Host) -> tuple[Nic, ...]:
    """Return the NICs that are up and run a physical port of their own."""
    return tuple(
        nic
        for nic in host.physical_nics
        if nic.up
        and nic.pci_address is not None
        and nic.driver not in _GIVEN_BY_A_HYPERVISOR
        and host.tree.link(f"/sys/class/net/{nic.name}/device/physfn") is None
    )


def fast_nics(host: Host) -> tuple[Nic, ...]:
    """Return those of `hardware_nics` with 10 Gbit/s or more: candidates for rails."""
    return tuple(nic for nic in hardware_nics(host) if (nic.speed_bits_per_s or 0) >= FAST_BITS_PER_S)


def rdma_devices(host: Host) -> list[str]:
    """Return the names of all RDMA devices, software ones too."""
    return host.tree.names(_INFINIBAND)


def roce_nics(host: Host) -> tuple[RoceNic, ...]:
    """Return the NICs that are up and speak RoCE, so no InfiniBand, iWARP (`4: RNIC`) or EFA (another link layer)."""
    return tuple(_roce_nics(host))


def _roce_nics(host: Host) -> Iterator[RoceNic]:
    for nic in host.physical_nics:
        for device in nic.rdma_devices if nic.up and nic.driver != "efa" else ():
            base = f"{_INFINIBAND}/{device}"
            layers = [host.tree.read(f"{base}/ports/{port}/link_layer") for port in host.tree.names(f"{base}/ports")]
            ethernet = "Ethernet" in layers if layers else host.tree.read(f"/sys/class/net/{nic.name}/type") == "1"
            if ethernet and not (host.tree.read(f"{base}/node_type") or "").startswith("4"):
                yield RoceNic(nic, device)
                break


def rdma_unused(host: Host, device: str) -> bool:
    """Return whether the device has certainly never carried RDMA: its data counters were read and are zero.

    A ConnectX has an RDMA device even where nobody uses it; such a host works over TCP and needs no lossless network.
    """
    base = f"{_INFINIBAND}/{device}/ports/1/counters"
    counts = [integer(host.tree.read(f"{base}/{name}") or "") for name in ("port_rcv_data", "port_xmit_data")]
    return all(count == 0 for count in counts)


def said(host: Host, line: str) -> str | None:
    """Return what a command printed; `None` if it was not asked or had nothing to say of this subject.

    Raises `Unknown` if its program is not installed, or was too slow: then the subject is there, and cannot be seen.
    """
    output = host.output(line)
    if output is None:
        program = line.split()[0]
        if program in host.recording.missing:
            raise Unknown(f"{program} is not installed", fix=f"install {_PACKAGES.get(program, program)}")
        return None
    if output.exit_code == -1:
        raise Unknown(f"`{line}` took too long")
    return output.stdout if output.stdout.strip() else None


def sample(host: Host, nic: Nic) -> Sample | None:
    """Return the driver's counters of a NIC; `None` if they were not asked for. Raises `Unknown` as `said` does."""
    line = f"ethtool -S {nic.name}"
    text = said(host, line)
    if text is None:
        return None
    later = host.recording.later_commands.get(line)
    seconds = host.recording.later_s
    again = parse_counters(later.stdout) if later is not None and seconds > 0 else {}
    return Sample(parse_counters(text), again or None, seconds)


def packets(host: Host, nic: Nic, counters: Mapping[str, int]) -> int:
    """Return how many packets the port has received: of RDMA too where the driver says (`rx_packets_phy`)."""
    for name in ("rx_packets_phy", "rx_unicast.nic", "rx_good_frames", "rx_packets"):
        if name in counters:
            return counters[name]
    return integer(host.tree.read(f"/sys/class/net/{nic.name}/statistics/rx_packets") or "") or 0


_PACKAGES = {"mlnx_qos": "mlnx-tools (or DOCA-OFED)", "dcb": "iproute2", "nft": "nftables", "iptables-save": "iptables"}
