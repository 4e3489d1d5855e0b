"""Requests and replies on one connection, without a thread of its own.

Theory of operation. A request is sent by the thread that makes it. Its reply is received by whichever waiting thread
holds the right to receive, the leader; it hands over replies that belong to others and gives the right up once its
own has come. A sole caller, the common case in decode, thus pays two system calls and no thread switch. A sender whose
socket is full receives in the meantime, so that both sides can never wait for each other to read.

A reply that comes after its deadline is received and dropped by the next leader. A deadline costs the connection only
if it passes within a reply, or within the payload of a request, whose memory the caller may reuse then; the rest of a
request without one goes out before the next request. A node that waits for that rest has answered all before it. An
interrupt (Ctrl-C) of a thread that sends or receives costs the connection too: it may be within a frame.

Whoever takes a call out of `_pending` ends it: its reply and its deadline never both do.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from dualpath.errors import DeadlineError, PeerError, ProtocolError, UnreachableError, UsageError
from dualpath.transport.base import Destination
from dualpath.transport.stream import NAP_S, Stream, byte_views, size_of
from dualpath.transport.timeouts import DeadlinePassed
from dualpath.wire.failures import error_of
from dualpath.wire.frames import Head
from dualpath.wire.messages import Failure, Mapped, Message

_EMPTY = memoryview(b"")


def _writable(into: Destination | None) -> Destination | None:
    """Return `into` as flat bytes. Raises `UsageError` for what cannot be written to."""
    if into is None:
        return None
    views = byte_views([into] if isinstance(into, memoryview) else into)
    if any(view.readonly and view.nbytes for view in views):
        raise UsageError("a reply cannot be received into memory that is read-only")
    return views[0] if isinstance(into, memoryview) else views


class PendingCall:
    """A call under way (the `Pending` of the contract)."""

    def __init__(
        self, connection: CallConnection | None, node: str, deadline: float, into: Destination | None = None
    ) -> None:
        self.into = into
        self._connection = connection
        self._node = node
        self.deadline = deadline
        self.request_id = 0
        self.done = False
        self._reply: tuple[Message, memoryview] | None = None
        self._descriptors: tuple[int, ...] = ()
        self._error: PeerError | None = None

    def finish(self, message: Message, payload: memoryview, descriptors: tuple[int, ...] = ()) -> None:
        """The reply is here."""
        if isinstance(message, Failure):
            self._error = error_of(message, self._node)
        else:
            self._reply = (message, payload)
        self._descriptors = descriptors
        self.done = True

    def fail(self, error: PeerError) -> None:
        """There will be no reply."""
        if not self.done:
            self._error = error
            self.done = True

    def result(self, timeout_s: float | None = None) -> tuple[Message, memoryview]:
        """Return the reply and its payload.

        Raises `PeerError`, at the latest at the call's own deadline. A shorter `timeout_s` raises `DeadlineError` but
        leaves the call under way; a payload that has begun to come is received first.
        """
        if not self.done and self._connection is not None:
            until = self.deadline if timeout_s is None else min(self.deadline, time.monotonic() + timeout_s)
            self._connection.wait(self, until)
        if self._error is not None:
            if self.into is not None and self._connection is not None:
                self._connection.stop_landing(self)
            raise self._error
        if self._reply is None:
            raise DeadlineError(f"{self._node}: no reply yet", node=self._node)
        return self._reply

    def take_descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that came with the reply; the caller owns them."""
        descriptors, self._descriptors = self._descriptors, ()
        return descriptors


