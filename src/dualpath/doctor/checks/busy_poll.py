"""Polling trades CPU for latency. Left on for every socket, load rises as soon as traffic does."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_coalesce import parse_coalesce
from dualpath.doctor.parsers.labels import integer
from dualpath.doctor.subjects import fast_nics

_SETTINGS = ("busy_poll", "busy_read")


def judge(host: Host) -> Iterator[Finding]:
    """Yield polling for all sockets, and NICs that interrupt for every packet."""
    values = {name: integer(host.tree.read(f"/proc/sys/net/core/{name}") or "") for name in _SETTINGS}
    on = {name: value for name, value in values.items() if value}
    if on:
        yield Finding(
            level=Level.WARNING,
            symptom="busy polling is on for all sockets: " + ", ".join(f"{name} {us} us" for name, us in on.items()),
            cause="whoever waits for a packet spins meanwhile, and takes the CPU from compute",
            fix="sysctl -w "
            + " ".join(f"net.core.{name}=0" for name in on)
            + "  # where it is wanted: CPUs of its own, or SO_BUSY_POLL for the one socket",
            evidence=tuple(f"/proc/sys/net/core/{name}: {us}" for name, us in on.items()),
        )
    for nic in fast_nics(host):
        output = host.output(f"ethtool -c {nic.name}")
        settings = parse_coalesce(output.stdout if output else "")
        if settings.adaptive_rx is not True and settings.rx_us == 0 and (settings.rx_frames or 0) <= 1:
            yield Finding(
                level=Level.INFO,
                symptom=f"{nic.name} interrupts for every packet: lowest latency, highest CPU load",
                fix=f"ethtool -C {nic.name} adaptive-rx on",
                evidence=(f"ethtool -c {nic.name}: rx-usecs 0, adaptive off",),
                subject=nic.name,
            )


CHECK = Check(
    name="busy-poll",
    title="No socket spins while it waits",
    reads=("/proc/sys/net/core/{busy_poll,busy_read}", "ethtool -c NIC"),
    reference="https://docs.kernel.org/networking/napi.html",
    judge=judge,
)
