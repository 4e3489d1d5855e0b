"""Time per output token of every scheme, and what bounds it: the balancer's bound (`cost.balance`) at its corners.

    all-local   all KV in local memory, as if it fitted
    tiers       what HBM has no room for is read from this host's DRAM over PCIe, in every step
    fetch       it is prefetched whole in every step, out of one node
    sharded     the same, out of all nodes at once
    reduce      nothing is fetched: queries go out, partials come back
    auto        the split with the least time

A step gives each sequence of the batch one token, so its time is the time per output token of each. The bound is taken
to be met.
"""

from __future__ import annotations

import enum
from dataclasses import replace

import msgspec

from dualpath.cost.balance import (
    Bottleneck,
    NodeRates,
    Rates,
    Speed,
    Split,
    StepLoad,
    all_local,
    balance,
    fetch_all,
    reduce_all,
)


class Scheme(enum.StrEnum):
    """How a decode step reaches KV that HBM has no room for."""

    ALL_LOCAL = "all-local"
    TIERS = "tiers"
    FETCH = "fetch"
    SHARDED = "sharded"
    REDUCE = "reduce"
    AUTO = "auto"


WORDS: dict[Bottleneck, str] = {
    Bottleneck.COMPUTE: "compute outside attention",
    Bottleneck.LOCAL: "attention over local KV",
    Bottleneck.COPY: "copying received bytes",
    Bottleneck.ROUND_TRIP: "round trips to the nodes",
    Bottleneck.NEAR: "attention at the nodes",
    Bottleneck.RAIL: "a sender's link",
    Bottleneck.RECEIVER: "the receiver's links",
}
TIER_WORDS = "PCIe from host DRAM"


class SchemeTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step, what bounds it in words, and the KV bytes that it fetches (over all layers)."""

    seconds: float
    bottleneck: str
    fetched_bytes: float = 0.0


def tpot(scheme: Scheme, load: StepLoad, rates: Rates, *, tier_bytes_per_s: float = 0.0) -> SchemeTime:
    """Return the time of one step of `load` by `scheme`. `tier_bytes_per_s`: this host's DRAM to its accelerators.

    `load.remote_bytes` says what lies where when it is spread over the nodes. With nothing remote all schemes are one.
    """
    at_one = replace(load, remote_bytes=(sum(load.remote_bytes),))
    if not load.remote_bytes or scheme is Scheme.ALL_LOCAL:
        return _named(load, all_local(load, rates))
    if scheme is Scheme.TIERS:
        tier = NodeRates(near=Speed(0.0), rail_bytes_per_s=tier_bytes_per_s, round_trip_s=0.0)
        split = fetch_all(at_one, replace(rates, nodes=(tier,), receiver_bytes_per_s=tier_bytes_per_s))
        found = _named(load, split)
        over_pcie = split.bottleneck in (Bottleneck.RAIL, Bottleneck.RECEIVER)
        return msgspec.structs.replace(found, bottleneck=TIER_WORDS) if over_pcie else found
    if scheme is Scheme.FETCH:
        return _named(load, fetch_all(at_one, replace(rates, nodes=rates.nodes[:1])))
    whole = {Scheme.SHARDED: fetch_all, Scheme.REDUCE: reduce_all, Scheme.AUTO: balance}
    return _named(load, whole[scheme](load, rates))


def spread(total_bytes: float, nodes: int) -> tuple[float, ...]:
    """Return `total_bytes` divided evenly among `nodes`; nothing at all is nowhere."""
    return (total_bytes / nodes,) * nodes if total_bytes > 0 else ()


def exchange_s(
    *, query_bytes: float, partial_bytes: float, nodes: int, sender_bytes_per_s: float, receiver_bytes_per_s: float
) -> float:
    """Return the time on the wire of one layer's queries and partials, asked of all `nodes` at once.

    `query_bytes` and `partial_bytes` are one node's, of the whole batch. A node has its own link; this host's links are
    shared by all of them.
    """
    return (query_bytes + partial_bytes) / min(sender_bytes_per_s, receiver_bytes_per_s / nodes)


def _named(load: StepLoad, split: Split) -> SchemeTime:
    return SchemeTime(
        seconds=split.step_s,
        bottleneck=WORDS[split.bottleneck],
        fetched_bytes=load.layers * sum(split.fetched_bytes),
    )
