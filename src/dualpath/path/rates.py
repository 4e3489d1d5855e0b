"""What a path has seen of its own speeds: the balancer's inputs, measured by the steps themselves. Pure.

| input | taken from |
|---|---|
| seconds outside attention | a step's time, less what its kernel calls, its waits and its copies took |
| local read rate | bytes over time of the kernel calls over local slots |
| near-data rate of a node | bytes over the time that the node reports of its own kernel call |
| round trip | from query to reply, less that time and what this host did beside attention meanwhile (it counts above) |
| rail | bytes arrived of a node, per second in which at least one of its reads was in flight; the first ones excepted |
| receiver | the same over all nodes, in steps that read from all of them |
| copies | CPU seconds of the receiving threads per byte, as far as they take cores from the compute |

A reply that was there already when it was asked for only bounds the round trip from above. Reads that were over within
`LONG_READ_S` show how long asking takes rather than how fast a rail is: they count while nothing better is known, and
if there was no more to read. Each figure is the median of its last few samples, so that one disturbed step moves
nothing.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Protocol

from dualpath.cost.balance import NodeRates, Rates, Speed

_SAMPLES = 9
LONG_READ_S = 1e-3
"""A read of 64 KiB takes a tenth of this on one host: what remains of that in the rate is below a tenth as well."""
_UNUSED = NodeRates(Speed(0.0), 0.0, 0.0)


@dataclass(slots=True)
class Answers:
    """What one node's partials have told in a step: KV bytes attended to and the node's time for them; the sum and
    number of round trips that were waited for, and the least bound by a reply that was there already."""

    near_bytes: int = 0
    near_s: float = 0.0
    trips: int = 0
    trips_s: float = 0.0
    bound_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes that have arrived, the seconds in which reads were in flight, and the CPU seconds of those who received.

    `timed_bytes`: of the bytes, those that `cpu_s` covers.
    """

    bytes: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    timed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node in one step: its blocks that the step needed, how many of them were fetched, answers and bytes."""

    blocks: int = 0
    fetched_blocks: int = 0
    answers: Answers = field(default_factory=Answers)
    received: Received = field(default_factory=Received)


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One whole step. `rows`: query rows of all sequences; `query_rows`: the most of one of them.

    `layers` and `block_bytes` are of the layers that can be reduced; `local_bytes` counts fetched blocks as well.
    """

    step_s: float
    stall_s: float
    local_s: float
    local_bytes: int
    rows: int
    query_rows: int
    layers: int
    block_bytes: float
    nodes: tuple[NodeSeen, ...]
    received: Received = field(default_factory=Received)

    @property
    def fetched_bytes(self) -> float:
        """Return the bytes that were fetched per layer."""
        return self.block_bytes * sum(node.fetched_blocks for node in self.nodes)

    @property
    def hot_bytes(self) -> float:
        """Return the KV bytes per layer that were local anyway."""
        return max(0.0, self.local_bytes / self.layers - self.fetched_bytes)


class Speeds(Protocol):
    """Where the balancer gets its rates from."""

    def saw(self, now_s: float, seen: StepSeen) -> None:
        """A step has ended."""

    def outside_s(self, seen: StepSeen) -> float:
        """Return the seconds outside attention of a step like this one."""

    def rates(self, seen: StepSeen) -> Rates | None:
        """Return the rates for a step like this one, or `None` while one that it needs was never seen."""

    def rail_age_s(self, now_s: float, node: int) -> float:
        """Return for how long nothing was received of a node that shows how fast its rail is (infinity: never)."""


class Median:
    """The median of the last few samples, and when the last one came."""

    def __init__(self, most: int = _SAMPLES) -> None:
        self._samples: deque[float] = deque(maxlen=most)
        self._last_s = -math.inf

    def add(self, now_s: float, value: float) -> None:
        """Take one sample."""
        self._samples.append(value)
        self._last_s = now_s

    def value(self) -> float | None:
        """Return the median, or `None` before the first sample."""
        return statistics.median(self._samples) if self._samples else None

    def age_s(self, now_s: float) -> float:
        """Return the time since the last sample."""
        return now_s - self._last_s