class CallConnection:
    """One connection for calls. Any number of threads may use it at once."""

    def __init__(self, stream: Stream, node: str) -> None:
        self.stream = stream
        stream.wait_in_kernel()
        self.node = node
        self.error: PeerError | None = None
        self._ids = itertools.count(1)
        self._last_id = 0
        self._pending: dict[int, PendingCall] = {}
        self._landing: PendingCall | None = None  # whose reply is being received into memory of its own
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._lock = threading.Lock()  # taken by itself: an interrupt as a condition is entered would leave it taken
        self._changed = threading.Condition(self._lock)
        self._followers = 0  # threads in, or about to be in, `_changed.wait`

    def usable(self) -> bool:
        """Whether a new call has a chance here. An idle connection asks the kernel whether the peer is still there."""
        return self.error is None and (bool(self._pending) or self.stream.alive())

    def start(
        self, message: Message, payload: Sequence[Any], deadline: float, into: Destination | None = None
    ) -> PendingCall:
        """Send a request. Errors are kept for `PendingCall.result`.

        Raises `UsageError` or `TypeError` for memory that cannot be sent or written to: that concerns this call alone.
        """
        payload = byte_views(payload)
        pending = PendingCall(self, self.node, deadline, _writable(into))
        if not self._sending.acquire(blocking=False) and not self._sending.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            pending.fail(DeadlineError(f"{self.node}: busy sending earlier requests", node=self.node))
            return pending
        try:
            if self.error is not None:
                pending.fail(self.error)
                return pending
            pending.request_id = self._last_id = next(self._ids)
            self._pending[pending.request_id] = pending
            self.stream.send_frame(
                pending.request_id, message, payload, deadline=deadline, while_full=self._receive_meanwhile
            )
        except ProtocolError as error:  # too large to send; nothing was sent
            self._pending.pop(pending.request_id, None)
            pending.fail(error)
        except DeadlinePassed:
            if self._pending.pop(pending.request_id, None) is not None:
                pending.fail(DeadlineError(f"{self.node}: takes no data", node=self.node, hint="is it stopped?"))
            if self.stream.torn:
                self.fail(UnreachableError(f"{self.node}: a request was cut short at its deadline", node=self.node))
        except OSError as error:
            self.fail(UnreachableError(f"{self.node}: connection lost: {error}", node=self.node))
        except BaseException:  # bytes may have been sent that are not counted yet
            self.fail(UnreachableError(f"{self.node}: interrupted within a request", node=self.node))
            raise
        finally:
            self._sending.release()
        return pending

    def wait(self, pending: PendingCall, until: float) -> None:
        """Block until `pending` is done or the time `until` has come; then it fails if that is its own deadline."""
        while not pending.done:
            remaining = until - time.monotonic()
            if remaining <= 0:
                self._give_up(pending, until)
                return
            if self._receiving.acquire(blocking=False):
                try:
                    self._lead(pending, until)
                finally:
                    self._receiving.release()
                    self._wake_followers()
            else:
                with self._lock:
                    self._followers += 1
                    try:
                        if not pending.done and self._receiving.locked():
                            self._changed.wait(remaining)
                    finally:
                        self._followers -= 1

    def _wake_followers(self) -> None:
        """A call is done, or nobody leads. Said after that has become true, and a follower counts itself before it
        looks: so either it sees it, or it is counted here."""
        if self._followers:
            with self._lock:
                self._changed.notify_all()

    def _lead(self, pending: PendingCall, until: float) -> None:
        while not pending.done:
            try:
                self._receive_one(until, pending.deadline)
            except DeadlinePassed:
                if self.stream.in_payload or (self.stream.in_frame and until >= pending.deadline):
                    pending.fail(DeadlineError(f"{self.node}: no whole reply in time", node=self.node))
                    self.fail(UnreachableError(f"{self.node}: a reply was cut short at its deadline", node=self.node))
                return
            except PeerError as error:
                self.fail(type(error)(f"{self.node}: {error}", node=self.node, hint=error.hint))
            except OSError as error:
                self.fail(UnreachableError(f"{self.node}: connection lost: {error}", node=self.node))
            except BaseException:
                self.fail(UnreachableError(f"{self.node}: interrupted within a reply", node=self.node))
                raise

    def _receive_one(self, until: float, deadline: float) -> None:
        """Receive one reply and hand it over: it begins until `until`, and is whole by `deadline`."""
        head = self.stream.recv_head(until)
        if head is None:
            raise UnreachableError("the node closed the connection", hint="has it been stopped or restarted?")
        payload = self._receive_payload(head, deadline) if head.payload_bytes else _EMPTY
        descriptors = self._take_descriptors(head.message)
        pending = self._pending.pop(head.request_id, None)
        if pending is not None:
            pending.finish(head.message, payload, descriptors)
            self._wake_followers()
            return
        for descriptor in descriptors:  # nobody will take them
            os.close(descriptor)
        if head.request_id == 0 and isinstance(head.message, Failure):
            raise error_of(head.message, self.node)
        if not 0 < head.request_id <= self._last_id:
            raise ProtocolError(f"a reply to request {head.request_id}, which was never made")

    def _take_descriptors(self, message: Message) -> tuple[int, ...]:
        """Take what came with a reply: a receive may bring the descriptors of `Mapped` with the bytes of replies before
        it, but none beyond it (unix(7))."""
        if not isinstance(message, Mapped):
            return ()
        descriptors = tuple(self.stream.descriptors)
        self.stream.descriptors.clear()
        return descriptors

    def _receive_payload(self, head: Head, deadline: float) -> memoryview:
        """Receive a reply's payload: where its call wants it, if it fits there, else in a buffer of its own."""
        self._landing = self._pending.get(head.request_id)
        try:
            # Looked up again: who gives a call up takes it out first, and then looks at `_landing`.
            pending = self._pending.get(head.request_id)
            return self._land(head, None if pending is None else pending.into, deadline)
        finally:
            self._landing = None

    def _land(self, head: Head, into: Destination | None, deadline: float) -> memoryview:
        if isinstance(into, memoryview) and head.payload_bytes <= into.nbytes:
            targets, rest = [into[: head.payload_bytes]], into[: head.payload_bytes]
        elif into is not None and not isinstance(into, memoryview) and head.payload_bytes == size_of(into):
            targets, rest = list(into), _EMPTY
        else:
            return self.stream.recv_payload(head.payload_bytes, deadline)
        self.stream.recv_into(targets, deadline)
        self.stream.payload_done()
        return rest

    def _receive_meanwhile(self, deadline: float) -> bool:
        """While sending: take one reply, if there is one and nobody else receives, or has just received it."""
        if not self._receiving.acquire(blocking=False):
            return False
        try:
            if not self.stream.has_input:
                return False
            self._receive_one(deadline, deadline)
        except (PeerError, DeadlinePassed) as error:
            raise OSError(str(error)) from error
        finally:
            self._receiving.release()
            self._wake_followers()
        return True

    def _give_up(self, pending: PendingCall, until: float) -> None:
        if until < pending.deadline:
            return  # the caller may ask again
        if self._pending.pop(pending.request_id, None) is None:
            with self._lock:  # another thread has taken it out, and is about to end it
                self._followers += 1
                try:
                    self._changed.wait_for(lambda: pending.done, NAP_S)
                finally:
                    self._followers -= 1
        hint = "the node is alive but slow, or stopped"
        pending.fail(DeadlineError(f"{self.node}: no reply within the deadline", node=self.node, hint=hint))

    def stop_landing(self, pending: PendingCall) -> None:
        """Nothing is received for a failed call once this returns; a reply half received costs the connection."""
        if self._landing is pending:
            self.fail(UnreachableError(f"{self.node}: a reply was cut short at its deadline", node=self.node))
            with self._receiving:
                pass

    def fail(self, error: PeerError) -> None:
        """The connection is of no more use: every call under way fails with `error`. Any thread may say so."""
        if self.error is None:
            self.error = error
        self.stream.shutdown()
        while self._pending:
            try:
                self._pending.popitem()[1].fail(error)
            except KeyError:
                break
        self._wake_followers()

    def dispose(self) -> None:
        """Close for good, once no thread is inside."""
        self.fail(UnreachableError(f"{self.node}: the connection was closed", node=self.node))
        with self._sending, self._receiving:
            self.stream.close()
