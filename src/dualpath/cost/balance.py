"""How much of each node's KV to fetch, and how much to reduce where it lies: the split with the least time per step.

A step computes C seconds outside attention and passes L layers. In each of them H bytes of KV are local and R_i lie at
node i; F_i of these are fetched, the other R_i - F_i reduced by the node. The least T with

    T >= C + L * (local(H + sum F) + copy * sum F)          this host's own work
    T >= C + L * (r_i + reply_i + near_i(R_i - F_i))        node i's answers, if it has anything to reduce
    T >= L * F_i / b_i        T >= L * sum F / b_0          node i's rail, and the receiver: hidden behind C for free

local, near: seconds of attention over so many bytes (a roofline: memory-bound for few query rows). r: a round trip,
paid once a layer since all nodes are asked at once. copy: what a received byte costs the compute, 0 where a NIC moves
it while the CPU computes; over loopback the CPU moves the bytes, so that transfer and compute add up.

For a given T each node has a least F_i that keeps its answers in time,

    F_i(T)   R_i ───────╲               all of it while T is too short for a round trip,
                         ╲              none of it from the T on at which it can reduce all
              0           ╲──────── T

and only falls as T grows, while what rails, receiver and this host can take only grows. So each line is met from one T
on; the largest of these is the answer, found exactly by looking at the 2n corners of the F_i. Of all splits that take
this T it is the one that moves the fewest bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dualpath.errors import UsageError

_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast attention goes over KV. `row_bytes_per_s`: KV bytes times query rows a second where many rows make it
    compute-bound (Williams et al., Roofline, 2009)."""

    bytes_per_s: float
    row_bytes_per_s: float = math.inf

    def s_per_byte(self, query_rows: int) -> float:
        """Return the seconds per byte of KV that `query_rows` rows read."""
        return max(_over(1.0, self.bytes_per_s), _over(query_rows, self.row_bytes_per_s))


@dataclass(frozen=True, slots=True)
class NodeRates:
    """One node: near-data attention, its rail to this host, its round trip, and the reply's time per query row."""

    near: Speed
    rail_bytes_per_s: float
    round_trip_s: float
    reply_s_per_row: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What this host and its nodes can do. `copy_s_per_byte`: compute time lost to a received byte."""

    local: Speed
    receiver_bytes_per_s: float
    nodes: tuple[NodeRates, ...] = ()
    copy_s_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class StepLoad:
    """One step: seconds outside attention (over all layers), and KV bytes *per layer*, here and at each node.

    `query_rows`: rows that read each byte, 1 in plain decode.
    """

    outside_s: float
    layers: int
    hot_bytes: float
    remote_bytes: tuple[float, ...] = ()
    query_rows: int = 1

    def __post_init__(self) -> None:
        """Raise `UsageError` for a load that cannot be."""
        if self.layers < 1 or self.query_rows < 1 or min(self.outside_s, self.hot_bytes, *self.remote_bytes, 0.0) < 0:
            raise UsageError(f"no such load: {self}")


class Bottleneck(enum.StrEnum):
    """What a step's time mostly consists of."""

    COMPUTE = "compute outside attention"
    LOCAL = "local attention"
    COPY = "copying received bytes"
    ROUND_TRIP = "round trips"
    NEAR = "near-data attention"
    RAIL = "rail"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes to fetch per layer from each node, the step's time, and what bounds it (`node`: where, if at a node)."""

    fetched_bytes: tuple[float, ...]
    step_s: float
    bottleneck: Bottleneck
    node: int | None = None


def balance(load: StepLoad, rates: Rates) -> Split:
    """Return the split with the least time per step; of several, the one that fetches least.

    Raises `UsageError` if load and rates are not of the same nodes.
    """
    ramps = _ramps(load, rates)
    layer_s = max(
        *(ramp.rail_bound_s(node.rail_bytes_per_s) for ramp, node in zip(ramps, rates.nodes, strict=True)),
        _sum_bound_s(ramps, rates.receiver_bytes_per_s, 0.0),
        _sum_bound_s(ramps, *_own_line(load, rates)),
        0.0,
    )
    return split_at(load, rates, tuple(ramp.fetched(layer_s) for ramp in ramps))


