"""How many GPUs, NICs or nodes would meet the target. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def nics_needed(d: Deployment, load: StepLoad, busy_s: float, has: Links) -> int | None:
    """Return the fewest NICs at this end through which a step's remote bytes come within the target.

    `busy_s` is the step's time without them. `None` if those that are there suffice, PCIe is too slow for more, or the
    rest misses the target.
    """
    fetched = load.layers * sum(load.remote_bytes)
    rate = fetched / d.workload.budget_s
    if not fetched or busy_s > d.workload.budget_s or rate > has.pcie_bytes_per_s:
        return None
    wanted = math.ceil((rate + has.all_to_all_bytes_per_s) / d.network.nic_bytes_per_s)
    return wanted if wanted > d.network.nics * d.compute.hosts else None


def nodes_needed(d: Deployment, found: Memory, has: Links, scheme: Scheme) -> int | None:
    """Return the fewest nodes that hold the remote KV and with which `scheme` meets the target, `None` if none do."""
    if not 0 < found.remote_bytes <= d.pool.memory_bytes * MOST_NODES:
        return None
    first = math.ceil(found.remote_bytes / d.pool.memory_bytes)

    def meets(nodes: int) -> bool:
        return tpot.tpot(scheme, *step(d, found, has, nodes=nodes)).seconds <= d.workload.budget_s

    return _first(meets, first)


def _first(meets: Callable[[int], bool], start: int) -> int | None:
    """Return the least number from `start` on that `meets`: by doubling, then halving between the last two."""
    below, above = start - 1, start
    while not meets(above):
        if above >= MOST_NODES:
            return None
        below, above = above, min(above * 2, MOST_NODES)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if meets(middle) else (middle, above)
    return above
