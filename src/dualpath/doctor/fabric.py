"""What the checks of the fabric share: GPUs, RDMA ports, rails, PCIe paths and kernel modules of a host.

sysfs is asked first, since it needs neither a tool nor root's rights; a tool's output fills in what was not recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_link import EthtoolLink, parse_ethtool
from dualpath.doctor.parsers.ibstat import parse_ibstat
from dualpath.doctor.parsers.ibv_devinfo import VerbsPort, parse_ibv_devinfo
from dualpath.doctor.parsers.lspci import LspciDevice, parse_lspci, parse_lspci_tree
from dualpath.doctor.parsers.nvidia import Topology, parse_gpu_query, parse_topology
from dualpath.doctor.parsers.rdma import parse_rdma_link
from dualpath.doctor.parsers.show_gids import parse_show_gids
from dualpath.host.nics import Nic
from dualpath.host.pci import PciDevice, pci_device, pci_devices
from dualpath.host.rdma import Gid, RdmaPort, parse_gid, rdma_ports, roce_version

NVIDIA = 0x10DE

# A host does not change, and several checks ask the same of it.
_devices = lru_cache(maxsize=8)(parse_lspci)
_tree = lru_cache(maxsize=8)(parse_lspci_tree)
_matrix = lru_cache(maxsize=8)(parse_topology)
_verbs = lru_cache(maxsize=8)(parse_ibv_devinfo)

MODULES = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "ice": "irdma",
    "bnxt_en": "bnxt_re",
    "qede": "qedr",
    "hns3": "hns_roce_hw_v2",
}
"""The RDMA module of an Ethernet driver whose cards can all do RoCE (drivers/infiniband/hw of the kernel)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU."""

    name: str
    """`GPU0`, in the order of PCIe addresses, which is nvidia-smi's."""
    address: str
    """Empty if only the matrix of `nvidia-smi topo -m` shows it."""
    numa_node: int | None


def lspci(host: Host) -> dict[str, LspciDevice]:
    """Return what lspci says, by address; empty if it was not run."""
    for line in ("lspci -Dvvv", "lspci -vvv", "lspci -Dvv"):
        output = host.output(line)
        if output is not None and output.stdout:
            return _devices(output.stdout)
    return {}


def pci(host: Host, address: str) -> PciDevice:
    """Return the function at `address`, from sysfs, completed out of lspci."""
    device = pci_device(host.tree, address)
    said = lspci(host).get(address)
    if not device.bridges:
        tree = host.output("lspci -Dtv")
        device = replace(device, bridges=_tree(tree.stdout).get(address, ()) if tree else ())
    if said is None:
        return device
    return replace(
        device,
        driver=device.driver or said.driver or None,
        numa_node=device.numa_node if device.numa_node is not None else said.numa_node,
        trained=device.trained or said.trained,
        capable=device.capable or said.capable,
    )


@lru_cache(maxsize=8)
def gpus(host: Host) -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs: those that nvidia-smi lists, or else all that sysfs or lspci show.

    A container has some of the host's GPUs only, and nvidia-smi numbers those.
    """
    matrix = topology(host)
    named = {
        f"GPU{row['index']}": row["pci.bus_id"] for row in gpu_query(host) if {"index", "pci.bus_id"} <= row.keys()
    }
    named = named or {f"GPU{at}": address for at, address in enumerate(_gpu_addresses(host))}
    named = named or dict.fromkeys(matrix.gpus, "")
    nodes = {name: pci(host, address).numa_node for name, address in named.items()}
    return tuple(
        Gpu(name, address, matrix.numa_nodes.get(name) if nodes[name] is None else nodes[name])
        for name, address in named.items()
    )


def _gpu_addresses(host: Host) -> list[str]:
    """Return the PCIe addresses of NVIDIA's GPUs, but for those given to virtual machines."""
    shown = {
        device.address: device.driver
        for device in pci_devices(host.tree)
        if device.vendor == NVIDIA and device.class_code is not None and device.class_code >> 8 in (0x0300, 0x0302)
    }
    for address, said in lspci(host).items():
        if "NVIDIA" in said.name and said.class_name in ("3D controller", "VGA compatible controller"):
            shown.setdefault(address, said.driver)
    return sorted(address for address, driver in shown.items() if driver != "vfio-pci")


def gpu_query(host: Host) -> list[dict[str, str]]:
    """Return the rows of `nvidia-smi --query-gpu=…`, whichever fields were asked for."""
    for line, output in host.recording.commands.items():
        asked = re.match(r"nvidia-smi --query-gpu=(\S+) --format=csv(\S*)", line)
        if asked:
            fields = tuple(asked[1].split(",")) if "noheader" in asked[2] else ()
            return parse_gpu_query(output.stdout, fields)
    return []


def topology(host: Host) -> Topology:
    """Return the matrix of `nvidia-smi topo -m`; empty if it was not printed."""
    output = host.output("nvidia-smi topo -m")
    return _matrix(output.stdout) if output is not None else Topology()


