"""Are RDMA ports active, and at the rate that they are made for?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.rdma import RdmaPort

_WIDTH = re.compile(r"\((\d{1,2})X\b", re.ASCII)


def _judge(host: Host) -> Iterator[Finding]:
    ports = fabric.ports(host)
    for port in ports:
        if port.state == "ACTIVE":
            yield from _rate(host, port, ports)
        elif port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
            yield _without_manager(port)
        elif port.state:
            yield from _down(host, port, ports)
        else:
            yield Finding(
                level=Level.UNKNOWN,
                symptom=f"{port.name}: its state could not be read",
                subject=port.name,
            )


def _without_manager(port: RdmaPort) -> Finding:
    return Finding(
        level=Level.CRITICAL,
        symptom=f"{port.name}: physically up, but {port.state} and not ACTIVE",
        cause="no subnet manager has configured the port",
        fix="start one: on the switch, or `systemctl enable --now opensm` on one host (package opensm); "
        "see it with `sminfo` (package infiniband-diags)",
        evidence=_evidence(port),
        subject=port.name,
    )


def _down(host: Host, port: RdmaPort, ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    wanted = [fabric.wanted_up(host, name) for name in port.netdevs]
    # A second port of a card mostly has no cable. It matters if somebody set it up, or if the host has no other.
    matters = True in wanted or not any(other.state == "ACTIVE" for other in ports)
    if not matters:
        yield Finding(
            level=Level.INFO,
            symptom=f"{port.name}: {port.state} ({port.physical_state or 'physical state unknown'}), not in use",
            evidence=_evidence(port),
            subject=port.name,
        )
        return
    name = port.netdevs[0] if port.netdevs else ""
    reason = fabric.ethtool(host, name).reason if name else ""
    disabled = port.physical_state == "Disabled" and True not in wanted
    yield Finding(
        level=Level.CRITICAL if True in wanted else Level.WARNING,
        symptom=f"{_title(port)}: {port.state}, {port.physical_state or 'physical state unknown'}",
        cause="its interface is not set up"
        if disabled
        else reason or "no cable, a dead module, or the peer port is off",
        fix=f"ip link set dev {name} up"
        if disabled and name
        else f"check cable, module and switch port: `ethtool -m {name}`"
        if name
        else "check cable, module and switch port: `iblinkinfo` (package infiniband-diags)",
        evidence=_evidence(port),
        subject=port.name,
    )


def _rate(host: Host, port: RdmaPort, ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    if port.rate_bits_per_s is None:
        return
    same = [
        other.rate_bits_per_s
        for other in ports
        if other.state == "ACTIVE"
        and port.model
        and other.model == port.model
        and other.rate_bits_per_s is not None
        # A bond of two ports is one device, with the rate of both.
        and "bond" not in port.device + other.device
    ]
    best = max(same, default=0.0)
    if port.link_layer == "InfiniBand":
        width = _WIDTH.search(port.rate)
        if width and width[1] == "1":  # two lanes may be meant: HDR100 and NDR200 are half a port
            yield _slow(port, "one of four lanes is in use", "a cable or module has lost lanes")
            return
    if port.rate_bits_per_s < best:
        yield _slow(
            port,
            f"an equal card here runs at {fabric.gigabits(best)}",
            "cable, module or peer port are of a lower rate, or negotiation fell back",
        )
    elif port.netdevs:
        yield from _against_partner(host, port, port.netdevs[0], port.rate_bits_per_s)


def _against_partner(host: Host, port: RdmaPort, name: str, rate_bits_per_s: float) -> Iterator[Finding]:
    link = fabric.ethtool(host, name)
    able = min(link.supported_bits_per_s or 0, link.partner_bits_per_s or 0)
    if able > rate_bits_per_s:
        yield _slow(
            port,
            f"both ends support {fabric.gigabits(able)}",
            "autonegotiation is off or fell back" if link.autonegotiation is False else "the link fell back",
        )


def _slow(port: RdmaPort, why: str, cause: str) -> Finding:
    name = port.netdevs[0] if port.netdevs else ""
    look = f"`mlxlink -d {port.device} -m` (MFT)" if port.device.startswith(("mlx", "ib", "roce")) else "its module"
    return Finding(
        level=Level.WARNING,
        symptom=f"{_title(port)}: at {port.rate}, but {why}",
        cause=cause,
        fix=f"swap cable or module first, then look at the switch port's speed; see "
        f"{f'`ethtool {name}` and `ethtool -m {name}`' if name else look}",
        evidence=_evidence(port),
        subject=port.name,
    )


def _title(port: RdmaPort) -> str:
    return f"{port.name} ({port.netdevs[0]})" if port.netdevs else port.name


def _evidence(port: RdmaPort) -> tuple[str, ...]:
    at = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
    return (
        f"{at}/state: {port.state}",
        f"{at}/phys_state: {port.physical_state}",
        f"{at}/rate: {port.rate}",
        f"{at}/link_layer: {port.link_layer}",
    )


CHECK = Check(
    name="rdma-link",
    title="RDMA ports are active and at full rate",
    reads=(
        "/sys/class/infiniband/DEVICE/ports/PORT/{state,phys_state,rate,link_layer}",
        "/sys/class/infiniband/DEVICE/{hca_type,board_id}",
        "/sys/class/net/NIC/flags",
        "ethtool NIC",
    ),
    reference="Linux Documentation/ABI/stable/sysfs-class-infiniband, "
    "https://docs.kernel.org/admin-guide/abi-stable.html",
    judge=_judge,
)
