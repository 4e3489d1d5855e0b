"""A pool node without sockets: requests go straight to its service, as a transport would hand them on.

For tests that want a stopped clock and no threads. `LocalNodes` (in `testing.pool`) is the real thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dualpath.pool.service import PoolService
from dualpath.transport.base import Session
from dualpath.wire.messages import BlockKey, Commit, Lane, Message, Outcome, Prepare, PrepareItem, SlotRef, Write


class FakeClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@dataclass
class DirectConnection:
    """One connection to a service, with the payload landing in the sink as it does behind a transport."""

    service: PoolService
    tenant: str = "default"
    owner: bytes = b""
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session = Session("test", self.tenant, Lane.REALTIME, owner=self.owner)

    def call(self, message: Message, payload: bytes = b"") -> tuple[Any, bytes]:
        """Send a request; return the reply and its payload. Errors are raised as the service raises them."""
        data = memoryview(payload)
        if payload:
            sink = self.service.sink(self.session, message, len(payload))
            if sink is not None:
                assert sum(part.nbytes for part in sink) == len(payload)
                start = 0
                for part in sink:
                    part[:] = data[start : start + part.nbytes]
                    start += part.nbytes
                data = memoryview(b"")
        reply = self.service.handle(self.session, message, data)
        body = b"".join(reply.payload)
        if reply.release is not None:
            reply.release()
        return reply.message, body

    def close(self) -> None:
        """End the connection."""
        self.service.closed(self.session)

    def put(self, key: BlockKey, slots: list[bytes], tokens: int = 4) -> list[SlotRef]:
        """Prepare, write and commit a block."""
        refs: list[SlotRef] = self.call(Prepare([PrepareItem(key, len(slots), len(slots[0]), tokens)]))[0].refs[0]
        self.call(Write(len(slots[0]), refs), b"".join(slots))
        assert self.call(Commit([key]))[0].outcomes == [Outcome.OK]
        return refs


def block_key(number: int, group: int = 0) -> BlockKey:
    """Return a key that differs for every number and group."""
    return BlockKey(number.to_bytes(32, "big"), group)
