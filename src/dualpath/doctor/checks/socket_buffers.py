"""TCP lanes need a window of bandwidth times round trip; the kernel grows it only up to a limit."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.labels import integer
from dualpath.doctor.subjects import FAST_BITS_PER_S
from dualpath.units import format_bytes

ROUND_TRIP_S = 200e-6
"""Of a loaded data-centre network, between two racks."""
LOWERED_BYTES = 1 << 20
"""The kernel's own maximum is 4 or 6 MiB: less was set by somebody."""

_LIMITS = {"/proc/sys/net/ipv4/tcp_rmem": "net.ipv4.tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem": "net.ipv4.tcp_wmem"}


def judge(host: Host) -> Iterator[Finding]:
    """Yield limits under the fastest link's product of bandwidth and delay; a warning if they were lowered."""
    rates = {nic.name: nic.speed_bits_per_s or 0 for nic in host.physical_nics if nic.up}
    fastest = max(rates, key=lambda name: rates[name], default="")
    if not fastest or rates[fastest] <= FAST_BITS_PER_S:
        return
    needed = rates[fastest] / 8 * ROUND_TRIP_S
    found = {path: (host.tree.read(path) or "").split() for path in _LIMITS}
    largest = {path: integer(words[2]) for path, words in found.items() if len(words) == 3}
    small = {path: most for path, most in largest.items() if most and most < needed}
    if not small:
        return
    smallest = min(small.values())
    wanted = max(int(2 * needed), 16 << 20)
    settings = " ".join(f"{_LIMITS[path]}='{' '.join(found[path][:2])} {wanted}'" for path in small)
    gigabits = f"{rates[fastest] / 1e9:g} Gbit/s x {ROUND_TRIP_S * 1e6:g} us = {format_bytes(needed)}"
    yield Finding(
        level=Level.WARNING if smallest < LOWERED_BYTES else Level.INFO,
        symptom=f"one TCP connection may have {format_bytes(smallest)} under way; {fastest} needs {gigabits}",
        cause="the window ends before the link is full, so a TCP lane cannot use it with one connection",
        fix=f"sysctl -w {settings}",
        evidence=tuple(f"{path}: {' '.join(found[path])}" for path in small),
    )


CHECK = Check(
    name="socket-buffers",
    title="A TCP connection can fill the link",
    reads=tuple(_LIMITS),
    reference="https://docs.kernel.org/networking/ip-sysctl.html",
    judge=judge,
)
