"""What the network between this host and a pool node can do: every pair of rails, every lane, a sweep of sizes.

Theory of operation. A connection of its own asks the node for its counters and stores random blocks there, one size
after another; they are dropped again whatever happens. Each pair of rails has a peer bound to it at both ends, and all
rails together have one more. For each size, rail and lane:

    warm-up         a quarter of the time; connections, windows and pages are warm then; not counted
    count           the node's counters, and the NICs' here, while nothing is in flight
    measure         keep the blocks in flight for so many seconds, and wait for the last: bytes over that time
    count           again; the NIC may be late, since some drivers update their counters once a second
    one block alone half of the time: P50 and P99 from asking to its last byte
    verify          what landed last, byte by byte

Payload is counted by both ends apart; a row whose counts do not agree says so (`RawRow.doubt`). What this measures is
the transport that carries KV, Python and all, not the wire: where it is slow, `iperf3` or perftest tell which it is.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from dualpath.bench.raw_findings import findings
from dualpath.bench.raw_flows import check_room, room_needed, stored
from dualpath.bench.raw_measure import ALONE, WARM_UP, RawSettings, Route, Run, measure_route, naming, ways
from dualpath.bench.raw_rails import Greeting, gpus, greet, nominal_speeds, rails_of
from dualpath.errors import PeerError, UsageError
from dualpath.host.raw import RawReport, RawRow
from dualpath.host.tree import LiveTree, Tree
from dualpath.pool.client import connect
from dualpath.pool.node import PoolNode
from dualpath.pool.spec import Address, parse
from dualpath.transport.dial import Tcp
from dualpath.transport.peer import StreamPeer
from dualpath.transport.rails import MAX_RAILS
from dualpath.wire.messages import Lane

RUN_S = 36.0
"""What a whole run may take if nobody says how long a measurement is to be, …"""
LONGEST_S, SHORTEST_S = 0.5, 0.1
"""… and what one then takes."""
CONNECT_S = 2.0
TENANT = "bench-raw"
"""So that no block of anybody else's is touched."""

Progress = Callable[[int, int, str], None]
"""`(done, of, what is measured next)`."""


def run_raw_bench(
    spec: str,
    settings: RawSettings | None = None,
    *,
    key: bytes | None = None,
    tree: Tree | None = None,
    progress: Progress | None = None,
) -> RawReport:
    """Measure the way to the node at `spec` (`host:port`); `tree` has the counters of the NICs here (default: live).

    The node must have `raw_flows.room_needed` bytes free. A rail that cannot be reached is a finding if another can.
    Raises `UsageError`, `PoolFullError`, any other `PeerError` as soon as the node fails, and `HostError` if data
    arrives spoiled; nothing stays at the node in any case.
    """
    wanted = settings or RawSettings()
    wanted.check()
    address, here = _one_node(spec), tree or LiveTree()
    with contextlib.ExitStack() as closing:
        pool = connect(spec, key=key, tenant=TENANT, timeout_s=wanted.timeout_s, max_rails=1)
        control = closing.enter_context(pool)[0]
        greeting = greet(address, key=key, tenant=TENANT, timeout_s=wanted.timeout_s)
        check_room(control, max(room_needed(size, wanted.depth(size)) for size in wanted.sizes))
        routes, unreached = _routes(closing, greeting, wanted, nominal_speeds(here), key)
        used = [*routes, *closing.enter_context(_together(greeting.primary, routes, wanted, key))]
        steps = sum(len(ways(size, route)) for size in wanted.sizes for route in used) + len(routes)
        run = Run(wanted, wanted.seconds or _seconds_each(steps), control, here, _teller(progress, steps))
        for size in sorted(wanted.sizes):
            with stored(control, size) as blocks:
                for route in used:
                    measure_route(run, route, blocks)
    rows, together = _sorted(run.rows, used), _sorted(run.together, used)
    return RawReport(
        method=_method(run, routes, used),
        local_host=socket.gethostname(),
        remote_host=greeting.node,
        rows=rows,
        together=together,
        beside=tuple(run.beside),
        findings=(*unreached, *findings(rows, together, run.beside, gpus=gpus(here))),
    )


# --- where to measure ------------------------------------------------------------------------------------------------


def _one_node(spec: str) -> Address:
    addresses = parse(spec)
    if len(addresses) != 1 or addresses[0].path:
        raise UsageError(f"not one node over the network: {spec}", hint="name one, as 10.0.0.2:7700")
    return addresses[0]


