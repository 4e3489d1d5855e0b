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
from dualpath.wire.messages import Outcome

_log = logging.getLogger(__name__)


class ReadTicket:
    """A read under way (the `Ticket` of the contract).

    Whoever runs it sets `abort`, which ends it early, and `ended`, which is told once it is drained.
    """

    def __init__(self, items: int, deadline: float, on_item: Callable[[int, Outcome], None] | None) -> None:
        self.deadline = deadline
        self.abort: Callable[[Outcome, PeerError | None], None] | None = None
        self.ended: Callable[[ReadTicket], None] | None = None
        self._outcomes: list[Outcome | None] = [None] * items
        self._on_item = on_item
        self._unsettled = items  # items whose `on_item` has not returned
        self._unknown = items  # items without an outcome
        self._parts = 0
        self._error: PeerError | None = None
        self._changed = threading.Condition(threading.Lock())

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
        """Block until every item has an outcome and `on_item` has been told. At most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsettled == 0, timeout_s)
        return self._outcomes

    def wait_drained(self, timeout_s: float) -> bool:
        """Block until drained, at most `timeout_s`; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.drained, timeout_s)

    @property
    def listened(self) -> bool:
        """Whether somebody wants to hear of each item."""
        return self._on_item is not None

    # --- for the transport ---------------------------------------------------------------------------------------

    def hold(self, parts: int) -> None:
        """This many requests hold destinations."""
        self._parts = parts

    def settle(self, index: int, outcome: Outcome, error: PeerError | None = None) -> None:
        """Give an item its outcome, unless it has one; the first to come wins."""
        self.settle_some(index, (outcome,), error)

    def settle_all(self, outcome: Outcome, error: PeerError | None) -> None:
        """Give every item without an outcome this one."""
        self.settle_some(0, [outcome] * len(self._outcomes), error)

    def settle_some(self, first: int, outcomes: Sequence[Outcome], error: PeerError | None) -> None:
        """Give items from `first` on their outcomes, except those that have one."""
        fresh: list[tuple[int, Outcome]] = []
        with self._changed:
            for index, outcome in enumerate(outcomes, first):
                if self._outcomes[index] is None:
                    self._outcomes[index] = outcome
                    fresh.append((index, outcome))
            self._unknown -= len(fresh)
            if self._error is None and fresh:
                self._error = error
        if self._on_item is not None:
            for index, outcome in fresh:
                self._tell(self._on_item, index, outcome)
        with self._changed:
            self._unsettled -= len(fresh)
            if self._unsettled == 0:
                self._changed.notify_all()

    @staticmethod
    def _tell(on_item: Callable[[int, Outcome], None], index: int, outcome: Outcome) -> None:
        try:
            on_item(index, outcome)
        except Exception:  # noqa: BLE001 a bug of the caller's must not end the transport's thread
            _log.exception("on_item raised")

    def release(self) -> None:
        """One request has let go of its destinations."""
        with self._changed:
            self._parts -= 1
            ended = self._parts == 0
            if ended:
                self._changed.notify_all()
        if ended and self.ended is not None:
            self.ended(self)


class Watchdog:
    """Ends tickets at their deadline. Sleeps until the earliest one; nothing to do costs nothing."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._tickets: set[ReadTicket] = set()
        self._wake_at = math.inf
        self._closed = False
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def watch(self, ticket: ReadTicket) -> None:
        """From now on, `ticket.abort` runs when its deadline passes."""
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="read-watchdog", daemon=True)
                self._thread.start()
            self._tickets.add(ticket)
            if ticket.deadline < self._wake_at:
                self._wake_at = ticket.deadline
                self._changed.notify()

    def forget(self, ticket: ReadTicket) -> None:
        """`ticket` has ended."""
        with self._changed:
            self._tickets.discard(ticket)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                late = [ticket for ticket in self._tickets if ticket.deadline <= now]
                self._tickets.difference_update(late)
                self._wake_at = min((ticket.deadline for ticket in self._tickets), default=math.inf)
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
