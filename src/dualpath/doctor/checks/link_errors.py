"""A link that goes up and down, or delivers damaged symbols: cable, module or FEC."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_counters import LINK_DOWN, UNCORRECTED, matching
from dualpath.doctor.parsers.ethtool_fec import Fec, parse_fec
from dualpath.doctor.parsers.labels import integer
from dualpath.doctor.subjects import GIGABIT_PER_S, Sample, hardware_nics, packets, sample
from dualpath.host.nics import Nic

MOST_DOWNS, MOST_CHANGES = 10, 30
"""Times a link may have gone down, and changes of carrier, since the driver was loaded: start and tests take a few."""
SHARE, LEAST = 1e-6, 100
FRESH = 10
"""Between two readings: a link within its specification (1e-12) has about one error in ten seconds at 100 Gbit/s."""
UNCORRECTABLE_BLOCKS = 1000
"""Of a link that is training some blocks are always lost."""
PAM4_BITS_PER_S = 200 * GIGABIT_PER_S

_SWAP = "swap the cable or module of {nic} first, then try the other port of the switch"


def judge(host: Host) -> Iterator[Finding]:
    """Yield flaps, damage and FEC that does not fit, for each NIC with a port of its own."""
    for nic in hardware_nics(host):
        try:
            counts = sample(host, nic)
        except Unknown:  # sysfs has the carrier's changes all the same
            counts = None
        fec = _fec(host, nic)
        yield from _flaps(host, nic, counts)
        yield from _damage(host, nic, counts, fec)
        yield from _wrong_fec(nic, fec)


def _fec(host: Host, nic: Nic) -> Fec:
    for line in (f"ethtool -I --show-fec {nic.name}", f"ethtool --show-fec {nic.name}"):
        output = host.output(line)
        if output is not None and output.stdout.strip():
            return parse_fec(output.stdout)
    return Fec()


def _flaps(host: Host, nic: Nic, counts: Sample | None) -> Iterator[Finding]:
    path = f"/sys/class/net/{nic.name}/carrier_changes"
    changes = integer(host.tree.read(path) or "") or 0
    later = integer(host.recording.later.get(path, "")) or changes
    downs = matching(counts.latest, LINK_DOWN) if counts else {}
    fresh = matching(counts.moved, LINK_DOWN) if counts else {}
    if later > changes or fresh:
        what = f"went down within {host.recording.later_s:g} s"
    elif max(downs.values(), default=0) > MOST_DOWNS:
        what = f"has gone down {max(downs.values())} times"
    elif not downs and changes > MOST_CHANGES:
        what = f"has changed its carrier {changes} times"
    else:
        return
    yield Finding(
        level=Level.WARNING,
        symptom=f"{nic.name}: the link {what}",
        cause="a cable or module that makes bad contact, or FEC or speed that the two ends negotiate anew",
        fix=_SWAP.format(nic=nic.name),
        evidence=(
            f"{path}: {changes}" + (f", then {later}" if later != changes else ""),
            *(f"ethtool -S {nic.name}: {name} {count}" for name, count in downs.items()),
        ),
        subject=nic.name,
    )


def _damage(host: Host, nic: Nic, counts: Sample | None, fec: Fec) -> Iterator[Finding]:
    latest = counts.latest if counts else {}
    totals = {name: count for name, count in matching(latest, UNCORRECTED).items() if count}
    fresh = matching(counts.moved, UNCORRECTED) if counts else {}
    most = max(totals.values(), default=0)
    blocks = fec.uncorrectable_blocks or 0
    if max(fresh.values(), default=0) >= FRESH:
        what = f"{max(fresh.values()):,} damaged symbols, frames or blocks within {counts.seconds if counts else 0:g} s"
    elif (counts is None or counts.after is None) and most >= max(LEAST, SHARE * packets(host, nic, latest)):
        what = f"{most:,} damaged symbols, frames or blocks so far"
    elif blocks >= UNCORRECTABLE_BLOCKS:
        what = f"{blocks:,} blocks that FEC could not correct"
    else:
        return
    yield Finding(
        level=Level.WARNING,
        symptom=f"{nic.name}: {what}",
        cause="a dirty or bent fibre, a cable too long for its FEC, or a failing module",
        fix=_SWAP.format(nic=nic.name),
        evidence=(
            *(f"ethtool -S {nic.name}: {name} {count}" for name, count in totals.items()),
            *((f"ethtool -I --show-fec {nic.name}: uncorrectable_blocks {blocks}",) if blocks else ()),
        ),
        subject=nic.name,
    )


def _wrong_fec(nic: Nic, fec: Fec) -> Iterator[Finding]:
    if not fec.active or not nic.speed_bits_per_s or nic.speed_bits_per_s < 25 * GIGABIT_PER_S:
        return
    active, configured = fec.active[0], fec.configured
    speed = f"{nic.speed_bits_per_s / GIGABIT_PER_S:g} Gbit/s"
    if configured and not {active, "auto", "default"} & set(configured):
        symptom = f"{nic.name}: FEC {active} is active, {' '.join(configured)} was configured"
        cause = "the peer's port is set to another FEC"
    elif active == "off" and nic.speed_bits_per_s >= PAM4_BITS_PER_S:
        symptom = f"{nic.name}: FEC is off at {speed}"
        cause = "four-level signalling (PAM4, from 200 Gbit/s on) is specified with Reed-Solomon FEC only"
    else:
        return
    yield Finding(
        level=Level.WARNING,
        symptom=symptom,
        cause=cause,
        fix=f"ethtool --set-fec {nic.name} encoding rs  # and the same on the switch port",
        evidence=(f"ethtool --show-fec {nic.name}: configured {' '.join(configured)}, active {' '.join(fec.active)}",),
        subject=nic.name,
    )


CHECK = Check(
    name="link-errors",
    title="The link stays up, and what it delivers is intact",
    reads=(
        "/sys/class/net/NIC/carrier_changes (twice)",
        "ethtool -S NIC (twice)",
        "ethtool -I --show-fec NIC",
        "ethtool --show-fec NIC",
    ),
    reference="https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
    judge=judge,
)