def _routes(
    closing: contextlib.ExitStack,
    greeting: Greeting,
    settings: RawSettings,
    speeds: Mapping[str, int | None],
    key: bytes | None,
) -> tuple[list[Route], list[str]]:
    """Return a route for each rail, which `closing` closes, and what to say of those that cannot be reached.

    Raises the first one's `PeerError` if none can.
    """
    routes: list[Route] = []
    problems: list[PeerError] = []
    for rail, nic in rails_of(greeting, nics=settings.nics, every_pair=settings.every_pair):
        peer = closing.enter_context(_peer(rail.address, settings, key, max_rails=1))
        node = PoolNode(peer, str(rail.address), timeout_s=settings.timeout_s)
        nominal = settings.nominal_bits_per_s or speeds.get(nic)
        route = Route(str(rail), nic, str(rail.address), (nic,), node, peer, nominal)
        try:
            with naming(str(route)):
                node.ping()
        except PeerError as error:
            problems.append(error)
        else:
            routes.append(route)
    if not routes:
        raise problems[0]
    return routes, [f"{problem}. It was left out: is that NIC up, at both ends?" for problem in problems]


@contextlib.contextmanager
def _together(
    primary: Tcp, routes: Sequence[Route], settings: RawSettings, key: bytes | None
) -> Iterator[tuple[Route, ...]]:
    """Yield all rails as one route, as transfers use them; nothing if there is one only, or one is not there."""
    with _peer(primary, settings, key) as peer:
        node = PoolNode(peer, str(primary), timeout_s=settings.timeout_s)
        node.ping()  # it tells which rails there are
        by_rail = {route.rail: route for route in routes}
        used = [by_rail[state.name] for state in peer.rails if state.name in by_rail]
        if len(used) < 2 or len(used) < len(peer.rails):
            yield ()
            return
        local, remote = "+".join(one.local for one in used), "+".join(one.remote for one in used)
        speeds = {one.local: one.nominal_bits_per_s for one in used}  # two rails over one NIC share its speed
        known = [speed for speed in speeds.values() if speed is not None]
        nominal = sum(known) if len(known) == len(speeds) else None
        yield (Route("", local, remote, tuple(speeds), node, peer, nominal, len(used)),)


def _peer(address: Tcp, settings: RawSettings, key: bytes | None, max_rails: int = MAX_RAILS) -> StreamPeer:
    patience_s = min(CONNECT_S, settings.timeout_s)
    return StreamPeer(
        address, key=key, tenant=TENANT, connect_timeout_s=patience_s, nics=settings.nics, max_rails=max_rails
    )


def _seconds_each(steps: int) -> float:
    """Return what a measurement takes so that `steps` of them, warm-up and single blocks included, take `RUN_S`."""
    return min(LONGEST_S, max(SHORTEST_S, RUN_S / steps / (1 + WARM_UP + ALONE)))


def _teller(progress: Progress | None, steps: int) -> Callable[[str], None]:
    done = iter(range(steps + 1))
    return lambda what: progress(next(done), steps, what) if progress is not None else None


def _sorted(rows: Sequence[RawRow], routes: Sequence[Route]) -> tuple[RawRow, ...]:
    """Return the rows by rail, lane and direction, each a sweep of sizes."""
    order = [(route.local, route.remote) for route in routes]
    lanes = [lane.name.lower() for lane in Lane]

    def place(row: RawRow) -> tuple[int, int, str, int]:
        rail = order.index((row.local_rail, row.remote_rail))
        return rail, lanes.index(row.lane), row.direction, row.block_bytes

    return tuple(sorted(rows, key=place))


def _method(run: Run, routes: Sequence[Route], used: Sequence[Route]) -> str:
    if run.settings.nominal_bits_per_s:
        nominal = "nominal speed as given"
    elif any(route.nominal_bits_per_s for route in routes):
        nominal = "nominal speed is what this end's NIC says, the other end's is not known"
    else:
        nominal = "nominal speed is not known"
    together = "; all rails together are for reads, since calls and writes use one at a time" if used != routes else ""
    return (
        f"Random blocks in host memory over TCP, kept in flight for {run.seconds:.2g} s after a warm-up of "
        f"{WARM_UP * run.seconds:.2g} s; payload counted here and by the node, what landed compared with what was "
        f"sent; realtime by calls, the rest by reads and writes of their lane{together}. "
        f"Latency is of one block alone, from asking to its last byte; {nominal}."
    )
