"""A bond is as good as its worst member, and spreads flows only as its mode and hash allow."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.bonding import Bond, parse_bond

_BONDS = "/proc/net/bonding"


def judge(host: Host) -> Iterator[Finding]:
    """Yield bonds with members down or left out, and what their mode means for rails."""
    for name in host.tree.names(_BONDS):
        path = f"{_BONDS}/{name}"
        bond = parse_bond(host.tree.read(path) or "")
        finding = _down(name, path, bond) or _left_out(name, path, bond) or _uneven(name, path, bond)
        if finding is not None:
            yield finding
        yield from _mode(name, path, bond)


def _down(name: str, path: str, bond: Bond) -> Finding | None:
    down = [member.name for member in bond.members if member.up is False]
    if not down:
        return None
    alone = len(down) == len(bond.members)
    return Finding(
        level=Level.CRITICAL if alone else Level.WARNING,
        symptom=f"{name}: {len(down)} of {len(bond.members)} members are down: {', '.join(down)}",
        cause="cable, module or switch port of that member; the bond goes on with less bandwidth",
        fix=" && ".join(f"ip link set {member} up" for member in down) + "  # then look at its cable",
        evidence=(f"{path}: MII Status down for {', '.join(down)}",),
        subject=name,
    )


def _left_out(name: str, path: str, bond: Bond) -> Finding | None:
    """With 802.3ad members of another aggregator carry nothing."""
    groups = {member.aggregator for member in bond.members if member.up and member.aggregator is not None}
    if "802.3ad" not in bond.mode or len(groups) < 2:
        return None
    return Finding(
        level=Level.WARNING,
        symptom=f"{name}: its members are in {len(groups)} aggregators, and only one of these carries traffic",
        cause="LACP is not negotiated on all switch ports, or they belong to two switches without MLAG",
        fix="put all switch ports of the bond into one LACP group",
        evidence=tuple(f"{path}: {member.name} has aggregator {member.aggregator}" for member in bond.members),
        subject=name,
    )


def _uneven(name: str, path: str, bond: Bond) -> Finding | None:
    speeds = {member.speed_mbit_per_s for member in bond.members if member.up and member.speed_mbit_per_s}
    if len(speeds) < 2:
        return None
    return Finding(
        level=Level.WARNING,
        symptom=f"{name}: its members run at {' and '.join(str(speed) for speed in sorted(speeds))} Mbit/s",
        cause="flows are spread evenly over links that are not equal, so the slow one sets the pace",
        fix="ethtool on each member shows which one negotiated less; swap its cable or module first",
        evidence=tuple(f"{path}: {member.name} {member.speed_mbit_per_s} Mbit/s" for member in bond.members),
        subject=name,
    )


def _mode(name: str, path: str, bond: Bond) -> Iterator[Finding]:
    evidence = (f"{path}: {bond.mode}, hash {bond.hash_policy or 'none'}",)
    if "active-backup" in bond.mode and len(bond.members) > 1:
        idle = [member.name for member in bond.members if member.name != bond.active_member]
        symptom = f"{name} is active-backup: {', '.join(idle)} idle until {bond.active_member or 'the other'} fails"
        yield Finding(level=Level.INFO, symptom=symptom, evidence=evidence, subject=name)
    elif bond.hash_policy in ("layer2", "layer2+3"):
        yield Finding(
            level=Level.INFO,
            symptom=f"{name} spreads by {bond.hash_policy}: all connections between two hosts share one member",
            fix=f"ip link set {name} type bond xmit_hash_policy layer3+4",
            evidence=evidence,
            subject=name,
        )


CHECK = Check(
    name="bonding",
    title="All members of a bond carry traffic",
    reads=("/proc/net/bonding/*",),
    reference="https://docs.kernel.org/networking/bonding.html",
    judge=judge,
)