class LiveRates:
    """`Speeds` of what steps have shown. `copy_share`: which part of a receiving CPU second the compute lacks."""

    def __init__(self, *, copy_share: float) -> None:
        self._copy_share = copy_share
        self._medians: defaultdict[tuple[object, ...], Median] = defaultdict(Median)

    def saw(self, now_s: float, seen: StepSeen) -> None:
        """Take what a step has shown; a step without queries that can be reduced (a prompt) shows its rails only."""
        for number, node in enumerate(seen.nodes):
            self._received(now_s, ("rail", number), node.received, more=node.fetched_blocks < node.blocks)
        if all(node.received.bytes for node in seen.nodes if node.blocks):
            more = any(node.fetched_blocks < node.blocks for node in seen.nodes)
            self._received(now_s, ("receiver",), seen.received, more=more)
        if seen.received.timed_bytes:
            self._add(now_s, seen.received.cpu_s / seen.received.timed_bytes, "copy")
        if not seen.rows:
            return
        bucket = seen.query_rows.bit_length()
        if seen.local_s > 0:
            self._add(now_s, seen.local_bytes / seen.local_s, "local", bucket)
        copies_s = self._copy_s_per_byte() * seen.received.bytes
        outside_s = max(0.0, seen.step_s - seen.stall_s - seen.local_s - copies_s)
        self._add(now_s, outside_s, "outside", seen.rows.bit_length(), bool(seen.fetched_bytes))
        for number, node in enumerate(seen.nodes):
            self._answered(now_s, number, bucket, node.answers)

    def outside_s(self, seen: StepSeen) -> float:
        """Return the least median of steps with and without fetches: what is above it comes of fetching."""
        both = (self._value("outside", seen.rows.bit_length(), fetching) for fetching in (False, True))
        return min((value for value in both if value is not None), default=seen.step_s)

    def rates(self, seen: StepSeen) -> Rates | None:
        """See `Speeds`. Rates of attention at other numbers of query rows do not count."""
        bucket = seen.query_rows.bit_length()
        local = self._value("local", bucket)
        nodes = [self._node(number, bucket) if node.blocks else _UNUSED for number, node in enumerate(seen.nodes)]
        known = tuple(node for node in nodes if node is not None)
        if local is None or len(known) < len(nodes):
            return None
        together = self._rate("receiver") or sum(node.rail_bytes_per_s for node in known)
        return Rates(Speed(local), together, known, self._copy_s_per_byte())

    def rail_age_s(self, now_s: float, node: int) -> float:
        """See `Speeds`."""
        return self._medians["rail", node].age_s(now_s)

    def _node(self, number: int, bucket: int) -> NodeRates | None:
        near, trip = self._value("near", number, bucket), self._value("trip", number, bucket)
        rail = self._rate("rail", number)
        if near is None or trip is None or rail is None:
            return None
        return NodeRates(Speed(near), rail, trip)

    def _answered(self, now_s: float, number: int, bucket: int, answers: Answers) -> None:
        if answers.near_bytes and answers.near_s > 0:
            self._add(now_s, answers.near_bytes / answers.near_s, "near", number, bucket)
        known = self._value("trip", number, bucket)
        if answers.trips:
            self._add(now_s, answers.trips_s / answers.trips, "trip", number, bucket)
        elif answers.bound_s < (math.inf if known is None else known):
            self._add(now_s, answers.bound_s, "trip", number, bucket)

    def _received(self, now_s: float, key: tuple[object, ...], received: Received, *, more: bool) -> None:
        """Note a rate; `more`: there would have been more to read."""
        if received.bytes and received.busy_s > 0:
            short = ("short",) if more and received.busy_s < LONG_READ_S else ()
            self._add(now_s, received.bytes / received.busy_s, *key, *short)

    def _rate(self, *key: object) -> float | None:
        found = self._value(*key)
        return self._value(*key, "short") if found is None else found

    def _copy_s_per_byte(self) -> float:
        return self._copy_share * (self._value("copy") or 0.0)

    def _add(self, now_s: float, value: float, *key: object) -> None:
        self._medians[key].add(now_s, value)

    def _value(self, *key: object) -> float | None:
        found = self._medians.get(key)
        return None if found is None else found.value()


def copy_share(threads: int, cores: int) -> float:
    """Return which part of a CPU second of a receiving thread a compute of `threads` threads lacks: nothing while a
    core is left over, else one thread's share of the work."""
    return 0.0 if threads < cores else 1.0 / max(1, threads)


class Traffic:
    """Bytes in flight and arrived, by node and in all. Told by any thread; times are arguments."""

    def __init__(self, nodes: int) -> None:
        self._lock = threading.Lock()
        self._all = _Meter()
        self._meters = [_Meter() for _ in range(nodes)]

    @property
    def in_flight(self) -> int:
        """Return the bytes that were asked for and have not ended."""
        return self._all.in_flight

    def sent(self, now_s: float, node: int, count: int) -> None:
        """Reads of `count` bytes were asked of a node."""
        with self._lock:
            self._meters[node].change(now_s, count)
            self._all.change(now_s, count)

    def ended(self, now_s: float, node: int, count: int, *, arrived_bytes: int, cpu_s: float | None) -> None:
        """Reads of `count` bytes have ended, of which so many arrived; `cpu_s`: CPU time that the receiving thread
        took for them, if known."""
        with self._lock:
            for meter in (self._meters[node], self._all):
                meter.change(now_s, -count)
                if arrived_bytes:
                    meter.bytes += arrived_bytes
                    if cpu_s is not None:
                        meter.cpu_s, meter.timed_bytes = meter.cpu_s + cpu_s, meter.timed_bytes + arrived_bytes

    def take(self, now_s: float) -> tuple[Received, list[Received]]:
        """Return what was received since the last call: in all, and by node."""
        with self._lock:
            return self._all.take(now_s), [meter.take(now_s) for meter in self._meters]


@dataclass(slots=True)
class _Meter:
    in_flight: int = 0
    since_s: float = 0.0
    busy_s: float = 0.0
    bytes: int = 0
    cpu_s: float = 0.0
    timed_bytes: int = 0
    connected: bool = False

    def change(self, now_s: float, by: int) -> None:
        if self.in_flight > 0:
            self.busy_s += now_s - self.since_s
        self.in_flight, self.since_s = self.in_flight + by, now_s

    def take(self, now_s: float) -> Received:
        self.change(now_s, 0)
        # the first bytes waited for a connection to be made: how long they took says nothing of the link
        taken = Received(self.bytes, self.busy_s if self.connected else 0.0, self.cpu_s, self.timed_bytes)
        self.connected = self.connected or self.bytes > 0
        self.busy_s, self.bytes, self.cpu_s, self.timed_bytes = 0.0, 0, 0.0, 0
        return taken
