"""Has each GPU an RDMA NIC near it?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.fabric import Gpu
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.nvidia import Topology
from dualpath.host.rdma import RdmaPort

NEAREST_FIRST = ("PIX", "PXB", "PXN", "PHB", "NODE", "SYS", "SOC")
"""nvidia-smi's words: one PCIe switch, several, (over another GPU), a host bridge, a NUMA node, across sockets."""

_FAR = ("SYS", "SOC")
_MEANING = {
    "PIX": "one PCIe switch apart",
    "PXB": "several PCIe switches apart",
    "PHB": "under one host bridge",
    "NODE": "on one NUMA node, host bridges apart",
    "SYS": "on different CPU sockets",
    "SOC": "on different CPU sockets",
}


def _judge(host: Host) -> Iterator[Finding]:
    ports = [port for port in fabric.ports(host) if _in_use(host, port)]
    gpus = fabric.gpus(host)
    if not ports or not gpus:
        return
    topology = fabric.topology(host)
    unknown: list[str] = []
    for gpu in gpus:
        # One function may have several ports, one GPU several equally near NICs: the first stands for them.
        distances = {port.device: distance(host, topology, gpu, port) for port in reversed(ports)}
        known = {name: word for name, word in distances.items() if word in NEAREST_FIRST}
        nearest = min(reversed(known), key=lambda name: NEAREST_FIRST.index(known[name]), default=None)
        if nearest is None or (known[nearest] in _FAR and len(known) < len(distances)):
            unknown.append(gpu.name)
            continue
        yield _finding(host, gpu, nearest, known[nearest], known)
    if unknown:
        yield Finding(
            level=Level.UNKNOWN,
            symptom=f"how near {', '.join(unknown)} and the RDMA NICs are is not known",
            cause="neither `nvidia-smi topo -m` nor NUMA nodes and PCIe paths of sysfs were recorded",
            fix="run `nvidia-smi topo -m` where the driver is loaded",
        )


def _in_use(host: Host, port: RdmaPort) -> bool:
    """Whether a port is active, or set up and for now down: that it is down is another check's matter.

    A software device (rxe, siw) is no NIC: it has no PCIe function.
    """
    software = host.tree.read(f"/sys/class/infiniband/{port.device}/parent") is not None
    set_up = any(fabric.wanted_up(host, name) for name in port.netdevs)
    return not software and (port.state in ("ACTIVE", "") or set_up)


def distance(host: Host, topology: Topology, gpu: Gpu, port: RdmaPort) -> str | None:
    """Return nvidia-smi's word for how a GPU and a NIC lie to each other; `None` if nothing tells.

    nvidia-smi is believed first; without it PCIe paths and NUMA nodes are compared.
    """
    said = topology.relations.get(gpu.name, {}).get(port.device)
    if said in NEAREST_FIRST:
        return said
    ours, theirs = fabric.pci(host, gpu.address), fabric.pci(host, port.pci_address or "")
    shared = [bridge for bridge, other in zip(ours.bridges, theirs.bridges, strict=False) if bridge == other]
    if shared:
        # A shared root port above a switch's two ports; two shared bridges more mean a second switch between.
        apart = len(ours.bridges) + len(theirs.bridges) - 2 * len(shared)
        return "PIX" if apart <= 2 else "PXB"
    nodes = (gpu.numa_node if gpu.numa_node is not None else ours.numa_node, theirs.numa_node)
    if None in nodes:
        return None
    if nodes[0] != nodes[1]:
        return "SYS"
    return "NODE"


def _finding(host: Host, gpu: Gpu, nic: str, word: str, all_: dict[str, str]) -> Finding:
    evidence = (
        "nvidia-smi topo -m, or PCIe paths: " + ", ".join(f"{gpu.name}-{name} {all_[name]}" for name in sorted(all_)),
        f"/sys/bus/pci/devices/{gpu.address}/numa_node: {fabric.pci(host, gpu.address).numa_node}",
    )
    if word in _FAR:
        return Finding(
            level=Level.WARNING,
            symptom=f"{gpu.name}: its nearest RDMA NIC, {nic}, is {_MEANING[word]} ({word})",
            cause="GPU and NIC are in PCIe domains of different CPUs: every transfer crosses the link between sockets, "
            "which GPUDirect does at a fraction of the rate, if at all",
            fix=f"move the NIC to a slot of NUMA node {gpu.numa_node if gpu.numa_node is not None else 'of the GPU'}, "
            "or run on a GPU of the NIC's node",
            evidence=evidence,
            subject=gpu.name,
        )
    return Finding(
        level=Level.INFO if word == "NODE" else Level.OK,
        symptom=f"{gpu.name}: nearest RDMA NIC {nic}, {_MEANING.get(word, 'near')} ({word})",
        evidence=evidence,
        subject=gpu.name,
    )


CHECK = Check(
    name="gpu-nic-distance",
    title="Each GPU has an RDMA NIC on its own CPU socket, best under the same PCIe switch",
    reads=("nvidia-smi topo -m", "/sys/bus/pci/devices/PCI (link, numa_node)", "lspci -Dvvv", "lspci -Dtv"),
    reference="GPUDirect RDMA, Design Considerations: Supported Systems, https://docs.nvidia.com/cuda/gpudirect-rdma/",
    judge=_judge,
)
