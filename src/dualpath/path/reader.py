"""How far blocks come to the kernel: one reader per scheme, all with the same face.

`begin(plans)` tells what the step will read; `runs(plan, layer)` then yields, for one layer, consecutive entries with
the places where they can be read *now*; the places are valid until the next run is asked for.

| reader | bytes go | used by |
|---|---|---|
| `PrefetchReader` (in a file of its own) | socket → slot, ahead of compute | `fetch`, `sharded`, long prompts |
| `BaselineReader` (`call_reader`) | socket → staging → staging → slot, when compute asks | `baseline` |
| `CallReader` (`call_reader`) | socket → slot, when compute asks | `single` |
| `MappedReader` | nowhere: the kernel reads the node's arena | `mapped` |
| `NoReader` | there is nothing far | `local` |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dualpath.errors import BlockLostError, DeadlineError, PeerError
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.arena import LocalArena
    from dualpath.path.plan import Entry, GroupPlan, Places
    from dualpath.pool.client import Pool, PoolNode
    from dualpath.transport.base import Ticket
    from dualpath.transport.mapping import Mapping
    from dualpath.wire.messages import SlotRef


@dataclass(slots=True)
class Run:
    """Distinct blocks `[lo, hi)` of a plan's far table can be read at `places` (buffer indices and byte offsets)."""

    lo: int
    hi: int
    places: Places


class Reader(Protocol):
    """Brings far blocks within the kernel's reach."""

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """A step began that reads `plans` and keeps `reserve` bytes of the window to itself.

        `wrap`: the next step will most likely read the same blocks.
        """

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Yield the runs of the group's layer `layer` (an index within the group). Raises `BlockLostError`."""

    def end(self) -> None:
        """No step will follow: let go of everything. Returns when no transport writes to local memory any more."""


def lost(entry: Entry, node: PoolNode, outcome: Outcome, error: PeerError | None) -> BlockLostError:
    """Return the error that names a block that could not be read."""
    block = entry.block.id.hex()[:16] if entry.block.id else "?"
    first, last = entry.block.position, entry.block.end - 1
    if error is None:
        reason = f"the node answered '{outcome.name.lower()}'"
    else:  # what names the node once more says nothing; another rail than the address of the node does
        reason = str(error).removeprefix(f"{error.node}: ") if error.node in node.label else str(error)
    return BlockLostError(
        f"lost block {block} (tokens {first}..{last}) at node {node.label}: {reason}",
        node=node.name,
        block=block,
        hint="is the node still running? its KV has to be computed anew",
    )


class NoReader:
    """All is local."""

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Nothing to bring."""

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Nothing is far."""
        return iter(())

    def end(self) -> None:
        """Nothing is held."""


def wait_drained(ticket: Ticket, node: str, timeout_s: float = 5.0) -> None:
    """Wait until the transport has let go of a ticket's destinations. Raises `DeadlineError` if it does not."""
    if not ticket.wait_drained(timeout_s):
        raise DeadlineError(f"node {node} did not let go of a destination within {timeout_s:g} s", node=node)


@dataclass(slots=True)
class InterruptedRead:
    """Stands in for the ticket of a read of `items` whose start was interrupted (Ctrl-C): it may be under way, until
    the time `ended_at` (monotonic), by which its own deadline has ended it."""

    items: int
    ended_at: float
    error: PeerError | None = None

    @property
    def outcomes(self) -> Sequence[Outcome | None]:
        """Nothing is known of it."""
        return [None] * self.items

    @property
    def drained(self) -> bool:
        """Whether nothing can land any more."""
        return time.monotonic() >= self.ended_at

    def wait(self, timeout_s: float | None = None) -> Sequence[Outcome | None]:
        """Nothing will be known of it."""
        return self.outcomes

    def wait_drained(self, timeout_s: float) -> bool:
        """Return `drained`."""
        return self.drained


@dataclass(slots=True)
class _Far:
    """What a plan reads of one node: entries `index` of its far table, and per layer of the group their slots."""

    node: int
    index: NDArray[np.intp]
    slots: NDArray[np.int64]  # [layers, entries]
    generations: NDArray[np.uint64]


