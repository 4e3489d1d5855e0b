"""Which NICs are there?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_link import parse_ethtool_driver
from dualpath.host.nics import Nic


def _judge(host: Host) -> Iterator[Finding]:
    ports = fabric.ports(host)
    for nic in host.physical_nics:
        rdma = [port for port in ports if nic.name in port.netdevs or port.device in nic.rdma_devices]
        words = [
            nic.driver or "unknown driver",
            fabric.gigabits(nic.speed_bits_per_s) if nic.speed_bits_per_s else "speed unknown",
            "up" if nic.up else nic.state,
            *([f"MTU {nic.mtu}"] if nic.mtu else []),
            *_place(host, nic.pci_address),
            *(f"RDMA {port.name} ({port.link_layer})" for port in rdma),
            *_firmware(host, nic),
        ]
        yield Finding(level=Level.INFO, symptom=f"{nic.name}: {', '.join(words)}", subject=nic.name)
    named = {nic.name for nic in host.physical_nics}
    for port in ports:
        if not named & set(port.netdevs):
            firmware = [f"firmware {port.firmware}"] if port.firmware else []
            words = [port.state, port.rate or "rate unknown", *_place(host, port.pci_address), *firmware]
            yield Finding(level=Level.INFO, symptom=f"{port.name}: {', '.join(words)}", subject=port.name)


def _place(host: Host, address: str | None) -> list[str]:
    if address is None:
        return []
    device = fabric.pci(host, address)
    node = [f"NUMA node {device.numa_node}"] if device.numa_node is not None else []
    part = fabric.lspci(host).get(address)
    return [
        f"PCIe {address}" + (f" {device.trained}" if device.trained else ""),
        *node,
        *([f"part {part.part_number}"] if part and part.part_number else []),
    ]


def _firmware(host: Host, nic: Nic) -> list[str]:
    output = host.output(f"ethtool -i {nic.name}")
    firmware = parse_ethtool_driver(output.stdout).firmware if output is not None else ""
    return [f"firmware {firmware}"] if firmware and firmware != "N/A" else []


CHECK = Check(
    name="nic-inventory",
    title="Which NICs there are: speed, driver, firmware, place",
    reads=(
        "/sys/class/net/NIC",
        "/sys/class/infiniband/DEVICE",
        "/sys/bus/pci/devices/PCI",
        "ethtool -i NIC",
        "lspci -Dvvv",
    ),
    reference="Linux Documentation/ABI/testing/sysfs-class-net, https://docs.kernel.org/admin-guide/abi-testing.html",
    judge=_judge,
)
