"""Far blocks by ordinary calls, on the connection that carries control messages: I/O without a second path."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualpath.errors import BlockLostError, PeerError
from dualpath.path.arena import Budget
from dualpath.path.reader import Run, lost
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.arena import LocalArena, SlotClass
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.pool.client import Pool
    from dualpath.pool.node import PendingRead
    from dualpath.transport.base import Destination


@dataclass(slots=True)
class _Batch:
    """Consecutive entries `[lo, hi)` being read by calls, one call for each node that holds some of them."""

    lo: int
    hi: int
    taken: NDArray[np.int64]
    """Their slots, also of those that are local already."""
    calls: list[tuple[int, list[int], PendingRead]]
    """Node, indices into the batch, and what will answer."""


class CallReader:
    """Reads when compute asks, straight into slots, on the connection that carries control messages too (lane BULK).

    Nothing is read ahead of the layer that is being computed. Within it two calls are under way, so that a node has the
    next one when it has answered one.
    """

    BATCH = 8
    """Layer blocks of a call."""
    _COPIES = 0
    """Staging buffers of a call's size for each call under way."""

    def __init__(self, pool: Pool, arena: LocalArena, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._arena, self._metrics, self._deadline_s = pool, arena, metrics, deadline_s
        self._reserve = 0

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Only note how much of the window is spoken for."""
        self._reserve = reserve

    def end(self) -> None:
        """Nothing is held between runs."""

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Keep two batches under way; yield each as it has come. All buffers count against the window."""
        entries, slots = plan.far.distinct, plan.slots
        size = slots.slot_bytes
        room = (self._arena.room(Budget.WINDOW) - self._reserve) // size
        each = 1 + self._COPIES
        ahead = 2 if room >= 2 * each else 1
        batch = max(1, min(self.BATCH, room // (ahead * each)))
        staging = ahead * self._COPIES * batch * size if room >= each else 0  # the smallest windows: what is read only
        self._arena.charge(Budget.WINDOW, staging)
        under_way: deque[_Batch] = deque()
        try:
            starts = deque(range(0, len(entries), batch))
            while starts or under_way:
                while starts and len(under_way) < ahead:
                    lo = starts.popleft()
                    hi = min(lo + batch, len(entries))
                    under_way.append(_Batch(lo, hi, slots.allocate(Budget.WINDOW, hi - lo), []))
                    self._start(under_way[-1], entries, layer, slots)
                one = under_way[0]
                self._finish(one, entries, slots)
                local = [-1 if e.part.local is None else e.part.local[layer] for e in entries[one.lo : one.hi]]
                here = np.array(local, np.int64)
                yield Run(one.lo, one.hi, slots.locate(np.where(here < 0, one.taken, here)))
                under_way.popleft()  # before: an interrupt must not have its slots freed twice
                slots.free(Budget.WINDOW, one.taken)
        finally:
            try:
                self._give_up(under_way, slots)
            finally:
                self._arena.charge(Budget.WINDOW, -staging)

    def _start(self, batch: _Batch, entries: list[Entry], layer: int, slots: SlotClass) -> None:
        by_node: dict[int, list[int]] = {}
        for index, entry in enumerate(entries[batch.lo : batch.hi]):
            if entry.part.local is None:
                by_node.setdefault(entry.part.node, []).append(index)
        for number, indices in by_node.items():
            refs = [refs[layer] for i in indices if (refs := entries[batch.lo + i].part.refs) is not None]
            into = self._destination(slots, batch.taken, indices)
            call = self._pool.nodes[number].start_read_by_call(refs, into, slots.slot_bytes, timeout_s=self._deadline_s)
            batch.calls.append((number, indices, call))

    def _finish(self, batch: _Batch, entries: list[Entry], slots: SlotClass) -> None:
        """Wait for a batch. Raises `BlockLostError`; then no call of it is under way any more."""
        started = time.perf_counter()
        problem: BlockLostError | None = None
        while batch.calls:
            number, indices, call = batch.calls[0]
            node, first = self._pool.nodes[number], entries[batch.lo + indices[0]]
            try:
                outcomes, data = call.result()
            except PeerError as error:
                problem = problem or lost(first, node, Outcome.LOST, error)
                del batch.calls[0]
                continue
            del batch.calls[0]  # not before: an interrupt leaves it under way, maybe received by another thread
            bad = next((i for i, outcome in enumerate(outcomes) if outcome is not Outcome.OK), None)
            if bad is not None:
                problem = problem or lost(entries[batch.lo + indices[bad]], node, outcomes[bad], None)
            else:
                self._land(data, slots, batch.taken, indices)
                self._metrics.fetched_bytes += len(indices) * slots.slot_bytes
        self._metrics.stall_s += time.perf_counter() - started
        if problem is not None:
            raise problem

    def _give_up(self, batches: Iterable[_Batch], slots: SlotClass) -> None:
        """Let batches end that nobody wants: their slots are written to until every call has its answer, or none.

        An interrupt stops none of it and is raised afterwards: at the latest when all calls have met their deadlines.
        """
        interrupt: BaseException | None = None
        for batch in batches:
            while batch.calls:
                try:
                    with contextlib.suppress(Exception):  # however it ended, it has
                        batch.calls[-1][2].result()
                except BaseException as error:  # noqa: BLE001 it is raised below
                    interrupt = error
                else:
                    batch.calls.pop()
            slots.free(Budget.WINDOW, batch.taken)
        if interrupt is not None:
            raise interrupt

    def _destination(self, slots: SlotClass, taken: NDArray[np.int64], indices: list[int]) -> Destination:
        return [slots.bytes_of(int(taken[i])) for i in indices]

    def _land(self, data: memoryview, slots: SlotClass, taken: NDArray[np.int64], indices: list[int]) -> None:
        """The bytes are where they belong."""


class BaselineReader(CallReader):
    """As `CallReader`, through two intermediate copies: what a library does that hands out bytes.

    socket ─▶ received ─▶ staged ─▶ slots        each arrow one copy
    """

    _COPIES = 2

    def __init__(self, pool: Pool, arena: LocalArena, metrics: PathMetrics, deadline_s: float) -> None:
        super().__init__(pool, arena, metrics, deadline_s)
        self._staged = memoryview(b"")
        self._spare: list[memoryview] = []

    def _destination(self, slots: SlotClass, taken: NDArray[np.int64], indices: list[int]) -> Destination:
        wanted = len(indices) * slots.slot_bytes
        found = next((n for n, buffer in enumerate(self._spare) if len(buffer) >= wanted), None)
        return memoryview(bytearray(self.BATCH * slots.slot_bytes)) if found is None else self._spare.pop(found)

    def _land(self, data: memoryview, slots: SlotClass, taken: NDArray[np.int64], indices: list[int]) -> None:
        size = slots.slot_bytes
        if len(self._staged) < len(data):
            self._staged = memoryview(bytearray(len(data)))
        self._staged[: len(data)] = data
        for at, i in enumerate(indices):
            slots.bytes_of(int(taken[i]))[:] = self._staged[at * size : (at + 1) * size]
        self._spare.append(memoryview(data.obj))
