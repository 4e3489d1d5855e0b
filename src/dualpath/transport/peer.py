"""A node seen over stream sockets: per lane one connection for calls and writes, and its own for reads.

Theory of operation. Connections open at first use. Calls and writes of a lane share one connection without a thread
(`calls`); reads have connections with a receiver thread each (`reads`), so a bulk of payload never stands between a
small request and its reply, and neither direction can wait for the other. A connection that failed is replaced by
the next operation. One watchdog thread ends reads at their deadline.

Over TCP, a node may be reached by several rails, of which its `Welcome` tells. Reads use them all at once; calls use
the first that works, and one that is cut off in the middle is made again over the next. A node that was started anew
may have other rails: the first `Welcome` of each process counts.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dualpath.errors import DeadlineError, PeerError, UnreachableError, UsageError
from dualpath.transport.base import Destination, OnItems, Ticket, TransferCounters
from dualpath.transport.calls import CallConnection, PendingCall
from dualpath.transport.dial import CALLER_USER_TIMEOUT_MS, RAILED_USER_TIMEOUT_MS, Dialer, Tcp, Unix
from dualpath.transport.failover import FailoverCall, tries_over
from dualpath.transport.rails import MAX_RAILS, Rail, RailState, rails_to
from dualpath.transport.reads import NO_THREAD, ReadLane
from dualpath.transport.requests import check_transfer, lose, split
from dualpath.transport.stall import StallWatch
from dualpath.transport.stream import Stream
from dualpath.transport.ticket import ReadTicket, Watchdog
from dualpath.wire.auth import check_key
from dualpath.wire.messages import Lane, Message, Outcome, Outcomes, SlotRef, Welcome, Write

_log = logging.getLogger(__name__)
_Peer = TypeVar("_Peer", bound="StreamPeer")  # `typing.Self` needs Python 3.11
WRITE_BYTES, WRITE_ITEMS = 4 << 20, 1 << 16  # of one request
RAIL_CONNECT_TIMEOUT_S = 0.5  # where there is another rail to try
CLOSE_S = 1.0  # how long `close` waits at most, for threads that wait for the kernel to connect
DEFAULT_CONNECTIONS = {Lane.REALTIME: 1, Lane.PREFETCH: 2, Lane.BULK: 2}


class StreamPeer:
    """The `Peer` of every stream transport."""

    def __init__(
        self,
        address: Tcp | Unix,
        *,
        key: bytes | None = None,
        tenant: str = "default",
        connect_timeout_s: float = 2.0,
        connections: Mapping[Lane, int] | None = None,
        nics: Sequence[str] = (),
        max_rails: int = MAX_RAILS,
    ) -> None:
        check_key(key)
        counts = {**DEFAULT_CONNECTIONS, **(connections or {})}
        if min(counts.values()) < 1:
            raise UsageError("each lane needs at least one connection")
        if max_rails < 1:
            raise UsageError(f"a node is reached over one rail at least, not {max_rails}")
        first = self._first = Dialer(address, key, tenant, connect_timeout_s, secrets.token_bytes(16))
        self._rails = [first]
        self._nics, self._max_rails = tuple(nics), max_rails
        self._learning = threading.Lock()
        self._turn = dict.fromkeys(Lane, 0)  # which rail its calls use; grows with every failure
        self._node = str(address)
        self._instance = self._taught = b""  # whose rails are known
        self._closed = False
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._past = TransferCounters()  # of streams that are closed
        self._requests = 0
        self._callers: dict[Lane, CallConnection] = {}
        self._dialing = {lane: threading.Lock() for lane in Lane}
        self._watchdog = Watchdog(self._node)
        self._lanes = {lane: ReadLane(first, lane, counts[lane], self._opened) for lane in Lane}
        self._stall_watch: StallWatch | None = None

    @property
    def node(self) -> str:
        """The node's id as it introduced itself, or its address before the first connection."""
        return self._node

    @property
    def instance(self) -> bytes:
        """What differs each time the node's process starts; empty before the first connection."""
        return self._instance

    @property
    def rails(self) -> tuple[RailState, ...]:
        """What each rail has brought so far; empty where there is one only."""
        readers = [reader for lane in self._lanes.values() for reader in lane.readers]
        return tuple(
            RailState(
                dialer.rail,
                sum(reader.bytes_received for reader in readers if reader.dialer is dialer),
                any(reader.connected for reader in readers if reader.dialer is dialer),
            )
            for dialer in self._rails
            if dialer.rail
        )

    @property
    def counters(self) -> TransferCounters:
        """Bytes moved so far, headers and handshakes included."""
        with self._lock:
            sent = self._past.tx_bytes + sum(stream.sent for stream in self._streams)
            received = self._past.rx_bytes + sum(stream.received for stream in self._streams)
            return TransferCounters(sent, received, self._requests)

    def _opened(self, stream: Stream, welcome: Welcome) -> None:
        with self._lock:
            learn = welcome.instance != self._taught and not self._closed
            self._node, self._instance = welcome.node, welcome.instance
            for old in [s for s in self._streams if s.closed]:
                self._streams.remove(old)
                self._past.tx_bytes += old.sent
                self._past.rx_bytes += old.received
            self._streams.append(stream)
        if learn:
            self._learn(stream, welcome)

    def _learn(self, stream: Stream, welcome: Welcome) -> None:
        """The node's process told at which addresses it listens: use every rail that leads there.

        If the connection is gone already, the next one tells it again.
        """
        if not isinstance(self._first.address, Tcp):
            return
        from dualpath.host.addresses import local_addresses

        with self._learning, contextlib.suppress(OSError):
            if self._taught == welcome.instance:  # by another thread meanwhile
                return
            advertised, found = welcome.rails, list[Rail]()
            dialled = Tcp(*stream.sock.getpeername()[:2])  # one of the addresses, also where it was dialled by a name
            if advertised or self._nics:
                found = rails_to(dialled, advertised, local_addresses(), nics=self._nics)[: self._max_rails]
            self._spread(found if len(found) > 1 or self._nics else [], dialled)
            self._taught = welcome.instance

    def _spread(self, found: Sequence[Rail], dialled: Tcp) -> None:
        """Use these rails, or where there are none the address that was asked for."""
        asked = str(dialled) not in [str(rail.address) for rail in self._rails[1:]]  # whoever is there is the node
        rails = [
            replace(
                self._first,
                address=rail.address,
                rail=str(rail),
                leads_there=self._is_node if number or not asked else None,
            )
            for number, rail in enumerate(found)
        ] or [self._first]
        if rails == self._rails:
            return
        for lane in self._lanes.values():
            lane.spread(rails)
        self._rails = rails
        if len(rails) > 1 and self._stall_watch is None:
            with contextlib.suppress(RuntimeError):  # without a thread for it, deadlines decide
                self._stall_watch = StallWatch(self._node, tuple(self._lanes.values()))

    def _is_node(self, welcome: Welcome) -> bool:
        """Whether who answers over another rail is who answered over the first."""
        return self._instance == welcome.instance or self._node == welcome.node

    # --- calls ---------------------------------------------------------------------------------------------------

    def call(
        self, message: Message, payload: Sequence[Any] = (), *, lane: Lane = Lane.REALTIME, timeout_s: float = 10.0
    ) -> tuple[Message, memoryview]:
        """Send a request and wait for its reply. A `Failure` reply is raised as the matching error."""
        return self.start(message, payload, lane=lane, timeout_s=timeout_s).result()

    def start(
        self,
        message: Message,
        payload: Sequence[Any] = (),
        *,
        lane: Lane = Lane.REALTIME,
        timeout_s: float = 10.0,
        into: Destination | None = None,
    ) -> PendingCall | FailoverCall:
        """Send a request now, collect the reply later. Whatever goes wrong is raised by `result`, not here."""
        deadline = time.monotonic() + timeout_s
        self._requests += 1
        call = self._start(message, payload, lane, deadline, into)
        if len(self._rails) == 1:
            return call
        return FailoverCall(
            call,
            tries_over(len(self._rails)) - 1,
            lambda: self._start(message, payload, lane, deadline, into),
            lambda: self._closed,
        )

    def _start(
        self, message: Message, payload: Sequence[Any], lane: Lane, deadline: float, into: Destination | None
    ) -> PendingCall:
        try:
            return self._caller(lane, deadline).start(message, payload, deadline, into)
        except PeerError as error:
            failed = PendingCall(None, self._node, deadline)
            failed.fail(error)
            return failed

    def _caller(self, lane: Lane, deadline: float) -> CallConnection:
        """Return the lane's connection for calls, a new one if there is none that works."""
        connection = self._callers.get(lane)
        if connection is not None and connection.usable():
            return connection
        dialing = self._dialing[lane]
        if not dialing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise DeadlineError(f"{self._node}: no connection in time", node=self._node)
        try:
            connection = self._callers.get(lane)
            if connection is not None:
                if connection.usable():
                    return connection
                connection.dispose()
                del self._callers[lane]
                self._turn[lane] += 1
            if self._closed:
                raise UnreachableError(f"{self._node}: this peer is closed", node=self._node)
            rails = self._rails
            stream, welcome = self._dial_caller(lane, deadline)
            self._opened(stream, welcome)
            if self._nics and self._rails is not rails:  # it told which rails there are: this one may be none of them
                stream.close()
                stream, welcome = self._dial_caller(lane, deadline)
                self._opened(stream, welcome)
            if len(rails) == 1 < len(self._rails):  # from now on another rail can take over
                stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, RAILED_USER_TIMEOUT_MS)
            connection = self._callers[lane] = CallConnection(stream, self._node)
            return connection
        finally:
            dialing.release()

    def _dial_caller(self, lane: Lane, deadline: float) -> tuple[Stream, Welcome]:
        """Connect over the rail whose turn it is, or over the next that works, or where the node was first sought.

        That may be a name, which means another address once the node has moved. When none works at once, the first that
        was only slow has the time that is left: a busy node is not a dead one.
        """
        rails = self._rails
        if len(rails) == 1:
            return rails[0].dial(lane, user_timeout_ms=CALLER_USER_TIMEOUT_MS, deadline=deadline)
        turn = self._turn[lane]
        order = [rails[(turn + number) % len(rails)] for number in range(len(rails))]
        if str(self._first.address) not in [str(rail.address) for rail in rails]:
            order.append(self._first)
        problem: PeerError | None = None
        slow: Dialer | None = None
        for dialer in order:
            last = dialer is order[-1]
            until = deadline if last else min(deadline, time.monotonic() + RAIL_CONNECT_TIMEOUT_S)
            try:
                return dialer.dial(lane, user_timeout_ms=RAILED_USER_TIMEOUT_MS, deadline=until)
            except PeerError as error:
                if isinstance(error, DeadlineError) and not last:
                    slow = slow or dialer
                problem = problem or error
                self._turn[lane] += 1
        if slow is not None and time.monotonic() < deadline:
            return slow.dial(lane, user_timeout_ms=RAILED_USER_TIMEOUT_MS, deadline=deadline)
        assert problem is not None
        raise problem

    # --- transfers -----------------------------------------------------------------------------------------------

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
        """Start reading slots straight into `destinations`. Items are reported every few MiB."""
        targets = check_transfer(refs, destinations, slot_bytes, writable=True)
        ticket = ReadTicket(len(refs), time.monotonic() + timeout_s, on_items)
        self._requests += 1
        if refs:
            requests = split(ticket, refs, targets, slot_bytes)
            queue = self._lanes[lane]
            ticket.hold(len(requests))
            ticket.abort = lambda outcome, error: queue.abort(ticket, outcome, error)
            ticket.ended = self._watchdog.forget
            try:
                self._watchdog.watch(ticket)
            except RuntimeError:  # no read goes without its deadline
                lose(requests, UnreachableError(f"{self._node}: {NO_THREAD}", node=self._node))
                return ticket
            queue.submit(requests)
            if self._stall_watch is not None:
                self._stall_watch.wake()
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
        """Fill prepared slots from `sources`, and wait until the node has them. A `PeerError` is logged, not raised."""
        views = check_transfer(refs, sources, slot_bytes, writable=False)
        deadline = time.monotonic() + timeout_s
        step = min(WRITE_ITEMS, max(1, WRITE_BYTES // slot_bytes))
        calls: list[tuple[int, PendingCall | FailoverCall]] = []
        for first in range(0, len(refs), step):
            part = list(refs[first : first + step])
            left = max(0.0, deadline - time.monotonic())
            payload = views[first : first + step]
            calls.append((len(part), self.start(Write(slot_bytes, part), payload, lane=lane, timeout_s=left)))
        outcomes: list[Outcome] = []
        for count, call in calls:
            outcomes += self._written(count, call)
        return outcomes

    def _written(self, count: int, call: PendingCall | FailoverCall) -> list[Outcome]:
        try:
            reply, _ = call.result()
        except PeerError as error:
            _log.warning("write of %d slots failed: %s", count, error)
            return [Outcome.TIMEOUT if isinstance(error, DeadlineError) else Outcome.LOST] * count
        if not isinstance(reply, Outcomes) or len(reply.outcomes) != count:
            _log.warning("%s: %s is no answer to a Write of %d slots", self._node, type(reply).__name__, count)
            return [Outcome.LOST] * count
        return reply.outcomes

    def cancel(self, ticket: Ticket) -> None:
        """Stop an operation: items without an outcome become `CANCELLED`. Wait for `drained` before reuse.

        Requests that were not sent are dropped; one in flight costs its connection, and others on it run again.
        """
        if isinstance(ticket, ReadTicket) and ticket.abort is not None and not ticket.settled:
            ticket.abort(Outcome.CANCELLED, None)

    def close(self) -> None:
        """Close all connections; pending operations fail as `LOST`/`UnreachableError`. Idempotent.

        Waits for nothing that the node does: a connection that is being made is not made, and what cannot be told so
        within `CLOSE_S` ends by itself.
        """
        self._closed = True
        self._first.openings.close()
        deadline = time.monotonic() + CLOSE_S
        for lane in Lane:
            caller = self._callers.get(lane)
            if caller is not None:
                caller.fail(UnreachableError(f"{self._node}: this peer was closed", node=self._node))
            if self._dialing[lane].acquire(timeout=max(0.0, deadline - time.monotonic())):
                try:
                    caller = self._callers.pop(lane, None)
                    if caller is not None:
                        caller.dispose()
                finally:
                    self._dialing[lane].release()
        for queue in self._lanes.values():
            queue.close(deadline)
        if self._stall_watch is not None:  # after the lanes, whose threads may have made it until then
            self._stall_watch.close()
        self._watchdog.close()

    def __enter__(self: _Peer) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