@dataclass(slots=True)
class _Placed:
    """Where a plan's entries lie: at nodes (`known` tells whether a next step has the same ones there), or here."""

    known: list[tuple[int, int, list[SlotRef]]]  # entry, node, references
    far: list[_Far]
    here: NDArray[np.intp]
    local: NDArray[np.int64]  # [entries here, layers]


class MappedReader:
    """Far blocks are read in place, out of the mapped arenas of nodes on this host."""

    def __init__(self, pool: Pool, arena: LocalArena) -> None:
        self._pool, self._arena = pool, arena
        self._buffers: dict[tuple[int, int], tuple[NDArray[np.uint8], int]] = {}
        self._placed: dict[int, _Placed] = {}

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Nothing is moved ahead; note where everything lies."""
        self._placed = {plan.index: _place(plan.far.distinct, self._placed.get(plan.index)) for plan in plans}

    def end(self) -> None:
        """Nothing is held."""
        self._placed = {}

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Yield everything at once, then check that no slot was reused meanwhile."""
        entries, size = plan.far.distinct, plan.slots.slot_bytes
        if not entries:
            return
        placed = self._placed[plan.index]
        buffer = np.empty(len(entries), np.int32)
        offset = np.empty(len(entries), np.int64)
        if len(placed.here):
            buffer[placed.here], offset[placed.here] = plan.slots.locate(placed.local[:, layer])
        used: list[tuple[_Far, Mapping]] = []
        for far in placed.far:
            mapping = self._mapping(far, size, entries)
            self._check(far, mapping, layer, entries)
            used.append((far, mapping))
            buffer[far.index] = self._buffer(far.node, size, mapping)
            offset[far.index] = far.slots[layer] * size
        yield Run(0, len(entries), (buffer, offset))
        for far, mapping in used:
            self._check(far, mapping, layer, entries)

    def _mapping(self, far: _Far, size: int, entries: Sequence[Entry]) -> Mapping:
        node = self._pool.nodes[far.node]
        try:
            return node.mapping(size)
        except PeerError as error:
            raise lost(entries[int(far.index[0])], node, Outcome.LOST, error) from error

    def _check(self, far: _Far, mapping: Mapping, layer: int, entries: Sequence[Entry]) -> None:
        """Raise `BlockLostError` if a slot of this mapping is not, or no longer, what the plan takes it for."""
        stale = mapping.stale(far.slots[layer], far.generations[layer])
        if len(stale):
            raise lost(entries[int(far.index[stale[0]])], self._pool.nodes[far.node], Outcome.LOST, None)

    def _buffer(self, number: int, size: int, mapping: Mapping) -> int:
        """Return the index of a mapping's arena among the buffers; a restarted node has another one."""
        known = self._buffers.get((number, size))
        if known is None or known[0] is not mapping.data:
            known = self._buffers[(number, size)] = (mapping.data, self._arena.add_buffer(mapping.data))
        return known[1]


def _place(entries: Sequence[Entry], before: _Placed | None) -> _Placed:
    """Note where entries lie, as arrays; what lies at nodes is taken from `before` if nothing has changed there."""
    remote = [(i, e.part.node, e.part.refs) for i, e in enumerate(entries) if e.part.local is None and e.part.refs]
    here = [i for i, entry in enumerate(entries) if entry.part.local is not None]
    local = np.array([entries[i].part.local for i in here], np.int64)
    index = np.array(here, np.intp)
    if before is not None and before.known == remote:
        return _Placed(before.known, before.far, index, local)
    by_node: dict[int, list[tuple[int, list[SlotRef]]]] = {}
    for i, node, refs in remote:
        by_node.setdefault(node, []).append((i, refs))
    far = [
        _Far(
            node,
            np.array([i for i, _ in found], np.intp),
            np.array([[ref.slot for ref in refs] for _, refs in found], np.int64).T.copy(),
            np.array([[ref.generation for ref in refs] for _, refs in found], np.uint64).T.copy(),
        )
        for node, found in by_node.items()
    ]
    return _Placed(remote, far, index, local)
