"""Near-data reduction: queries go to the nodes, `(out, lse)` partials come back.

Each node knows a sequence's far blocks as a *view*, a list that is only ever appended to, so that a query names the
view and how many of its blocks it means: the bytes of a query do not grow with the context. Forks share views while
their blocks agree.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dualpath.attention.base import State
from dualpath.errors import BlockLostError, PeerError
from dualpath.path.rates import Answers
from dualpath.path.reader import lost
from dualpath.transport.base import Outcome
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Attend, BlockKey, ViewBlock, ViewQuery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.attention.base import Partial
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.path.sequences import SequenceId
    from dualpath.pool.client import NodePartials, PendingAttend, Pool

    Float32 = NDArray[np.float32]


_WAITED_S = 1e-4  # receiving a reply that is there already takes less


@dataclass(slots=True)
class _View:
    id: int
    node: int
    serials: list[int] = field(default_factory=list)
    owners: int = 1


@dataclass(slots=True)
class _Share:
    """What one node reduces of one group in this step: its queries, and the rows that they concern."""

    node: int
    queries: list[ViewQuery]
    rows: NDArray[np.int64] | None
    entries: list[list[Entry]]


@dataclass(slots=True)
class Shipment:
    """Queries of one layer under way: what was sent to each node, and what will answer."""

    plan: GroupPlan
    sent: list[tuple[_Share, Attend, Float32, PendingAttend]]
    started_s: float
    known_s: float  # of the path's counters: kernel time and stalls until then


class Reducer:
    """Sends queries to nodes and collects partials. `answers`: by node, what it has answered in this step so far."""

    def __init__(self, pool: Pool, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._metrics, self._deadline_s = pool, metrics, deadline_s
        self._views: dict[tuple[SequenceId, int, int], _View] = {}
        self._ids = itertools.count(1)
        self._shares: dict[int, list[_Share]] = {}
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
            shares: dict[int, _Share] = {}
            for s, sequence in enumerate(sequences):
                by_node: dict[int, list[Entry]] = {}
                for entry in plan.reduced.entries[plan.reduced.starts[s] : plan.reduced.starts[s + 1]]:
                    by_node.setdefault(entry.part.node, []).append(entry)
                for number, entries in by_node.items():
                    view = self._view(sequence, plan, number, entries)
                    share = shares.setdefault(number, _Share(number, [], None, []))
                    count = int(rows[s + 1] - rows[s])
                    share.queries.append(ViewQuery(view.id, len(entries), count, plan.first_rows[s]))
                    share.entries.append(entries)
                    wanted = np.arange(rows[s], rows[s + 1])
                    share.rows = wanted if share.rows is None else np.concatenate([share.rows, wanted])
            self._shares[plan.index] = [shares[number] for number in sorted(shares)]

    def start(
        self, plan: GroupPlan, layer: int, q: Float32, *, scale: float, softcap: float, debug: bool = False
    ) -> Shipment:
        """Send the rows of `q` `[T, query_heads, head_dim]` to every node that reduces blocks of this group."""
        started, known, sent = time.perf_counter(), self._metrics.local_s + self._metrics.stall_s, []
        for share in self._shares[plan.index]:
            assert share.rows is not None
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
            try:
                reply = pending.result()
            except UnknownViewError:  # the connection was lost since the views were made
                self._renew(shipment.plan, share)
                reply = self._send(share, message, part).result()
            except PeerError as error:
                raise self._lost(share, error) from error
            for entries, outcome in zip(share.entries, reply.outcomes, strict=True):
                if outcome is not Outcome.OK:
                    raise lost(entries[0], self._pool.nodes[share.node], outcome, None)
            self._metrics.near_blocks += sum(len(entries) for entries in share.entries)
            self._metrics.near_blocks_read += reply.blocks_read
            self._note(shipment, share, reply, asked, beside)
            partials.append(_spread(reply.out, reply.lse, share.rows, rows))
            if reply.max is not None and reply.exp_sum is not None:
                acc = reply.out * reply.exp_sum[..., None]
                tokens = sum(entry.tokens for entries in share.entries for entry in entries)
                self.observed.append((self._pool.nodes[share.node].name, State(reply.max, reply.exp_sum, acc), tokens))
        self._metrics.stall_s += time.perf_counter() - started
        return partials

    def fork(self, parent: SequenceId, child: SequenceId) -> None:
        """The child's far blocks are the parent's."""
        for (sequence, group, node), view in list(self._views.items()):
            if sequence == parent:
                view.owners += 1
                self._views[(child, group, node)] = view

    def forget(self, sequence: SequenceId) -> None:
        """The sequence is gone: drop its views."""
        for key in [key for key in self._views if key[0] == sequence]:
            self._release(self._views.pop(key))

    def _note(self, shipment: Shipment, share: _Share, reply: NodePartials, asked: float, beside_s: float) -> None:
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

    def _send(self, share: _Share, message: Attend, q: Float32) -> PendingAttend:
        return self._pool.nodes[share.node].start_attend(message, q, timeout_s=self._deadline_s)

    def _renew(self, plan: GroupPlan, share: _Share) -> None:
        """Tell a node that has forgotten its views, or their beginnings, what they were."""
        wanted: dict[int, list[Entry]] = {}  # forks that share a view may mean different numbers of its blocks
        for query, entries in zip(share.queries, share.entries, strict=True):
            wanted[query.view] = max(wanted.get(query.view, []), entries, key=len)
        for id, entries in wanted.items():
            view = next(view for view in self._views.values() if view.id == id)
            self._pool.nodes[share.node].drop_view(id)
            view.serials.clear()
            self._extend(view, plan, entries)

    def _lost(self, share: _Share, error: PeerError) -> BlockLostError:
        return lost(share.entries[0][0], self._pool.nodes[share.node], Outcome.LOST, error)

    def _release(self, view: _View) -> None:
        view.owners -= 1
        if view.owners == 0:
            self._pool.nodes[view.node].drop_view(view.id)

    def _view(self, sequence: SequenceId, plan: GroupPlan, node: int, entries: list[Entry]) -> _View:
        serials = [entry.block.serial for entry in entries]
        key = (sequence, plan.index, node)
        view = self._views.get(key)
        if view is not None:
            common = min(len(view.serials), len(serials))
            if view.serials[:common] != serials[:common]:
                self._release(self._views.pop(key))
                view = None
        if view is None:
            view = self._views[key] = _View(next(self._ids), node)
        self._extend(view, plan, entries[len(view.serials) :])
        return view

    def _extend(self, view: _View, plan: GroupPlan, fresh: list[Entry]) -> None:
        if not fresh:
            return
        node = self._pool.nodes[view.node]
        blocks = [ViewBlock(BlockKey(e.block.id, plan.index), e.block.position, e.tokens) for e in fresh if e.block.id]
        try:
            outcomes = node.extend_view(view.id, plan.index, plan.geometry, blocks)
        except PeerError as error:
            raise lost(fresh[0], node, Outcome.LOST, error) from error
        for entry, outcome in zip(fresh, outcomes, strict=True):
            if outcome is not Outcome.OK:
                raise lost(entry, node, outcome, None)
        view.serials.extend(entry.block.serial for entry in fresh)


def _spread(out: Float32, lse: Float32, rows: NDArray[np.int64] | None, total: int) -> Partial:
    if rows is None or len(rows) == total:
        return out, lse
    full_out = np.zeros((total, *out.shape[1:]), np.float32)
    full_lse = np.full((total, lse.shape[1]), -np.inf, np.float32)
    full_out[rows], full_lse[rows] = out, lse
    return full_out, full_lse
