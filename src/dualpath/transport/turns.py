"""The order in which a node's connections send: a lane sends while no lane above it has something to send.

Theory of operation. Each connection has a thread of its own, and the kernel takes what any of them gives it. So the
order is kept before the kernel: a reply of a lower lane goes out in pieces (`stream.PIECE_BYTES`), and before each of
them its thread waits until all replies of higher lanes have been handed over. What was handed over stands in the queues
of the NIC, where the lanes' marks (`host.lanes`) keep the order. Nobody starves: a client that does not take its
replies, or a lane above that never pauses, holds a piece up for `PATIENCE_S` only.
"""

from __future__ import annotations

import threading

from dualpath.wire.messages import Lane

PATIENCE_S = 0.05


class Turns:
    """Who is sending, over all connections of a node. Between `enter` and `leave` a reply is being sent."""

    def __init__(self) -> None:
        self._sending = [0] * len(Lane)
        self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def enter(self, lane: Lane) -> None:
        """A reply of `lane` begins."""
        with self._lock:
            self._sending[lane] += 1

    def leave(self, lane: Lane) -> None:
        """It has been handed over, or failed."""
        with self._lock:
            self._sending[lane] -= 1
            if self._waiting and not self._sending[lane]:
                self._changed.notify_all()

    def wait(self, lane: Lane) -> None:
        """Return when no lane above `lane` is sending, at the latest after `PATIENCE_S`."""
        if any(self._sending[:lane]):
            with self._lock:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not any(self._sending[:lane]), PATIENCE_S)
                finally:
                    self._waiting -= 1
