"""What the conformance suite of transports is written with: the case to fill in, and small tools."""

# ruff: noqa: S311  seeded noise is wanted
from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from dualpath.testing.transport_node import ChildNode
from dualpath.testing.transport_service import MemoryService
from dualpath.transport.base import Outcome, Peer, Ticket
from dualpath.wire.messages import SlotRef

KEY = b"0123456789abcdef0123456789abcdef"
PATIENCE_S = 60.0  # only a hang exceeds it
POISON = 0xA5


def buffers(count: int, size: int) -> list[memoryview]:
    """Return `count` writable buffers of `size` bytes, poisoned."""
    return [memoryview(bytearray([POISON]) * size) for _ in range(count)]


def refs(count: int, generation: int = 1) -> list[SlotRef]:
    """Return references to slots `[0, count)`."""
    return [SlotRef(slot, generation) for slot in range(count)]


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until `condition` holds; whether it did, once, within `PATIENCE_S`."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)
    return True


def raised(kind: type[Exception], action: Callable[[], Any]) -> Any:
    """Return the error of `kind` that `action` raises. Anything else is a failure of the test."""
    try:
        result = action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; got {result!r}")


def finish(ticket: Ticket) -> list[Outcome | None]:
    """Wait for all outcomes and for the destinations."""
    outcomes = list(ticket.wait(PATIENCE_S))
    assert ticket.wait_drained(PATIENCE_S)
    assert ticket.drained
    return outcomes


class TransportCase:
    """What every test needs: a served service, a peer, a child.

    `one_sided`: reads need nothing of the node's threads (shared memory, RDMA).
    """

    one_sided = False

    def serve(self, service: MemoryService, *, key: bytes | None = None) -> AbstractContextManager[Any]:
        """Return a server, not started, that runs `service`; its `address` is what `connect` takes."""
        raise NotImplementedError

    def connect(self, address: Any, *, key: bytes | None = None) -> Peer:
        """Return a peer for `address`."""
        raise NotImplementedError

    def child(self, slots: int, slot_bytes: int) -> ChildNode:
        """Return a node in a process of its own; `connect` takes its `address` too."""
        raise NotImplementedError

    @contextmanager
    def pair(self, slots: int = 8, slot_bytes: int = 4096, *, key: bytes | None = None) -> Any:
        """Yield a served service and a peer of it."""
        service = MemoryService(slots, slot_bytes)
        noise = random.Random(slots)
        for slot in range(slots):
            service.slot(slot)[:] = noise.randbytes(slot_bytes)
        try:
            with self.serve(service, key=key) as server, closing(self.connect(server.address, key=key)) as peer:
                try:
                    yield service, peer
                finally:
                    service.gate.set()
        finally:
            service.close()


def run_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work(0)` … `work(count - 1)` at once and wait for all."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
