"""Receive and transmit rings: too short, and a burst is lost before any CPU sees it."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_rings import parse_rings
from dualpath.doctor.subjects import fast_nics

UNDER = 4
"""How many times larger a ring could be to be worth a hint: drivers start at a quarter to a sixteenth."""
SHORT = 256
"""No driver of a fast NIC starts with as few; at 100 Gbit/s and MTU 9000 they last for 0.2 ms."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield NICs whose rings are far under their maximum. RDMA does not use these rings; TCP lanes do."""
    for nic in fast_nics(host):
        output = host.output(f"ethtool -g {nic.name}")
        rings = parse_rings(output.stdout if output else "")
        sizes = {"rx": (rings.rx, rings.rx_max), "tx": (rings.tx, rings.tx_max)}
        short = {side: (now, most) for side, (now, most) in sizes.items() if now and most and now * UNDER < most}
        if not short:
            continue
        far = any(now <= SHORT for now, _ in short.values())
        yield Finding(
            level=Level.WARNING if far else Level.INFO,
            symptom=f"{nic.name}: " + ", ".join(f"{side} ring {now} of {most}" for side, (now, most) in short.items()),
            cause="a burst at link speed overruns the ring before a CPU is awake" if far else "",
            fix=f"ethtool -G {nic.name} " + " ".join(f"{side} {most}" for side, (_, most) in short.items()),
            evidence=tuple(
                f"ethtool -g {nic.name}: {side} {now}, maximum {most}" for side, (now, most) in short.items()
            ),
            subject=nic.name,
        )


CHECK = Check(
    name="rings",
    title="Rings are long enough for a burst",
    reads=("ethtool -g NIC",),
    reference="https://man7.org/linux/man-pages/man8/ethtool.8.html",
    judge=judge,
)
