"""Is each RDMA NIC on a NUMA node that is known and has memory?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.numactl import NumaNode, parse_numactl
from dualpath.host.rdma import RdmaPort


def _judge(host: Host) -> Iterator[Finding]:
    output = host.output("numactl --hardware")
    nodes = parse_numactl(output.stdout) if output is not None else {}
    # GPU and CXL memory appear as nodes without CPUs: a NIC cannot be on those.
    with_cpus = {number: node for number, node in nodes.items() if node.cpus}
    if len(with_cpus) < 2:
        return
    placed: dict[int, list[str]] = {}
    for port in fabric.ports(host):
        if port.state != "ACTIVE" or port.pci_address is None:
            continue
        at = fabric.pci(host, port.pci_address).numa_node
        if at is None:
            yield _unplaced(port, len(with_cpus))
        else:
            placed.setdefault(at, []).append(port.name)
            yield from _memoryless(port, at, with_cpus)
    if len(placed) == 1 and sum(map(len, placed.values())) > 1:
        ((at, names),) = placed.items()
        yield Finding(
            level=Level.INFO,
            symptom=f"all of {', '.join(names)} are on NUMA node {at}; "
            f"processes on the other {fabric.plural(len(with_cpus) - 1, 'node')} reach them across sockets",
            evidence=tuple(f"/sys/class/infiniband/{name.partition('/')[0]}/device/numa_node: {at}" for name in names),
        )


def _unplaced(port: RdmaPort, nodes: int) -> Finding:
    return Finding(
        level=Level.INFO,
        symptom=f"{port.name}: the firmware does not say on which of {nodes} NUMA nodes it is",
        cause="the ACPI tables have no proximity for its root port, as in many virtual machines",
        evidence=(f"/sys/bus/pci/devices/{port.pci_address}/numa_node: -1",),
        subject=port.name,
    )


def _memoryless(port: RdmaPort, at: int, nodes: dict[int, NumaNode]) -> Iterator[Finding]:
    node = nodes.get(at)
    if node is not None and node.size_mib == 0:
        others = [str(number) for number, other in sorted(nodes.items()) if other.size_mib]
        yield Finding(
            level=Level.WARNING,
            symptom=f"{port.name}: on NUMA node {at}, which has no memory: each of its transfers crosses sockets",
            cause=f"no DIMMs at node {at}; memory is on node {', '.join(others) or 'unknown'}",
            fix=f"move the NIC to a slot of node {others[0]}, or DIMMs to node {at}" if others else "add memory",
            evidence=(f"numactl --hardware: node {at} size: 0 MB",),
            subject=port.name,
        )


CHECK = Check(
    name="nic-numa",
    title="RDMA NICs are on NUMA nodes that are known and have memory",
    reads=("/sys/bus/pci/devices/PCI/numa_node", "numactl --hardware", "lspci -Dvvv"),
    reference="numactl(8), https://man7.org/linux/man-pages/man8/numactl.8.html; "
    "Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node)",
    judge=_judge,
)