def balance_blocks(load: StepLoad, rates: Rates, block_bytes: float) -> Split:
    """As `balance`, in whole blocks of `block_bytes` (the last one of a node may be smaller)."""
    smooth, ramps = balance(load, rates), _ramps(load, rates)

    def rounded_up(fetched_bytes: Iterable[float]) -> Split:
        counts = (math.ceil(wanted / block_bytes) for wanted in fetched_bytes)
        return split_at(
            load, rates, tuple(min(n * block_bytes, ramp.bytes) for n, ramp in zip(counts, ramps, strict=True))
        )

    some = (reduce_all(load, rates), fetch_all(load, rates), rounded_up(smooth.fetched_bytes))
    best = min(some, key=lambda split: split.step_s)
    low, high = smooth.step_s, best.step_s
    if not low < high < math.inf:
        return best
    for _ in range(_HALVINGS):  # whole blocks only fall as T grows, too: halving finds the least T that is met
        middle = (low + high) / 2
        found = rounded_up(ramp.fetched(middle / load.layers) for ramp in ramps)
        if found.step_s <= middle:
            best, high = found, found.step_s
        else:
            low = middle
    return best


def all_local(load: StepLoad, rates: Rates) -> Split:
    """Return what the step would take if all its KV were local."""
    total, none = load.hot_bytes + sum(load.remote_bytes), (0.0,) * len(load.remote_bytes)
    return split_at(replace(load, hot_bytes=total, remote_bytes=none), rates, none)


def fetch_all(load: StepLoad, rates: Rates) -> Split:
    """Return the corner that fetches everything."""
    return split_at(load, rates, load.remote_bytes)


def reduce_all(load: StepLoad, rates: Rates) -> Split:
    """Return the corner that fetches nothing."""
    return split_at(load, rates, (0.0,) * len(load.remote_bytes))


def split_at(load: StepLoad, rates: Rates, fetched_bytes: Sequence[float]) -> Split:
    """Return the time of a step that fetches these bytes per layer of each node, and its bottleneck."""
    _require_same(load, rates, fetched_bytes)
    layers, rows, fetched = load.layers, load.query_rows, sum(fetched_bytes)
    outside: _Term = (load.outside_s, Bottleneck.COMPUTE, None)
    attention_s = layers * _times(load.hot_bytes + fetched, rates.local.s_per_byte(rows))
    copies_s = layers * _times(fetched, rates.copy_s_per_byte)
    lines: list[list[_Term]] = [
        [outside, (attention_s, Bottleneck.LOCAL, None), (copies_s, Bottleneck.COPY, None)],
        [(layers * _over(fetched, rates.receiver_bytes_per_s), Bottleneck.RECEIVER, None)],
    ]
    for i, (node, remote, taken) in enumerate(zip(rates.nodes, load.remote_bytes, fetched_bytes, strict=True)):
        lines.append([(layers * _over(taken, node.rail_bytes_per_s), Bottleneck.RAIL, i)])
        if remote > taken:
            trip_s = layers * (node.round_trip_s + rows * node.reply_s_per_row)
            near_s = layers * _times(remote - taken, node.near.s_per_byte(rows))
            lines.append([outside, (trip_s, Bottleneck.ROUND_TRIP, i), (near_s, Bottleneck.NEAR, i)])
    longest = max(lines, key=_seconds)
    _, bottleneck, where = max(longest, key=lambda term: term[0])
    return Split(tuple(fetched_bytes), _seconds(longest), bottleneck, where)


_Term = tuple[float, Bottleneck, int | None]


def _seconds(line: list[_Term]) -> float:
    return sum(term[0] for term in line)


