"""The order in which a node's connections send: a lane sends while no lane above it has something to send.

Theory of operation. Each connection has a thread of its own, and the kernel takes what any of them gives it. So the
order is kept before the kernel: a reply goes out in pieces (`stream.PIECE_BYTES`), and before each of them its thread
waits until all replies of higher lanes have been handed over. What was handed over stands in the queues of the NIC,
where the lanes' marks (`host.lanes`) keep the order.

Nobody starves: a lane above that never pauses holds a piece up for `PATIENCE_S` only. A client that does not take its
replies does so once: a reply that was there all that time is not waited for again until it has sent a piece.
"""

from __future__ import annotations

import threading

from dualpath.wire.messages import Lane

PATIENCE_S = 0.05


class Sending:
    """A reply that is being sent. Two of them are never equal."""

    __slots__ = ("lane",)

    def __init__(self, lane: Lane) -> None:
        self.lane = lane


class Turns:
    """Who is sending, over all connections of a node. Between `enter` and `leave` a reply is being sent."""

    def __init__(self) -> None:
        self._awaited = [set[Sending]() for _ in Lane]  # whom lower lanes wait for
        self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def enter(self, lane: Lane) -> Sending:
        """A reply of `lane` begins."""
        reply = Sending(lane)
        with self._lock:
            self._awaited[lane].add(reply)
        return reply

    def leave(self, reply: Sending) -> None:
        """It has been handed over, or failed."""
        awaited = self._awaited[reply.lane]
        with self._lock:
            awaited.discard(reply)
            if self._waiting and not awaited:
                self._changed.notify_all()

    def wait(self, reply: Sending) -> None:
        """Call before each piece of `reply`. Return when no lane above is sending, at the latest after `PATIENCE_S`."""
        if reply not in self._awaited[reply.lane]:  # the piece that it was held up with has gone out
            with self._lock:
                self._awaited[reply.lane].add(reply)
        above = self._awaited[: reply.lane]
        if any(above):
            with self._lock:
                self._wait_for(above)

    def _wait_for(self, above: list[set[Sending]]) -> None:
        """Wait until nobody is left, and give up who is there from the beginning to the end of `PATIENCE_S`."""
        there = [set(lane) for lane in above]
        self._waiting += 1
        try:
            if self._changed.wait_for(lambda: not any(above), PATIENCE_S):
                return
            for lane, held_up in zip(above, there, strict=True):
                lane.difference_update(held_up)
            self._changed.notify_all()  # nor need others wait for them
        finally:
            self._waiting -= 1
