"""The thin runner around `prefetch.Prefetcher`: turns steps into schedules, and has read what the policy says next.

What is under way is in `flights`: this file decides, on the compute thread, what to ask for and when to wait. How far
ahead that is follows from what both measure (`window`), and from what memory there is (`pressure`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np

from dualpath.host.memory import headroom_bytes
from dualpath.path import pressure
from dualpath.path.arena import Budget
from dualpath.path.flights import Flight, Flights
from dualpath.path.prefetch import Item, Prefetcher
from dualpath.path.reader import InterruptedRead, Run
from dualpath.path.trace import TracedPrefetcher
from dualpath.path.window import DECODE, PREFILL, PROMPT_ROWS, PrefetchPolicy, Window
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path.arena import LocalArena, SlotClass
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.pool.client import Pool


_RUN_ENTRIES = 32  # a run frees its slots only when it is folded: short runs keep the window moving


class PrefetchReader:
    """Streams far layer blocks into window slots ahead of compute."""

    def __init__(
        self,
        pool: Pool,
        arena: LocalArena,
        layout: KVLayout,
        metrics: PathMetrics,
        deadline_s: float,
        *,
        policies: tuple[PrefetchPolicy, PrefetchPolicy] = (DECODE, PREFILL),
        ahead: bool = True,
        trace: IO[str] | None = None,
        headroom: Callable[[], int | None] = headroom_bytes,
    ) -> None:
        self._arena, self._layout = arena, layout
        self.flights = Flights(pool, arena, metrics, deadline_s)
        limit = arena.limit(Budget.WINDOW)
        self._policy: Prefetcher[Flight] = Prefetcher(limit) if trace is None else TracedPrefetcher(limit, trace)
        self._decode, self._prefill = Window(policies[0]), Window(policies[1])
        self._window = self._decode
        self._ahead = ahead
        self._headroom = headroom
        self._budget, self._budget_at = limit, 0.0
        self._layer_ended_at: float | None = None
        self._signature: tuple[tuple[int, ...], ...] | None = None  # of the schedule; none while there is no whole one
        self._schedule: list[Item[Flight]] = []
        self._by_layer: dict[tuple[int, int], list[Item[Flight] | None]] = {}
        self._reserve = self._largest = 0
        self.at_once: Callable[[], bool] | None = None
        """Whether a step that begins reads all it can hold at once, however little its compute needs ahead: for one
        that is to show how fast a rail is, which blocks on their way one by one do not."""
        self._hurries = False

    def begin(self, plans: Sequence[GroupPlan], *, reserve: int, wrap: bool) -> None:
        """Match what is held against the step's schedule, make room for `reserve`, and start fetching."""
        self._reserve = reserve
        self._window = self._prefill if any(plan.rows > PROMPT_ROWS for plan in plans) else self._decode
        self._layer_ended_at = None
        self._hurries = self.at_once is not None and self.at_once()
        self._heed_memory()
        signature = tuple(
            tuple(entry.block.serial * (entry.part.local is None) for entry in plan.far.distinct) for plan in plans
        )
        if signature != self._signature:
            self._signature = None
            self._build(plans)
            self._signature = signature
        self._forget_failed()
        self._discard(self._policy.begin(self._schedule, wrap=wrap))
        self._discard(self._policy.shrink(self._allowed()))  # a window that narrows gives up nothing that is held
        self.flights.await_room(self._reserve)
        if self._ahead:
            self._pump()

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Yield entries as they have arrived, in token order; what has been yielded is freed at the next step of the
        iteration."""
        items = self._by_layer.get((plan.index, layer), [])
        before_s = self.flights.stalled_s
        if self._ahead:
            yield from self._bring(plan, layer, plan.far.distinct, items, lambda rest: self._pump())
        else:
            self._ask(items, self._capacity())
            yield from self._bring(
                plan, layer, plan.far.distinct, items, lambda rest: self._ask(rest, self._capacity())
            )
        self._note_period(sum(item.bytes for item in items if item is not None), self.flights.stalled_s - before_s)

    def chosen(self, plan: GroupPlan, layer: int, entries: Sequence[Entry]) -> Iterator[Run]:
        """Read `entries`, which are in no schedule, now; yield them as `runs` does, as runs of `entries`.

        As much is asked for at once as the window may hold at most: nothing could have been read ahead.
        """
        number = plan.group.layers[layer]
        items: list[Item[Flight] | None] = []
        for entry in entries:
            key = entry.block.serial << 12 | number
            held = self._policy.held.get(key)  # another sequence of the batch may read all of a block's layers
            items.append(held or Item(key, plan.slots.slot_bytes, Flight(entry, layer, plan.slots)))
        try:
            self._ask(items, self._allowed())
            yield from self._bring(plan, layer, entries, items, lambda rest: self._ask(rest, self._allowed()))
        finally:  # after an error some may be under way still
            left = [item.key for item in items if item is not None and item.key in self._policy.held]
            self._discard([self._policy.let_go(key) for key in dict.fromkeys(left)])

    def _bring(
        self,
        plan: GroupPlan,
        layer: int,
        entries: Sequence[Entry],
        items: Sequence[Item[Flight] | None],
        ask: Callable[[Sequence[Item[Flight] | None]], None],
    ) -> Iterator[Run]:
        """Yield runs of `entries`, whose items are `items`; `ask` is told what is left when slots are free again."""
        lo = 0
        while lo < len(entries):
            self._await(items[lo])
            hi, places = lo, []
            while hi < len(entries) and hi - lo < _RUN_ENTRIES:
                item, entry = items[hi], entries[hi]
                if item is None:
                    assert entry.part.local is not None
                    places.append(int(entry.part.local[layer]))
                elif item.what.outcome is Outcome.OK and item.key in self._policy.held:
                    places.append(item.what.slot)
                else:
                    break
                hi += 1
            yield Run(lo, hi, plan.slots.locate(np.array(places, np.int64)))
            self._consume(plan.slots, items[lo:hi])
            lo = hi
            ask(items[lo:])

    def end(self) -> None:
        """Let go of everything, and wait until no read is in flight."""
        self._discard(self._policy.end())
        self._signature, self._schedule, self._by_layer = None, [], {}
        self.flights.drain()

    # --- the schedule ------------------------------------------------------------------------------------------

    def _build(self, plans: Sequence[GroupPlan]) -> None:
        old = {item.key: item for item in self._policy.held.values()}
        where = {layer: (plan, i) for plan in plans for i, layer in enumerate(plan.group.layers)}
        self._schedule, self._by_layer = [], {}
        for layer in sorted(where):
            plan, index = where[layer]
            row: list[Item[Flight] | None] = []
            for entry in plan.far.distinct:
                if entry.part.local is not None:
                    row.append(None)
                    continue
                key = entry.block.serial << 12 | layer
                item = old.get(key) or Item(key, plan.slots.slot_bytes, Flight(entry, index, plan.slots))
                item.what.entry = entry
                row.append(item)
                self._schedule.append(item)
            self._by_layer[(plan.index, index)] = row
        self._largest = max((item.bytes for item in self._schedule), default=0)

    def _forget_failed(self) -> None:
        """What was read ahead and did not come is asked for again: its node may answer by now."""
        came = (None, Outcome.OK)
        failed = [item for item in self._policy.held.values() if item.what.outcome not in came]
        for item in failed:
            self.flights.bury(self._policy.let_go(item.key).what)
        if failed:
            self._schedule = list(self._schedule)  # another one to the policy, which walks it from its first block

    def _allowed(self) -> int:
        """Return the bytes that may be held: the budget, less what is spoken for; one block in any case."""
        return max(self._block_bytes(), self._budget - self._reserve - self.flights.left_bytes)

    def _capacity(self) -> int:
        """Return the bytes up to which more is fetched: the window, within what is allowed."""
        return self._allowed() if self._hurries else self._window.bytes(self._allowed(), self._block_bytes())

    def _block_bytes(self) -> int:
        return self._schedule[0].bytes if self._schedule else 1

    def _heed_memory(self) -> None:
        """Shrink the window's budget when this process's memory runs out, and give free slots' pages back."""
        now = time.monotonic()
        if now - self._budget_at < pressure.PERIOD_S:
            return
        self._budget_at = now
        limit, held = self._arena.limit(Budget.WINDOW), self._policy.held_bytes
        self._budget = max(self._reserve, pressure.budget_bytes(limit, held, self._headroom()))
        if self._budget < limit:
            self._arena.trim()

    def _note_period(self, used_bytes: int, stalled_s: float) -> None:
        now = time.perf_counter()
        if self._layer_ended_at is not None and used_bytes:
            self._window.computed(max(0.0, now - self._layer_ended_at - stalled_s), used_bytes)
        self._layer_ended_at = now

    # --- fetching ----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self.flights.reap()
        self._policy.capacity = self._capacity()
        if self.flights.left_bytes and self._arena.room(Budget.WINDOW) < self._reserve + self._largest:
            return  # the policy lets one item through in any case; `_await` waits until there is room for it
        items = self._policy.pump()
        if items:
            self._fetch(items)

    def _ask(self, items: Sequence[Item[Flight] | None], capacity: int) -> None:
        """Without prefetch: ask for what the layer at hand reads, as far as `capacity` bytes hold it."""
        self._policy.capacity = capacity  # so that nothing is dropped for what fits
        wanted, room = [], capacity - self._policy.held_bytes
        self.flights.reap()
        if self.flights.left_bytes:
            room = min(room, self._arena.room(Budget.WINDOW) - self._reserve)  # `_await` waits for more
        for item in items:
            if item is None or item.key in self._policy.held:
                continue
            room -= item.bytes
            if room < 0:
                break
            self._policy.need(item)
            wanted.append(item)
        self._fetch(wanted)

    def _fetch(self, items: list[Item[Flight]]) -> None:
        """Take slots and start reading. After an error, items that are not known to be read are not held either."""
        try:
            self.flights.start([item.what for item in items], self._window)
        except BaseException:
            for item in items:
                if item.what.ticket is None or isinstance(item.what.ticket, InterruptedRead):
                    self.flights.bury(self._policy.let_go(item.key).what)
            raise

    # --- waiting, using, giving up -----------------------------------------------------------------------------

    def _await(self, item: Item[Flight] | None) -> None:
        """Block until `item` is in its slot. Raises `BlockLostError`."""
        if item is None:
            return
        if item.key not in self._policy.held:
            self._policy.capacity = self._allowed()
            fetch, dropped = self._policy.need(item)
            self._discard(dropped)
            if fetch:
                self.flights.await_room(self._reserve + item.bytes)
                self._fetch([item])
        error = self.flights.wait(item.what)
        if error is not None:
            self.flights.bury(self._policy.let_go(item.key).what)
            raise error

    def _consume(self, slots: SlotClass, items: Sequence[Item[Flight] | None]) -> None:
        self.flights.used(slots, [self._policy.let_go(item.key).what for item in items if item is not None])

    def _discard(self, items: Sequence[Item[Flight]]) -> None:
        self.flights.waste([item.what for item in items])
