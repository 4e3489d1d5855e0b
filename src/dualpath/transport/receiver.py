"""One connection that reads: what is in flight there, and the thread that receives it. See `reads` for the whole.

Theory of operation. What Python does for a reply runs in a cold cache, between megabytes, and each of its bytecodes
costs several times what it costs in a loop. So there is little of it per frame and nearly none per item: the head comes
with one system call, the slots of a frame with one more, and the next request goes out before the reply is reported.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from dualpath.errors import PeerError, ProtocolError, TruncatedError, UnreachableError
from dualpath.transport.credit import Credit
from dualpath.transport.dial import READER_USER_TIMEOUT_MS, is_same_host
from dualpath.transport.failover import tries_over
from dualpath.transport.requests import Batch
from dualpath.transport.tcpinfo import tcp_info
from dualpath.wire.failures import error_of
from dualpath.wire.messages import Failure, Outcome, Outcomes, Read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dualpath.transport.dial import Dialer
    from dualpath.transport.reads import ReadLane
    from dualpath.transport.stream import Stream
    from dualpath.transport.ticket import ReadTicket
    from dualpath.wire.frames import Head

WINDOW = 2  # frames in flight: one that is being received, and one that the node turns to next
PIECE_BYTES = 4 << 20  # how often `on_items` hears of a large reply


class Receiver:
    """One connection of a lane over one rail, and the thread that receives on it."""

    def __init__(self, lane: ReadLane, dialer: Dialer, number: int) -> None:
        self._lane = lane
        self.dialer = dialer
        self._node = str(dialer.address)
        self._credit = Credit()
        self.dialing = False
        self.retired = False
        self.failed = 0
        """The last request that was queued when no connection could be made."""
        self._near = True
        self.heard_at = 0.0
        """When something was last heard of a request in flight, or it was sent while nothing else was in flight."""
        self.bytes_received = 0
        """Of slots, over all connections."""
        self._stream: Stream | None = None
        self._sending = threading.Lock()
        self.in_flight: dict[int, Batch] = {}
        self._next_id = 0
        self._abandoned = False
        name = f"read-{lane.lane.name.lower()}-{number}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that takes requests."""
        return self._stream is not None and not self._abandoned

    def load(self) -> int:
        """The frames in flight here; a connection that takes none has as many as it could have."""
        return len(self.in_flight) if self._stream is not None and not self._abandoned else WINDOW

    def stalled(self, limit_s: float) -> bool:
        """Whether something is in flight and nothing has come in for `limit_s`. Under the lane's lock."""
        if self._stream is None or self._abandoned or not self.in_flight:
            return False
        if time.monotonic() - self.heard_at < limit_s:
            return False
        info = tcp_info(self._stream.sock)
        return info is not None and info.quiet_s >= limit_s

    def give_up(self) -> Stream:
        """Take nothing more on this connection; what is in flight runs elsewhere once it has been shut down, and that
        is left to the caller: by then, this thread may have another one. Under the lane's lock, while there is one."""
        assert self._stream is not None
        self._abandoned = True
        return self._stream

    def retire(self) -> None:
        """Its rail is no more: take nothing, and end after `shutdown`. Under the lane's lock."""
        self.retired = self._abandoned = True

    def carries(self, ticket: ReadTicket) -> bool:
        """Whether a request of `ticket` is in flight here. Under the lane's lock."""
        return any(part.ticket is ticket for batch in self.in_flight.values() for part in batch.parts)

    def abandon(self, ticket: ReadTicket) -> None:
        """Shut the connection down for the sake of `ticket`, if it is still in flight."""
        with self._lane.lock:
            stream = self.give_up() if self.carries(ticket) else None
        if stream is not None:
            stream.shutdown()

    def shutdown(self) -> None:
        """End the connection; the thread notices at once."""
        stream = self._stream
        if stream is not None:
            stream.shutdown()

    def pull(self) -> bool:
        """Take a frame's worth from the queue and send it, if there is room. Return whether something was taken."""
        with self._lane.lock:
            taken = self.take()
        if taken is None:
            return False
        self.send(*taken)
        return True

    def take(self) -> tuple[Stream, int, Batch] | None:
        """Under the lane's lock: put a frame's worth from the queue in flight, if there is room."""
        stream, queue = self._stream, self._lane.queue
        if stream is None or self._abandoned or not queue or len(self.in_flight) >= WINDOW:
            return None
        if queue[0].ended_on and self._lane.better_elsewhere(self, queue[0]):
            return None
        batch = Batch.pop(queue, self._lane.share(self, self._credit.frame_bytes))
        if not self.in_flight:
            self.heard_at = time.monotonic()
        self._next_id += 1
        self.in_flight[self._next_id] = batch
        return stream, self._next_id, batch

    def send(self, stream: Stream, request_id: int, batch: Batch) -> None:
        """Ask for what `take` returned."""
        with self._sending:
            # The receiver thread closes a stream only under this lock; it then answers for what is in flight.
            try:
                stream.send_frame(request_id, Read(batch.slot_bytes, batch.refs))
            except OSError:
                batch.unsent = True  # the connection was dead already: the next one may take it
                stream.shutdown()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lane = self._lane
        while True:
            with lane.lock:
                while not (lane.queue or lane.wanted or lane.closed or self.retired):
                    lane.work.wait()
                if lane.closed or self.retired:
                    return
                lane.wanted = False
                submitted = lane.submitted
                self.dialing = True
            try:
                stream, welcome = self.dialer.dial(lane.lane, user_timeout_ms=READER_USER_TIMEOUT_MS)
            except PeerError as error:
                lane.lost_connection(self, error, submitted)
                continue
            lane.opened(stream, welcome)
            self._attach(stream)
            self._disconnect(*self._receive(stream))

    def _attach(self, stream: Stream) -> None:
        with self._lane.lock:
            self._stream, self._abandoned, self.dialing, self.failed = stream, self.retired, False, 0
            self._near = is_same_host(stream.sock)
            self._credit.connected()
            if self._lane.closed or self.retired:
                stream.shutdown()

    def _receive(self, stream: Stream) -> tuple[PeerError, bool]:
        """Pull and receive until the connection ends; return why it did, and whether the other end dropped it."""
        try:
            while self.pull():
                pass
            while (head := stream.recv_head()) is not None:
                self._answered(stream, head)
            hint = "has the node been stopped or restarted?"
            return UnreachableError(f"{self._node}: the node closed the connection", node=self._node, hint=hint), True
        except PeerError as error:
            named = type(error)(f"{self._node}: {error}", node=self._node, hint=error.hint)
            return named, isinstance(error, TruncatedError)
        except OSError as error:
            lost = UnreachableError(f"{self._node}: connection lost: {error}", node=self._node)
            return lost, isinstance(error, ConnectionError)

    def _answered(self, stream: Stream, head: Head) -> None:
        """Receive the payload of one reply into its destinations, ask for more, and report the items."""
        message = head.message
        if head.request_id == 0 and isinstance(message, Failure):
            raise error_of(message, self._node)
        batch = self.in_flight.get(head.request_id)
        if batch is None:
            raise ProtocolError(f"a reply to request {head.request_id}, which is not in flight")
        error: PeerError | None = None
        outcomes: Sequence[Outcome]
        if isinstance(message, Outcomes) and len(message.outcomes) == len(batch.refs):
            outcomes = message.outcomes
            targets = batch.destinations(outcomes)
        elif isinstance(message, Failure):
            error = error_of(message, self._node)
            outcomes, targets = [Outcome.LOST] * len(batch.refs), ()
        else:
            raise ProtocolError(f"{type(message).__name__} is no answer to a Read of {len(batch.refs)} slots")
        if head.payload_bytes != len(targets) * batch.slot_bytes:
            raise ProtocolError(f"{head.payload_bytes} bytes for {len(targets)} slots of {batch.slot_bytes}")
        self._receive_slots(stream, batch, outcomes, targets)
        now = time.monotonic()
        with self._lane.lock:
            self._credit.answered(head.payload_bytes, now - self.heard_at)
            self.bytes_received += head.payload_bytes
            self.heard_at = now
            del self.in_flight[head.request_id]
            taken = self.take()
        if taken is not None:
            self.send(*taken)
        batch.finish(outcomes, error)
        self._offer_window(stream)

    def _offer_window(self, stream: Stream) -> None:
        """Bound what is on the way to here by what the path takes without queueing."""
        if self._near:
            return
        info = tcp_info(stream.sock)
        window = None if info is None else self._credit.round_trip(info.rtt_s, info.min_rtt_s)
        if window is not None:
            with contextlib.suppress(OSError):  # a hint; the connection may have been shut down
                stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)

    @staticmethod
    def _receive_slots(
        stream: Stream, batch: Batch, outcomes: Sequence[Outcome], targets: Sequence[memoryview]
    ) -> None:
        """Receive slots: all at once if nobody listens, else in pieces, so that items are reported as they come."""
        step = max(1, PIECE_BYTES // batch.slot_bytes)
        if batch.listened and len(targets) == len(outcomes) > step:
            for start in range(0, len(targets), step):
                stream.recv_into(targets[start : start + step])
                batch.settle(start, outcomes[start : start + step])
        elif targets:
            stream.recv_into(targets)
        stream.payload_done()

    def _disconnect(self, error: PeerError, dropped: bool) -> None:
        """The connection is over and this thread has left it: give its requests back, or up."""
        with self._sending, self._lane.lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()
            batches = [self.in_flight[number] for number in sorted(self.in_flight)]
            self.in_flight.clear()
            ours = self._abandoned  # who shut it down is here: no request is to blame
            again = dropped or self._lane.others_live(self)
            most = tries_over(len(self._lane.readers))
        alive = []
        for batch in batches:
            for request in batch.parts:
                if not ours:
                    request.ended_on += (self.dialer,)
                tries = len(request.ended_on)
                retry = ours or ((again or batch.unsent) and tries < most)
                retry = retry and not request.ticket.settled
                if retry:
                    request.skip_settled()
                if retry and request.refs:
                    alive.append(request)
                else:
                    request.finish([Outcome.LOST] * len(request.refs), _after(tries, error))
        self._lane.requeue(alive)


def _after(tries: int, error: PeerError) -> PeerError:
    """Return why the last of `tries` connections ended, and that there were so many."""
    if tries < 2:
        return error
    text = f"{error} ({tries} connections ended with this read under way)"
    return type(error)(text, node=error.node, hint=error.hint)
