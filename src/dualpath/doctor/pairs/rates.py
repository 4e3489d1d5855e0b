"""Do both ends run at one rate?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Finding, Level, PairCheck
from dualpath.doctor.ends import End, disagreements
from dualpath.doctor.host import Host


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    yield from disagreements(one, other, _between)


def _between(mine: End, theirs: End) -> Finding | None:
    near, far = mine.port.rate_bits_per_s, theirs.port.rate_bits_per_s
    if near is None or far is None or near == far:
        return None
    slow = mine if near < far else theirs
    alike = bool(mine.port.model) and mine.port.model == theirs.port.model
    nic = slow.nic.name if slow.nic else slow.port.name
    return Finding(
        level=Level.WARNING if alike else Level.INFO,
        symptom=f"rates differ: {mine.name} {fabric.gigabits(near)}, {theirs.name} {fabric.gigabits(far)}",
        cause=f"equal cards ({mine.port.model}): cable, module or switch port of {slow.name} is of a lower rate, or "
        "negotiation fell back"
        if alike
        else "",
        fix=f"on {slow.host.name}: look at `ethtool {nic}` and `ethtool -m {nic}`; swap cable or module first"
        if alike
        else "",
        evidence=tuple(
            f"{end.host.name} /sys/class/infiniband/{end.port.device}/ports/{end.port.port}/rate: {end.port.rate}"
            for end in (mine, theirs)
        ),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


CHECK = PairCheck(
    name="pair-rates",
    title="Ports that face each other run at one rate",
    reads=("/sys/class/infiniband/*/ports/*/rate", "/sys/class/infiniband/*/{hca_type,board_id}"),
    reference="Linux Documentation/ABI/stable/sysfs-class-infiniband",
    judge=_judge,
)
