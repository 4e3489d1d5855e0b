"""Fault injection for any transport: a `Peer` around a `Peer`, and a link that spoils the bytes of a stream.

`FaultyPeer` fits every transport and spoils operations, as seen by whoever uses a peer:

    drop      the item never arrives: `TIMEOUT` at the read's deadline
    delay     every operation starts that much later
    truncate  the items from the n-th on are `LOST`
    corrupt   the first byte of the item is flipped, and the transport believes that it is `OK`
    kill      the node is gone: everything is `LOST`, calls raise `UnreachableError`

`FaultyLink` stands between a client and a server of a stream transport and spoils the stream itself, which is how the
transport's own behaviour is tested: stall, cut after n bytes, flip the n-th byte, reset.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dualpath.errors import DeadlineError, UnreachableError
from dualpath.transport.base import Destination, OnItems, Peer, Pending, Ticket, TransferCounters
from dualpath.transport.calls import PendingCall
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.messages import Lane, Message, Outcome, SlotRef


@dataclass
class Faults:
    """What goes wrong from now on. Items are counted over all reads of the peer, from 0. Change it at any time."""

    drop: set[int] = field(default_factory=set)
    corrupt: set[int] = field(default_factory=set)
    truncate_from: int | None = None
    delay_s: float = 0.0
    killed: bool = False


class FaultyPeer:
    """Passes everything on to `inner`, spoiled by `faults`."""

    def __init__(self, inner: Peer, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults = faults or Faults()
        self._items = 0
        self._lock = threading.Lock()

    @property
    def node(self) -> str:
        """The inner peer's node."""
        return self.inner.node

    @property
    def counters(self) -> TransferCounters:
        """The inner peer's counters."""
        return self.inner.counters

    def _gone(self) -> UnreachableError:
        return UnreachableError(f"{self.node}: killed by a test", node=self.node)

    def call(
        self, message: Message, payload: Sequence[Any] = (), *, lane: Lane = Lane.REALTIME, timeout_s: float = 10.0
    ) -> tuple[Message, memoryview]:
        """As `Peer.call`."""
        return self.start(message, payload, lane=lane, timeout_s=timeout_s).result()

    def start(
        self,
        message: Message,
        payload: Sequence[Any] = (),
        *,
        lane: Lane = Lane.REALTIME,
        timeout_s: float = 10.0,
        into: Destination | None = None,
    ) -> Pending:
        """As `Peer.start`; late, or dead."""
        if self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        if self.faults.killed:
            failed = PendingCall(None, self.node, time.monotonic() + timeout_s)
            failed.fail(self._gone())
            return failed
        return self.inner.start(message, payload, lane=lane, timeout_s=timeout_s, into=into)

    def read(
        self,
        refs: Sequence[SlotRef],
        destinations: Sequence[memoryview],
        *,
        slot_bytes: int,
        lane: Lane = Lane.PREFETCH,
        timeout_s: float = 10.0,
        on_items: OnItems | None = None,
    ) -> Ticket:
        """As `Peer.read`, item by item as `faults` says."""
        ticket = ReadTicket(len(refs), time.monotonic() + timeout_s, on_items)
        with self._lock:
            numbers = range(self._items, self._items + len(refs))
            self._items += len(refs)
        faults = self.faults
        if faults.killed:
            ticket.settle_all(Outcome.LOST, self._gone())
            return ticket
        ticket.hold(1)
        through = []
        for index, number in enumerate(numbers):
            if faults.truncate_from is not None and number >= faults.truncate_from:
                ticket.settle(index, Outcome.LOST)
            elif number not in faults.drop:
                through.append(index)
        run = _FaultyRead(self, ticket, through, [numbers[i] in faults.corrupt for i in through], destinations)
        threading.Thread(
            target=run.run, args=([refs[i] for i in through], slot_bytes, lane, faults.delay_s), daemon=True
        ).start()
        return ticket

    def write(
        self,
        refs: Sequence[SlotRef],
        sources: Sequence[memoryview],
        *,
        slot_bytes: int,
        lane: Lane = Lane.BULK,
        timeout_s: float = 30.0,
    ) -> Sequence[Outcome]:
        """As `Peer.write`; late, or dead."""
        if self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        if self.faults.killed:
            return [Outcome.LOST] * len(refs)
        return self.inner.write(refs, sources, slot_bytes=slot_bytes, lane=lane, timeout_s=timeout_s)

    def cancel(self, ticket: Ticket) -> None:
        """As `Peer.cancel`."""
        if isinstance(ticket, ReadTicket) and ticket.abort is not None:
            ticket.abort(Outcome.CANCELLED, None)
        else:
            self.inner.cancel(ticket)

    def close(self) -> None:
        """Close the inner peer."""
        self.inner.close()


