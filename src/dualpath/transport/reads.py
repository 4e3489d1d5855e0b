"""Reads of one lane: slots pulled from a node straight into their destinations.

Theory of operation. `read` cuts its items into requests of at most `REQUEST_BYTES` or `REQUEST_ITEMS`, and queues them
for the lane. The lane has one or more connections, each with one receiver thread (`receiver`), and pulls from the queue
as its replies come in: at most `WINDOW` frames are in flight per connection, so that the node never waits for the next
one, nothing else waits behind more than that, and a faster connection takes more. Small requests that had to queue go
in one frame. A frame is sent by whoever makes room for it: the caller, if the connection is idle (no thread switch), or
the receiver thread after a reply.

A destination is let go of when its request is answered, was never sent, or its connection has been shut down and the
receiver thread has left it; the kernel writes nothing after that. So an operation that times out or is cancelled while
in flight shuts its connections down; requests of others that were in flight there go back to the front of the queue and
run on a new connection, without the items that have been reported. So do the requests of a connection that the other
end dropped: it need not be the node that died. A request that finds that no connection can be made, or whose connection
fell silent, is `LOST`. So is one with which as many connections have ended as `failover.tries_over` says: it may be
what ends them. From the first one on it goes in a frame of its own.

Over several rails each connection belongs to one of them. A rail that stalls or fails while another one works hands its
requests over to that one, and connects anew as soon as it can and there is work (`stall` watches). It leaves a request
with which it has ended to a rail of which that is not so.

Locks: `ReadLane.lock` guards the queue and every connection's table; nothing is called, sent or waited for under it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from dualpath.errors import PeerError, UnreachableError
from dualpath.transport.dial import Dialer
from dualpath.transport.receiver import WINDOW, Receiver
from dualpath.transport.requests import ReadRequest, lose
from dualpath.transport.stream import Stream
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.messages import Lane, Outcome, Welcome

RETRY_S = 0.5  # before a connection is tried again while another one works
NO_THREAD = "this process can start no more threads"


class ReadLane:
    """The queue of one lane and the connections that serve it: `connections` of them, or one for each rail."""

    def __init__(self, dialer: Dialer, lane: Lane, connections: int, opened: Callable[[Stream, Welcome], None]) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self.queue: deque[ReadRequest] = deque()
        self.lane = lane
        self.submitted = 0
        self.wanted = False
        self.closed = False
        self.opened = opened
        self.readers = [Receiver(self, dialer, number) for number in range(connections)]
        self._node = str(dialer.address)
        self._first = dialer
        self._connections = connections
        self._started = self._all_run = False  # any of the threads, all of them
        self._retired: list[Receiver] = []

    def spread(self, rails: Sequence[Dialer]) -> None:
        """Use these rails from now on, before or after `submit`.

        Connections that the lane was made with go on as the first one's, those of rails that stay as theirs. Others
        end, and what is in flight there runs again.
        """
        with self.lock:
            known: list[Receiver] = []
            gone: list[Receiver] = []
            for reader in self.readers if self._started else ():
                now = rails[0] if reader.dialer is self._first else next((r for r in rails if r == reader.dialer), None)
                if now is None:
                    reader.retire()
                    gone.append(reader)
                else:
                    reader.dialer = now
                    known.append(reader)
            each = -(-self._connections // len(rails))
            served = [reader.dialer for reader in known]
            wanted = [rail for rail in rails if rail not in served] if known else [*rails] * each
            fresh = [Receiver(self, dialer, len(known) + number) for number, dialer in enumerate(wanted)]
            self.readers = [*known, *fresh]
            self._retired = [reader for reader in self._retired if reader.thread.is_alive()] + gone
            self.work.notify_all()
            if self._started:
                self._start()
        for reader in gone:
            reader.shutdown()

    def others_live(self, reader: Receiver) -> bool:
        """Whether a connection over another rail than this one's works. Under the lock."""
        return any(other.connected and other.dialer is not reader.dialer for other in self.readers)

    def better_elsewhere(self, reader: Receiver, request: ReadRequest) -> bool:
        """Whether connections over this one's rail have ended with `request`, and one works over a rail where none has.

        Under the lock. The other one takes it as soon as it has room, and this one's turn comes if that ends too.
        """
        ended = request.ended_on
        return reader.dialer in ended and any(one.connected and one.dialer not in ended for one in self.readers)

    def share(self, reader: Receiver, most_bytes: int) -> int:
        """Return how much of the queue `reader` may take: not what rails that have nothing to do could bring as well.

        Under the lock.
        """
        idle = {one.dialer for one in self.readers if one.dialer is not reader.dialer and one.load() == 0}
        if not idle:
            return most_bytes
        queued_bytes = sum(len(request.refs) * request.slot_bytes for request in self.queue)
        return min(most_bytes, -(-queued_bytes // (1 + len(idle))))

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Queue the requests of a read, and send what the connections have room for."""
        sends = []
        with self.lock:
            refusal = "this peer is closed"
            over = self.closed or any(request.ticket.settled for request in requests)  # nobody ends it a second time
            if not over and not self._all_run and not self._start():
                over, refusal = True, NO_THREAD
            if not over:
                for request in requests:
                    self.submitted += 1
                    request.number = self.submitted
                    self.queue.append(request)
                idlest = min(self.readers, key=Receiver.load)
                while (taken := idlest.take()) is not None:
                    sends.append((idlest, taken))
                    idlest = min(self.readers, key=Receiver.load)
                if idlest.load() >= WINDOW:
                    # One more connection would help, if there is one to make: by whoever can make it.
                    self.wanted = self.wanted or not all(reader.connected for reader in self.readers)
                    if self.wanted or self.queue:
                        self.work.notify_all()
        if over:
            lose(requests, UnreachableError(f"{self._node}: {refusal}"))
        for reader, taken in sends:
            reader.send(*taken)

    def _start(self) -> bool:
        """Start the threads that do not run yet, and return whether any does: there may be no more to be had. Under the
        lock."""
        for reader in self.readers:
            if reader.thread.ident is None:
                with contextlib.suppress(RuntimeError):
                    reader.thread.start()
        self._all_run = all(reader.thread.ident for reader in self.readers)
        self._started = any(reader.thread.ident for reader in self.readers)
        return self._started

    def abort(self, ticket: ReadTicket, outcome: Outcome, error: PeerError | None) -> None:
        """End an operation early. Its items get `outcome`; it drains as soon as its connections have been shut down."""
        ticket.settle_all(outcome, error)  # first, so that nobody queues a request of it again (`requeue`)
        with self.lock:
            dropped = [request for request in self.queue if request.ticket is ticket]
            for request in dropped:
                self.queue.remove(request)
            busy = [reader for reader in self.readers if reader.carries(ticket)]
        for reader in busy:
            reader.abandon(ticket)
        for request in dropped:
            request.let_go()

    def lost_connection(self, reader: Receiver, error: PeerError, submitted: int) -> None:
        """A connection could not be made: what was queued before is lost, once that is so of every one.

        One that lives, is being made, or was not tried since may still take it. Returns once the next try may be made.
        """
        with self.lock:
            reader.dialing = False
            reader.failed = submitted
            lost = min(0 if one.connected or one.dialing else one.failed for one in self.readers)
            requests = [request for request in self.queue if request.number <= lost]
            for request in requests:
                self.queue.remove(request)
        lose(requests, error)
        if lost < submitted:
            self._feed()
            with self.lock:
                again_at = time.monotonic() + RETRY_S
                while not self.closed and (left := again_at - time.monotonic()) > 0:
                    self.work.wait(left)

    def _feed(self) -> None:
        """Let every connection that has room take what is queued."""
        for reader in self.readers:
            while reader.pull():
                pass

    def requeue(self, requests: Sequence[ReadRequest]) -> None:
        """A connection has ended: put its requests back at the front, to run on another one."""
        with self.lock:
            closed = self.closed
            ended = [request for request in requests if closed or request.ticket.settled]
            again = [request for request in requests if request not in ended]
            self.queue.extendleft(reversed(again))
            if again:
                self.work.notify_all()
        lose(ended, UnreachableError(f"{self._node}: this peer is closed"))
        self._feed()  # also what another connection has left to the one that has ended

    def close(self, deadline: float) -> None:
        """Lose everything queued or in flight, and join the threads, but one that still connects only until `deadline`
        (monotonic): it ends by itself then, and has nothing in flight."""
        with self.lock:
            self.closed = True
            requests = list(self.queue)
            self.queue.clear()
            self.work.notify_all()
            started = self._started
        lose(requests, UnreachableError(f"{self._node}: this peer was closed"))
        if started:
            for reader in (*self.readers, *self._retired):
                reader.shutdown()
            for reader in (*self.readers, *self._retired):
                if reader.thread.ident and reader.thread is not threading.current_thread():
                    reader.thread.join(max(0.0, deadline - time.monotonic()))