@lru_cache(maxsize=8)
def ports(host: Host) -> tuple[RdmaPort, ...]:
    """Return every RDMA port that is this host's to use.

    A GID table that sysfs did not give is taken from `show_gids`, or from `ibv_devinfo`.
    """
    shown = host.output("show_gids")
    tables = parse_show_gids(shown.stdout) if shown is not None else {}
    return tuple(
        port
        if port.gids
        else replace(port, gids=tuple(tables.get((port.device, port.port)) or _verbs_gids(host, port)))
        for port in rdma_ports(host.tree) or _printed_ports(host)
        if not any(accelerates_netvsc(host, name) for name in port.netdevs)
    )


def _verbs_gids(host: Host, port: RdmaPort) -> list[Gid]:
    said = verbs_port(host, port)
    entries = ((index, parse_gid(text), kind) for index, (text, kind) in (said.gids if said else {}).items())
    return [Gid(index, address, roce_version(kind), None) for index, address, kind in entries if address is not None]


def accelerates_netvsc(host: Host, name: str) -> bool:
    """Whether an interface is the fast path below a Hyper-V interface, which has the address: no rail of its own."""
    master = (host.tree.link(f"/sys/class/net/{name}/master") or "").rpartition("/")[2]
    upper = nic_named(host, master) if master else None
    return upper is not None and upper.driver == "hv_netvsc"


def never_used(host: Host, port: RdmaPort) -> bool:
    """Whether the port has certainly carried no RDMA yet: its data counters were recorded, and are zero."""
    counters = f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters"
    return all(host.tree.read(f"{counters}/port_{way}_data") == "0" for way in ("rcv", "xmit"))


def _printed_ports(host: Host) -> list[RdmaPort]:
    """Return the ports that `ibstat` lists, with the interfaces of `rdma link`: where somebody sent these alone."""
    adapters, links = host.output("ibstat"), host.output("rdma -d link show")
    netdevs = {(link.device, link.port): link.netdev for link in parse_rdma_link(links.stdout)} if links else {}
    return [
        RdmaPort(
            device=port.device,
            port=port.port,
            state="INIT" if port.state == "Initializing" else port.state.upper(),
            physical_state=port.physical_state,
            link_layer=port.link_layer,
            rate_bits_per_s=port.rate_bits_per_s,
            rate=gigabits(port.rate_bits_per_s) if port.rate_bits_per_s else "",
            pci_address=None,
            netdevs=tuple(filter(None, [netdevs.get((port.device, port.port))])),
            iwarp=False,
            model=port.model,
            firmware=port.firmware,
            gids=(),
        )
        for port in (parse_ibstat(adapters.stdout) if adapters is not None else [])
    ]


def roce(port: RdmaPort) -> bool:
    """Whether the port speaks RoCE."""
    return port.link_layer == "Ethernet" and not port.iwarp


def verbs_port(host: Host, port: RdmaPort) -> VerbsPort | None:
    """Return what `ibv_devinfo -v` says of a port."""
    output = host.output("ibv_devinfo -v")
    device = _verbs(output.stdout).get(port.device) if output is not None else None
    return device.ports.get(port.port) if device else None


def ethtool(host: Host, name: str) -> EthtoolLink:
    """Return what `ethtool N` says; empty if it was not run."""
    output = host.output(f"ethtool {name}")
    return parse_ethtool(output.stdout) if output is not None else EthtoolLink()


def nic_named(host: Host, name: str) -> Nic | None:
    """Return the interface called `name`."""
    return next((nic for nic in host.nics if nic.name == name), None)


def wanted_up(host: Host, name: str) -> bool | None:
    """Whether an interface was set up by the administrator (IFF_UP), cable or not; `None` if that is not known."""
    flags = host.tree.read(f"/sys/class/net/{name}/flags")
    try:
        return bool(int(flags, 16) & 1) if flags else None
    except ValueError:
        return None


def modules(host: Host) -> set[str] | None:
    """Return the kernel modules that are loaded, or built in with parameters; `None` if they were not recorded."""
    listed = host.tree.read("/proc/modules")
    if listed is None:
        return None
    return {line.split()[0] for line in listed.splitlines() if line.strip()} | set(host.tree.names("/sys/module"))


def blacklisted(host: Host, module: str) -> str | None:
    """Return the file under /etc/modprobe.d that keeps `module` from being loaded, if there is one."""
    for name in host.tree.names("/etc/modprobe.d"):
        path = f"/etc/modprobe.d/{name}"
        for line in (host.tree.read(path) or "").splitlines():
            words = line.split()
            replaced = words[:2] == ["install", module] and words[2:3] and words[2].endswith(("/false", "/true"))
            if words[:2] == ["blacklist", module] or replaced:
                return path
    return None


def gigabits(bits_per_s: float) -> str:
    """Return a rate as people write a NIC's: `400 Gbit/s`."""
    return f"{bits_per_s / 1e9:g} Gbit/s"


def gigabytes(bytes_per_s: float) -> str:
    """Return a rate in decimal gigabytes: `3.94 GB/s`."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def amount(count: float) -> str:
    """Return bytes in decimal units: `20.5 MB`, `180 TB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} PB"


def plural(count: int, noun: str) -> str:
    """Return `1 NIC`, `2 NICs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
