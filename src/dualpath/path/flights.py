"""Reads of far layer blocks under way: slots taken for them, arrivals, and what becomes of a read that was given up.

All methods are called on the compute thread. Transport threads only note arrivals. A slot whose read was given up stays
charged against the window until the transport has let go of it: its flight is *left*, and reaped later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualpath.errors import BlockLostError, CapacityError, UsageError
from dualpath.path.arena import Budget
from dualpath.path.reader import InterruptedRead, lost
from dualpath.transport.base import Outcome

if TYPE_CHECKING:
    from dualpath.path.arena import LocalArena, SlotClass
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.plan import Entry
    from dualpath.path.window import Window
    from dualpath.pool.client import Pool
    from dualpath.transport.base import OnItems, Ticket

GRACE_S = 0.5
"""How long a reader that ends waits for the next of its reads under way before it cancels them."""
_PATIENCE_S = 2.0  # beyond the deadline of a read, which comes first


@dataclass(slots=True, eq=False)
class Flight:
    """Where one layer block comes from and where it goes."""

    entry: Entry
    layer: int
    slots: SlotClass
    slot: int = -1
    ticket: Ticket | None = None
    index: int = -1
    outcome: Outcome | None = None
    attempt: int = 0  # a late arrival of an attempt that was given up must not count for the next one


class Flights:
    """Starts reads into window slots of `arena`, waits for them, and frees the slots."""

    def __init__(self, pool: Pool, arena: LocalArena, metrics: PathMetrics, deadline_s: float) -> None:
        self._pool, self._arena, self._metrics, self.deadline_s = pool, arena, metrics, deadline_s
        self._lock = threading.Lock()  # taken by itself: an interrupt as a condition is entered would leave it taken
        self._arrival = threading.Condition(self._lock)
        self._left: list[Flight] = []
        self.left_bytes = 0
        """Of the slots of flights that are left."""
        self.stalled_s = 0.0
        """What compute has waited for arrivals."""
        self.watch: Callable[[int, int, int, OnItems], OnItems] | None = None  # (node, slot bytes, slots, on_items)

    def start(self, flights: Sequence[Flight], window: Window) -> None:
        """Take slots and start reading, by the policy of `window`, which is told of arrivals.

        Raises `CapacityError`, and what the transport does; then flights without a ticket are not being read, and of
        those with an `InterruptedRead` nobody knows. Both are to be buried.
        """
        alike: dict[tuple[int, SlotClass], list[Flight]] = {}
        for flight in flights:
            alike.setdefault((flight.entry.part.node, flight.slots), []).append(flight)
        together = window.policy.read_items
        for (number, slots), some in alike.items():
            for flight, slot in zip(some, slots.take(Budget.WINDOW, len(some)), strict=True):
                flight.slot, flight.outcome = slot, None
                flight.attempt += 1
            for at in range(0, len(some), together):
                self._read(number, slots.slot_bytes, some[at : at + together], window)

    def _read(self, number: int, size: int, flights: list[Flight], window: Window) -> None:
        noting = self._noting(flights, window)
        try:
            ticket = self._pool.nodes[number].read(
                [flight.entry.part.refs[flight.layer] for flight in flights if flight.entry.part.refs is not None],
                [flight.slots.bytes_of(flight.slot) for flight in flights],
                slot_bytes=size,
                lane=window.policy.lane,
                timeout_s=self.deadline_s,
                on_items=noting if self.watch is None else self.watch(number, size, len(flights), noting),
            )
            for index, flight in enumerate(flights):
                flight.ticket, flight.index = ticket, index
        except UsageError:  # it was refused: nothing is under way
            raise
        except BaseException:  # an interrupt; or no thread or memory was to be had, maybe when it had begun
            interrupted = InterruptedRead(len(flights), time.monotonic() + self.deadline_s + _PATIENCE_S)
            for index, flight in enumerate(flights):
                flight.ticket, flight.index = interrupted, index
            raise

    def _noting(self, flights: list[Flight], window: Window) -> OnItems:
        lock, arrival = self._lock, self._arrival
        attempts = [flight.attempt for flight in flights]
        asked_at = time.perf_counter()

        def note(first: int, outcomes: Sequence[Outcome]) -> None:
            fetch_s = time.perf_counter() - asked_at
            with lock:
                for index, outcome in enumerate(outcomes, first):
                    flight = flights[index]
                    if flight.attempt == attempts[index]:
                        flight.outcome = outcome
                if Outcome.OK in outcomes:
                    window.arrived(fetch_s)
                arrival.notify()

        return note

    def wait(self, flight: Flight) -> BlockLostError | None:
        """Block until `flight` has an outcome. Returns why its block is lost, if it is; then it is to be buried."""
        if flight.outcome is None:
            started = time.perf_counter()
            give_up = started + self.deadline_s + _PATIENCE_S
            with self._lock:
                while flight.outcome is None and time.perf_counter() < give_up:
                    self._arrival.wait(give_up - time.perf_counter())
            stalled_s = time.perf_counter() - started
            self._metrics.stall_s += stalled_s
            self.stalled_s += stalled_s
        if flight.outcome is Outcome.OK:
            return None
        node, error = self._pool.nodes[flight.entry.part.node], flight.ticket.error if flight.ticket else None
        return lost(flight.entry, node, flight.outcome or Outcome.TIMEOUT, error)

    def used(self, slots: SlotClass, flights: Sequence[Flight]) -> None:
        """Compute has used these blocks, which were in `slots`: those are free again."""
        freed: list[int] = []
        for flight in flights:
            freed.append(flight.slot)
            flight.slot, flight.outcome, flight.ticket = -1, None, None
        slots.give(Budget.WINDOW, freed)
        self._metrics.fetched_bytes += len(freed) * slots.slot_bytes

    def waste(self, flights: Sequence[Flight]) -> None:
        """These blocks are fetched, or being fetched, in vain."""
        for flight in flights:
            self._metrics.fetched_bytes += flight.slots.slot_bytes
            self._metrics.wasted_bytes += flight.slots.slot_bytes
            self.bury(flight)

    # --- reads that were given up ------------------------------------------------------------------------------

    def bury(self, flight: Flight) -> None:
        """Free the slot, if any, of a flight that nobody wants: at once, or when the transport has let go of it."""
        ghost = Flight(flight.entry, flight.layer, flight.slots, flight.slot, flight.ticket, flight.index)
        with self._lock:
            flight.attempt += 1
            flight.slot, flight.outcome, flight.ticket = -1, None, None
        if ghost.slot < 0:
            return
        self._left.append(ghost)
        self.left_bytes += ghost.slots.slot_bytes
        self.reap()

    def reap(self) -> None:
        """Free the slots that the transport has let go of."""
        alive: list[Flight] = []
        for ghost in self._left:
            if ghost.slot < 0:
                continue  # it was free when an interrupt came
            ticket = ghost.ticket
            if ticket is None or ticket.drained or ticket.outcomes[ghost.index] is Outcome.OK:
                slot, ghost.slot = ghost.slot, -1
                ghost.slots.give(Budget.WINDOW, [slot])
                self.left_bytes -= ghost.slots.slot_bytes
            else:
                alive.append(ghost)
        self._left = alive

    def await_room(self, wanted: int) -> None:
        """Wait until given-up reads have left room for `wanted` bytes. Raises `CapacityError`."""
        give_up = time.monotonic() + self.deadline_s + _PATIENCE_S
        while self._left and self._arena.room(Budget.WINDOW) < wanted:
            if time.monotonic() > give_up:
                raise CapacityError("reads that were given up still hold the window", hint="is a node hanging?")
            with self._lock:
                self._arrival.wait(0.01)
            self.reap()

    def drain(self) -> None:
        """Wait until nothing that was given up is in flight any more. If none of it comes for `GRACE_S` its node may
        have stopped: it is cancelled, which costs its connections."""
        now = time.monotonic()
        give_up, cancel_at, before = now + self.deadline_s + _PATIENCE_S, now + GRACE_S, len(self._left)
        while self._left and (now := time.monotonic()) < give_up:
            if len(self._left) < before:
                cancel_at, before = now + GRACE_S, len(self._left)
            if now >= cancel_at:
                cancel_at = give_up
                self._cancel()
            with self._lock:
                self._arrival.wait(0.02)
            self.reap()

    def _cancel(self) -> None:
        tickets = {id(one.ticket): (one.entry.part.node, one.ticket) for one in self._left}
        for number, ticket in tickets.values():
            if ticket is not None:
                self._pool.nodes[number].cancel(ticket)
