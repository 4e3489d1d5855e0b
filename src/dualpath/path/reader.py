"""How far blocks come to the kernel: one reader per scheme, all with the same face.

`begin(plans)` tells what the step will read; `runs(plan, layer)` then yields, for one layer, consecutive entries with
the places where they can be read *now*; the places are valid until the next run is asked for.

| reader | bytes go | used by |
|---|---|---|
| `PrefetchReader` (in a file of its own) | socket → slot, ahead of compute | `fetch`, `sharded`, long prompts |
| `BaselineReader` | socket → staging → staging → slot, when compute asks | `baseline` |
| `MappedReader` | nowhere: the kernel reads the node's arena | `mapped` |
| `NoReader` | there is nothing far | `local` |
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dualpath.errors import BlockLostError, DeadlineError, PeerError
from dualpath.path.arena import Budget
from dualpath.transport.base import Lane, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.arena import LocalArena, SlotClass
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan, Places
    from dualpath.pool.client import Pool, PoolNode


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
    reason = str(error) if error is not None else f"the node answered '{outcome.name.lower()}'"
    return BlockLostError(
        f"lost block {block} (tokens {first}..{last}) at node {node.name}: {reason}",
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


class BaselineReader:
    """Reads when asked, two intermediate copies, control and data on one connection (lane REALTIME)."""

    BATCH = 16

    def __init__(self, pool: Pool, arena: LocalArena, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._arena, self._metrics, self._deadline_s = pool, arena, metrics, deadline_s
        self._reserve = 0

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Only note how much of the window is spoken for."""
        self._reserve = reserve

    def end(self) -> None:
        """Nothing is held between runs."""

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Read a batch, copy it twice, yield it, and so on. A third of the batch's memory is where the kernel reads."""
        entries, slots = plan.far.distinct, plan.slots
        room = (self._arena.room(Budget.WINDOW) - self._reserve) // slots.slot_bytes
        batch = max(1, min(self.BATCH, room // 3))
        copies = 3 if room >= 3 else 1  # a window of one or two slots leaves no room for staging
        for lo in range(0, len(entries), batch):
            hi = min(lo + batch, len(entries))
            taken = slots.allocate(Budget.WINDOW, copies * (hi - lo))
            staged = np.split(taken, copies)
            try:
                self._read(entries[lo:hi], layer, slots, staged[0])
                for source, target in itertools.pairwise(staged):
                    for a, b in zip(source.tolist(), target.tolist(), strict=True):
                        slots.bytes_of(b)[:] = slots.bytes_of(a)
                local = np.array([-1 if e.part.local is None else e.part.local[layer] for e in entries[lo:hi]])
                yield Run(lo, hi, slots.locate(np.where(local < 0, staged[-1], local)))
            finally:
                slots.free(Budget.WINDOW, taken)

    def _read(self, entries: list[Entry], layer: int, slots: SlotClass, into: NDArray[np.int64]) -> None:
        by_node: dict[int, list[int]] = {}
        for index, entry in enumerate(entries):
            if entry.part.local is None:
                by_node.setdefault(entry.part.node, []).append(index)
        started = time.perf_counter()
        for number, indices in by_node.items():
            node = self._pool.nodes[number]
            refs = [refs[layer] for i in indices if (refs := entries[i].part.refs) is not None]
            into_bytes = [slots.bytes_of(int(into[i])) for i in indices]
            ticket = node.read(
                refs, into_bytes, slot_bytes=slots.slot_bytes, lane=Lane.REALTIME, timeout_s=self._deadline_s
            )
            outcomes = ticket.wait(self._deadline_s + 1.0)
            wait_drained(ticket, node.name)
            for i, outcome in zip(indices, outcomes, strict=True):
                if outcome is not Outcome.OK:
                    raise lost(entries[i], node, outcome or Outcome.TIMEOUT, ticket.error)
            self._metrics.fetched_bytes += len(indices) * slots.slot_bytes
        self._metrics.stall_s += time.perf_counter() - started


def wait_drained(ticket: object, node: str, timeout_s: float = 5.0) -> None:
    """Wait until the transport has let go of a ticket's destinations. Raises `DeadlineError` if it does not."""
    give_up = time.monotonic() + timeout_s
    while not ticket.drained:  # type: ignore[attr-defined]  # a Ticket; Protocol properties need no import here
        if time.monotonic() > give_up:
            raise DeadlineError(f"node {node} did not let go of a destination within {timeout_s:g} s", node=node)
        time.sleep(0.001)


class MappedReader:
    """Far blocks are read in place, out of the mapped arenas of nodes on this host."""

    def __init__(self, pool: Pool, arena: LocalArena) -> None:
        self._pool, self._arena = pool, arena
        self._buffers: dict[tuple[int, int], int] = {}

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Nothing is moved ahead."""

    def end(self) -> None:
        """Nothing is held."""

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Yield everything at once, then check that no slot was reused meanwhile."""
        entries, size = plan.far.distinct, plan.slots.slot_bytes
        if not entries:
            return
        buffer = np.empty(len(entries), np.int32)
        offset = np.empty(len(entries), np.int64)
        for i, entry in enumerate(entries):
            part = entry.part
            if part.local is not None:
                place = plan.slots.locate(part.local[layer : layer + 1])
                buffer[i], offset[i] = place[0][0], place[1][0]
            elif part.refs is not None:
                buffer[i] = self._buffer(part.node, size, entry)
                offset[i] = part.refs[layer].slot * size
        yield Run(0, len(entries), (buffer, offset))
        for entry in entries:
            part = entry.part
            if part.local is None and part.refs is not None:
                node = self._pool.nodes[part.node]
                if not node.current(part.refs[layer], size):
                    raise lost(entry, node, Outcome.LOST, None)

    def _buffer(self, number: int, size: int, entry: Entry) -> int:
        found = self._buffers.get((number, size))
        if found is None:
            node = self._pool.nodes[number]
            if entry.part.refs is None:
                raise lost(entry, node, Outcome.LOST, None)
            array, _ = node.view(entry.part.refs[0], size)
            found = self._buffers[(number, size)] = self._arena.add_buffer(array)
        return found
