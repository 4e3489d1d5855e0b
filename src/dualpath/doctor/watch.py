"""NICs over time: how busy they are, how often they were paused, what they dropped. Rates of two samples; pure but for
`sample`, which reads counters and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dualpath.doctor.collect import Runner
from dualpath.doctor.parsers.ethtool_counters import (
    NO_DESCRIPTOR,
    PORT_FULL,
    UNCORRECTED,
    matching,
    moved,
    parse_counters,
    pauses,
)
from dualpath.host.nics import Nic, nics
from dualpath.host.tree import Tree

IDLE_SHARE = 0.05
"""Of nominal: a NIC that moves less has room for another path."""
ETHTOOL_S = 0.5
"""How long a driver may take to print its counters."""
_IB_WORD_BYTES = 4
"""`port_rcv_data` and `port_xmit_data` count four bytes (InfiniBand Architecture Specification, PortCounters)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of every NIC at one time."""

    at_s: float
    counters: dict[str, dict[str, int]]
    """By NIC: `statistics/…` of sysfs, `ib/…` of its RDMA ports, and whatever `ethtool -S` prints."""
    nominal_bits_per_s: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one NIC did between two samples, per second. Discards are the port's, drops the host's."""

    nic: str
    rx_bits_per_s: float
    tx_bits_per_s: float
    used: float | None
    """Of nominal, the busier direction, 0 to 1; `None` where the NIC does not say what is nominal."""
    idle: bool | None
    rx_pauses_per_s: float
    tx_pauses_per_s: float
    discards_per_s: float
    drops_per_s: float
    errors_per_s: float


def watched(tree: Tree) -> list[Nic]:
    """Return the NICs worth watching: on a bus, or in a bond, and up."""
    return [nic for nic in nics(tree) if nic.kind in ("physical", "member") and nic.up]


def sample(tree: Tree, run: Runner, *, clock: Callable[[], float] = time.monotonic) -> Sample:
    """Return all counters as they are now."""
    chosen = watched(tree)
    at_s = clock()
    return Sample(
        at_s,
        {nic.name: _counters(tree, run, nic, time.monotonic() + ETHTOOL_S) for nic in chosen},
        {nic.name: nic.speed_bits_per_s for nic in chosen},
    )


def rates(before: Sample, after: Sample) -> list[Rates]:
    """Return what every NIC did between two samples that are some time apart; one that came or went is left out."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    return [
        _rates(name, moved(before.counters[name], now), after.nominal_bits_per_s.get(name), seconds)
        for name, now in after.counters.items()
        if name in before.counters
    ]


def _rates(name: str, change: dict[str, int], nominal: int | None, seconds: float) -> Rates:
    # RDMA passes the network stack by: the driver's own counts, where it has any, are the whole of it.
    rx, tx = (
        8 * max(change.get(key, 0) * scale for key, scale in _BYTES[direction]) / seconds for direction in ("rx", "tx")
    )
    used = max(rx, tx) / nominal if nominal else None
    frames = dict.fromkeys(("rx", "tx"), 0)
    for pause in pauses(change):
        frames[pause.direction] += pause.frames
    return Rates(
        nic=name,
        rx_bits_per_s=rx,
        tx_bits_per_s=tx,
        used=used,
        idle=None if used is None else used < IDLE_SHARE,
        rx_pauses_per_s=frames["rx"] / seconds,
        tx_pauses_per_s=frames["tx"] / seconds,
        discards_per_s=sum(matching(change, PORT_FULL).values()) / seconds,
        drops_per_s=(
            sum(matching(change, NO_DESCRIPTOR).values())
            + change.get("statistics/rx_dropped", 0)
            + change.get("statistics/tx_dropped", 0)
        )
        / seconds,
        errors_per_s=max(
            sum(matching(change, UNCORRECTED).values()),
            change.get("statistics/rx_errors", 0) + change.get("statistics/tx_errors", 0),
        )
        / seconds,
    )


_BYTES = {
    "rx": (("statistics/rx_bytes", 1), ("rx_bytes_phy", 1), ("ib/port_rcv_data", _IB_WORD_BYTES)),
    "tx": (("statistics/tx_bytes", 1), ("tx_bytes_phy", 1), ("ib/port_xmit_data", _IB_WORD_BYTES)),
}


def _counters(tree: Tree, run: Runner, nic: Nic, until_s: float) -> dict[str, int]:
    base = f"/sys/class/net/{nic.name}/statistics"
    found = _numbers(tree, base, "statistics")
    for device in nic.rdma_devices:
        for port in tree.names(f"/sys/class/infiniband/{device}/ports"):
            found |= _numbers(tree, f"/sys/class/infiniband/{device}/ports/{port}/counters", "ib")
    output = run(f"ethtool -S {nic.name}", until_s)
    return found | (parse_counters(output.stdout) if output is not None else {})


def _numbers(tree: Tree, base: str, prefix: str) -> dict[str, int]:
    texts = {name: tree.read(f"{base}/{name}") or "" for name in tree.names(base)}
    return {f"{prefix}/{name}": int(text) for name, text in texts.items() if text.isascii() and text.isdigit()}
