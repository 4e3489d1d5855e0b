"""Is a NIC idle, and is that headroom or a fault?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.nics import Nic
from dualpath.host.rdma import RdmaPort
from dualpath.host.tree import RecordedTree

_FAST_BITS_PER_S = 25e9
"""A NIC that can do no more is a management port."""
_ORDERS_OF_MAGNITUDE = 100
_ENOUGH_BYTES = 1e9
"""Less than this on the busiest NIC says nothing about the others."""
_QUARTER = 0.25
_HEADROOM = 0.2


def _judge(host: Host) -> Iterator[Finding]:
    nics = [nic for nic in host.physical_nics if nic.up and nic.speed_bits_per_s]
    moved = {nic.name: moved_bytes(host, host.tree, nic) for nic in nics}
    busiest = max(nics, key=lambda nic: sum(moved[nic.name] or (0, 0)), default=None)
    if busiest is None:
        return
    most = sum(moved[busiest.name] or (0, 0))
    for nic in nics:
        own = moved[nic.name]
        idle = (
            own is not None and nic is not busiest and most >= _ENOUGH_BYTES and sum(own) * _ORDERS_OF_MAGNITUDE <= most
        )
        able = _able_bits_per_s(host, nic)
        if idle and own is not None and able >= _FAST_BITS_PER_S:
            yield _idle(nic, sum(own), busiest.name, most, able)
        else:
            yield from _sampled(host, nic)


def moved_bytes(host: Host, tree: RecordedTree, nic: Nic) -> tuple[int, int] | None:
    """Return bytes received and sent, RDMA included, since the counters began; `None` if they were not recorded.

    mlx5 counts RDMA apart from the interface, in units of 4 bytes (Documentation/ABI/stable/sysfs-class-infiniband).
    """
    base = f"/sys/class/net/{nic.name}/statistics"
    values = [_number(tree, f"{base}/rx_bytes"), _number(tree, f"{base}/tx_bytes")]
    if None in values:
        return None
    received, sent = (value or 0 for value in values)
    for port in _ports(host, nic):
        counters = f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters"
        received += 4 * (_number(tree, f"{counters}/port_rcv_data") or 0)
        sent += 4 * (_number(tree, f"{counters}/port_xmit_data") or 0)
    return received, sent


def _sampled(host: Host, nic: Nic) -> Iterator[Finding]:
    """Say how busy the NIC was between the two samples, if there are two."""
    recording = host.recording
    if not recording.later or recording.later_s <= 0 or not nic.speed_bits_per_s:
        return
    before = moved_bytes(host, host.tree, nic)
    after = moved_bytes(host, RecordedTree({**recording.files, **recording.later}, recording.links), nic)
    if before is None or after is None:
        return
    rates = [8 * (b - a) / recording.later_s for a, b in zip(before, after, strict=True)]
    share = max(rates) / nic.speed_bits_per_s
    if 0 <= share <= _HEADROOM:
        yield Finding(
            level=Level.INFO,
            symptom=f"{nic.name}: {share:.1%} of {fabric.gigabits(nic.speed_bits_per_s)} used over "
            f"{recording.later_s:g} s: headroom",
            evidence=(f"{nic.name}: {rates[0] / 1e9:.3g} Gbit/s in, {rates[1] / 1e9:.3g} Gbit/s out",),
            subject=nic.name,
        )


def _idle(nic: Nic, own: int, busiest: str, most: int, able: float) -> Finding:
    speed = nic.speed_bits_per_s or 0
    slow = speed <= _QUARTER * able
    evidence = (
        f"/sys/class/net/{nic.name}/statistics, with RDMA: {own} bytes",
        f"/sys/class/net/{busiest}/statistics, with RDMA: {most} bytes",
        f"/sys/class/net/{nic.name}/speed: {speed // 1_000_000} Mbit/s, capable of {fabric.gigabits(able)}",
    )
    if slow:
        return Finding(
            level=Level.WARNING,
            symptom=f"{nic.name} is idle ({fabric.amount(own)} against {fabric.amount(most)} on {busiest}) and its "
            f"link at {fabric.gigabits(speed)} of {fabric.gigabits(able)}",
            cause="the module, the cable or the switch port is of a lower rate, or negotiation fell back",
            fix=f"see `ethtool {nic.name}` and `ethtool -m {nic.name}`; put in a cable of the full rate, set the "
            "switch port to it, then bring the NIC in as a rail",
            evidence=evidence,
            subject=nic.name,
        )
    return Finding(
        level=Level.INFO,
        symptom=f"{nic.name} is idle ({fabric.amount(own)} against {fabric.amount(most)} on {busiest}), its link at "
        f"{fabric.gigabits(speed)}: headroom",
        evidence=evidence,
        subject=nic.name,
    )


def _able_bits_per_s(host: Host, nic: Nic) -> float:
    """Return what the NIC could do: as its driver says, or as its equals on this host do; at least what it does."""
    supported = fabric.ethtool(host, nic.name).supported_bits_per_s or 0
    alike = _device(host, nic)
    same = [other.speed_bits_per_s or 0 for other in host.physical_nics if alike and _device(host, other) == alike]
    return max(supported, nic.speed_bits_per_s or 0, *same, 0)


def _device(host: Host, nic: Nic) -> tuple[str, str] | None:
    base = f"/sys/class/net/{nic.name}/device"
    vendor, device = host.tree.read(f"{base}/vendor"), host.tree.read(f"{base}/device")
    return (vendor, device) if vendor and device else None


def _ports(host: Host, nic: Nic) -> list[RdmaPort]:
    return [port for port in fabric.ports(host) if nic.name in port.netdevs]


def _number(tree: RecordedTree, path: str) -> int | None:
    text = tree.read(path) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 25 else None


CHECK = Check(
    name="nic-idle",
    title="No fast NIC stands idle at a low link speed; how much headroom each has",
    reads=(
        "/sys/class/net/NIC/statistics/{rx,tx}_bytes",
        "/sys/class/infiniband/DEVICE/ports/PORT/counters/port_{rcv,xmit}_data",
        "/sys/class/net/NIC/speed",
        "ethtool NIC",
    ),
    reference="Linux Documentation/ABI/testing/sysfs-class-net-statistics and stable/sysfs-class-infiniband, "
    "https://docs.kernel.org/admin-guide/abi.html",
    judge=_judge,
)
