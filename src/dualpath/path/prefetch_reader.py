"""The thin runner around `prefetch.Prefetcher`: reads what the policy says into window slots, and waits for arrivals.

All decisions are made on the compute thread. Transport threads only note arrivals. A slot whose read was given up stays
charged against the window until the transport has let go of it (*zombie*). How far ahead is read follows from what this
file measures (`window`), and from what memory there is (`pressure`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from dualpath.errors import CapacityError
from dualpath.host.memory import headroom_bytes
from dualpath.path import pressure
from dualpath.path.arena import Budget
from dualpath.path.prefetch import Item, Prefetcher
from dualpath.path.reader import InterruptedRead, Run, lost
from dualpath.path.trace import TracedPrefetcher
from dualpath.path.window import DECODE, PREFILL, PROMPT_ROWS, PrefetchPolicy, Window
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path.arena import LocalArena, SlotClass
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry, GroupPlan
    from dualpath.pool.client import Pool
    from dualpath.transport.base import OnItems, Ticket


_RUN_ENTRIES = 32  # a run frees its slots only when it is folded: short runs keep the window moving


@dataclass(slots=True, eq=False)
class _Flight:
    """Where one layer block comes from and where it goes."""

    entry: Entry
    layer: int
    slots: SlotClass
    slot: int = -1
    ticket: Ticket | None = None
    index: int = -1
    outcome: Outcome | None = None
    attempt: int = 0  # a late arrival of an attempt that was given up must not count for the next one


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
        self._pool, self._arena, self._metrics, self._deadline_s = pool, arena, metrics, deadline_s
        self._layout = layout
        limit = arena.limit(Budget.WINDOW)
        self._policy: Prefetcher[_Flight] = Prefetcher(limit) if trace is None else TracedPrefetcher(limit, trace)
        self._decode, self._prefill = Window(policies[0]), Window(policies[1])
        self._window = self._decode
        self._ahead = ahead
        self._headroom = headroom
        self._budget, self._budget_at = limit, 0.0
        self._layer_ended_at: float | None = None
        self._stalled_s = 0.0
        self._arrival = threading.Condition()
        self._zombies: list[_Flight] = []
        self._zombie_bytes = 0
        self._signature: tuple[tuple[int, ...], ...] = ()
        self._schedule: list[Item[_Flight]] = []
        self._by_layer: dict[tuple[int, int], list[Item[_Flight] | None]] = {}
        self._reserve = self._largest = 0
        self.watch: Callable[[int, int, int, OnItems], OnItems] | None = None  # (node, slot bytes, slots, on_items)
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
            self._signature = signature
            self._build(plans)
        self._discard(self._policy.begin(self._schedule, wrap=wrap))
        self._discard(self._policy.shrink(self._allowed()))  # a window that narrows gives up nothing that is held
        self._await_room()
        if self._ahead:
            self._pump()

    def runs(self, plan: GroupPlan, layer: int) -> Iterator[Run]:
        """Yield entries as they have arrived, in token order; what has been yielded is freed at the next step of the
        iteration."""
        items = self._by_layer.get((plan.index, layer), [])
        before_s = self._stalled_s
        if self._ahead:
            yield from self._bring(plan, layer, plan.far.distinct, items, lambda rest: self._pump())
        else:
            self._ask(items, self._capacity())
            yield from self._bring(
                plan, layer, plan.far.distinct, items, lambda rest: self._ask(rest, self._capacity())
            )
        self._note_period(sum(item.bytes for item in items if item is not None), self._stalled_s - before_s)

    def chosen(self, plan: GroupPlan, layer: int, entries: Sequence[Entry]) -> Iterator[Run]:
        """Read `entries`, which are in no schedule, now; yield them as `runs` does, as runs of `entries`.

        As much is asked for at once as the window may hold at most: nothing could have been read ahead.
        """
        number = plan.group.layers[layer]
        items: list[Item[_Flight] | None] = []
        for entry in entries:
            key = entry.block.serial << 12 | number
            held = self._policy.held.get(key)  # another sequence of the batch may read all of a block's layers
            items.append(held or Item(key, plan.slots.slot_bytes, _Flight(entry, layer, plan.slots)))
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
        items: Sequence[Item[_Flight] | None],
        ask: Callable[[Sequence[Item[_Flight] | None]], None],
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
        self._signature, self._schedule, self._by_layer = (), [], {}
        give_up = time.monotonic() + self._deadline_s + 2.0
        while self._zombies and time.monotonic() < give_up:
            with self._arrival:
                self._arrival.wait(0.02)
            self._reap()

    # --- the schedule ------------------------------------------------------------------------------------------

    def _build(self, plans: Sequence[GroupPlan]) -> None:
        old = {item.key: item for item in self._policy.held.values()}
        where = {layer: (plan, i) for plan in plans for i, layer in enumerate(plan.group.layers)}
        self._schedule, self._by_layer = [], {}
        for layer in sorted(where):
            plan, index = where[layer]
            row: list[Item[_Flight] | None] = []
            for entry in plan.far.distinct:
                if entry.part.local is not None:
                    row.append(None)
                    continue
                key = entry.block.serial << 12 | layer
                item = old.get(key) or Item(key, plan.slots.slot_bytes, _Flight(entry, index, plan.slots))
                item.what.entry = entry
                row.append(item)
                self._schedule.append(item)
            self._by_layer[(plan.index, index)] = row
        self._largest = max((item.bytes for item in self._schedule), default=0)

    def _allowed(self) -> int:
        """Return the bytes that may be held: the budget, less what is spoken for; one block in any case."""
        return max(self._block_bytes(), self._budget - self._reserve - self._zombie_bytes)

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
        if self._zombies:
            self._reap()
        self._policy.capacity = self._capacity()
        if self._zombies and self._arena.room(Budget.WINDOW) < self._reserve + self._largest:
            return  # the policy lets one item through in any case; `_await` waits until there is room for it
        items = self._policy.pump()
        if items:
            self._fetch(items)

    def _ask(self, items: Sequence[Item[_Flight] | None], capacity: int) -> None:
        """Without prefetch: ask for what the layer at hand reads, as far as `capacity` bytes hold it."""
        self._policy.capacity = capacity  # so that nothing is dropped for what fits
        wanted, room = [], capacity - self._policy.held_bytes
        if self._zombies:
            self._reap()
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

    def _fetch(self, items: list[Item[_Flight]]) -> None:
        """Take slots and start reading. After an error, items that are not known to be read are not held either."""
        try:
            self._start(items)
        except BaseException:
            for item in items:
                if item.what.ticket is None or isinstance(item.what.ticket, InterruptedRead):
                    self._bury(self._policy.let_go(item.key).what)
            raise

    def _start(self, items: list[Item[_Flight]]) -> None:
        alike: dict[tuple[int, SlotClass], list[_Flight]] = {}
        for item in items:
            flight = item.what
            alike.setdefault((flight.entry.part.node, flight.slots), []).append(flight)
        together = self._window.policy.read_items
        for (number, slots), flights in alike.items():
            for flight, slot in zip(flights, slots.take(Budget.WINDOW, len(flights)), strict=True):
                flight.slot, flight.outcome = slot, None
                flight.attempt += 1
            for at in range(0, len(flights), together):
                self._read(number, slots.slot_bytes, flights[at : at + together])

    def _read(self, number: int, size: int, flights: list[_Flight]) -> None:
        noting = self._noting(flights)
        try:
            ticket = self._pool.nodes[number].read(
                [flight.entry.part.refs[flight.layer] for flight in flights if flight.entry.part.refs is not None],
                [flight.slots.bytes_of(flight.slot) for flight in flights],
                slot_bytes=size,
                lane=self._window.policy.lane,
                timeout_s=self._deadline_s,
                on_items=noting if self.watch is None else self.watch(number, size, len(flights), noting),
            )
            for index, flight in enumerate(flights):
                flight.ticket, flight.index = ticket, index
        except Exception:  # it was refused: nothing is under way
            raise
        except BaseException:
            interrupted = InterruptedRead(len(flights), time.monotonic() + self._deadline_s + 2.0)
            for flight in flights:
                flight.ticket = interrupted
            raise

    def _noting(self, flights: list[_Flight]) -> OnItems:
        arrival, window = self._arrival, self._window
        attempts = [flight.attempt for flight in flights]
        asked_at = time.perf_counter()

        def note(first: int, outcomes: Sequence[Outcome]) -> None:
            fetch_s = time.perf_counter() - asked_at
            with arrival:
                for index, outcome in enumerate(outcomes, first):
                    flight = flights[index]
                    if flight.attempt == attempts[index]:
                        flight.outcome = outcome
                if Outcome.OK in outcomes:
                    window.arrived(fetch_s)
                arrival.notify()

        return note

    # --- waiting, using, giving up -----------------------------------------------------------------------------

    def _await(self, item: Item[_Flight] | None) -> None:
        """Block until `item` is in its slot. Raises `BlockLostError`."""
        if item is None:
            return
        flight = item.what
        if item.key not in self._policy.held:
            self._policy.capacity = self._allowed()
            fetch, dropped = self._policy.need(item)
            self._discard(dropped)
            if fetch:
                self._await_room(item.bytes)
                self._fetch([item])
        if flight.outcome is None:
            started = time.perf_counter()
            give_up = started + self._deadline_s + 2.0  # the read's own deadline comes first
            with self._arrival:
                while flight.outcome is None and time.perf_counter() < give_up:
                    self._arrival.wait(give_up - time.perf_counter())
            stalled_s = time.perf_counter() - started
            self._metrics.stall_s += stalled_s
            self._stalled_s += stalled_s
        if flight.outcome is not Outcome.OK:
            outcome = flight.outcome or Outcome.TIMEOUT
            error = flight.ticket.error if flight.ticket is not None else None
            self._policy.let_go(item.key)
            self._bury(flight)
            raise lost(flight.entry, self._pool.nodes[flight.entry.part.node], outcome, error)

    def _consume(self, slots: SlotClass, items: Sequence[Item[_Flight] | None]) -> None:
        freed: list[int] = []
        for item in items:
            if item is not None:
                self._policy.let_go(item.key)
                flight = item.what
                freed.append(flight.slot)
                flight.slot, flight.outcome, flight.ticket = -1, None, None
        slots.give(Budget.WINDOW, freed)
        self._metrics.fetched_bytes += len(freed) * slots.slot_bytes

    def _discard(self, items: list[Item[_Flight]]) -> None:
        for item in items:
            self._metrics.fetched_bytes += item.bytes
            self._metrics.wasted_bytes += item.bytes
            self._bury(item.what)

    def _bury(self, flight: _Flight) -> None:
        """Free the slot, if any, of a flight that nobody wants: at once, or when the transport has let go of it."""
        ghost = _Flight(flight.entry, flight.layer, flight.slots, flight.slot, flight.ticket, flight.index)
        with self._arrival:
            flight.attempt += 1
            flight.slot, flight.outcome, flight.ticket = -1, None, None
        if ghost.slot < 0:
            return
        self._zombies.append(ghost)
        self._zombie_bytes += ghost.slots.slot_bytes
        self._reap()

    def _reap(self) -> None:
        alive: list[_Flight] = []
        for ghost in self._zombies:
            ticket = ghost.ticket
            if ticket is None or ticket.drained or ticket.outcomes[ghost.index] is Outcome.OK:
                ghost.slots.give(Budget.WINDOW, [ghost.slot])
                self._zombie_bytes -= ghost.slots.slot_bytes
            else:
                alive.append(ghost)
        self._zombies = alive

    def _await_room(self, wanted: int = 0) -> None:
        """Wait until given-up reads have left room for the step's reserve and `wanted` bytes more."""
        give_up = time.monotonic() + self._deadline_s + 2.0
        while self._zombies and self._arena.room(Budget.WINDOW) < self._reserve + wanted:
            if time.monotonic() > give_up:
                raise CapacityError("reads that were given up still hold the window", hint="is a node hanging?")
            with self._arrival:
                self._arrival.wait(0.01)
            self._reap()
