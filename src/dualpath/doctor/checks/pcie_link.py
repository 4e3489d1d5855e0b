"""Does a NIC's PCIe link carry the NIC's rate?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.host.pci import PciDevice, PcieLink

_HALF = 0.5


def _judge(host: Host) -> Iterator[Finding]:
    silent: list[str] = []
    functions = _functions(host)
    for address, (names, bits_per_s) in sorted(functions.items()):
        device = fabric.pci(host, address)
        subject = names[0]
        if device.trained is None:
            if bits_per_s is not None and bits_per_s >= 40e9 and device.capable is not None:
                silent.append(subject)
            continue
        yield from _nic(host, device, device.trained, subject, bits_per_s)
    yield from _shared(host, functions)
    for gpu in fabric.gpus(host):
        yield from _gpu(host, fabric.pci(host, gpu.address), gpu.name)
    if silent:
        raise Unknown(f"PCIe link of {', '.join(silent)} could not be read", fix="run the doctor as root, with lspci")


def _nic(host: Host, device: PciDevice, trained: PcieLink, subject: str, bits_per_s: float | None) -> Iterator[Finding]:
    capable, usable = device.capable, trained.bytes_per_s
    below = capable is not None and (trained.gt_per_s < capable.gt_per_s or trained.width < capable.width)
    as_capable = f", capable of {capable}" if capable and below else ""
    evidence = _evidence(host, device)
    if usable is None:
        return
    if bits_per_s is not None and usable * 8 < bits_per_s:
        cause, fix = _cause(host, device, trained)
        yield Finding(
            level=Level.CRITICAL if usable * 8 < _HALF * bits_per_s else Level.WARNING,
            symptom=f"{subject}: PCIe link at {trained} ({fabric.gigabytes(usable)}){as_capable}, "
            f"for a NIC of {fabric.gigabits(bits_per_s)} ({fabric.gigabytes(bits_per_s / 8)})",
            cause=cause,
            fix=fix,
            evidence=evidence,
            subject=subject,
        )
    elif below:
        rate = (
            f"still carries {fabric.gigabits(bits_per_s)}" if bits_per_s is not None else "has no rate to compare with"
        )
        yield Finding(
            level=Level.INFO,
            symptom=f"{subject}: PCIe link at {trained} ({fabric.gigabytes(usable)}){as_capable}; it {rate}",
            evidence=evidence,
            subject=subject,
        )


def _shared(host: Host, functions: dict[str, tuple[list[str], float | None]]) -> Iterator[Finding]:
    """Say where the ports of one card are faster together than the slot that they share."""
    cards: dict[str, list[str]] = {}
    for address in functions:
        cards.setdefault(address.rpartition(".")[0], []).append(address)
    for addresses in cards.values():
        trained = fabric.pci(host, addresses[0]).trained
        usable = trained.bytes_per_s if trained else None
        rates = [rate for address in addresses if (rate := functions[address][1]) is not None]
        if usable is not None and len(rates) > 1 and max(rates) <= usable * 8 < sum(rates):
            names = [functions[address][0][0] for address in addresses]
            yield Finding(
                level=Level.INFO,
                symptom=f"{', '.join(names)} have {fabric.gigabits(sum(rates))} together and share a PCIe link of "
                f"{trained} ({fabric.gigabytes(usable)})",
                evidence=_evidence(host, fabric.pci(host, addresses[0])),
                subject=names[0],
            )


def _gpu(host: Host, device: PciDevice, name: str) -> Iterator[Finding]:
    # Only its width: an idle GPU lowers the link's speed by itself to save power.
    trained, capable = device.trained, device.capable
    if trained is None or capable is None or trained.width >= capable.width:
        return
    cause, fix = _cause(host, device, PcieLink(capable.gt_per_s, trained.width))
    narrow = trained.width * 4 <= capable.width
    yield Finding(
        level=Level.WARNING if narrow else Level.INFO,
        symptom=f"{name}: PCIe link x{trained.width} wide, capable of x{capable.width}",
        cause=cause if narrow else "",
        fix=fix if narrow else "",
        evidence=_evidence(host, device),
        subject=name,
    )


def _cause(host: Host, device: PciDevice, trained: PcieLink) -> tuple[str, str]:
    """Return cause and fix: the slot has no more lanes, or no higher generation, or the link was trained down."""
    bridge = fabric.pci(host, device.bridges[-1]).capable if device.bridges else None
    capable = device.capable
    compare = f"lspci -s {device.address} -vv | grep -E 'LnkCap|LnkSta'"
    narrow = capable is not None and trained.width < capable.width
    if bridge is not None and narrow and bridge.width <= trained.width:
        return (
            f"the slot has {bridge.width} lanes ({device.bridges[-1]} is capable of {bridge})",
            f"move the card to an x{capable.width if capable else 16} slot, then compare: {compare}",
        )
    if bridge is not None and not narrow and bridge.gt_per_s <= trained.gt_per_s:
        return (
            f"the slot is no faster ({device.bridges[-1]} is capable of {bridge})",
            f"move the card to a faster slot, or lift the slot's speed limit in the BIOS, then compare: {compare}",
        )
    if capable is not None and (narrow or trained.gt_per_s < capable.gt_per_s):
        what = "a slot with fewer lanes, or lanes lost" if narrow else "the link was trained down"
        limit = "the slot's lanes split in the BIOS" if narrow else "a speed limit in the BIOS"
        return (
            f"{what}: a card not seated well, a riser or cable, dirty contacts, or {limit}",
            f"reseat the card, use another slot or riser, set the slot to Auto in the BIOS, then compare: {compare}",
        )
    return (
        "card and slot cannot do more: the NIC's port is faster than its PCIe connection",
        f"use a card of a newer PCIe generation, or one more slot (Socket Direct); compare: {compare}",
    )


def _evidence(host: Host, device: PciDevice) -> tuple[str, ...]:
    at = f"/sys/bus/pci/devices/{device.address}"
    lines = [f"{at}: trained {device.trained}, capable {device.capable or 'unknown'}"]
    if device.bridges:
        above = fabric.pci(host, device.bridges[-1])
        lines.append(f"/sys/bus/pci/devices/{above.address} (bridge above): capable {above.capable or 'unknown'}")
    return tuple(lines)


def _functions(host: Host) -> dict[str, tuple[list[str], float | None]]:
    """Return, by PCIe address, the NIC's names and its rate in bit/s: of the interface, or of the RDMA port."""
    found: dict[str, tuple[list[str], float | None]] = {}
    for nic in host.physical_nics:
        if nic.pci_address is not None:
            found[nic.pci_address] = [nic.name], nic.speed_bits_per_s
    for port in fabric.ports(host):
        if port.pci_address is not None:
            names, rate = found.get(port.pci_address, ([], None))
            # The interface's speed counts first: the RDMA device of a bond has the rate of all its members.
            rate = port.rate_bits_per_s if rate is None and port.state == "ACTIVE" else rate
            found[port.pci_address] = [*names, port.name], rate
    return found


CHECK = Check(
    name="pcie-link",
    title="A NIC's PCIe link carries the NIC's rate",
    reads=(
        "/sys/bus/pci/devices/PCI/{current,max}_link_{speed,width}",
        "/sys/class/net/NIC/speed",
        "/sys/class/infiniband/DEVICE/ports/PORT/rate",
        "lspci -Dvvv",
        "lspci -Dtv",
    ),
    reference="PCI Express Base Specification (link rates and coding); Linux Documentation/ABI/testing/sysfs-bus-pci, "
    "https://docs.kernel.org/admin-guide/abi-testing.html",
    judge=_judge,
)
