"""Which blocks at a pool's nodes are owned here, and which are about to be.

To a node all paths over one pool are one owner, which pins a block or does not, and reserves its slots once. So what is
asked of a node follows from counts that all these paths share (`Pool.kept`, `Pool.wanted`):

    prepared   wanted +1     two steps may want the same new block: the slots are the same, the bytes too
    committed  wanted -1     kept +1; whoever comes second finds it sealed
    aborted    wanted -1     at nought, and kept by nobody: the node is told to forget it
    dropped    kept -1       likewise

What a node is to take out is noted first (`Pool.owed`) and told then, so that an interrupt only puts it off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dualpath.errors import BlockLostError
from dualpath.kv.ids import BlockId
from dualpath.transport.base import Outcome
from dualpath.wire.messages import BlockKey

if TYPE_CHECKING:
    from dualpath.pool.client import Pool

At = tuple[int, BlockId]
"""A block by the number of its node, and its id."""


class Holdings:
    """Pins blocks at their nodes and lets go of them. `groups` is the number of layer groups of a block."""

    def __init__(self, pool: Pool, groups: int) -> None:
        self._pool, self._groups = pool, range(groups)
        self._kept, self._wanted, self._owed = pool.kept, pool.wanted, pool.owed

    def want(self, blocks: Iterable[At]) -> None:
        """A step will seal these blocks, whose slots it has been given; it ends in `unwant`."""
        for at in blocks:
            self._wanted[at] += 1
            self._owed.pop(at, None)

    def unwant(self, blocks: Iterable[At]) -> None:
        """A step that wanted these blocks is over."""
        _take(self._wanted, blocks)

    def own(self, blocks: Sequence[At], problem: str, hint: str) -> None:
        """Seal and pin blocks at all nodes or none, and count one owner more; what was owned before stays.

        Raises `BlockLostError` (`problem` says what of the node), `PeerError`.
        """
        by_node = self._by_node(blocks)
        try:
            for number, ids in by_node.items():
                node = self._pool.nodes[number]
                if any(outcome is not Outcome.OK for outcome in node.commit(self._keys(ids))):
                    raise BlockLostError(f"node {node.label} {problem}", node=node.name, hint=hint)
        except BaseException:
            for number, ids in by_node.items():
                self._unpin(number, ids)
            raise
        self._kept.update(blocks)
        for at in blocks:
            self._owed.pop(at, None)

    def disown(self, blocks: Iterable[At], groups: Sequence[int] | None = None) -> list[At]:
        """One owner fewer; `tell` takes out what nobody owns any more. Returns what that is. No I/O.

        With `groups`, only those groups' parts are taken out, and the ownership of the rest stays.
        """
        gone: list[At] = []
        own = 0 if groups is None else 1
        for at in blocks:
            if groups is None:
                _take(self._kept, [at])
            if self._kept[at] <= own:
                gone.append(at)
                if not self._wanted[at]:
                    self._owed.setdefault(at, set()).update(self._groups if groups is None else groups)
        return gone

    def tell(self) -> None:
        """Have nodes take out what nobody owns any more; what an interrupt leaves of it is for the next call."""
        for number, ids in self._by_node(self._owed).items():
            self._pool.nodes[number].drop([BlockKey(id, g) for id in ids for g in sorted(self._owed[number, id])])
            for id in ids:
                del self._owed[number, id]

    def give_back(self, blocks: Iterable[At]) -> None:
        """Free the slots of blocks that are wanted no longer, and their pins: by now they may have been sealed."""
        for number, ids in self._by_node(blocks).items():
            free = [id for id in ids if not self._wanted[number, id]]
            if free:
                self._pool.nodes[number].abort(self._keys(free))
                self._unpin(number, free)

    def _unpin(self, number: int, ids: Iterable[BlockId]) -> None:
        """Drop those that nobody here owns, or is about to."""
        foreign = [id for id in ids if not self._kept[number, id] and not self._wanted[number, id]]
        if foreign:
            self._pool.nodes[number].drop(self._keys(foreign))

    def _keys(self, ids: Iterable[BlockId]) -> list[BlockKey]:
        return [BlockKey(id, group) for id in ids for group in self._groups]

    @staticmethod
    def _by_node(blocks: Iterable[At]) -> dict[int, list[BlockId]]:
        found: dict[int, list[BlockId]] = {}
        for number, id in dict.fromkeys(blocks):
            found.setdefault(number, []).append(id)
        return found


def _take(counts: dict[At, int], blocks: Iterable[At]) -> None:
    """Count each of `blocks` once less; one at nought is no entry."""
    for at in blocks:
        left = counts[at] - 1
        if left > 0:
            counts[at] = left
        else:
            counts.pop(at, None)
