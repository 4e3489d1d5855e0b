"""Raw bandwidth before anything else: a link that gives under half of its rate has a fault below the framework."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.nics import Nic
from dualpath.host.raw import RawReport, RawRow

LEAST_SHARE = 0.5


def judge(host: Host) -> Iterator[Finding]:
    """Yield each pair of rails whose best measurement one way, of any size and lane, is under half of nominal."""
    raw = host.measured.raw
    for (*rails, direction), rows in _by_rails(raw).items() if raw else ():
        nic = next((nic for nic in host.nics if nic.name == rails[0]), None)
        if nic is not None and nic.kind in ("virtual", "loopback"):
            continue  # a veth claims 10 Gbit/s and has no link
        best = max(rows, key=lambda row: row.bits_per_s)
        nominal = best.nominal_bits_per_s or (nic.speed_bits_per_s if nic else None)
        if nominal is None or best.bits_per_s >= LEAST_SHARE * nominal:
            continue
        yield Finding(
            level=Level.WARNING,
            symptom=f"{rails[0]} to {rails[1]}, {direction}s: {best.bits_per_s / 1e9:.3g} Gbit/s at best, "
            f"{best.bits_per_s / nominal:.0%} of {nominal / 1e9:g}",
            cause="the NIC's PCIe link is narrow or slow, or its memory is on the other NUMA node"
            + (" (over TCP one CPU can be the limit too)" if best.transport == "tcp" else ""),
            fix=_fix(nic),
            evidence=(
                f"bench raw: {best.transport}, {best.lane} lane, {best.block_bytes} bytes, {best.in_flight} in flight",
            ),
            subject=rails[0],
        )


def _fix(nic: Nic | None) -> str:
    """Return how to look at the slot, and on which NUMA node to repeat the measurement where there are several."""
    slot = f"-s {nic.pci_address} " if nic is not None and nic.pci_address else ""
    look = f"lspci -vv {slot}| grep -E 'LnkCap|LnkSta'"
    if nic is None or nic.numa_node is None:
        return f"{look}  # the two should agree"
    node = nic.numa_node
    return f"{look}  # the two should agree; then measure again under numactl --cpunodebind={node} --membind={node}"


def _by_rails(raw: RawReport) -> dict[tuple[str, str, str], list[RawRow]]:
    """Return rows by the NICs at both ends and the direction."""
    found: dict[tuple[str, str, str], list[RawRow]] = {}
    for row in raw.relied_on:
        if row.memory == "host":  # GPU memory has a check of its own
            found.setdefault((row.local_rail, row.remote_rail, row.direction), []).append(row)
    return found


CHECK = Check(
    name="peak-bandwidth",
    title="Measured bandwidth reaches half of nominal and more",
    reads=("dualpath bench raw --json", "/sys/class/net/NIC/speed"),
    reference="https://github.com/linux-rdma/perftest",
    judge=judge,
)
