"""Which NICs can carry KV data, how fast they are nominally, and how idle they are. Pure, except for `observe`.

before = observe(LiveTree()); sleep(1); after = observe(LiveTree())
for reading in readings(before, after, interval_s=1.0): ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dualpath.host.netlink import Link, links, open_netlink
from dualpath.host.nics import Counters, Nic, nics
from dualpath.host.tree import Tree

IDLE_SHARE = 0.05
"""A rail of which less is used is idle."""
HEADROOM_SHARE = 0.20
"""A rail of which less is used has headroom."""
UNUSED_BYTES_RATIO = 100
"""A rail that carried so many times less than its busiest peer may have been left out of the configuration …"""
UNUSED_SPEED_RATIO = 4
"""… and has been if its link also runs so many times slower than the fastest one."""

_CARRYING_KINDS = frozenset({"veth", "vlan", "macvlan", "ipvlan", "bond", "team"})
"""Virtual links that have a NIC behind them, as netlink calls them. A bridge or tunnel does not tell which one."""


@dataclass(frozen=True, slots=True)
class Rail:
    """One NIC as a way for data."""

    nic: Nic
    addresses: tuple[str, ...]
    """IPv4 and global IPv6 addresses with their prefix length."""
    nominal_bits_per_s: int | None
    """Of each direction; `None` where nothing says."""
    unfit: str = ""
    """Why it cannot be used for data; empty if it can."""


@dataclass(frozen=True, slots=True)
class RailUse:
    """What went through a rail over an interval, and which share of its nominal speed that was (`None`: not known)."""

    rx_bytes_per_s: float
    tx_bytes_per_s: float
    rx_share: float | None
    tx_share: float | None


@dataclass(frozen=True, slots=True)
class RailReading:
    """A rail, its use over an interval, and a word for it.

    `idle`      under 5 % of each direction is used
    `headroom`  under 20 %
    `busy`      more than that
    `unused`    idle, and always has been: its counters are two orders of magnitude under its busiest peer's, and its
                link runs at a quarter of the fastest peer's speed or less
    `unknown`   its speed is not known, or its counters went back
    `unfit`     it cannot be used for data
    """

    rail: Rail
    use: RailUse | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Observation:
    """The NICs at one moment, out of sysfs and netlink."""

    nics: tuple[Nic, ...]
    links: tuple[Link, ...]

    def counters(self, name: str) -> Counters | None:
        """Return what the NIC called `name` has counted; `None` if it is not there."""
        return next((link.counters for link in self.links if link.name == name), None)


def observe(tree: Tree) -> Observation:
    """Read sysfs through `tree`, and netlink. Raises `HostError` where the kernel refuses."""
    with open_netlink() as netlink:
        return Observation(tuple(nics(tree)), tuple(links(netlink)))


def rails(found: Iterable[Nic], known: Iterable[Link], *, include: Collection[str] = ()) -> list[Rail]:
    """Return the NICs that can be used for data; those named in `include`, such as `lo`, whatever their kind."""
    return [rail for rail in candidates(found, known, include=include) if not rail.unfit]


def candidates(found: Iterable[Nic], known: Iterable[Link], *, include: Collection[str] = ()) -> list[Rail]:
    """Return every NIC, with the reason why it is unfit for data if it is."""
    by_name = {link.name: link for link in known}
    return [_rail(nic, by_name.get(nic.name), wanted=nic.name in include) for nic in found]


def use(before: Counters, after: Counters, interval_s: float, nominal_bits_per_s: int | None) -> RailUse | None:
    """Return the use between two samples; `None` if a counter went back, as when a driver is loaded anew."""
    rx, tx = after.rx_bytes - before.rx_bytes, after.tx_bytes - before.tx_bytes
    if rx < 0 or tx < 0 or interval_s <= 0:
        return None
    rx_per_s, tx_per_s = rx / interval_s, tx / interval_s
    if not nominal_bits_per_s:
        return RailUse(rx_per_s, tx_per_s, None, None)
    return RailUse(rx_per_s, tx_per_s, 8 * rx_per_s / nominal_bits_per_s, 8 * tx_per_s / nominal_bits_per_s)


def readings(
    before: Observation, after: Observation, *, interval_s: float, include: Collection[str] = ()
) -> list[RailReading]:
    """Return every NIC of `after` with its use since `before`, those unfit for data included."""
    every = candidates(after.nics, after.links, include=include)
    fit = [rail for rail in every if not rail.unfit]
    found = []
    for rail in every:
        first, last = before.counters(rail.nic.name), after.counters(rail.nic.name)
        used = None if first is None or last is None else use(first, last, interval_s, rail.nominal_bits_per_s)
        peers = [(peer, after.counters(peer.nic.name)) for peer in fit if peer is not rail]
        found.append(RailReading(rail, used, verdict(rail, used, last, peers)))
    return found


def verdict(
    rail: Rail, used: RailUse | None, counted: Counters | None, peers: Sequence[tuple[Rail, Counters | None]]
) -> str:
    """Return the word for a rail; see `RailReading`."""
    if rail.unfit:
        return "unfit"
    if used is None or used.rx_share is None or used.tx_share is None:
        return "unknown"
    share = max(used.rx_share, used.tx_share)
    if share >= HEADROOM_SHARE:
        return "busy"
    if share >= IDLE_SHARE:
        return "headroom"
    fastest = max((peer.nominal_bits_per_s or 0 for peer, _ in peers), default=0)
    busiest = max((_total(other) for _, other in peers), default=0)
    slow = UNUSED_SPEED_RATIO * (rail.nominal_bits_per_s or 0) <= fastest
    return "unused" if slow and 0 < UNUSED_BYTES_RATIO * _total(counted) <= busiest else "idle"


def _total(counted: Counters | None) -> int:
    return 0 if counted is None else max(1, counted.rx_bytes + counted.tx_bytes)


def _rail(nic: Nic, link: Link | None, *, wanted: bool) -> Rail:
    addresses = () if link is None else link.addresses
    return Rail(nic, addresses, _nominal(nic, link), _unfit(nic, link, wanted=wanted))


def _nominal(nic: Nic, link: Link | None) -> int | None:
    """Return the speed of the link, or the rate that it is shaped to if that is less.

    A veth says 10 Gbit/s whatever it can do (drivers/net/veth.c of the kernel), so only its shape counts.
    """
    virtual = link is not None and link.kind == "veth"
    speeds = [None if virtual else nic.speed_bits_per_s, None if link is None else link.shaped_bits_per_s]
    return min((speed for speed in speeds if speed is not None), default=None)


def _unfit(nic: Nic, link: Link | None, *, wanted: bool) -> str:
    if not wanted:
        if nic.kind == "loopback":
            return "loopback"
        if nic.kind == "virtual" and (link is None or link.kind not in _CARRYING_KINDS):
            return "virtual" if link is None or link.kind is None else link.kind
    if nic.kind == "member" or (link is not None and link.master):
        return "belongs to a bridge or bond"
    if not nic.up:
        return "down"
    return "" if link is not None and link.addresses else "no address"
