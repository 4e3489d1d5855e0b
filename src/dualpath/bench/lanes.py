"""What a prefetch at full rate and small real-time requests do to each other, with lanes and without.

Theory of operation. Every round measures each case once, in an order that turns, so that a machine that drifts hits all
of them alike:

    idle       requests at a set rate, and nothing else
    lanes      the same beside a prefetch: requests in lane REALTIME, blocks in lane PREFETCH on connections of its own
    shared     the same beside the same prefetch without lanes: blocks as replies to calls, on the requests' connection
    prefetch   the prefetch alone
    control    the prefetch beside control messages at another, higher rate, in lane REALTIME

The prefetch has the same bytes in flight in every case, over one NIC. A request is a `Ping`. Requests go out on time
however long replies take. Each case is warmed up first, outside the clock; the prefetch's rate is its payload over the
time from its first request to its last byte, and what landed last is compared with what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpath.bench.computing import Computing, computing
from dualpath.bench.control import control_messages
from dualpath.bench.raw_clock import Flow, linger, percentile, pumping
from dualpath.bench.raw_flows import DEPTH, CallFlow, ReadFlow, Stored, check_room, room_needed, stored
from dualpath.bench.spread import Spread, ratios, spread
from dualpath.errors import UsageError
from dualpath.pool.client import Pool, connect
from dualpath.pool.node import PoolNode
from dualpath.transport.base import Lane

TENANT = "bench-lanes"
WARM_UP = 0.25
"""Share of the seconds of a case."""
OPERATIONS = 8
"""Requests for blocks under way: each waits for an eighth of the bytes in flight."""


@dataclass(frozen=True)
class Case:
    """Which requests there are, and how blocks come beside them: by the reads of a lane, by calls, or not at all."""

    name: str
    requests: str
    """`rate`, `control` (the two rates of the settings), or empty: none."""
    blocks: str
    """`reads`, `calls`, or empty: none."""

    @property
    def lane(self) -> Lane:
        """The lane of its requests: without lanes, all is as unmarked traffic is."""
        return Lane.BULK if self.blocks == "calls" else Lane.REALTIME


CASES = (
    Case("idle", "rate", ""),
    Case("lanes", "rate", "reads"),
    Case("shared", "rate", "calls"),
    Case("prefetch", "", "reads"),
    Case("control", "control", "reads"),
)


@dataclass(frozen=True)
class LanesSettings:
    """What to measure.

    | field | meaning |
    |---|---|
    | `seconds`, `rounds` | of each case in each round; rounds |
    | `per_s`, `control_per_s` | requests a second whose round trips are measured; those whose cost is |
    | `block_bytes`, `in_flight_bytes` | of the prefetch from each node |
    | `compute` | threads that compute attention beside all cases |
    | `nics` | the NIC here that is used, if not the first that leads to the node |
    | `timeout_s` | deadline of each request |
    """

    seconds: float = 2.0
    rounds: int = 5
    per_s: float = 200.0
    control_per_s: float = 1000.0
    block_bytes: int = 256 << 10
    in_flight_bytes: int = 8 << 20
    compute: int = 0
    nics: tuple[str, ...] = ()
    timeout_s: float = 10.0

    def check(self) -> None:
        """Raise `UsageError` for what cannot be measured."""
        if not 0 < self.seconds <= 3600 or not 1 <= self.rounds <= 1000:
            raise UsageError("a case takes more than 0 and at most 3600 s, in 1 to 1000 rounds")
        if not 0 < self.per_s <= 10_000 or not 0 < self.control_per_s <= 10_000:
            raise UsageError("requests come at a rate above 0 and of at most 10000 a second")
        if not 0 < self.block_bytes <= self.in_flight_bytes // OPERATIONS or self.in_flight_bytes > 1 << 30:
            raise UsageError(
                f"{self.in_flight_bytes} bytes in flight are {OPERATIONS} requests of one block of {self.block_bytes} "
                "bytes at least, and 1 GiB at most"
            )
        if not 0 <= self.compute <= 1024:
            raise UsageError(f"{self.compute} threads of compute", hint="0 to 1024")

    @property
    def group(self) -> int:
        """Blocks of one request."""
        return self.in_flight_bytes // OPERATIONS // self.block_bytes


@dataclass(frozen=True)
class Sample:
    """One case in one round. `trips_s` is sorted."""

    trips_s: Sequence[float]
    failed: int
    prefetch_bits_per_s: float | None
    compute_bytes_per_s: float | None
    realtime: bool = False

    def percentile_s(self, share: float) -> float | None:
        """Return a percentile of the round trips, `None` where there are none."""
        return percentile(self.trips_s, share) if self.trips_s else None


@dataclass(frozen=True)
class LanesRow:
    """One case over all rounds; `None` where there is nothing of the kind."""

    case: str
    requests: int
    failed: int
    p50_s: Spread | None
    p99_s: Spread | None
    max_s: float | None
    prefetch_bits_per_s: Spread | None
    compute_bytes_per_s: Spread | None
    realtime: bool
    """Whether the threads of the requests were scheduled ahead of others here, as those of lane REALTIME ask for."""


@dataclass(frozen=True)
class LanesReport:
    """All cases, and how they compare, round by round."""

    settings: LanesSettings
    nodes: tuple[str, ...]
    nic: str
    rows: tuple[LanesRow, ...]
    p99_lanes_over_idle: Spread | None
    p99_shared_over_idle: Spread | None
    p99_lanes_over_shared: Spread | None
    p50_lanes_over_idle: Spread | None
    p50_lanes_over_shared: Spread | None
    control_costs: Spread | None
    """Share of the prefetch's rate that control messages cost it."""


