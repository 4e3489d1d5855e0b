"""Near-data reduction: queries go to the nodes, `(out, lse)` partials come back.

A query names a view of its sequence's blocks at the node (see `views`), so that its bytes do not grow with the context.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dualpath.attention.base import State
from dualpath.path.rates import Answers
from dualpath.wire.messages import Attend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.attention.base import Partial
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import GroupPlan
    from dualpath.path.sequences import SequenceId
    from dualpath.path.views import NodeViews, Share
    from dualpath.pool.client import NodePartials, PendingAttend, Pool

    Float32 = NDArray[np.float32]


_WAITED_S = 1e-4  # receiving a reply that is there already takes less


@dataclass(slots=True)
class Shipment:
    """Queries of one layer under way: what was sent to each node, and what will answer."""

    plan: GroupPlan
    sent: list[tuple[Share, Attend, Float32, PendingAttend]]
    started_s: float
    known_s: float  # of the path's counters: kernel time and stalls until then


class Reducer:
    """Sends queries to nodes and collects partials. `answers`: by node, what it has answered in this step so far."""

    def __init__(self, pool: Pool, views: NodeViews, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._views, self._metrics, self._deadline_s = pool, views, metrics, deadline_s
        self._shares: dict[int, list[Share]] = {}
        self._read_fraction = 1.0
        self.observed: list[tuple[str, State, int]] = []
        self.answers: dict[int, Answers] = {}

    def begin(
        self,
        plans: Sequence[GroupPlan],
        sequences: Sequence[SequenceId],
        rows: NDArray[np.int32],
        read_fraction: float = 1.0,
    ) -> None:
        """A step began: bring each node's views up to date. `rows[s]:rows[s+1]` are the query rows of sequence `s`.

        `read_fraction`: of each node's blocks of a sequence with one row, the share that it attends to.
        """
        self._shares = {}
        self._read_fraction = read_fraction
        self.answers = {}
        for plan in plans:
            self._shares[plan.index] = self._views.shares(plan, sequences, rows)

    def start(
        self, plan: GroupPlan, layer: int, q: Float32, *, scale: float, softcap: float, debug: bool = False
    ) -> Shipment:
        """Send the rows of `q` `[T, query_heads, head_dim]` to every node that reduces blocks of this group."""
        started, known, sent = time.perf_counter(), self._metrics.local_s + self._metrics.stall_s, []
        for share in self._shares[plan.index]:
            part = q if len(share.rows) == len(q) else np.ascontiguousarray(q[share.rows])
            message = Attend(
                layer, q.shape[1], scale, softcap, plan.group.window, debug, share.queries, self._read_fraction
            )
            sent.append((share, message, part, self._send(share, message, part)))
        return Shipment(plan, sent, started, known)

    def collect(self, shipment: Shipment, rows: int) -> list[Partial]:
        """Return the partials, each over all `rows` query rows, in node order. Raises `BlockLostError`."""
        started = time.perf_counter()
        known = self._metrics.local_s + self._metrics.stall_s - shipment.known_s
        beside = started - shipment.started_s - known  # this host's work meanwhile that is neither
        partials: list[Partial] = []
        self.observed.clear()
        for share, message, part, pending in shipment.sent:
            asked = time.perf_counter()
            reply = self._views.answer(shipment.plan, share, pending, partial(self._send, share, message, part))
            self._metrics.far_blocks += sum(len(entries) for entries in share.entries)
            self._metrics.far_blocks_read += reply.blocks_read
            self._note(shipment, share, reply, asked, beside)
            partials.append(_spread(reply.out, reply.lse, share.rows, rows))
            if reply.max is not None and reply.exp_sum is not None:
                acc = reply.out * reply.exp_sum[..., None]
                tokens = sum(entry.tokens for entries in share.entries for entry in entries)
                self.observed.append((self._pool.nodes[share.node].name, State(reply.max, reply.exp_sum, acc), tokens))
        self._metrics.stall_s += time.perf_counter() - started
        return partials

    def _note(self, shipment: Shipment, share: Share, reply: NodePartials, asked: float, beside_s: float) -> None:
        """Add up what this answer tells of the node's speed. Not waited for, it only bounds the round trip.

        `beside_s` counts as compute outside attention, behind which that much of a round trip is hidden already.
        """
        now, compute_s = time.perf_counter(), reply.compute_s
        sent = shipment.started_s + beside_s
        answers = self.answers.setdefault(share.node, Answers())
        answers.near_bytes += shipment.plan.slots.slot_bytes * reply.blocks_read
        answers.near_s += compute_s or now - sent
        if now - asked > _WAITED_S:
            answers.trips += 1
            answers.trips_s += max(0.0, now - sent - compute_s)
        else:
            answers.bound_s = min(answers.bound_s, max(0.0, asked - sent - compute_s))

    def _send(self, share: Share, message: Attend, q: Float32) -> PendingAttend:
        return self._pool.nodes[share.node].start_attend(message, q, timeout_s=self._deadline_s)


def _spread(out: Float32, lse: Float32, rows: NDArray[np.int64], total: int) -> Partial:
    if len(rows) == total:
        return out, lse
    full_out = np.zeros((total, *out.shape[1:]), np.float32)
    full_lse = np.full((total, lse.shape[1]), -np.inf, np.float32)
    full_out[rows], full_lse[rows] = out, lse
    return full_out, full_lse
