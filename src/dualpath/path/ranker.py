"""Which far blocks a step fetches, where it reads a part: the nodes that hold them rank them by their keys' bounds.

    q of one layer ──▶ nodes ──▶ indices of the blocks to read ──▶ `PrefetchReader.chosen` reads those

That is a round trip before a layer's first byte, and nothing can be read ahead: what partial reads save in bytes has to
be worth more than what prefetch would have hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dualpath.wire.messages import Rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.path.sequences import SequenceId
    from dualpath.path.views import NodeViews, Share
    from dualpath.pool.client import Pool
    from dualpath.pool.node import PendingRank

    Float32 = NDArray[np.float32]


class Ranker:
    """Asks nodes which of their blocks the rows of a step need most."""

    def __init__(self, pool: Pool, views: NodeViews, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._views, self._metrics, self._deadline_s = pool, views, metrics, deadline_s
        self._shares: dict[int, list[Share]] = {}
        self._read_fraction = 1.0

    def begin(
        self,
        plans: Sequence[GroupPlan],
        sequences: Sequence[SequenceId],
        rows: NDArray[np.int32],
        read_fraction: float,
    ) -> None:
        """A step began: bring each node's views up to date with what `plans` have as reduced. See `Reducer.begin`."""
        self._read_fraction = read_fraction
        self._shares = {plan.index: self._views.shares(plan, sequences, rows) for plan in plans}

    def choose(self, plan: GroupPlan, layer: int, q: Float32, *, scale: float) -> list[list[Entry]]:
        """Return, for each sequence of the step, the blocks to read in this layer, in token order.

        `q`: float32 `[T, query_heads, head_dim]`; of it, rows of sequences with reduced entries, one each, are asked
        about. Raises `BlockLostError`.
        """
        started = time.perf_counter()
        chosen: list[list[Entry]] = [[] for _ in plan.first_rows]
        sent = []
        for share in self._shares[plan.index]:
            message = Rank(layer, q.shape[1], scale, self._read_fraction, share.queries)
            part = np.ascontiguousarray(q[share.rows])
            sent.append((share, message, part, self._send(share, message, part)))
        for share, message, part, pending in sent:
            reply = self._views.answer(plan, share, pending, partial(self._send, share, message, part))
            for sequence, entries, indices in zip(share.sequences, share.entries, reply.chosen, strict=True):
                self._metrics.far_blocks += len(entries)
                self._metrics.far_blocks_read += len(indices)
                chosen[sequence] += [entries[i] for i in indices]
        self._metrics.stall_s += time.perf_counter() - started
        return [sorted(entries, key=lambda entry: entry.block.position) for entries in chosen]

    def _send(self, share: Share, message: Rank, q: Float32) -> PendingRank:
        return self._pool.nodes[share.node].start_rank(message, q, timeout_s=self._deadline_s)