def run_lanes_bench(
    spec: str,
    settings: LanesSettings | None = None,
    *,
    key: bytes | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> LanesReport:
    """Measure all cases over one NIC to the nodes at `spec`. `progress` is told each case before it begins.

    Raises `UsageError`, `PoolFullError`, any other `PeerError` as soon as a node fails, and `HostError` if data arrives
    spoiled; nothing stays at the nodes in any case.
    """
    wanted = settings or LanesSettings()
    wanted.check()
    samples: dict[str, list[Sample]] = {case.name: [] for case in CASES}
    with contextlib.ExitStack() as closing:
        control, pool = (  # what is interrupted closes its connections, and blocks must be dropped all the same
            closing.enter_context(
                connect(spec, key=key, tenant=TENANT, timeout_s=wanted.timeout_s, nics=wanted.nics, max_rails=1)
            )
            for _ in range(2)
        )
        for node in control.nodes:
            check_room(node, room_needed(wanted.block_bytes, wanted.group))
        blocks = [closing.enter_context(stored(node, wanted.block_bytes)) for node in control.nodes]
        compute = closing.enter_context(computing(wanted.compute))
        for round_ in range(wanted.rounds):
            for case in turned(CASES, round_):
                progress(f"round {round_ + 1} of {wanted.rounds}: {case.name}")
                samples[case.name].append(_measure(pool, blocks, case, wanted, compute))
        nic = next((rail.name.partition(" ")[0] for rail in getattr(pool[0].peer, "rails", ())), "")
        return report(wanted, tuple(node.name for node in pool.nodes), nic, samples)


def turned(cases: Sequence[Case], round_: int) -> list[Case]:
    """Return the cases in the order of a round: each is first once, and every other round goes backwards from there."""
    at = round_ % len(cases)
    first, *others = [*cases[at:], *cases[:at]]
    return [first, *(reversed(others) if round_ % 2 else others)]


def report(settings: LanesSettings, nodes: tuple[str, ...], nic: str, samples: dict[str, list[Sample]]) -> LanesReport:
    """Return rows and ratios. Pure."""

    def trips(case: str, share: float) -> list[float | None]:
        return [one.percentile_s(share) for one in samples[case]]

    def speed(case: str) -> list[float | None]:
        return [one.prefetch_bits_per_s for one in samples[case]]

    kept = ratios(speed("control"), speed("prefetch"))
    return LanesReport(
        settings=settings,
        nodes=nodes,
        nic=nic,
        rows=tuple(_row(case, rounds) for case, rounds in samples.items()),
        p99_lanes_over_idle=ratios(trips("lanes", 0.99), trips("idle", 0.99)),
        p99_shared_over_idle=ratios(trips("shared", 0.99), trips("idle", 0.99)),
        p99_lanes_over_shared=ratios(trips("lanes", 0.99), trips("shared", 0.99)),
        p50_lanes_over_idle=ratios(trips("lanes", 0.5), trips("idle", 0.5)),
        p50_lanes_over_shared=ratios(trips("lanes", 0.5), trips("shared", 0.5)),
        control_costs=None if kept is None else Spread(1 - kept.median, 1 - kept.high, 1 - kept.low),
    )


def _row(case: str, rounds: Sequence[Sample]) -> LanesRow:
    return LanesRow(
        case=case,
        requests=sum(len(one.trips_s) + one.failed for one in rounds),
        failed=sum(one.failed for one in rounds),
        p50_s=spread(one.percentile_s(0.5) for one in rounds),
        p99_s=spread(one.percentile_s(0.99) for one in rounds),
        max_s=max((one.trips_s[-1] for one in rounds if one.trips_s), default=None),
        prefetch_bits_per_s=spread(one.prefetch_bits_per_s for one in rounds),
        compute_bytes_per_s=spread(one.compute_bytes_per_s for one in rounds),
        realtime=any(one.realtime for one in rounds),
    )


# --- one case --------------------------------------------------------------------------------------------------------


def _measure(pool: Pool, blocks: Sequence[Stored], case: Case, settings: LanesSettings, compute: Computing) -> Sample:
    per_s = {"rate": settings.per_s, "control": settings.control_per_s}.get(case.requests, 0.0)
    flows = [_flow(case, settings, node, held) for node, held in zip(pool.nodes, blocks, strict=True) if case.blocks]
    with pumping(flows, pool.close) as moved:
        linger(moved, WARM_UP * settings.seconds)
    with pumping(flows, pool.close) as moved:
        computed = compute.bytes
        with control_messages(pool.nodes, per_s, lane=case.lane, timeout_s=settings.timeout_s) as control:
            linger(moved, settings.seconds)
            computed = compute.bytes - computed
    for flow in flows:
        flow.verify()
    return Sample(
        sorted(control.seconds),
        control.failed,
        sum(8 * one.result().payload_bytes / one.result().seconds for one in moved) if flows else None,
        computed / settings.seconds if settings.compute else None,
        control.realtime,
    )


def _flow(case: Case, settings: LanesSettings, node: PoolNode, held: Stored) -> Flow:
    if case.blocks == "calls":
        return CallFlow(node, held, lane=case.lane, group=settings.group, operations=OPERATIONS)
    return ReadFlow(node, held, Lane.PREFETCH, settings.group * DEPTH, operations=OPERATIONS)
