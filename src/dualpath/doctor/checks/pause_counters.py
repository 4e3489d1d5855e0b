"""Pause frames: a few are flow control at work, many are a fabric that stands still."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_counters import PauseCount, matching, paused_us, pauses
from dualpath.doctor.subjects import Sample, fast_nics, packets, sample
from dualpath.host.nics import Nic

PAUSED_SHARE, STALLED_SHARE, DEADLOCK_SHARE = 0.1, 0.5, 0.95
"""Of the time between two readings: worth a look; half of it; all of it."""
FRAMES_PER_S = 1000
PACKETS_SHARE, LEAST_FRAMES = 0.001, 10_000
"""With one reading: so many pauses per packet, and so many at all."""

_STORM = re.compile(r"tx_pause_storm_(warning|error)_events")
_SWITCH = (
    "on the switch port of {nic}: give the lossless queue more headroom, and lower its ECN threshold so that senders "
    "slow down before pauses are sent; if it never resumes, switch its PFC watchdog on"
)
_HOST = "look for what slows {nic} down here: lspci -vv -s {pci} | grep LnkSta, then NUMA placement and ring sizes"


def judge(host: Host) -> Iterator[Finding]:
    """Yield each NIC's worst trouble with pauses, one finding for each direction."""
    for nic in fast_nics(host):
        try:
            counts = sample(host, nic)
        except Unknown as why:
            if nic.rdma_devices:
                yield Finding(level=Level.UNKNOWN, symptom=f"{nic.name}: {why}", fix=why.fix, subject=nic.name)
            continue
        if counts is None:
            continue
        yield from _storm(nic, counts)
        yield from _held(nic, counts) if counts.after is not None else _in_total(host, nic, counts)


def _storm(nic: Nic, counts: Sample) -> Iterator[Finding]:
    """The NIC's firmware saw that this host was pausing the network without end."""
    events = {name: count for name, count in matching(counts.latest, _STORM).items() if count}
    if not events:
        return
    error = "tx_pause_storm_error_events" in events
    yield Finding(
        level=Level.CRITICAL if error else Level.WARNING,
        symptom=f"{nic.name}: pause storm, {max(events.values()):,} times: this host stopped the network for long",
        cause="the NIC could not hand packets to memory (PCIe, a hung driver or GPU), and paused its switch port",
        fix=_fix(nic, "tx"),
        evidence=_lines(nic, events),
        subject=nic.name,
    )


def _held(nic: Nic, counts: Sample) -> Iterator[Finding]:
    """Judge what moved between two readings: time where the driver counts it, frames where it does not."""
    moved = counts.moved
    times = paused_us(moved)
    timed = paused_us(counts.before)
    for (direction, priority), microseconds in times.items():
        share = microseconds / (counts.seconds * 1e6)
        if share < PAUSED_SHARE:
            continue
        sent = "tx_bytes_phy" if priority is None else f"tx_prio{priority}_bytes"
        where = "the link" if priority is None else f"priority {priority}"
        deadlocked = direction == "rx" and share >= DEADLOCK_SHARE and sent in counts.before and sent not in moved
        yield _finding(
            nic,
            direction,
            Level.CRITICAL if deadlocked or share >= STALLED_SHARE else Level.WARNING,
            f"{where} paused {share:.0%} of {counts.seconds:g} s"
            + (", and nothing was sent: deadlock or storm" if deadlocked else ""),
            {f"{direction} pause duration of {where}, us": microseconds},
        )
    for pause in pauses(moved):
        rate = pause.frames / counts.seconds
        if not timed and rate >= FRAMES_PER_S:
            yield _finding(
                nic,
                pause.direction,
                Level.WARNING,
                f"{rate:,.0f} pause frames/s{_at(pause)}",
                {pause.name: pause.frames},
            )


def _in_total(host: Host, nic: Nic, counts: Sample) -> Iterator[Finding]:
    """Judge a single reading: pauses in proportion to packets."""
    received = packets(host, nic, counts.before)
    for pause in pauses(counts.before):
        if pause.frames >= max(LEAST_FRAMES, PACKETS_SHARE * received) and received:
            what = f"{pause.frames:,} pause frames so far{_at(pause)}, {pause.frames / received:.2%} of packets"
            yield _finding(nic, pause.direction, Level.WARNING, what, {pause.name: pause.frames})


def _finding(nic: Nic, direction: str, level: Level, what: str, counters: dict[str, int]) -> Finding:
    if direction == "rx":
        who, cause = "the switch holds this host back", "shallow switch buffers, a slower peer, or a PFC deadlock"
    else:
        who, cause = "this host holds the network back", "the NIC is slower than its link: PCIe, NUMA, rings or memory"
    return Finding(
        level=level,
        symptom=f"{nic.name}: {what} ({who})",
        cause=cause,
        fix=_fix(nic, direction),
        evidence=_lines(nic, counters),
        subject=nic.name,
    )


def _fix(nic: Nic, direction: str) -> str:
    return (_SWITCH if direction == "rx" else _HOST).format(nic=nic.name, pci=nic.pci_address)


def _at(pause: PauseCount) -> str:
    return "" if pause.priority is None else f" at priority {pause.priority}"


def _lines(nic: Nic, counters: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"ethtool -S {nic.name}: {name} {count}" for name, count in counters.items())


CHECK = Check(
    name="pause-counters",
    title="Pauses are rare: no storm, no deadlock, no lane held back",
    reads=("ethtool -S NIC (twice)", "/sys/class/net/NIC/statistics/rx_packets"),
    reference="https://doi.org/10.1145/2934872.2934908",
    judge=judge,
)
