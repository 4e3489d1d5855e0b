"""A node's side of every stream transport: accept, shake hands, answer requests in order, one thread per connection.

Theory of operation. Blocking sockets: an idle connection costs a sleeping thread and nothing else. The payload of a
request is received straight into the buffers that `Service.sink` names; a reply's payload is gathered straight from the
service's buffers. Lanes send in their order (`turns`), and the threads of lane REALTIME run ahead of all others
(`host.scheduling`). Whatever a connection does wrong closes that one only, after a `Failure` where the stream is still
fit for one. A peer that stops in the middle of a frame, or does not take its replies, is dropped after
`stall_timeout_s`. `close()` ends and joins every thread.

At most `max_connections` are open. Somebody who has not proved to know the key keeps nobody out: when all are taken,
the connection that has been shaking hands for longest makes way.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from typing import TypeVar

from dualpath.errors import DualPathError, PeerError, ProtocolError, UsageError
from dualpath.host.scheduling import realtime
from dualpath.transport.base import Reply, Service, Session
from dualpath.transport.dial import HANDSHAKE_TIMEOUT_S, tune
from dualpath.transport.stream import Stream, size_of
from dualpath.transport.timeouts import limit_receive, limit_send
from dualpath.transport.turns import Turns
from dualpath.wire.auth import NodeHandshake, check_key
from dualpath.wire.failures import failure_of
from dualpath.wire.frames import HANDSHAKE_LIMITS, Head, Limits
from dualpath.wire.messages import Failure, FailureCode, Lane, Message, Welcome

_log = logging.getLogger(__name__)
MOST_ENDING = 64  # connections that have made way and whose threads are about to end
_Server = TypeVar("_Server", bound="StreamServer")  # `typing.Self` needs Python 3.11


class StreamServer:
    """Runs a `Service` behind a listening stream socket. Subclasses make the socket."""

    def __init__(
        self,
        service: Service,
        *,
        node_id: str,
        key: bytes | None = None,
        limits: Limits | None = None,
        max_connections: int = 256,
        stall_timeout_s: float = 30.0,
    ) -> None:
        check_key(key)
        self._service = service
        self._node_id = node_id
        self._key = key
        self._limits = limits or Limits()
        self._max_connections = max_connections
        self._stall_timeout_s = stall_timeout_s
        self._instance = secrets.token_bytes(16)
        self._listeners: list[socket.socket] = []
        self._acceptors: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open: dict[Stream, threading.Thread] = {}
        self._greeting: dict[Stream, None] = {}  # of those the ones that still shake hands, longest first
        self._closing = False
        self._turns = Turns()

    @property
    def rails(self) -> tuple[str, ...]:
        """What clients are told of other ways to this node."""
        return ()

    def _listen(self) -> list[socket.socket]:
        """Return the listening sockets."""
        raise NotImplementedError

    def start(self) -> None:
        """Listen and serve in threads of our own. Raises `UsageError` if the address cannot be used."""
        if self._acceptors:
            raise UsageError("the server has been started already")
        self._listeners = self._listen()
        name = f"{self._node_id}-accept"
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name=name, daemon=True)
            for listener in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def close(self) -> None:
        """Stop listening, drop every connection and join every thread. Idempotent."""
        with self._lock:
            self._closing = True
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for acceptor in self._acceptors:
            acceptor.join()
        for listener in self._listeners:
            listener.close()
        with self._lock:
            open_now = dict(self._open)
        for stream in open_now:
            stream.shutdown()
        for thread in open_now.values():
            thread.join()

    def __enter__(self: _Server) -> _Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- connections ---------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                _log.warning("%s: accept failed: %s", self._node_id, error)
                time.sleep(0.05)  # out of descriptors: let some connections end
                continue
            stream = Stream(sock, HANDSHAKE_LIMITS)
            name = f"{self._node_id}-{peer[0] if isinstance(peer, tuple) else 'local'}"
            thread = threading.Thread(target=self._serve, args=(stream, name), name=name, daemon=True)
            with self._lock:
                refused = self._closing or not self._make_room()
                if not refused:
                    self._open[stream] = thread
                    self._greeting[stream] = None
            if refused:
                _log.warning("%s: connection refused: %d are open", self._node_id, self._max_connections)
                stream.close()
                continue
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads: the next connection may find one
                _log.warning("%s: connection refused: %s", self._node_id, error)
                with self._lock:
                    del self._open[stream]
                    self._greeting.pop(stream, None)
                stream.close()

    def _make_room(self) -> bool:
        """Return whether one more connection may be opened. Under the lock."""
        if len(self._open) < self._max_connections:
            return True
        oldest = next(iter(self._greeting), None)
        if oldest is None or len(self._open) >= self._max_connections + MOST_ENDING:
            return False
        del self._greeting[oldest]
        oldest.shutdown()
        return True

    def _serve(self, stream: Stream, name: str) -> None:
        session: Session | None = None
        try:
            session = self._shake_hands(stream, name)
            with self._lock:
                self._greeting.pop(stream, None)
            self._set_stall_timeout(stream)
            with realtime() if session.lane is Lane.REALTIME else contextlib.nullcontext():
                while (head := self._next_head(stream)) is not None:
                    self._answer(stream, session, head)
            stream.close()
        except PeerError as error:
            self._dismiss(stream, error, name)
        except OSError as error:
            _log.debug("%s: connection lost: %s", name, error)
        finally:
            if session is not None:
                self._service.closed(session)
            with self._lock:
                stream.close()
                self._open.pop(stream, None)
                self._greeting.pop(stream, None)

    def _dismiss(self, stream: Stream, error: PeerError, name: str) -> None:
        """Tell the peer what it did wrong, if it still listens, and close."""
        _log.info("%s: closing the connection: %s", name, error)
        with contextlib.suppress(OSError):
            stream.send_frame(0, failure_of(error), deadline=time.monotonic() + 0.2)
            stream.linger_close()

    def _shake_hands(self, stream: Stream, name: str) -> Session:
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        shake = NodeHandshake(self._key)
        tune(stream.sock)
        stream.send_frame(0, shake.challenge(_message(stream, deadline)), deadline=deadline)
        hello = shake.accept(_message(stream, deadline))
        stream.send_frame(0, Welcome(self._node_id, self._instance, self.rails), deadline=deadline)
        tune(stream.sock, hello.lane)
        stream.parser.limits = self._limits
        return Session(peer=name, tenant=hello.tenant, lane=hello.lane, owner=hello.owner)

    def _set_stall_timeout(self, stream: Stream) -> None:
        limit_receive(stream.sock, self._stall_timeout_s)
        limit_send(stream.sock, self._stall_timeout_s)

    def _next_head(self, stream: Stream) -> Head | None:
        """Return the next request's head. An idle connection may wait for ever; a begun frame may not."""
        while True:
            try:
                return stream.recv_head()
            except BlockingIOError:
                if stream.in_frame:
                    raise TimeoutError("the peer stopped in the middle of a frame") from None

    # --- requests ------------------------------------------------------------------------------------------------

    def _answer(self, stream: Stream, session: Session, head: Head) -> None:
        reply = self._handle(stream, session, head)
        sending = self._turns.enter(session.lane)
        try:
            stream.send_frame(
                head.request_id,
                reply.message,
                reply.payload,
                descriptors=reply.descriptors,
                turn=lambda: self._turns.wait(sending),
            )
        finally:
            self._turns.leave(sending)
            if reply.release is not None:
                reply.release()

    def _handle(self, stream: Stream, session: Session, head: Head) -> Reply:
        """Receive the payload and ask the service. Whatever the service raises becomes a `Failure`."""
        payload, size = memoryview(b""), head.payload_bytes
        if size:
            try:
                sink = self._service.sink(session, head.message, size)
                if sink is not None and size_of(sink) != size:
                    raise UsageError(f"a sink of {size_of(sink)} bytes for a payload of {size}")
            except Exception as error:  # noqa: BLE001 a bug in the service must not take the connection down
                stream.discard(size)
                return self._failed(head, error)
            if sink is None:
                payload = stream.recv_payload(size)
            else:
                stream.recv_into(sink)
                stream.payload_done()
        try:
            return self._service.handle(session, head.message, payload)
        except Exception as error:  # noqa: BLE001 as above
            return self._failed(head, error)

    def _failed(self, head: Head, error: Exception) -> Reply:
        if isinstance(error, DualPathError):
            return Reply(failure_of(error))
        name = type(head.message).__name__
        _log.error("%s: %s failed", self._node_id, name, exc_info=error)
        return Reply(Failure(FailureCode.INTERNAL, f"{name} failed inside the node: {type(error).__name__}"))


def _message(stream: Stream, deadline: float) -> Message:
    head = stream.recv_head(deadline)
    if head is None:
        raise ProtocolError("the connection ended during the handshake")
    return head.message