@dataclass(frozen=True, slots=True)
class _Ramp:
    """The least that must be fetched of a node per layer, by the time per layer: `bytes` until `start_s`, then `rate`
    bytes less a second, nothing from `end_s` on."""

    bytes: float
    rate: float
    start_s: float
    end_s: float

    def fetched(self, layer_s: float) -> float:
        if layer_s >= self.end_s:
            return 0.0
        if layer_s <= self.start_s:
            return self.bytes
        return max(0.0, self.bytes - self.rate * (layer_s - self.start_s))

    def rail_bound_s(self, bytes_per_s: float) -> float:
        """Return the least time per layer in which the rail can bring what must be fetched by then."""
        if not self.bytes or self.bytes <= _times(self.start_s, bytes_per_s):
            return _over(self.bytes, bytes_per_s)
        if not bytes_per_s or self.rate == math.inf:
            return self.end_s
        return (self.bytes + self.rate * self.start_s) / (bytes_per_s + self.rate)


def _ramps(load: StepLoad, rates: Rates) -> list[_Ramp]:
    _require_same(load, rates, load.remote_bytes)
    ramps = []
    for node, remote in zip(rates.nodes, load.remote_bytes, strict=True):
        start = load.outside_s / load.layers + node.round_trip_s + load.query_rows * node.reply_s_per_row
        near = node.near.s_per_byte(load.query_rows)
        ramps.append(_Ramp(remote, _over(1.0, near), start, start + _times(remote, near)))
    return ramps


def _own_line(load: StepLoad, rates: Rates) -> tuple[float, float]:
    """Return this host's line as (bytes it can take per second, seconds before it can take the first)."""
    per_byte = rates.local.s_per_byte(load.query_rows)
    start = load.outside_s / load.layers + _times(load.hot_bytes, per_byte)
    return _over(1.0, per_byte + rates.copy_s_per_byte), start


def _sum_bound_s(ramps: Sequence[_Ramp], bytes_per_s: float, start_s: float) -> float:
    """Return the least time per layer t at which all that must be fetched by then is at most
    `bytes_per_s * (t - start_s)`."""

    def met(t: float) -> bool:
        return t >= start_s and sum(ramp.fetched(t) for ramp in ramps) <= _times(t - start_s, bytes_per_s)

    total = sum(ramp.bytes for ramp in ramps)
    if not total or bytes_per_s == math.inf:
        return start_s
    corners = sorted({t for ramp in ramps if ramp.bytes for t in (ramp.start_s, ramp.end_s) if t < math.inf})
    at = _first(corners, met)
    after, before = (corners[at] if at < len(corners) else math.inf), (corners[at - 1] if at else 0.0)
    if not bytes_per_s:
        return after
    # between two corners all is linear: sum of (bytes or ramp) = bytes_per_s * (t - start)
    rate, fixed = bytes_per_s, bytes_per_s * start_s
    for ramp in ramps:
        if ramp.start_s <= before < ramp.end_s and at:
            rate += ramp.rate
            fixed += ramp.bytes + ramp.rate * ramp.start_s
        elif ramp.start_s > before or not at:
            fixed += ramp.bytes
    return min(max(fixed / rate, before), after)


def _first(values: Sequence[float], met: Callable[[float], bool]) -> int:
    """Return the index of the first value that is `met`, which all later ones are as well; their number if none is."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if met(values[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _require_same(load: StepLoad, rates: Rates, fetched_bytes: Sequence[float]) -> None:
    if not len(rates.nodes) == len(load.remote_bytes) == len(fetched_bytes):
        raise UsageError(
            f"rates of {len(rates.nodes)} nodes, a load of {len(load.remote_bytes)}, {len(fetched_bytes)} to fetch from"
        )


def _over(count: float, per_s: float) -> float:
    """Return count / per_s, where nothing takes no time, and something at no rate for ever."""
    return 0.0 if not count else count / per_s if per_s else math.inf


def _times(count: float, each_s: float) -> float:
    """Return count * each_s, where nothing takes no time, whatever each would take."""
    return count * each_s if count else 0.0
