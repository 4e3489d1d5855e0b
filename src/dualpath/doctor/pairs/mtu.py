"""Do both ends of a path send packets of one size?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Finding, Level, PairCheck
from dualpath.doctor.checks.mtu import roce_path_mtu
from dualpath.doctor.ends import End, disagreements, ends
from dualpath.doctor.host import Host


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    if ends(one) and ends(other):
        yield from disagreements(one, other, _between)
        return
    here, there = _mtus(one), _mtus(other)
    if here and there and not set(here.values()) & set(there.values()):
        yield Finding(
            level=Level.INFO,  # TCP agrees on the smaller segment by itself
            symptom=f"MTU differs: {one.name} {_listed(here)}, {other.name} {_listed(there)}",
            evidence=(*_evidence(one, here), *_evidence(other, there)),
        )


def _between(mine: End, theirs: End) -> Finding | None:
    near, far = mine.nic, theirs.nic
    if near is None or far is None or near.mtu is None or far.mtu is None or near.mtu == far.mtu:
        return None
    small, host = min((near, mine.host), (far, theirs.host), key=lambda end: end[0].mtu or 0)
    large = max(near.mtu, far.mtu)
    packets = roce_path_mtu(near.mtu), roce_path_mtu(far.mtu)
    same = packets[0] == packets[1]
    return Finding(
        level=Level.INFO if same else Level.CRITICAL,
        symptom=f"MTU differs: {mine.host.name} {near.name} {near.mtu}, {theirs.host.name} {far.name} {far.mtu}"
        + (
            f"; RDMA packets carry {packets[0]} bytes at both"
            if same
            else f"; RDMA packets carry {packets[0]} and {packets[1]}"
        ),
        cause="" if same else "RDMA connects, then the larger packets are dropped on the way and transfers break off",
        fix=""
        if same
        else f"on {host.name}: ip link set dev {small.name} mtu {large}; the same at the switch, and persistently",
        evidence=(*_evidence(mine.host, {near.name: near.mtu}), *_evidence(theirs.host, {far.name: far.mtu})),
        subject=f"{near.name}, {far.name}",
    )


def _mtus(host: Host) -> dict[str, int]:
    """Return the MTUs of the NICs that are up and on PCIe."""
    return {nic.name: nic.mtu for nic in host.physical_nics if nic.up and nic.pci_address and nic.mtu is not None}


def _listed(mtus: dict[str, int]) -> str:
    return ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())


def _evidence(host: Host, mtus: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{host.name} /sys/class/net/{name}/mtu: {mtu}" for name, mtu in mtus.items())


CHECK = PairCheck(
    name="pair-mtu",
    title="Both ends send packets of one size",
    reads=("/sys/class/net/*/mtu", "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*"),
    reference="InfiniBand Architecture Specification, path MTU; iboe_get_mtu of include/rdma/ib_addr.h in Linux",
    judge=_judge,
)
