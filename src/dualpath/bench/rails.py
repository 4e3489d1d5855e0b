"""What several NICs bring together: reads over each NIC alone and over all, in turns; and one that is pulled meanwhile.

Theory of operation. The nodes say at which addresses they listen; from that follows which NICs here lead to them. Each
NIC alone, and all of them, have connections of their own, over which blocks are kept in flight. A measurement:

    warm-up    a quarter of the time, not counted
    count      the nodes' payload counters, and the NICs' here, while nothing is in flight
    measure    keep blocks in flight for so many seconds, and wait for the last
    count      again; what landed last is compared with what was sent

Payload is counted here by rail, and at the nodes; the NICs' own counters have headers and foreign traffic too. A row
whose counts do not agree says so (`RailsRow.doubt`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dualpath.bench.raw_clock import linger, pumping
from dualpath.bench.raw_findings import doubt
from dualpath.bench.raw_flows import DEPTH, ReadFlow, Stored, check_room, room_needed, stored
from dualpath.bench.raw_measure import late_nic_bytes, nic_bytes
from dualpath.bench.raw_rails import ROUTE, greet, nominal_speeds, rails_of
from dualpath.bench.spread import Spread, ratios, spread
from dualpath.errors import UsageError
from dualpath.host.tree import LiveTree, Tree
from dualpath.pool.client import Pool, connect
from dualpath.pool.spec import parse
from dualpath.transport.base import Lane

TENANT = "bench-rails"
WARM_UP = 0.25
"""Share of the seconds of a measurement."""
OPERATIONS = 8
"""Reads under way for each NIC: each waits for an eighth of its bytes in flight."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RailsSettings:
    """What to measure.

    | field | meaning |
    |---|---|
    | `seconds`, `rounds` | of each measurement; rounds, in which each NIC alone and all together take turns |
    | `block_bytes`, `in_flight_bytes` | of the reads; for each NIC and node |
    | `nics` | names of the NICs here that may be used; empty: all that lead to a node |
    | `nominal_bits_per_s` | of each NIC, as in `nics` or as found; one: of all; none: what they say |
    | `pull` | the NIC that is taken down and up again, once a round; empty: none |
    | `timeout_s` | deadline of each request, and of a pulled NIC's return |
    """

    seconds: float = 2.0
    rounds: int = 5
    block_bytes: int = 256 << 10
    in_flight_bytes: int = 8 << 20
    nics: tuple[str, ...] = ()
    nominal_bits_per_s: tuple[int, ...] = ()
    pull: str = ""
    timeout_s: float = 10.0

    def check(self) -> None:
        """Raise `UsageError` for what cannot be measured."""
        if not 0 < self.seconds <= 3600 or not 1 <= self.rounds <= 1000:
            raise UsageError("a measurement takes more than 0 and at most 3600 s, in 1 to 1000 rounds")
        if not 0 < self.block_bytes <= self.in_flight_bytes // OPERATIONS or self.in_flight_bytes > 1 << 30:
            raise UsageError(
                f"{self.in_flight_bytes} bytes in flight are {OPERATIONS} reads of one block of {self.block_bytes} "
                "bytes at least, and 1 GiB at most"
            )

    @property
    def group(self) -> int:
        """Blocks of one read."""
        return self.in_flight_bytes // OPERATIONS // self.block_bytes


@dataclass(frozen=True)
class RailsSample:
    """One measurement: bits per second of payload in all, and by NIC; by the NIC's own counter too, if it has one."""

    bits_per_s: float
    payload: Mapping[str, float]
    interface: Mapping[str, float | None]
    doubt: str = ""


@dataclass(frozen=True)
class NicRow:
    """What one NIC brought."""

    nic: str
    payload_bits_per_s: Spread | None
    interface_bits_per_s: Spread | None
    nominal_bits_per_s: int | None


@dataclass(frozen=True)
class RailsRow:
    """Reads over some NICs, over all rounds. `of_nominal`: of the sum of their nominal speeds, where all are known."""

    nics: tuple[str, ...]
    bits_per_s: Spread | None
    of_nominal: Spread | None
    each: tuple[NicRow, ...]
    doubt: str


@dataclass(frozen=True)
class Pulled:
    """What a pulled NIC did to reads over all NICs, answered in the order in which they were asked for.

    Rates are before, while the NIC was down, and after it was back; gaps are the longest time without the next block,
    before and from the pull on. `rejoined_s`: from setting it up to its first byte; `None`: not within the deadline.
    """

    before_bits_per_s: float
    down_bits_per_s: float
    after_bits_per_s: float | None
    longest_gap_before_s: float
    longest_gap_s: float
    rejoined_s: float | None


