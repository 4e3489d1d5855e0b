"""One measurement of the raw bench: a flow over a route, counted at both ends. See `raw` for the whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dualpath.bench.raw_clock import Flow, during, percentile, pump, pumping, times_alone
from dualpath.bench.raw_findings import doubt
from dualpath.bench.raw_flows import DEPTH, CallFlow, ReadFlow, Stored, blocks_in_flight, write_flow
from dualpath.errors import PeerError, UsageError
from dualpath.host.nics import counters
from dualpath.host.raw import RawBeside, RawRow
from dualpath.host.tree import Tree
from dualpath.pool.node import PoolNode
from dualpath.pool.spec import check_deadline
from dualpath.transport.peer import StreamPeer
from dualpath.units import format_bytes
from dualpath.wire.messages import Lane

SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
LARGEST_BYTES = 16 << 20
REALTIME_BYTES = 64 << 10
"""Real-time messages are small: larger blocks are not measured in that lane."""
BESIDE_BYTES = 1 << 20
"""Blocks of the prefetch that real-time round trips are measured beside; the largest size up to this one."""
WARM_UP, ALONE = 0.25, 0.5
"""Shares of the seconds of a measurement."""
_BESIDE_SAMPLES = 100
_LATE_COUNTERS_S = 1.5


@dataclass(frozen=True)
class RawSettings:
    """What to measure.

    | field | meaning |
    |---|---|
    | `sizes` | bytes of a block, each at most 16 MiB |
    | `seconds` | of one measurement; `None`: so that the whole run takes about 40 s |
    | `in_flight` | blocks in flight; `None`: 8 MiB of them, 4 to 512 |
    | `nics` | names of the NICs here that may be used; empty: all that lead to the node |
    | `every_pair` | measure each NIC here with each of the node's in its network, not only the pairs that are used |
    | `nominal_bits_per_s` | speed of each link, the slower end; `None`: what the NIC here says |
    | `timeout_s` | deadline of each request |
    """

    sizes: Sequence[int] = SIZES
    seconds: float | None = None
    in_flight: int | None = None
    nics: Sequence[str] = ()
    every_pair: bool = False
    nominal_bits_per_s: float | None = None
    timeout_s: float = 10.0

    def check(self) -> None:
        """Raise `UsageError` for what cannot be measured."""
        if not self.sizes or any(not 0 < size <= LARGEST_BYTES for size in self.sizes):
            raise UsageError(f"sizes of blocks are within (0, {format_bytes(LARGEST_BYTES)}]")
        if len(set(self.sizes)) != len(self.sizes):
            raise UsageError("a size is named twice")
        if self.seconds is not None and not 0 < self.seconds <= 3600:
            raise UsageError(f"a measurement cannot take {self.seconds} s", hint="more than 0 and at most 3600")
        if self.in_flight is not None and not 1 <= self.in_flight <= 2048:
            raise UsageError(f"{self.in_flight} blocks in flight", hint="1 to 2048")
        if self.nominal_bits_per_s is not None and self.nominal_bits_per_s <= 0:
            raise UsageError("a nominal speed is more than nothing")
        check_deadline(self.timeout_s)

    def depth(self, size: int) -> int:
        """Return how many blocks of this size are in flight."""
        return self.in_flight or blocks_in_flight(size)


@dataclass(frozen=True)
class Route:
    """One pair of rails with a peer bound to it, or all rails with one peer."""

    rail: str
    """What the transport calls it."""
    local: str
    remote: str
    nics: tuple[str, ...]
    node: PoolNode
    peer: StreamPeer
    nominal_bits_per_s: float | None
    rails: int = 1

    @property
    def alone(self) -> bool:
        """Whether it is one pair of rails."""
        return self.rails == 1

    def __str__(self) -> str:
        return f"{self.local} → {self.remote}"


@dataclass
class Run:
    """A run under way."""

    settings: RawSettings
    seconds: float
    control: PoolNode
    tree: Tree
    tell: Callable[[str], None]
    rows: list[RawRow] = field(default_factory=list)
    together: list[RawRow] = field(default_factory=list)
    beside: list[RawBeside] = field(default_factory=list)


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Say what was being measured when the node failed."""
    try:
        yield
    except PeerError as error:
        said = str(error).removeprefix(f"{error.node}: ") if error.node in what else str(error)
        raise type(error)(f"{what}: {said}", node=error.node, hint=error.hint) from error


def measure_route(run: Run, route: Route, blocks: Stored) -> None:
    """Measure blocks of one size over one route, in every lane, and add the rows to `run`."""
    size = blocks.block_bytes
    for lane, direction in ways(size, route):
        what = f"{route}, {lane.name.lower()} {direction}s of {format_bytes(size)}"
        run.tell(what)
        with naming(what), _flow(route, lane, direction, blocks, run.settings.depth(size)) as flow:
            row = _measure(run, route, flow, lane, direction)
        (run.rows if route.alone else run.together).append(row)
    largest = max((one for one in run.settings.sizes if one <= BESIDE_BYTES), default=min(run.settings.sizes))
    if route.alone and size == largest:
        what = f"{route}, real-time round trips beside a prefetch"
        run.tell(what)
        with naming(what):
            run.beside.append(_measure_beside(run, route, blocks))


