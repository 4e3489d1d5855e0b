"""Packets that arrived and were thrown away: by a full port, for want of a descriptor, or by the cloud."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_counters import ALLOWANCE, NO_DESCRIPTOR, PORT_FULL, matching
from dualpath.doctor.parsers.ethtool_rings import parse_rings
from dualpath.doctor.subjects import Sample, packets, sample
from dualpath.host.nics import Nic

PER_S = 10
"""Dropped packets per second that are no accident."""
SHARE, LEAST = 1e-4, 1000
"""With one reading: so many of all packets, and so many at all."""


@dataclass(frozen=True, slots=True)
class _Reason:
    names: re.Pattern[str]
    verb: str
    where: str
    cause: str


_REASONS = (
    _Reason(
        PORT_FULL,
        "dropped",
        "the port's buffer was full",
        "the network is faster than this host takes packets away, and flow control did not stop it; or the peer's port "
        "runs at another rate",
    ),
    _Reason(
        NO_DESCRIPTOR,
        "dropped",
        "no receive buffer was posted",
        "the receive ring is short, or the CPU that serves it is late",
    ),
    _Reason(ALLOWANCE, "shaped", "the cloud held them back", "the instance's network allowance is used up"),
)


def judge(host: Host) -> Iterator[Finding]:
    """Yield, for each NIC and reason, the counter that says the most (drivers count one packet under several names)."""
    for nic in host.physical_nics:
        try:
            counts = sample(host, nic) if nic.up else None
        except Unknown:
            counts = None
        if counts is None:
            continue
        for reason in _REASONS:
            yield from _judge(host, nic, counts, reason)


def _judge(host: Host, nic: Nic, counts: Sample, reason: _Reason) -> Iterator[Finding]:
    totals = {name: count for name, count in matching(counts.latest, reason.names).items() if count}
    moved = matching(counts.moved, reason.names)
    worst = max(moved, key=lambda name: moved[name], default="")
    most = max(totals.values(), default=0)
    received = packets(host, nic, counts.latest)
    if worst and moved[worst] >= PER_S * counts.seconds:
        level, what = Level.WARNING, f"{moved[worst]:,} packets {reason.verb} within {counts.seconds:g} s"
    elif most < LEAST or (reason.names is not ALLOWANCE and most < SHARE * received):
        return
    elif counts.after is not None:
        level, what = Level.INFO, f"{most:,} packets {reason.verb}, but none of late"
    else:
        level, what = Level.WARNING, f"{most:,} packets {reason.verb} so far"
    yield Finding(
        level=level,
        symptom=f"{nic.name}: {what}: {reason.where}",
        cause=reason.cause,
        fix=_fix(host, nic, reason),
        evidence=tuple(
            f"ethtool -S {nic.name}: {name} {count}" + (f" (+{moved[name]})" if name in moved else "")
            for name, count in totals.items()
        ),
        subject=nic.name,
    )


def _fix(host: Host, nic: Nic, reason: _Reason) -> str:
    if reason.names is ALLOWANCE:
        return "take an instance type with more network bandwidth, or move traffic to a second interface"
    output = host.output(f"ethtool -g {nic.name}")
    largest = parse_rings(output.stdout).rx_max if output else None
    if reason.names is NO_DESCRIPTOR and largest:
        return f"ethtool -G {nic.name} rx {largest}"
    if reason.names is NO_DESCRIPTOR:
        return f"ethtool -g {nic.name} shows the largest ring; set it with ethtool -G"
    return f"compare the speed of both ends (ethtool {nic.name}), then flow control: dcb pfc show dev {nic.name}"


CHECK = Check(
    name="discards",
    title="The NIC throws no packets away",
    reads=("ethtool -S NIC (twice)", "ethtool -g NIC", "/sys/class/net/NIC/statistics/rx_packets"),
    reference="https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
    judge=judge,
)