@dataclass(frozen=True)
class RailsReport:
    """All rows. `all_over_…`: all NICs together over the first alone, over the sum of each alone."""

    settings: RailsSettings
    nodes: tuple[str, ...]
    rows: tuple[RailsRow, ...]
    all_over_first: Spread | None
    all_over_sum: Spread | None
    pulled: tuple[Pulled, ...]


@dataclass
class Run:
    """A run under way."""

    settings: RailsSettings
    tree: Tree
    control: Pool
    blocks: Sequence[Stored]
    pools: Mapping[tuple[str, ...], tuple[Pool, Sequence[int]]]
    """By NICs: connections over them, and which of the nodes these lead to."""
    samples: dict[tuple[str, ...], list[RailsSample]] = field(default_factory=dict)

    def flows(self, nics: tuple[str, ...], *, group: int, operations: int) -> list[ReadFlow]:
        """Return reads of `group` blocks over these NICs, from each node, so many of them under way."""
        pool, numbers = self.pools[nics]
        return [
            ReadFlow(node, self.blocks[number], Lane.PREFETCH, group * DEPTH, operations=operations)
            for node, number in zip(pool.nodes, numbers, strict=True)
        ]


def run_rails_bench(
    spec: str,
    settings: RailsSettings | None = None,
    *,
    key: bytes | None = None,
    tree: Tree | None = None,
    progress: Progress = lambda _: None,
) -> RailsReport:
    """Measure reads from the nodes at `spec`. `tree` has the NICs' counters (default: live).

    Raises `UsageError`, `PoolFullError`, any other `PeerError` as soon as a node fails, and `HostError` if data arrives
    spoiled, or the NIC cannot be pulled. Nothing stays at the nodes, and a pulled NIC is up again, in any case.
    """
    wanted, here = settings or RailsSettings(), tree or LiveTree()
    wanted.check()
    reach = nics_to(spec, wanted, key)
    nominal = _nominal(list(reach), wanted, here)
    if wanted.pull and (wanted.pull not in reach or len(reach) < 2):
        raise UsageError(
            f"{wanted.pull} is not one of several NICs that lead there", hint=f"these do: {', '.join(reach) or 'none'}"
        )
    with contextlib.ExitStack() as closing:

        def connected(text: str, nics: Sequence[str] = ()) -> Pool:
            return closing.enter_context(connect(text, key=key, tenant=TENANT, timeout_s=wanted.timeout_s, nics=nics))

        control = connected(spec)
        for node in control.nodes:
            check_room(node, room_needed(wanted.block_bytes, wanted.group))
        blocks = [closing.enter_context(stored(node, wanted.block_bytes)) for node in control.nodes]
        addresses = [str(address) for address in parse(spec)]
        pools: dict[tuple[str, ...], tuple[Pool, Sequence[int]]] = {
            (nic,): (connected(",".join(addresses[n] for n in there), [nic]), there) for nic, there in reach.items()
        }
        if len(reach) > 1:
            pools[tuple(reach)] = (connected(spec, list(reach)), range(len(addresses)))
        run = Run(wanted, here, control, blocks, pools, {nics: [] for nics in pools})
        pulls = _rounds(run, progress)
    return report(wanted, tuple(node.name for node in control.nodes), nominal, run.samples, pulls)


def _rounds(run: Run, progress: Progress) -> list[Pulled]:
    from dualpath.bench.rails_pull import pull_nic

    pulls: list[Pulled] = []
    for round_ in range(run.settings.rounds):
        order = list(run.pools)[:: -1 if round_ % 2 else 1]
        for nics in order:
            progress(f"round {round_ + 1} of {run.settings.rounds}: {'+'.join(nics)}")
            run.samples[nics].append(_measure(run, nics))
    for round_ in range(run.settings.rounds if run.settings.pull else 0):
        progress(f"round {round_ + 1} of {run.settings.rounds}: pulling {run.settings.pull}")
        pulls.append(pull_nic(run, run.settings.pull))
    return pulls


def nics_to(spec: str, settings: RailsSettings, key: bytes | None) -> dict[str, list[int]]:
    """Return the NICs here that lead to the nodes of `spec` without a router, each with the numbers of those nodes.

    Raises `UsageError` if there is a node that none leads to.
    """
    found: dict[str, list[int]] = {}
    for number, address in enumerate(parse(spec)):
        if address.path:
            raise UsageError(f"not a node over the network: {address}", hint="name it as 10.0.0.2:7700")
        greeting = greet(address, key=key, tenant=TENANT, timeout_s=settings.timeout_s)
        nics = dict.fromkeys(nic for _, nic in rails_of(greeting, nics=settings.nics, every_pair=False))
        if ROUTE in nics:
            raise UsageError(
                f"{address} is behind a router: which NIC leads there is the kernel's choice",
                hint="name the node at an address in a network of a NIC here",
            )
        for nic in nics:
            found.setdefault(nic, []).append(number)
    return found