def ways(size: int, route: Route) -> list[tuple[Lane, str]]:
    """Return what is measured. Calls and writes use one rail at a time, so several together are for reads only."""
    reads = [(Lane.PREFETCH, "read"), (Lane.BULK, "read")]
    if not route.alone:
        return reads
    small = [(Lane.REALTIME, "read")] if size <= REALTIME_BYTES else []
    return [*small, *reads, (Lane.BULK, "write")]


@contextlib.contextmanager
def _flow(route: Route, lane: Lane, direction: str, blocks: Stored, in_flight: int) -> Iterator[Flow]:
    if direction == "write":
        with write_flow(route.node, blocks, in_flight) as flow:
            yield flow
    elif lane is Lane.REALTIME:
        yield CallFlow(route.node, blocks)
    else:
        yield ReadFlow(
            route.node, blocks, lane, in_flight, operations=DEPTH if route.alone else DEPTH * 2 * route.rails
        )


def _measure(run: Run, route: Route, flow: Flow, lane: Lane, direction: str) -> RawRow:
    pump(flow, during(WARM_UP * run.seconds))
    rails = {state.name: state.bytes_received for state in route.peer.rails}
    node, nics = _at_node(run, direction), nic_bytes(run.tree, route.nics, direction)
    moved = pump(flow, during(run.seconds))
    counted = int(_at_node(run, direction) - node)
    rails = {state.name: state.bytes_received - rails.get(state.name, 0) for state in route.peer.rails}
    interface = None
    if nics is not None:
        interface = late_nic_bytes(run.tree, route.nics, direction, nics + moved.payload_bytes) - nics
    times = times_alone(lambda: flow.start(0, 1)(), ALONE * run.seconds)
    flow.verify()
    here = moved.payload_bytes
    sent, received = (counted, here) if direction == "read" else (here, counted)
    return RawRow(
        local_rail=route.local,
        remote_rail=route.remote,
        lane=lane.name.lower(),
        direction=direction,
        transport="tcp",
        block_bytes=flow.block_bytes,
        in_flight=flow.depth * flow.group,
        bytes_sent=sent,
        bytes_received=received,
        seconds=moved.seconds,
        bits_per_s=8 * received / moved.seconds,
        nominal_bits_per_s=route.nominal_bits_per_s,
        latency_p50_s=percentile(times, 0.5),
        latency_p99_s=percentile(times, 0.99),
        latency_samples=len(times),
        interface_bytes=interface,
        rail_bytes=None if route.alone else rails,
        doubt=doubt(sent=sent, received=received, interface_bytes=interface, direction=direction),
    )


def _measure_beside(run: Run, route: Route, blocks: Stored) -> RawBeside:
    def round_trips() -> list[float]:
        return times_alone(lambda: route.node.ping(run.settings.timeout_s), run.seconds, least=_BESIDE_SAMPLES)

    flow = ReadFlow(route.node, blocks, Lane.PREFETCH, run.settings.depth(blocks.block_bytes))
    idle = round_trips()
    pump(flow, during(WARM_UP * run.seconds))
    with pumping([flow], route.peer.close) as prefetch:
        beside = round_trips()
    moved = prefetch[0].result()
    flow.verify()
    return RawBeside(
        local_rail=route.local,
        remote_rail=route.remote,
        block_bytes=blocks.block_bytes,
        prefetch_bits_per_s=8 * moved.payload_bytes / moved.seconds,
        idle_p50_s=percentile(idle, 0.5),
        idle_p99_s=percentile(idle, 0.99),
        idle_samples=len(idle),
        beside_p50_s=percentile(beside, 0.5),
        beside_p99_s=percentile(beside, 0.99),
        beside_samples=len(beside),
    )


def _at_node(run: Run, direction: str) -> float:
    """Return the payload bytes that the node has counted in this direction, for all of its clients."""
    return run.control.stats()["bytes_out_total" if direction == "read" else "bytes_in_total"]


def nic_bytes(tree: Tree, nics: Sequence[str], direction: str) -> int | None:
    """Return what these NICs here have counted, in (`read`) or out (`write`); `None` if one of them is not known."""
    total = 0
    for name in nics:
        counted = counters(tree, name)
        if counted is None:
            return None
        total += counted.rx_bytes if direction == "read" else counted.tx_bytes
    return total


def late_nic_bytes(tree: Tree, nics: Sequence[str], direction: str, least: int) -> int:
    """Return `nic_bytes` as soon as that is `least`; the counters may be late, but not for ever."""
    end = time.monotonic() + _LATE_COUNTERS_S
    while (total := nic_bytes(tree, nics, direction) or 0) < least and time.monotonic() < end:
        time.sleep(0.05)
    return total
