"""How often what was cut off is tried again, and a call that is: over another rail, or anew over the same one.

Every request of the pool protocol may be sent again (see `pool.node`). What belonged to the connection (views) the node
has forgotten then, and says so; what a client has prepared it keeps while any connection of that client lives.
"""

from __future__ import annotations

from collections.abc import Callable

from dualpath.errors import UnreachableError
from dualpath.transport.calls import PendingCall
from dualpath.wire.messages import Message

TRIES = 3


def tries_over(connections: int) -> int:
    """Return how often a request may be cut off before it is lost: all `connections` may end at once, and one that is
    new while the node is out of breath."""
    return max(TRIES, connections + 1)


class FailoverCall:
    """A call under way (the `Pending` of the contract), which may be made `others` times more."""

    def __init__(
        self, call: PendingCall, others: int, again: Callable[[], PendingCall], closed: Callable[[], bool]
    ) -> None:
        self._call = call
        self._others = others
        self._again = again
        self._closed = closed

    def result(self, timeout_s: float | None = None) -> tuple[Message, memoryview]:
        """Return the reply and its payload. Raises `PeerError`, at the latest at the call's own deadline."""
        while True:
            try:
                return self._call.result(timeout_s)
            except UnreachableError:
                if self._others == 0 or self._closed():
                    raise
                self._others -= 1
                self._call = self._again()
