"""Reads of one lane: slots pulled from a node straight into their destinations.

Theory of operation. `read` cuts its items into requests of at most `REQUEST_BYTES` or `REQUEST_ITEMS`, and queues them
for the lane. The lane has one or more connections, each with one receiver thread, and pulls requests from the queue as
its replies come in: at most `WINDOW_BYTES` (but two requests) are in flight per connection, so nothing else waits
behind more than that, and a faster connection takes more. A request is sent by whoever makes room for it: the caller,
if the connection is idle (no thread switch), or the receiver thread after a reply.

A destination is let go of when its request is answered, was never sent, or its connection has been shut down and the
receiver thread has left it; the kernel writes nothing after that. So an operation that times out or is cancelled while
in flight shuts its connections down; requests of others that were in flight there go back to the front of the queue and
run on a new connection. A connection that fails by itself loses its requests: items are `LOST`, and nothing is retried.

Locks: `ReadLane.lock` guards the queue and every connection's table; nothing is called, sent or waited for under it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from dualpath.errors import PeerError, ProtocolError, UnreachableError
from dualpath.transport.dial import READER_USER_TIMEOUT_MS, Dialer
from dualpath.transport.requests import ReadRequest
from dualpath.transport.stream import Stream
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.failures import error_of
from dualpath.wire.frames import Head
from dualpath.wire.messages import Failure, Lane, Outcome, Outcomes, Read, Welcome

WINDOW_BYTES = 8 << 20
PIECE_BYTES = 1 << 20  # how often `on_item` hears of a large reply
RETRY_S = 0.5  # before a second connection is tried again while the first one works


class ReadLane:
    """The queue of one lane and the connections that serve it."""

    def __init__(self, dialer: Dialer, lane: Lane, connections: int, opened: Callable[[Stream, Welcome], None]) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self.queue: deque[ReadRequest] = deque()
        self.dialer = dialer
        self.lane = lane
        self.submitted = 0
        self.wanted = False
        self.closed = False
        self.opened = opened
        self._readers = [Reader(self, number) for number in range(connections)]
        self._started = False

    def submit(self, requests: Sequence[ReadRequest]) -> None:
        """Queue requests, and send what the connections have room for."""
        with self.lock:
            closed = self.closed
            if not closed:
                for request in requests:
                    self.submitted += 1
                    request.number = self.submitted
                self.queue.extend(requests)
                if not self._started:
                    self._started = True
                    for reader in self._readers:
                        reader.thread.start()
        if closed:
            self._lose(requests, UnreachableError(f"{self.dialer.address}: this peer is closed"))
            return
        while self.queue and any(reader.pull() for reader in sorted(self._readers, key=Reader.load)):
            pass
        with self.lock:
            busy = all(len(reader.in_flight) > 1 for reader in self._readers if reader.connected)
            if busy and not all(reader.connected for reader in self._readers):
                self.wanted = True  # one more connection would help
            if self.wanted or self.queue:
                self.work.notify()

    def abort(self, ticket: ReadTicket, outcome: Outcome, error: PeerError | None) -> None:
        """End an operation early. Its items get `outcome`; it drains as soon as its connections have been shut down."""
        with self.lock:
            dropped = [request for request in self.queue if request.ticket is ticket]
            for request in dropped:
                self.queue.remove(request)
            busy = [reader for reader in self._readers if reader.carries(ticket)]
        ticket.settle_all(outcome, error)
        for reader in busy:
            reader.abandon(ticket)
        for request in dropped:
            request.let_go()

    def lost_connection(self, error: PeerError, submitted: int) -> None:
        """A connection could not be made: unless another one lives, what was queued before the attempt is lost."""
        with self.lock:
            others = [reader for reader in self._readers if reader.connected]
            requests = [] if others else [request for request in self.queue if request.number <= submitted]
            for request in requests:
                self.queue.remove(request)
        self._lose(requests, error)
        for reader in others:
            while reader.pull():
                pass
        if others:
            with self.lock:
                self.work.wait(RETRY_S)

    def requeue(self, requests: Sequence[ReadRequest]) -> None:
        """Put requests back at the front, to run on another connection."""
        with self.lock:
            closed = self.closed
            if not closed:
                self.queue.extendleft(reversed(requests))
        if closed:
            self._lose(requests, UnreachableError(f"{self.dialer.address}: this peer is closed"))

    def close(self) -> None:
        """Lose everything queued or in flight, and join the threads."""
        with self.lock:
            self.closed = True
            requests = list(self.queue)
            self.queue.clear()
            self.work.notify_all()
            started = self._started
        self._lose(requests, UnreachableError(f"{self.dialer.address}: this peer was closed"))
        if started:
            for reader in self._readers:
                reader.shutdown()
            for reader in self._readers:
                if reader.thread is not threading.current_thread():
                    reader.thread.join()

    @staticmethod
    def _lose(requests: Sequence[ReadRequest], error: PeerError) -> None:
        for request in requests:
            request.settle_all(Outcome.LOST, error)
            request.let_go()


class Reader:
    """One connection of a lane, and the thread that receives on it."""

    def __init__(self, lane: ReadLane, number: int) -> None:
        self._lane = lane
        self._node = str(lane.dialer.address)
        self._stream: Stream | None = None
        self._sending = threading.Lock()
        self.in_flight: dict[int, ReadRequest] = {}
        self.bytes = 0
        self._next_id = 0
        self._abandoned = False
        name = f"read-{lane.lane.name.lower()}-{number}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that takes requests."""
        return self._stream is not None and not self._abandoned

    def load(self) -> int:
        """The bytes in flight here."""
        return self.bytes

    def carries(self, ticket: ReadTicket) -> bool:
        """Whether a request of `ticket` is in flight here. Under the lane's lock."""
        return any(request.ticket is ticket for request in self.in_flight.values())

    def abandon(self, ticket: ReadTicket) -> None:
        """Shut the connection down for the sake of `ticket`, if it is still in flight."""
        with self._lane.lock:
            if not self.carries(ticket):
                return
            self._abandoned = True
        self.shutdown()

    def shutdown(self) -> None:
        """End the connection; the thread notices at once."""
        stream = self._stream
        if stream is not None:
            stream.shutdown()

    def pull(self) -> bool:
        """Take one request from the queue and send it, if there is room. Return whether one was taken."""
        lane = self._lane
        with lane.lock:
            stream = self._stream
            if stream is None or self._abandoned or not lane.queue:
                return False
            if len(self.in_flight) >= 2 and self.bytes + lane.queue[0].bytes > WINDOW_BYTES:
                return False
            request = lane.queue.popleft()
            self._next_id += 1
            request_id = self._next_id
            self.in_flight[request_id] = request
            self.bytes += request.bytes
        with self._sending:
            # The receiver thread closes a stream only under this lock; it then answers for what is in flight.
            try:
                stream.send_frame(request_id, Read(request.slot_bytes, request.refs))
            except OSError:
                stream.shutdown()
        return True

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lane = self._lane
        while True:
            with lane.lock:
                while not (lane.queue or lane.wanted or lane.closed):
                    lane.work.wait()
                if lane.closed:
                    return
                lane.wanted = False
                submitted = lane.submitted
            deadline = time.monotonic() + lane.dialer.connect_timeout_s
            try:
                stream, welcome = lane.dialer.dial(lane.lane, user_timeout_ms=READER_USER_TIMEOUT_MS, deadline=deadline)
            except PeerError as error:
                lane.lost_connection(error, submitted)
                continue
            lane.opened(stream, welcome)
            self._attach(stream)
            self._disconnect(self._receive(stream))

    def _attach(self, stream: Stream) -> None:
        with self._lane.lock:
            self._stream, self._abandoned = stream, False
            if self._lane.closed:
                stream.shutdown()

    def _receive(self, stream: Stream) -> PeerError:
        """Pull and receive until the connection ends; return why it did."""
        try:
            while self.pull():
                pass
            while (head := stream.recv_head()) is not None:
                self._take(stream, head)
            hint = "has the node been stopped or restarted?"
            return UnreachableError(f"{self._node}: the node closed the connection", node=self._node, hint=hint)
        except PeerError as error:
            return type(error)(f"{self._node}: {error}", node=self._node, hint=error.hint)
        except OSError as error:
            return UnreachableError(f"{self._node}: connection lost: {error}", node=self._node)

    def _take(self, stream: Stream, head: Head) -> None:
        """Receive the payload of one reply into its destinations, and settle its request."""
        message = head.message
        if head.request_id == 0 and isinstance(message, Failure):
            raise error_of(message, self._node)
        request = self.in_flight.get(head.request_id)
        if request is None:
            raise ProtocolError(f"a reply to request {head.request_id}, which is not in flight")
        error: PeerError | None = None
        outcomes = [Outcome.LOST] * len(request.refs)
        if isinstance(message, Outcomes) and len(message.outcomes) == len(request.refs):
            outcomes = message.outcomes
        elif isinstance(message, Failure):
            error = error_of(message, self._node)
        else:
            raise ProtocolError(f"{type(message).__name__} is no answer to a Read of {len(request.refs)} slots")
        targets = [request.destinations[i] for i, outcome in enumerate(outcomes) if outcome is Outcome.OK]
        if head.payload_bytes != len(targets) * request.slot_bytes:
            raise ProtocolError(f"{head.payload_bytes} bytes for {len(targets)} slots of {request.slot_bytes}")
        self._receive_slots(stream, request, outcomes, targets)
        with self._lane.lock:
            del self.in_flight[head.request_id]
            self.bytes -= request.bytes
        while self.pull():
            pass
        request.ticket.settle_some(request.first, outcomes, error)
        request.let_go()

    @staticmethod
    def _receive_slots(
        stream: Stream, request: ReadRequest, outcomes: Sequence[Outcome], targets: Sequence[memoryview]
    ) -> None:
        """Receive slots: all at once if nobody listens, else in pieces, so that items are reported as they come."""
        step = max(1, PIECE_BYTES // request.slot_bytes)
        if request.ticket.listened and len(targets) == len(outcomes) > step:
            for start in range(0, len(targets), step):
                stream.recv_into(targets[start : start + step])
                request.ticket.settle_some(request.first + start, outcomes[start : start + step], None)
        elif targets:
            stream.recv_into(targets)
        stream.payload_done()

    def _disconnect(self, error: PeerError) -> None:
        """The connection is over and this thread has left it: give its requests back, or up."""
        with self._sending, self._lane.lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()
            requests = [self.in_flight[number] for number in sorted(self.in_flight)]
            self.in_flight.clear()
            self.bytes = 0
            again = self._abandoned
        alive = [r for r in requests if again and not r.ticket.settled]
        for request in requests:
            if request not in alive:
                request.settle_all(Outcome.LOST, error)
                request.let_go()
        self._lane.requeue(alive)