def _nominal(nics: Sequence[str], settings: RailsSettings, tree: Tree) -> dict[str, int | None]:
    given = settings.nominal_bits_per_s
    if not given:
        speeds = nominal_speeds(tree)
        return {nic: speeds.get(nic) for nic in nics}
    if len(given) not in (1, len(nics)):
        raise UsageError(
            f"{len(given)} nominal speeds for {len(nics)} NICs", hint=f"one for all, or one each: {', '.join(nics)}"
        )
    order = [nic for nic in settings.nics if nic in nics] or nics
    return {nic: given[order.index(nic) if len(given) > 1 else 0] for nic in nics}


# --- one measurement -------------------------------------------------------------------------------------------------


def _measure(run: Run, nics: tuple[str, ...]) -> RailsSample:
    settings, (pool, _) = run.settings, run.pools[nics]
    flows = run.flows(nics, group=settings.group, operations=OPERATIONS * len(nics))
    with pumping(flows, pool.close) as under_way:
        linger(under_way, WARM_UP * settings.seconds)
    served, brought = _served(run), rail_bytes(pool)
    counted = {nic: nic_bytes(run.tree, (nic,), "read") for nic in nics}
    with pumping(flows, pool.close) as under_way:
        linger(under_way, settings.seconds)
    moved = [one.result() for one in under_way]
    payload, took_s = sum(one.payload_bytes for one in moved), max(one.seconds for one in moved)
    now = rail_bytes(pool)
    by_nic = {nic: now.get(nic, 0) - brought.get(nic, 0) for nic in nics}
    interface: dict[str, int | None] = {}
    for nic, before in counted.items():
        late = None if before is None else late_nic_bytes(run.tree, (nic,), "read", before + by_nic[nic])
        interface[nic] = None if late is None or before is None else late - before
    whole = None if None in interface.values() else sum(one or 0 for one in interface.values())
    sent = int(_served(run) - served)
    for flow in flows:
        flow.verify()
    return RailsSample(
        8 * payload / took_s,
        {nic: 8 * count / took_s for nic, count in by_nic.items()},
        {nic: None if count is None else 8 * count / took_s for nic, count in interface.items()},
        doubt(sent=sent, received=payload, interface_bytes=whole, direction="read"),
    )


def rail_bytes(pool: Pool) -> dict[str, int]:
    """Return the payload that each NIC here has brought over these connections, by the transport's count."""
    found: dict[str, int] = {}
    for node in pool.nodes:
        for rail in getattr(node.peer, "rails", ()):  # not over every transport
            nic = rail.name.partition(" ")[0]
            found[nic] = found.get(nic, 0) + rail.bytes_received
    return found


def _served(run: Run) -> float:
    return sum(node.stats()["bytes_out_total"] for node in run.control.nodes)


# --- the report ------------------------------------------------------------------------------------------------------


def report(
    settings: RailsSettings,
    nodes: tuple[str, ...],
    nominal: Mapping[str, int | None],
    samples: Mapping[tuple[str, ...], Sequence[RailsSample]],
    pulls: Sequence[Pulled],
) -> RailsReport:
    """Return rows and ratios. Pure."""
    rates = {nics: [one.bits_per_s for one in rounds] for nics, rounds in samples.items()}
    alone = [rates[nics] for nics in rates if len(nics) == 1]
    together = next((rates[nics] for nics in rates if len(nics) > 1), None)
    return RailsReport(
        settings=settings,
        nodes=nodes,
        rows=tuple(_row(nics, rounds, nominal) for nics, rounds in samples.items()),
        all_over_first=ratios(together, alone[0]) if together else None,
        all_over_sum=ratios(together, [sum(each) for each in zip(*alone, strict=True)]) if together else None,
        pulled=tuple(pulls),
    )


def _row(nics: tuple[str, ...], rounds: Sequence[RailsSample], nominal: Mapping[str, int | None]) -> RailsRow:
    known = [speed for nic in nics if (speed := nominal[nic]) is not None]
    whole = sum(known) if len(known) == len(nics) else None
    return RailsRow(
        nics=nics,
        bits_per_s=spread(one.bits_per_s for one in rounds),
        of_nominal=None if whole is None else spread(one.bits_per_s / whole for one in rounds),
        each=tuple(
            NicRow(
                nic,
                spread(one.payload[nic] for one in rounds),
                spread(one.interface[nic] for one in rounds),
                nominal[nic],
            )
            for nic in nics
        ),
        doubt=next((one.doubt for one in rounds if one.doubt), ""),
    )
