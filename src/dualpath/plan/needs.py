"""How many GPUs, NICs or nodes would meet the target. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from dualpath.cost import deductions, tpot
from dualpath.cost.balance import StepLoad
from dualpath.cost.tpot import Scheme
from dualpath.plan.budget import activation_bytes, step, total_kv_bytes
from dualpath.plan.inputs import Deployment
from dualpath.plan.result import Links, Memory

MOST_NODES = 1024
"""Where the search ends."""


def gpus_needed(d: Deployment) -> int:
    """Return the fewest GPUs whose HBM holds weights, activations, buffers and all KV."""
    each = d.compute.gpu.memory_bytes * (1 - deductions.BUFFER_SHARE)
    return math.ceil((d.model.weight_bytes + activation_bytes(d) + total_kv_bytes(d)) / each)


def nics_needed(d: Deployment, load: StepLoad, busy_s: float, has: Links, *, senders_bytes_per_s: float) -> int | None:
    """Return the fewest NICs at this end through which a step's remote bytes come within the target.

    `busy_s` is the step's time without them. `None` if those that are there suffice, PCIe or the senders are too slow
    for more, or the rest misses the target.
    """
    fetched = load.layers * sum(load.remote_bytes)
    rate = fetched / d.workload.budget_s
    pcie = deductions.left_bytes_per_s(has.pcie_bytes_per_s, has.all_to_all_bytes_per_s)
    if not fetched or busy_s > d.workload.budget_s or rate > min(pcie, senders_bytes_per_s):
        return None
    wanted = math.ceil((rate + has.all_to_all_bytes_per_s) / d.network.nic_bytes_per_s)
    return wanted if wanted > d.network.nics * d.compute.hosts else None


def nodes_needed(d: Deployment, found: Memory, has: Links, scheme: Scheme) -> int | None:
    """Return the fewest nodes that hold the remote KV and with which `scheme` meets the target, `None` if none do."""
    if not 0 < found.remote_bytes <= d.pool.memory_bytes * MOST_NODES:
        return None
    first = math.ceil(found.remote_bytes / d.pool.memory_bytes)

    @cache
    def seconds(nodes: int) -> float:
        return tpot.tpot(scheme, *step(d, found, has, nodes=nodes)).seconds

    return _first(seconds, first, d.workload.budget_s)


def _first(seconds: Callable[[int], float], start: int, budget_s: float) -> int | None:
    """Return the least number from `start` on whose time is within the budget, `None` if none is.

    Times fall and may rise again: a node more has less to read, but is one more to exchange queries and partials with.
    So the search doubles until the budget is met or times rise, and then looks closely around the turn.
    """
    at, twice = start, min(2 * start, MOST_NODES)
    while seconds(at) > budget_s and seconds(twice) < seconds(at):
        at, twice = twice, min(2 * twice, MOST_NODES)
    if seconds(at) > budget_s:
        around = range(max(start, at // 2), twice)
        at = around.start + bisect_left(around, True, key=lambda nodes: seconds(nodes + 1) >= seconds(nodes))
        if seconds(at) > budget_s:
            return None
    return start + bisect_left(range(start, at), True, key=lambda nodes: seconds(nodes) <= budget_s)
