"""What nodes know of sequences: their far blocks as *views*, lists that are only ever appended to.

A query names the view and how many of its blocks it means, so that its bytes do not grow with the context. Forks share
views while their blocks agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from dualpath.errors import PeerError
from dualpath.path.reader import lost
from dualpath.transport.base import Outcome
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import BlockKey, ViewBlock, ViewQuery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.path.sequences import SequenceId
    from dualpath.pool.client import Pool


class _Answer(Protocol):
    @property
    def outcomes(self) -> Sequence[Outcome]: ...


_A = TypeVar("_A", bound=_Answer)
_A_co = TypeVar("_A_co", bound=_Answer, covariant=True)


class _Asked(Protocol[_A_co]):
    def result(self) -> _A_co: ...


_ids = itertools.count(1)  # of this process: paths that share a pool share the connections that views belong to


@dataclass(slots=True)
class _View:
    id: int
    node: int
    serials: list[int] = field(default_factory=list)
    owners: int = 1


@dataclass(slots=True)
class Share:
    """What one node is asked about one group in this step: its queries, and of each the sequence (as a place in the
    batch) and the blocks that it means; `rows` are the query rows that they concern."""

    node: int
    queries: list[ViewQuery]
    rows: NDArray[np.int64]
    sequences: list[int]
    entries: list[list[Entry]]


class NodeViews:
    """Keeps the views of all nodes up to date."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._views: dict[tuple[SequenceId, int, int], _View] = {}
        self._ended: list[_View] = []  # and their nodes are still to be told

    def shares(self, plan: GroupPlan, sequences: Sequence[SequenceId], rows: NDArray[np.int32]) -> list[Share]:
        """Bring views up to date with the reduced entries of `plan`; return each node's share, in node order.

        `rows[s]:rows[s+1]` are the query rows of sequence `s`. Raises `BlockLostError`.
        """
        shares: dict[int, Share] = {}
        for s, sequence in enumerate(sequences):
            if rows[s] == rows[s + 1]:  # it asks nothing in this step
                continue
            by_node: dict[int, list[Entry]] = {}
            for entry in plan.reduced.entries[plan.reduced.starts[s] : plan.reduced.starts[s + 1]]:
                by_node.setdefault(entry.part.node, []).append(entry)
            for number, entries in by_node.items():
                view = self._view(sequence, plan, number, entries)
                share = shares.setdefault(number, Share(number, [], np.empty(0, np.int64), [], []))
                count = int(rows[s + 1] - rows[s])
                share.queries.append(ViewQuery(view.id, len(entries), count, plan.first_rows[s]))
                share.sequences.append(s)
                share.entries.append(entries)
                share.rows = np.concatenate([share.rows, np.arange(rows[s], rows[s + 1])])
        return [shares[number] for number in sorted(shares)]

    def fork(self, parent: SequenceId, child: SequenceId) -> None:
        """The child's far blocks are the parent's."""
        for (sequence, group, node), view in list(self._views.items()):
            if sequence == parent:
                view.owners += 1
                self._views[(child, group, node)] = view

    def forget(self, sequence: SequenceId) -> None:
        """The sequence is gone: drop its views."""
        self._release([self._views.pop(key) for key in list(self._views) if key[0] == sequence])

    def tell(self) -> None:
        """Have nodes drop the views that have ended; what an interrupt leaves of it is for the next call."""
        while self._ended:
            view = self._ended[-1]
            self._pool.nodes[view.node].drop_view(view.id)
            self._ended.pop()

    def answer(self, plan: GroupPlan, share: Share, asked: _Asked[_A], ask: Callable[[], _Asked[_A]]) -> _A:
        """Wait for what a node answers about its share; if its views ended with a connection, tell them and ask again.

        Raises `BlockLostError`.
        """
        node = self._pool.nodes[share.node]
        try:
            try:
                reply = asked.result()
            except UnknownViewError:
                self._renew(plan, share)
                reply = ask().result()
        except PeerError as error:
            raise lost(share.entries[0][0], node, Outcome.LOST, error) from error
        for entries, outcome in zip(share.entries, reply.outcomes, strict=True):
            if outcome is not Outcome.OK:
                raise lost(entries[0], node, outcome, None)
        return reply

    def _renew(self, plan: GroupPlan, share: Share) -> None:
        """Tell a node that has forgotten its views, or their beginnings, what they were."""
        wanted: dict[int, list[Entry]] = {}  # forks that share a view may mean different numbers of its blocks
        for query, entries in zip(share.queries, share.entries, strict=True):
            wanted[query.view] = max(wanted.get(query.view, []), entries, key=len)
        for id, entries in wanted.items():
            view = next(view for view in self._views.values() if view.id == id)
            self._start_over(view)
            self._extend(view, plan, entries)

    def _release(self, views: Sequence[_View]) -> None:
        for view in views:
            view.owners -= 1
            if view.owners == 0:
                self._ended.append(view)
        self.tell()

    def _view(self, sequence: SequenceId, plan: GroupPlan, node: int, entries: list[Entry]) -> _View:
        serials = [entry.block.serial for entry in entries]
        key = (sequence, plan.index, node)
        view = self._views.get(key)
        if view is not None:
            common = min(len(view.serials), len(serials))
            if view.serials[:common] != serials[:common]:
                self._release([self._views.pop(key)])
                view = None
        if view is None:
            view = self._views[key] = _View(next(_ids), node)
        try:
            self._extend(view, plan, entries)
        except UnknownViewError:  # it ended with a connection
            self._start_over(view)
            self._extend(view, plan, entries)
        return view

    def _extend(self, view: _View, plan: GroupPlan, entries: list[Entry]) -> None:
        """Tell what the node does not know yet of `entries`. Raises `BlockLostError`, `UnknownViewError`."""
        known = len(view.serials)
        fresh = entries[known:]
        if not fresh:
            return
        node = self._pool.nodes[view.node]
        blocks = [ViewBlock(BlockKey(e.block.id, plan.index), e.block.position, e.tokens) for e in fresh if e.block.id]
        try:
            outcomes = node.extend_view(view.id, plan.index, plan.geometry, blocks, known)
        except UnknownViewError:
            raise
        except PeerError as error:
            self._start_over(view)
            raise lost(fresh[0], node, Outcome.LOST, error) from error
        for entry, outcome in zip(fresh, outcomes, strict=True):
            if outcome is not Outcome.OK:
                self._start_over(view)
                raise lost(entry, node, outcome, None)
        view.serials.extend(entry.block.serial for entry in fresh)

    def _start_over(self, view: _View) -> None:
        """What the node has of this view is not known, or not what was meant: the next step tells it anew."""
        view.serials.clear()
        self._pool.nodes[view.node].drop_view(view.id)
