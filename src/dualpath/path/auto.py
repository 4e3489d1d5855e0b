"""Scheme `auto` at run time: measures steps, asks the balancer, and divides a step's blocks by its choice.

    blocks of node i, in token order    [b0 b1 b2 b3 b4 | b5 b6]       share 2/7
                                         reduced ......   fetched

Of each node the oldest blocks are reduced, so that views are only ever appended to, and the newest are fetched.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dualpath.path.balancer import Balancer
from dualpath.path.rates import Answers, LiveRates, NodeSeen, Received, StepSeen, Traffic, copy_share
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.transport.base import OnItems

_NOTHING = Answers()


class Auto:
    """One per `DualPath`. A step is `begin`, then `divide` per sequence and layer group, `started`, and `committed`;
    a step that is not committed teaches nothing. Reads of any thread are watched through `watch`."""

    def __init__(self, nodes: Sequence[str], metrics: PathMetrics, threads: int) -> None:
        self.names = nodes
        self.traffic = Traffic(len(nodes))
        self.balancer = Balancer(LiveRates(copy_share=_copy_share(threads)), len(nodes))
        self._metrics = metrics
        self._before = metrics.snapshot()
        self._began_s = 0.0
        self._carry: dict[int, float] = {}
        self._plans: list[GroupPlan] = []
        self._rows = self._query_rows = 0
        self._receivers = threading.local()

    @property
    def wraps(self) -> bool:
        """Whether the next step will most likely fetch what this one does."""
        return self.balancer.repeats

    def probes_rails(self) -> bool:
        """Return whether this step fetches only to see how fast rails are."""
        return self.balancer.probing.now and not any(self.balancer.settled.shares)

    def explain(self) -> dict[str, Any]:
        """Return what was chosen last (probes aside) and by which speeds, ready for JSON; `sentence` says it."""
        return {
            **self.balancer.settled.as_dict(self.names),
            "probes": self.balancer.probing.count,
            "bypassed_steps": self._metrics.bypassed_steps,
        }

    # --- one step ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step is about to be planned."""
        self._began_s, self._before = time.perf_counter(), self._metrics.snapshot()
        self._carry, self._plans = {}, []

    def divide(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Split one sequence's entries into those to reduce, and those to fetch or here already.

        A node's share is met over all sequences: what rounding leaves of one is carried to the next.
        """
        shares = self.balancer.choice.shares
        left = Counter(entry.part.node for entry in entries if entry.part.local is None)
        for node, count in left.items():
            wanted = shares[node] * count + self._carry.get(node, 0.0)
            taken = min(count, max(0, round(wanted)))
            self._carry[node] = wanted - taken
            left[node] = count - taken
        reduced, others = [], []
        for entry in entries:
            if entry.part.local is None and left[entry.part.node] > 0:
                left[entry.part.node] -= 1
                reduced.append(entry)
            else:
                others.append(entry)
        return reduced, others

    def started(self, plans: Sequence[GroupPlan], rows: int, query_rows: int) -> None:
        """The step is planned. `plans`: the groups whose blocks were divided; none if the step has too many rows."""
        self._plans, self._rows, self._query_rows = list(plans), rows, query_rows

    def committed(self, answers: Mapping[int, Answers]) -> None:
        """The step counts: learn from it, and decide what the next one does. `answers`: by node."""
        now = time.perf_counter()
        received, by_node = self.traffic.take(now)
        if not self._rows:
            return  # nothing was asked, nothing is learnt
        if self._plans:
            self.balancer.after(self._seen(now, answers, received, by_node))
            self._metrics.bypassed_steps += not any(plan.reduced.entries or plan.far.entries for plan in self._plans)
        elif received.bytes:
            self.balancer.prompt(_prompt(received, by_node))

    def _seen(
        self, now: float, answers: Mapping[int, Answers], received: Received, by_node: Sequence[Received]
    ) -> StepSeen:
        reduced, fetched, layer_blocks, size = Counter[int](), Counter[int](), 0, 0
        layers = sum(len(plan.group.layers) for plan in self._plans)
        for plan in self._plans:
            weight = len(plan.group.layers)
            reduced.update(_by_node(plan.reduced.entries, weight))
            fetched.update(_by_node(plan.far.distinct, weight))
            count = weight * (len(plan.reduced.entries) + len(plan.far.distinct))
            layer_blocks, size = layer_blocks + count, size + count * plan.slots.slot_bytes
        nodes = tuple(
            NodeSeen(
                round((reduced[i] + fetched[i]) / layers), round(fetched[i] / layers), answers.get(i, _NOTHING), came
            )
            for i, came in enumerate(by_node)
        )
        metrics, before = self._metrics, self._before
        return StepSeen(
            step_s=now - self._began_s,
            stall_s=metrics.stall_s - before.stall_s,
            local_s=metrics.local_s - before.local_s,
            local_bytes=metrics.local_bytes - before.local_bytes,
            rows=self._rows,
            query_rows=self._query_rows,
            layers=layers,
            block_bytes=size / layer_blocks if layer_blocks else 1.0,
            nodes=nodes,
            received=received,
        )

    # --- reads -------------------------------------------------------------------------------------------------

    def watch(self, node: int, slot_bytes: int, count: int, on_items: OnItems) -> OnItems:
        """`count` slots are about to be read of a node: return `on_items`, which notes arrivals before it tells."""
        self.traffic.sent(time.perf_counter(), node, count * slot_bytes)
        receivers = self._receivers

        def noted(first: int, outcomes: Sequence[Outcome]) -> None:
            cpu_s = time.thread_time()
            spent = cpu_s - getattr(receivers, "cpu_s", cpu_s)  # of this thread, since it was here before
            receivers.cpu_s = cpu_s
            arrived = slot_bytes * outcomes.count(Outcome.OK)
            ended = slot_bytes * len(outcomes)
            self.traffic.ended(time.perf_counter(), node, ended, arrived_bytes=arrived, cpu_s=spent or None)
            on_items(first, outcomes)

        return noted


def _by_node(entries: Sequence[Entry], weight: int) -> dict[int, int]:
    counts = Counter(entry.part.node for entry in entries if entry.part.local is None)
    return {node: weight * count for node, count in counts.items()}


def _prompt(received: Received, by_node: Sequence[Received]) -> StepSeen:
    """Return what a step with too many rows to reduce shows: how fast its rails are."""
    nodes = tuple(NodeSeen(received=one) for one in by_node)
    return StepSeen(0.0, 0.0, 0.0, 0, 0, 0, 1, 1.0, nodes, received)


def _copy_share(threads: int) -> float:
    cores = len(os.sched_getaffinity(0))
    return copy_share(threads or cores, cores)
