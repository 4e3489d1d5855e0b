"""A NIC held to a rate by the kernel's `htb` queueing discipline, and such rates read back.

With priority, the tree is (rates in percent of the NIC's):

    1:  htb, unmarked packets go to 1:30
    └── 1:1   rate 100
        ├── 1:10  realtime  rate 98, ceil 100, prio 0
        ├── 1:20  prefetch  rate 1,  ceil 100, prio 1
        └── 1:30  bulk      rate 1,  ceil 100, prio 2

`htb` lends what is left to the lowest `prio` first, so this is strict priority, except that one percent each keeps the
lower lanes (and ARP) alive. The real-time class has its rate as its own and need not wait for 1:1 to recover
from a 64 KiB segment of another class. Without priority there is one class, 1:10, for everything. Each leaf queues
`QUEUE_S` worth of bytes and drops what comes beyond that.

`htb` also where there is no priority, rather than `tbf`: a rate is changed in place, and may be above 34 Gbit/s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dualpath.host.lanes import LANES

QUEUE_S = 0.05
"""Time that a full queue takes to drain at the NIC's rate."""
_SMALLEST_QUEUE = 1 << 20
_LARGEST_QUEUE = 1 << 30
_SMALLEST_BURST = 128 << 10
"""Two of the largest segments that TCP hands down; a smaller bucket loses rate to the timer."""
_QUANTUM = 64 << 10
_ETHERTYPE_IPV4, _ETHERTYPE_IPV6 = 0x0800, 0x86DD
_ROOT = 0x10000
_NO_PARENT = 0xFFFFFFFF
_RATE_IS_64_BITS = 0xFFFFFFFF
_PER_CENT = {"realtime": 98, "prefetch": 1, "bulk": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """What one direction of a NIC is held to."""

    rate_bits_per_s: int
    burst_bytes: int
    """Size of the token bucket: what may go out at once after a pause."""
    priority: bool = False
    """Whether lanes are told apart by DSCP."""


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """One class of the tree; a leaf has a queue."""

    handle: int
    parent: int
    rate_bytes_per_s: int
    ceil_bytes_per_s: int
    burst_bytes: int
    precedence: int
    queue_bytes: int | None
    tos: int | None
    """TOS byte of the packets that belong here; `None`: no filter."""


def default_burst(rate_bits_per_s: int) -> int:
    """Return the bytes of a token bucket that keeps up the rate: one millisecond's worth, at least 128 KiB."""
    return max(_SMALLEST_BURST, rate_bits_per_s // 8 // 1000)


def classes(shape: Shape) -> list[ShapeClass]:
    """Return the classes of the tree, parents first."""
    rate = max(1, shape.rate_bits_per_s // 8)
    queue = min(max(_SMALLEST_QUEUE, int(rate * QUEUE_S)), _LARGEST_QUEUE)
    if not shape.priority:
        return [ShapeClass(_ROOT + 0x10, _ROOT, rate, rate, shape.burst_bytes, 0, queue, None)]
    tree = [ShapeClass(_ROOT + 1, _ROOT, rate, rate, shape.burst_bytes, 0, None, None)]
    for order, (lane, marks) in enumerate(LANES.items()):
        share = max(1, rate * _PER_CENT[lane] // 100)
        handle = _ROOT + 0x10 * (order + 1)
        tree.append(ShapeClass(handle, _ROOT + 1, share, rate, shape.burst_bytes, order, queue, marks.tos))
    return tree


def apply_shape(netlink: Any, index: int, shape: Shape) -> None:
    """Hold what leaves the interface `index` to `shape`. It must not have a queueing discipline of its own yet."""
    tree = classes(shape)
    netlink.tc("add", "htb", index, _ROOT, default=tree[-1].handle & 0xFFFF)
    set_rate(netlink, index, shape)
    for one in tree:
        if one.tos is not None:
            _add_filters(netlink, index, one.handle, one.tos)


def set_rate(netlink: Any, index: int, shape: Shape) -> None:
    """Change rate and burst of an interface that `apply_shape` has shaped; its queues keep their packets."""
    from pyroute2.netlink.rtnl.tcmsg import plugins  # type: ignore[import-untyped] # it has no annotations

    plugins.setdefault("bfifo", plugins["pfifo"])  # pyroute2 has none of its own; the kernel's options are the same
    for one in classes(shape):
        netlink.tc(
            "replace-class",
            "htb",
            index,
            one.handle,
            parent=one.parent,
            rate=one.rate_bytes_per_s,
            ceil=one.ceil_bytes_per_s,
            burst=one.burst_bytes,
            cburst=one.burst_bytes,
            prio=one.precedence,
            quantum=_QUANTUM,
        )
        if one.queue_bytes is not None:
            minor = one.handle & 0xFFFF
            netlink.tc("replace", "bfifo", index, minor << 16, parent=one.handle, limit=one.queue_bytes)


def _add_filters(netlink: Any, index: int, target: int, tos: int) -> None:
    """Send IPv4 packets with this TOS byte, and IPv6 packets with this traffic class, to the class `target`.

    The keys are the first 16 bits of the header: version, header length and TOS; version, traffic class and flow label.
    The two ECN bits may be anything.
    """
    for precedence, ethertype, key in (
        (1, _ETHERTYPE_IPV4, f"{0x4000 | tos:#06x}/0xf0fc+0"),
        (2, _ETHERTYPE_IPV6, f"{0x6000 | tos << 4:#06x}/0xffc0+0"),
    ):
        netlink.tc(
            "add-filter", "u32", index, parent=_ROOT, prio=precedence, protocol=ethertype, target=target, keys=[key]
        )


def read_rates(netlink: Any) -> dict[int, int]:
    """Return `shaped_rates` of all interfaces of the namespace that this pyroute2 socket is in."""
    qdiscs = list(netlink.get_qdiscs())
    htb = {one["index"] for one in qdiscs if one.get_attr("TCA_KIND") == "htb"}
    return shaped_rates(qdiscs, [one for index in htb for one in netlink.get_classes(index=index)])


def shaped_rates(qdiscs: Iterable[Any], all_classes: Iterable[Any]) -> dict[int, int]:
    """Return, by interface index, the bits per second that `tbf` or `htb` at the root of an interface lets through.

    The arguments are netlink's messages, as `get_qdiscs()` and `get_classes()` of pyroute2 return them. Interfaces
    without a shaper are left out, and a `tbf` above 34 Gbit/s too, whose rate pyroute2 does not decode.
    """
    rates: dict[int, int] = {}
    htb: set[int] = set()
    for qdisc in qdiscs:
        if qdisc["parent"] != _NO_PARENT:
            continue
        kind = qdisc.get_attr("TCA_KIND")
        if kind == "htb":
            htb.add(qdisc["index"])
        elif kind == "tbf":
            bytes_per_s = qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"]
            if bytes_per_s < _RATE_IS_64_BITS:
                rates[qdisc["index"]] = 8 * bytes_per_s
    for one in all_classes:
        if one["index"] in htb and one["parent"] == _NO_PARENT and one.get_attr("TCA_KIND") == "htb":
            options = one.get_attr("TCA_OPTIONS")
            bytes_per_s = options.get_attr("TCA_HTB_CEIL64") or options.get_attr("TCA_HTB_PARMS")["ceil"]
            rates[one["index"]] = rates.get(one["index"], 0) + 8 * bytes_per_s
    return rates
