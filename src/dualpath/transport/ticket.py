"""What a read knows of itself: outcomes as they come, who is told, and when the destinations are free again.

Also the watchdog: one thread per peer that ends operations at their deadline.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from dualpath.errors import DeadlineError, PeerError
from dualpath.transport.base import OnItems
from dualpath.wire.messages import Outcome

_log = logging.getLogger(__name__)


class ReadTicket:
    """A read under way (the `Ticket` of the contract).

    Whoever runs it sets `abort`, which ends it early, and `ended`, which is told once it is drained.

    The two gates are locks that are free once all is settled, or drained: whoever waits takes one and gives it back.
    A reply that nobody listens to thus costs one lock and two gates, which matters: it runs in a cold cache.
    """

    __slots__ = (
        "_drained", "_error", "_held", "_lock", "_on_items", "_outcomes", "_parts", "_settled", "_unknown",
        "_unsettled", "abort", "deadline", "ended", "listened",
    )  # fmt: skip

    def __init__(self, items: int, deadline: float, on_items: OnItems | None) -> None:
        self.deadline = deadline
        self.abort: Callable[[Outcome, PeerError | None], None] | None = None
        self.ended: Callable[[ReadTicket], None] | None = None
        self.listened = on_items is not None  # whether somebody wants to hear of each item
        self._outcomes: list[Outcome | None] = [None] * items
        self._on_items = on_items
        self._unsettled = items  # items whose `on_items` has not returned
        self._unknown = items  # items without an outcome
        self._parts = 0
        self._error: PeerError | None = None
        self._lock = threading.Lock()
        self._settled = threading.Lock()
        self._drained = threading.Lock()
        self._held = items > 0  # whether the gate `_drained` is closed
        if items:
            self._settled.acquire()
            self._drained.acquire()

    @property
    def outcomes(self) -> Sequence[Outcome | None]:
        """Per item its outcome so far."""
        return self._outcomes

    @property
    def error(self) -> PeerError | None:
        """Why items were lost, if they were."""
        return self._error

    @property
    def drained(self) -> bool:
        """Whether nothing will be written to the destinations any more."""
        return self._parts == 0 and self._unknown == 0

    @property
    def settled(self) -> bool:
        """Whether every item has an outcome."""
        return self._unknown == 0

    def wait(self, timeout_s: float | None = None) -> Sequence[Outcome | None]:
        """Block until every item has an outcome and `on_items` has been told. At most `timeout_s`."""
        if self._unsettled:
            _pass(self._settled, timeout_s)
        return self._outcomes

    def wait_drained(self, timeout_s: float) -> bool:
        """Block until drained, at most `timeout_s`; return whether it is."""
        return self.drained or _pass(self._drained, timeout_s)

    # --- for the transport ---------------------------------------------------------------------------------------

    def hold(self, parts: int) -> None:
        """This many requests hold destinations."""
        self._parts = parts

    def hold_another(self) -> None:
        """A request was cut in two."""
        with self._lock:
            self._parts += 1

    def settle(self, index: int, outcome: Outcome) -> None:
        """Give an item its outcome, unless it has one; the first to come wins."""
        self._settle(index, (outcome,), None, 0)

    def settle_all(self, outcome: Outcome, error: PeerError | None) -> None:
        """Give every item without an outcome this one."""
        self.settle_some(0, [outcome] * len(self._outcomes), error)

    def settle_some(self, first: int, outcomes: Sequence[Outcome], error: PeerError | None) -> None:
        """Give items from `first` on their outcomes, except those that have one."""
        self._settle(first, outcomes, error, 0)

    def finish(self, first: int, outcomes: Sequence[Outcome], error: PeerError | None) -> None:
        """As `settle_some`; and one request has let go of its destinations."""
        if self._settle(first, outcomes, error, 1) and self.ended is not None:
            self.ended(self)

    def release(self) -> None:
        """One request has let go of its destinations."""
        self.finish(0, (), None)

    def _settle(self, first: int, outcomes: Sequence[Outcome], error: PeerError | None, released: int) -> bool:
        """Give outcomes, and let go of requests' destinations. Return whether the last request has now let go."""
        with self._lock:
            spans = self._unknown_spans(first, first + len(outcomes))
            fresh = 0
            for start, end in spans:
                self._outcomes[start:end] = outcomes[start - first : end - first]
                fresh += end - start
            self._unknown -= fresh
            if error is not None and self._error is None and fresh:
                self._error = error
            if self._on_items is None:
                return self._account(fresh, released)
        for start, end in spans:
            self._tell(self._on_items, start, outcomes[start - first : end - first])
        with self._lock:
            return self._account(fresh, released)

    def _unknown_spans(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return where in `[first, end)` items have no outcome yet, as ranges."""
        known = self._outcomes[first:end]
        left = known.count(None)
        if left == len(known):  # nearly always: nothing is told twice
            return [(first, end)] if left else []
        spans: list[tuple[int, int]] = []
        at = 0
        while left:  # once, unless outcomes were given out of order
            start = at = known.index(None, at)
            while at < len(known) and known[at] is None:
                at += 1
            spans.append((first + start, first + at))
            left -= at - start
        return spans

    def _account(self, settled: int, released: int) -> bool:
        """Under the lock: count, and open the gates."""
        if settled:
            self._unsettled -= settled
            if self._unsettled == 0:
                self._settled.release()
        self._parts -= released
        if self._held and self._parts == 0 and self._unknown == 0:
            self._held = False
            self._drained.release()
        return released > 0 and self._parts == 0

    @staticmethod
    def _tell(on_items: OnItems, first: int, outcomes: Sequence[Outcome]) -> None:
        try:
            on_items(first, outcomes)
        except Exception:  # noqa: BLE001 a bug of the caller's must not end the transport's thread
            _log.exception("on_items raised")


def _pass(gate: threading.Lock, timeout_s: float | None) -> bool:
    """Wait until a gate is open; leave it open. Return whether it is."""
    opened = gate.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
    if opened:
        gate.release()
    return opened


class Watchdog:
    """Ends tickets at their deadline. Sleeps until the earliest one; nothing to do costs nothing."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._tickets: set[ReadTicket] = set()
        self._wake_at = math.inf
        self._closed = False
        self._lock = threading.Lock()  # taken by itself: an interrupt as a condition is entered would leave it taken
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def watch(self, ticket: ReadTicket) -> None:
        """From now on, `ticket.abort` runs when its deadline passes. Raises `RuntimeError` if no thread can be had."""
        if self._closed:
            return
        self._tickets.add(ticket)  # before the look at `_wake_at`, which the thread sets before it looks at the tickets
        if ticket.deadline < self._wake_at:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="read-watchdog", daemon=True)
                    thread.start()
                    self._thread = thread
                self._wake_at = min(self._wake_at, ticket.deadline)
                self._changed.notify()

    def forget(self, ticket: ReadTicket) -> None:
        """`ticket` has ended."""
        self._tickets.discard(ticket)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                self._wake_at = math.inf  # whoever adds a ticket from here on comes for the lock, and wakes this thread
                tickets = self._tickets.copy()
                late = [ticket for ticket in tickets if ticket.deadline <= now]
                self._tickets.difference_update(late)
                self._wake_at = min((ticket.deadline for ticket in tickets if ticket.deadline > now), default=math.inf)
                if not late:
                    if self._closed:
                        return
                    self._changed.wait(None if self._wake_at == math.inf else self._wake_at - now)
                    continue
            for ticket in late:
                if ticket.abort is not None and not ticket.settled:
                    hint = "the node is stopped, overloaded, or the network is slower than the deadline allows"
                    error = DeadlineError(f"{self._node}: not read within the deadline", node=self._node, hint=hint)
                    ticket.abort(Outcome.TIMEOUT, error)