class _FaultyRead:
    """One read through a `FaultyPeer`: an inner read of what passes, and a wait for what was dropped."""

    def __init__(
        self,
        peer: FaultyPeer,
        ticket: ReadTicket,
        through: Sequence[int],
        corrupt: Sequence[bool],
        destinations: Sequence[memoryview],
    ) -> None:
        self.peer, self.ticket, self.through, self.corrupt = peer, ticket, through, corrupt
        self.destinations = destinations
        self.stop = threading.Event()
        ticket.abort = self._abort

    def _abort(self, outcome: Outcome, error: Any) -> None:
        self.ticket.settle_all(outcome, error)
        self.stop.set()

    def _arrived(self, first: int, outcomes: Sequence[Outcome]) -> None:
        for index, outcome in enumerate(outcomes, first):
            item = self.through[index]
            if outcome is Outcome.OK and self.corrupt[index]:
                flat = self.destinations[item].cast("B")
                flat[0] ^= 0xFF
            self.ticket.settle(item, outcome)

    def run(self, refs: Sequence[SlotRef], slot_bytes: int, lane: Lane, delay_s: float) -> None:
        """Thread: carry the read out, then let go."""
        self.stop.wait(delay_s)
        inner: Ticket | None = None
        left = self.ticket.deadline - time.monotonic()
        if refs and not self.stop.is_set():
            inner = self.peer.inner.read(
                refs,
                [self.destinations[i] for i in self.through],
                slot_bytes=slot_bytes,
                lane=lane,
                timeout_s=max(0.0, left),
                on_items=self._arrived,
            )
        while not self.ticket.settled and not self.stop.wait(0.005) and time.monotonic() < self.ticket.deadline:
            if self.peer.faults.killed:
                self.ticket.settle_all(Outcome.LOST, self.peer._gone())
        if not self.ticket.settled:
            node = self.peer.node
            self.ticket.settle_all(Outcome.TIMEOUT, DeadlineError(f"{node}: dropped by a test", node=node))
        if inner is not None:
            self.peer.inner.cancel(inner)
            inner.wait_drained(10.0)
        self.ticket.release()


class FaultyLink:
    """A TCP relay to `target`. Counts bytes per connection and direction; faults strike what the node sends.

    `stall` stops forwarding; `cut_after` closes once so many bytes have passed; `flip_at` inverts the byte with that
    number.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.cut_after: int | None = None
        self.flip_at: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stall(self) -> None:
        """Forward nothing any more, in either direction, until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again."""
        self._flowing.set()

    def reset(self) -> None:
        """End all connections that there are now."""
        for sock in tuple(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the link and its threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self._flowing.set()
        self.reset()
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def __enter__(self) -> FaultyLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._sockets += [client, node]
            for source, sink, spoiled in ((client, node, False), (node, client, True)):
                thread = threading.Thread(target=self._relay, args=(source, sink, spoiled), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, spoiled: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                self._flowing.wait()
                if spoiled and self.flip_at is not None and passed <= self.flip_at < passed + len(data):
                    data[self.flip_at - passed] ^= 0xFF
                if spoiled and self.cut_after is not None and passed + len(data) > self.cut_after:
                    sink.sendall(data[: self.cut_after - passed])
                    break
                sink.sendall(data)
                passed += len(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
