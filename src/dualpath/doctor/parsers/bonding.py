"""`/proc/net/bonding/BOND`: which links a bond has, and which of them work."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualpath.doctor.parsers.labels import integer, labelled


@dataclass(slots=True)
class Member:
    """One link of a bond."""

    name: str
    up: bool | None = None
    speed_mbit_per_s: int | None = None
    failures: int | None = None
    aggregator: int | None = None


@dataclass(frozen=True, slots=True)
class Bond:
    """What was not said is empty or `None`."""

    mode: str = ""
    hash_policy: str = ""
    up: bool | None = None
    active_member: str = ""
    members: tuple[Member, ...] = field(default_factory=tuple)


def parse_bond(text: str) -> Bond:
    """Return the bond. Lines before the first `Slave Interface` are the bond's own."""
    own: dict[str, str] = {}
    members: list[Member] = []
    for label, value in labelled(text):
        name = label.lower()
        if name in ("slave interface", "member interface"):
            members.append(Member(value))
        elif not members:
            own.setdefault(name, value)
        elif name == "mii status":
            members[-1].up = value.lower() == "up"
        elif name == "speed":
            members[-1].speed_mbit_per_s = integer(value)
        elif name == "link failure count":
            members[-1].failures = integer(value)
        elif name == "aggregator id":
            members[-1].aggregator = integer(value)
    status = own.get("mii status")
    return Bond(
        mode=own.get("bonding mode", ""),
        hash_policy=own.get("transmit hash policy", "").partition(" ")[0],
        up=None if status is None else status.lower() == "up",
        active_member=own.get("currently active slave", own.get("currently active member", "")),
        members=tuple(members),
    )
